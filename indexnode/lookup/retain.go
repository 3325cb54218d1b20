package lookup

import (
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/indexnode/store"
)

// Retention drops records in the store as the log says, whatever the time of day: by age
// against the newest timestamp of the log (the partition's clock), and by count with each
// record that comes. The cache must not show more than the store would:
//
//   - A cached timeline of a type that is bounded by count does not get new records, since
//     the cache does not know which records they push out. It is removed and read again.
//   - Records that are too old stay in the cache. Instead, a question's window is cut to what
//     retention keeps at the partition's clock, which is read together with its offsets.

// Ages reports whether retention bounds any type by age.
func Ages(kept map[millrace.ContentType]store.Retention) bool {
	for _, r := range kept {
		if r.MaxAge > 0 {
			return true
		}
	}
	return false
}

// oldest returns the oldest time that retention keeps of a type when the partition's clock is
// at clock.
func (l *Lookup) oldest(t millrace.ContentType, clock millrace.Time) millrace.Time {
	if r := l.retention[t]; r.MaxAge > 0 {
		return clock - millrace.Time(r.MaxAge.Milliseconds())
	}
	return math.MinInt64
}

// keeps cuts the window of what is added to q next, to what retention keeps of a type at the
// clock of v's partition.
func (l *Lookup) keeps(q *query.Query, t millrace.ContentType, v *view) {
	if l.aged {
		q.NotBefore(l.oldest(t, v.Clock))
	}
}
