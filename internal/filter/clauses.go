package filter

import (
	"math"
	"math/bits"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// Clauses is a bound filter that says for each row which clause dropped it: the
// first term of the outermost && that is false, or else the first that has no
// value. It keeps the same rows as [Bound]. It runs every clause on every row, so
// it is for explaining single records; [Filter.BindCounting] is for many. One
// goroutine at a time may use it.
type Clauses struct {
	clauses []kernel
	at      batch
	dropped []Dropped // of the rows last judged
}

// Dropped says which clause dropped a row, and why. Its zero value is a row that was kept.
type Dropped struct {
	Clause  int // its place in [Filter.Sources]
	Outcome Outcome
}

// Outcome is what a clause, or a filter, says of a row.
type Outcome uint8

// The outcomes. Only Kept keeps a row; for the others see the fields of [Counts].
const (
	Kept Outcome = iota
	False
	Null
	Error
	NaN
)

func (o Outcome) String() string { return [...]string{"kept", "false", "null", "error", "nan"}[o] }

// Add counts a row.
func (c *Counts) Add(o Outcome) {
	switch o {
	case False:
		c.False++
	case Null:
		c.Null++
	case Error:
		c.Error++
	case NaN:
		c.NaN++
	}
}

// Sources returns the filter's clauses as CEL.
func (f *Filter) Sources() []string {
	sources := make([]string, len(f.terms))
	for i, n := range f.terms {
		sources[i] = n.Source()
	}
	return sources
}

// BindClauses is [Filter.Bind] for [Clauses]: the filter says for each row why it dropped
// it.
func (f *Filter) BindClauses(layout, entity *column.Layout, viewer *millrace.Viewer, asOf millrace.Time) (*Clauses, error) {
	bd := &binder{layout: layout, entity: entity, viewer: viewer, asOf: asOf, patterns: f.patterns}
	c := &Clauses{}
	for _, n := range f.terms {
		c.clauses = append(c.clauses, boolean(bd.build(n)))
	}
	return c, bd.err
}

// Judge returns for each row of sel, in its order, what dropped it. The slice is valid
// until the next call.
func (c *Clauses) Judge(rows *column.Slab, sel []int32, entity *column.Slab) []Dropped {
	c.at = batch{rows: rows, entity: entity, sel: sel}
	c.dropped = append(c.dropped[:0], make([]Dropped, len(sel))...)
	for n, k := range c.clauses {
		values := k.eval(&c.at)
		for i := range sel {
			o := outcomeOf(k, values, i)
			d := &c.dropped[i]
			switch { // what is false decides over an error before it
			case o == Kept || d.Outcome.decides():
			case d.Outcome == Kept || o.decides():
				*d = Dropped{n, o}
			}
		}
	}
	c.at = batch{}
	return c.dropped
}

// decides reports whether a clause alone makes the filter false.
func (o Outcome) decides() bool { return o == False || o == NaN }

// outcomeOf returns what a clause says of the i-th row of a batch, by its kernel and the
// vector that the kernel has just returned.
func outcomeOf(k kernel, values *vector, i int) Outcome {
	switch {
	case values.states[i] == failed:
		return Error
	case values.states[i] != present:
		return Null
	case values.words[i] != 0:
		return Kept
	}
	if c, ok := k.(*compare); ok && c.comparedNaN(i) {
		return NaN
	}
	return False
}

// Operand is something that a clause reads, with its value.
type Operand struct {
	Name  string // such as record.likes
	Value any    // nil, bool, int64, float64, string, [millrace.Time], []float64 or []string
}

// Operands returns what the n-th clause reads for a row, each name once, in the
// order of the source. entity and viewer may be nil.
func (f *Filter) Operands(n int, rows *column.Slab, row int, entity *column.Slab, viewer *millrace.Viewer, asOf millrace.Time) []Operand {
	var all []Operand
	var walk func(*expr.Node)
	walk = func(n *expr.Node) {
		o := Operand{Name: n.String()}
		switch n.Op {
		case expr.Record:
			o.Value = valueAt(rows, n, row)
		case expr.Entity:
			if entity != nil && entity.Len() > 0 {
				o.Value = valueAt(entity, n, 0)
			}
		case expr.Viewer:
			if viewer != nil {
				o.Value, _ = viewer.Value(n.Name)
			}
		case expr.AsOf:
			o.Value = asOf
		default:
			for _, a := range n.Args {
				walk(a)
			}
			return
		}
		if !slices.ContainsFunc(all, func(met Operand) bool { return met.Name == o.Name }) {
			all = append(all, o)
		}
	}
	walk(f.terms[n])
	return all
}

// valueAt returns a field of a row, nil where it is null or the layout does not
// have the field with its type.
func valueAt(s *column.Slab, n *expr.Node, row int) any {
	i := s.Layout().Index(n.Name)
	if i < 0 || !fits(n, s.Layout().Fields()[i]) || s.Null(i, row) {
		return nil
	}
	w := s.Word(i, row)
	switch s.Layout().Fields()[i].Kind {
	case column.Bool:
		return w != 0
	case column.Int:
		return int64(w)
	case column.Time:
		return millrace.Time(w)
	case column.Double:
		return math.Float64frombits(w)
	case column.Doubles:
		return s.Doubles([]float64{}, w)
	case column.Strings:
		return s.Strings([]string{}, w)
	}
	return s.String(w)
}

// BindCounting is [Filter.Bind] for a filter that also counts what each clause drops; see
// [Bound.ClauseCounts]. It uses no generated code, since that runs several clauses
// at once.
func (f *Filter) BindCounting(layout, entity *column.Layout, viewer *millrace.Viewer, asOf millrace.Time) (*Bound, error) {
	b := &Bound{filter: f, layout: layout, entityLayout: entity, clauses: make([]clause, len(f.terms))}
	return b, b.bind(viewer, asOf)
}

// clause is what a clause of a filter has dropped.
type clause struct {
	counts        Counts
	unfit, failed compute.Mask // rows of the chunk at hand for which it is the first clause without a value
	some          bool         // unfit or failed has bits
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

// collect counts, at the end of a chunk, the rows in unfit and failed that no later clause
// was false for.
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

// ClauseCounts returns how many rows the n-th clause dropped since BindCounting, or the
// last Rebind: rows for which it is the first clause that is false, or else the first
// without a value. Call it only on a Bound of [Filter.BindCounting].
func (b *Bound) ClauseCounts(n int) Counts { return b.clauses[n].counts }
