package query

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

const (
	// lookEvery is how many bytes of texts and items of lists a model reads before it
	// is looked whether anybody waits: some tens of milliseconds of a processor.
	lookEvery = 16 << 20
	// pieceTime is what a piece takes of a model each record of which takes as much
	// as any may.
	pieceTime = 5 * time.Millisecond
	leastRows = 16 // of a piece, as far as that goes
	// beginRows is of the first piece of a question. Each is twice as large as the
	// one before that took no more than it may: where a version is far too slow,
	// many questions are at their first piece at once, and it is to be seen soon.
	beginRows = 64
)

// pieces is how many rows models score before anything is looked at.
type pieces struct {
	most     int           // rows
	limit    time.Duration // for each, but for what is read of it
	readings relevance.Readings
}

// slabs are what a batch is scored from; of entity and objects nil where there is
// nothing.
type slabs struct{ rows, entity, objects *column.Slab }

func (l *pieces) bind(readings relevance.Readings, models ...*relevance.Model) {
	l.limit, l.readings = 0, readings
	for _, m := range models {
		l.limit += m.CostLimit()
	}
	l.most = max(int(pieceTime/l.limit), leastRows)
}

// next returns how many of the rows sel are scored next, at least one and at most
// so many, and how many bytes of texts and items of lists are read for that: what a
// row takes depends on how long these are, and the count of rows says little.
func (l *pieces) next(of slabs, sel []int32, most int) (rows, read int) {
	sel = sel[:min(l.most, most, len(sel))]
	if l.readings.None() {
		return len(sel), 0
	}
	once, each := 0, 0
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

// pieces has models score the rows sel, from lo up to hi at a time, and counts what
// that takes. The error is that of who watches, or of ctx, once nobody waits.
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
