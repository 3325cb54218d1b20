package query

import (
	"context"

	"github.com/millrace/millrace/internal/column"
)

// lookEvery is how many bytes of texts and lists a model reads before it is looked
// whether anybody waits: some tens of milliseconds of a processor.
const lookEvery = 16 << 20

// lengthy is what a model reads from end to end: what a row takes depends on how
// long its texts and lists are, and the count of rows says little.
type lengthy struct {
	readings int   // operations that read a text or a list
	columns  []int // of texts and lists
}

func (l *lengthy) bind(readings int, rows *column.Layout, columns []int) {
	l.readings, l.columns = readings, l.columns[:0]
	if readings == 0 {
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

// piece returns how many of the rows sel are scored before anything is looked at,
// at least one.
func (l *lengthy) piece(rows *column.Slab, sel []int32) int {
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
// that takes. The error is that of ctx, once nobody waits.
func (q *Query) pieces(ctx context.Context, s *spent, l *lengthy, rows *column.Slab, sel []int32, by func(lo, hi int)) error {
	for lo := 0; lo < len(sel); {
		hi := lo + l.piece(rows, sel[lo:])
		q.count(s, hi-lo, func() { by(lo, hi) })
		if lo = hi; lo < len(sel) {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}
