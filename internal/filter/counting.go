package filter

import (
	"math/bits"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// BindCounting is [Filter.Bind] for who asks what each clause drops as well; see
// [Bound.ClauseCounts]. It runs no generated code, which does several clauses
// at once.
func (f *Filter) BindCounting(layout, entity *column.Layout, viewer *millrace.Viewer, asOf millrace.Time) (*Bound, error) {
	b := &Bound{filter: f, layout: layout, entityLayout: entity, clauses: make([]clause, len(f.terms))}
	return b, b.bind(viewer, asOf)
}

// clause is what a clause of a filter dropped, and of the chunk at hand the rows
// of which it was the first without a value.
type clause struct {
	counts        Counts
	unfit, failed compute.Mask
	some          bool // unfit or failed has bits
}

// apply takes the verdict of the clause over, and reports whether rows are left.
func (c *clause) apply(b *Bound, n int) (left bool) {
	s, v := &b.state, &b.verdict
	wasFalse, wasNaN := s.False, s.NaN
	for i := range n {
		unfit, failed := s.Live[i]&v.unfit[i], s.Live[i]&v.failed[i]
		if c.some = c.some || unfit|failed != 0; c.some {
			c.unfit[i], c.failed[i] = unfit, failed
		}
	}
	left = b.apply(n)
	c.counts.False += s.False - wasFalse
	c.counts.NaN += s.NaN - wasNaN
	return left
}

// collect counts the rows of the chunk that no other clause decided.
func (c *clause) collect(s *compute.State, n int) {
	if !c.some {
		return
	}
	for i := range n {
		c.counts.Null += int64(bits.OnesCount64(c.unfit[i] & s.Unfit[i]))
		c.counts.Error += int64(bits.OnesCount64(c.failed[i] & s.Failed[i]))
	}
	c.unfit, c.failed, c.some = compute.Mask{}, compute.Mask{}, false
}

// ClauseCounts returns how many rows the n-th clause dropped since Bind: rows of
// which it is the first that is false, or else the first without a value.
func (b *Bound) ClauseCounts(n int) Counts { return b.clauses[n].counts }
