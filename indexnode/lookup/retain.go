package lookup

import (
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/indexnode/store"
)

// Retention drops records in the store by the log alone: by age against the
// log's clock, by count with each record that comes. What is cached must not
// show more than the store would:
//
//   - A timeline that retention bounds by count is not continued, since the
//     cache does not know what falls out at its end; it is read anew.
//   - Records that are too old stay where they are, and a question's window is
//     cut to what the partition's clock, read with its offsets, keeps.

// Ages reports whether any type is kept by age.
func Ages(kept map[millrace.ContentType]store.Retention) bool {
	for _, r := range kept {
		if r.MaxAge > 0 {
			return true
		}
	}
	return false
}

// oldest returns the oldest time that is kept of a type at an instant of the
// log.
func (l *Lookup) oldest(t millrace.ContentType, clock millrace.Time) millrace.Time {
	if r := l.retention[t]; r.MaxAge > 0 {
		return clock - millrace.Time(r.MaxAge.Milliseconds())
	}
	return math.MinInt64
}

// keeps cuts the window of what is added to q next to what is kept of a type.
func (l *Lookup) keeps(q *query.Query, t millrace.ContentType, v *view) {
	if l.aged {
		q.NotBefore(l.oldest(t, v.Clock))
	}
}
