package query

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

const (
	// lookEvery is how many bytes of texts and items of lists models read in a piece at
	// most, but for its last row: some tens of milliseconds of CPU.
	lookEvery = 16 << 20
	// pieceTime is how long a piece takes at most if each row takes as long as the model
	// may, without what is read of texts and lists. A piece of leastRows may take longer.
	pieceTime = 5 * time.Millisecond
	// leastRows is how many rows pieces.most is at least.
	leastRows = 16
	// beginRows is how many rows the first piece of a question has at most. The bound
	// doubles with each piece that took no longer than it may. If a version of a model
	// is far too slow, many questions are at their first piece at once, and the first
	// pieces must show it soon.
	beginRows = 64
)

// pieces says how many rows models score at a time. After each such piece the watcher and
// the context are looked at.
type pieces struct {
	most     int                // the most rows of a piece
	limit    time.Duration      // how long one row may take in all models, without what is read of texts and lists
	readings relevance.Readings // which texts and lists the models read
}

// slabs are what a batch is scored from. entity and objects are nil if there are no such
// features, or none are read.
type slabs struct{ rows, entity, objects *column.Slab }

// bind sets l for models that score the same rows. readings is what they read from end to
// end of each row.
func (l *pieces) bind(readings relevance.Readings, models ...*relevance.Model) {
	l.limit, l.readings = 0, readings
	for _, m := range models {
		l.limit += m.CostLimit()
	}
	l.most = max(int(pieceTime/l.limit), leastRows)
}

// next returns how many of the rows sel are scored next, from one to most, and how many
// bytes of texts and items of lists are read for that. It counts these because they, more
// than the number of rows, decide how long a piece takes.
func (l *pieces) next(of slabs, sel []int32, most int) (rows, read int) {
	sel = sel[:min(l.most, most, len(sel))]
	if l.readings.None() {
		return len(sel), 0
	}
	once, each := 0, 0 // what is read of the entity: once for a piece, and again for each row
	for i := range l.readings.Entity {
		r := &l.readings.Entity[i]
		n := r.Length(of.entity, 0)
		once, each = once+r.Once*n, each+r.Each*n
	}
	all := once + each*len(sel)
	for i := range l.readings.Record {
		r := &l.readings.Record[i]
		all += r.Each * r.Lengths(of.rows, sel)
	}
	for i := range l.readings.Object {
		r := &l.readings.Object[i]
		all += r.Each * r.Lengths(of.objects, sel)
	}
	if all-once <= lookEvery {
		return len(sel), all
	}
	for i, row := range sel {
		read += each
		for k := range l.readings.Record {
			r := &l.readings.Record[k]
			read += r.Each * r.Length(of.rows, int(row))
		}
		for k := range l.readings.Object {
			r := &l.readings.Object[k]
			read += r.Each * r.Length(of.objects, int(row))
		}
		if read > lookEvery {
			return i + 1, once + read
		}
	}
	return len(sel), once + read
}

// pieces scores the rows sel, a piece at a time, by calls of by, which scores sel[lo:hi].
// It adds the time to s. The error is that of s.watcher, which ends the scan, or of ctx.
func (q *Query) pieces(ctx context.Context, s *spent, l *pieces, of slabs, sel []int32, by func(lo, hi int)) error {
	for lo := 0; lo < len(sel); {
		n, read := l.next(of, sel[lo:], beginRows<<s.grown)
		hi := lo + n
		took := q.count(s, func() { by(lo, hi) })
		if took <= time.Duration(n)*l.limit+time.Duration(read)*relevance.ReadLimit && beginRows<<s.grown < batchRows {
			s.grown++
		}
		if s.watcher != nil {
			if err := s.watcher.Scored(n, read, took); err != nil {
				return err
			}
		}
		if lo = hi; lo < len(sel) {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}
