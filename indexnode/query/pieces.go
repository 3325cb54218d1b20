package query

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

const (
	// lookEvery is how many bytes of texts and lists a model reads before it is
	// looked whether anybody waits: some tens of milliseconds of a processor.
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
	most  int           // rows
	limit time.Duration // for each
	// What models read from end to end: what a row takes depends on how long its
	// texts and lists are, and the count of rows says little.
	readings int   // operations that read a text or a list
	columns  []int // of texts and lists
}

func (l *pieces) bind(rows *column.Layout, columns []int, models ...*relevance.Model) {
	l.limit, l.readings, l.columns = 0, 0, l.columns[:0]
	for _, m := range models {
		l.limit += m.CostLimit()
		l.readings += m.Readings()
	}
	l.most = max(int(pieceTime/l.limit), leastRows)
	if l.readings == 0 {
		return
	}
	fields := rows.Fields()
	for _, c := range columns {
		switch fields[c].Kind {
		case column.String, column.Strings, column.Doubles:
			l.columns = append(l.columns, c)
		}
	}
}

// next returns how many of the rows sel are scored next, at least one and at most
// so many.
func (l *pieces) next(rows *column.Slab, sel []int32, most int) int {
	sel = sel[:min(l.most, most, len(sel))]
	if len(l.columns) == 0 {
		return len(sel)
	}
	left := lookEvery / l.readings
	for i, row := range sel {
		for _, c := range l.columns {
			left -= rows.Size(c, int(row))
		}
		if left < 0 {
			return i + 1
		}
	}
	return len(sel)
}

// pieces has models score the rows sel, from lo up to hi at a time, and counts what
// that takes. The error is that of who watches, or of ctx, once nobody waits.
func (q *Query) pieces(ctx context.Context, s *spent, l *pieces, rows *column.Slab, sel []int32, by func(lo, hi int)) error {
	for lo := 0; lo < len(sel); {
		hi := lo + l.next(rows, sel[lo:], beginRows<<s.grown)
		took := q.count(s, func() { by(lo, hi) })
		if took <= time.Duration(hi-lo)*l.limit && beginRows<<s.grown < batchRows {
			s.grown++
		}
		if s.watcher != nil {
			if err := s.watcher.Scored(hi-lo, took); err != nil {
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
