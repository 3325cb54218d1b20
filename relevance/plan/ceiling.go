package plan

import (
	"math"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// Ceilings bounds from above what is added to the folded part of a record's score (see
// [Plan.Split]), by interval arithmetic over the values of the plan. A scan for the best N
// records knows the lowest score among the best N so far (the floor). It leaves out, without
// scoring them, the records that cannot reach the floor. This is the idea of WAND (Broder et
// al., CIKM 2003), for scores that are sums.
//
// Each value has a span of numbers that contains it, unless the value is NaN. A score that
// is NaN ranks last, so no bound needs to hold for it.
type Ceilings struct {
	p        *Plan
	m        *Machine
	time     int    // the place in p.Record of the record's time, or -1
	added    []int  // the values that are added to the folded part
	logistic bool   // the score is the sigmoid of the sum
	columns  []int  // the columns that Limits asks about
	spans    []span // by value
	timed    []int  // the values that change with the record's time
}

// span is the numbers from lo to hi, both included; lo and hi may be infinite. A boolean is 0
// or 1.
type span struct{ lo, hi float64 }

var (
	anything = span{math.Inf(-1), math.Inf(1)}
	either   = span{0, 1}
)

// Ceilings returns bounds for the machine's plan, which is the rest that [Plan.Split]
// returned, and for the requests that the machine is bound to later. It returns nil if the
// plan allows no bounds. time is the column of the record's time, or -1 if it has none.
func (m *Machine) Ceilings(time int) *Ceilings {
	p := m.p
	if p.Own < 0 || p.Score < 0 || p.Values[p.Own].Op != Folded {
		return nil
	}
	c := &Ceilings{p: p, m: m, time: -1, logistic: p.Scorer == Logistic, spans: make([]span, len(p.Values))}
	sum := p.Score // before the sigmoid
	if c.logistic {
		sum = p.Values[sum].Args[0]
	}
	for i := sum; i != p.Own; i = p.Values[i].Args[0] {
		if p.Values[i].Op != Add {
			return nil
		}
		c.added = append(c.added, p.Values[i].Args[1])
	}
	if p.Uses()[p.Own] > 2 { // Uses counts two: in the sum above, and as p.Own
		return nil
	}
	for i, l := range p.Record {
		switch {
		case l.Column == time:
			c.time = i
		case l.Kind == column.Int || l.Kind == column.Time:
			c.columns = append(c.columns, l.Column)
		}
	}
	timed := make([]bool, len(p.Values))
	for i, v := range p.Values {
		timed[i] = v.Op == Field && v.Index == c.time
		for _, a := range v.Args {
			timed[i] = timed[i] || timed[a]
		}
		if timed[i] {
			c.timed = append(c.timed, i)
		}
	}
	return c
}

// Columns returns the record columns about which [Ceilings.Limits] asks: integers and times,
// except the record's own time.
func (c *Ceilings) Columns() []int { return c.columns }

// Limits prepares the bounds for the request that the machine is bound to. For every
// column of Columns, most returns the greatest word that a record has there; a word is the
// integer as uint64, so a negative one is above all others.
func (c *Ceilings) Limits(most func(column int) uint64) {
	for i := range c.p.Values {
		v := &c.p.Values[i]
		switch {
		case v.Deps&(Record|Entity) == 0:
			c.spans[i] = c.point(i)
		case v.Op == Field && v.Index != c.time:
			c.spans[i] = fieldSpan(&c.p.Record[v.Index], most)
		default:
			c.spans[i] = c.span(v)
		}
	}
}

// Of returns the most that is added to the folded part of a record whose time lies between
// from and to, in milliseconds; +Inf if nothing is known. If the folded part plus this
// is less than [Ceilings.Threshold] of a floor, the record scores less than the floor.
func (c *Ceilings) Of(from, to float64) float64 {
	for _, i := range c.timed {
		if v := &c.p.Values[i]; v.Op == Field {
			c.spans[i] = span{from, to}
		} else {
			c.spans[i] = c.span(v)
		}
	}
	most, size := 0.0, 0.0
	for _, i := range c.added {
		most += c.spans[i].hi
		size += math.Abs(c.spans[i].hi)
	}
	if most += slack * size; most != most {
		return math.Inf(1)
	}
	return most
}

// Threshold returns what the sum of a folded part and the result of [Ceilings.Of] must reach
// for the score to reach floor. It is lower than that by more than rounding errors, so that
// no record is left out wrongly. For a logistic score it is the sigmoid's inverse.
func (c *Ceilings) Threshold(floor float64) float64 {
	if c.logistic {
		if !(floor > 0) {
			return math.Inf(-1)
		}
		f := min(floor, 1) * (1 - 1e-9)
		floor = math.Log(f/(1-f)) - 1e-6
	}
	return floor - math.Abs(floor)*slack
}

// slack is a relative error far above that of any sum or function of a plan. (The span of
// an Add needs no slack, since rounding is monotonic: if both terms are at most their
// bounds, the rounded sum is at most the rounded sum of the bounds.)
const slack = 1e-9

// loose widens a span by more than rounding can move a value out of it.
func loose(s span) span {
	return sane(s.lo-math.Abs(s.lo)*slack, s.hi+math.Abs(s.hi)*slack)
}

// point returns the span of value i, which the request decides: only that number. It is
// anything if the value is NaN or is neither a number nor a boolean.
func (c *Ceilings) point(i int) span {
	switch c.p.Values[i].Kind {
	case Number:
		x := c.m.nums[i][0]
		if x != x {
			return anything
		}
		return span{x, x}
	case Bool:
		x := compute.Bool(c.m.bools[i][0])
		return span{x, x}
	}
	return anything
}

// fieldSpan returns the span of a field of records; most is as in [Ceilings.Limits].
func fieldSpan(l *Load, most func(column int) uint64) span {
	switch l.Kind {
	case column.Bool:
		return either
	case column.Int, column.Time:
		if m := most(l.Column); int64(m) >= 0 {
			return span{0, float64(m)}
		}
	}
	return anything
}

// span returns the span of a value, from the spans of its arguments; anything if nothing is
// known. The folded part counts as 0, since the bounds are of what is added to it.
func (c *Ceilings) span(v *Value) span {
	if v.Kind == Bool {
		return c.truth(v)
	}
	if v.Kind != Number || len(v.Args) == 0 {
		if v.Op == Folded {
			return span{}
		}
		return anything
	}
	a := c.spans[v.Args[0]]
	switch v.Op {
	case ToNumber:
		return a
	case Neg:
		return span{-a.hi, -a.lo}
	case Size:
		return span{0, math.Inf(1)}
	case Lookup:
		return c.table(c.m.in.Tables[v.Index])
	case Call:
		return c.call(v, a)
	}
	if len(v.Args) < 2 {
		return anything
	}
	b := c.spans[v.Args[1]]
	switch v.Op {
	case Add:
		return sane(a.lo+b.lo, a.hi+b.hi)
	case Sub:
		return sane(a.lo-b.hi, a.hi-b.lo)
	case Mul:
		return product(a, b)
	case Div:
		if b.lo > 0 || b.hi < 0 {
			return product(a, loose(span{1 / b.hi, 1 / b.lo}))
		}
	case Select:
		return a.choose(b, c.spans[v.Args[2]])
	}
	return anything
}

// sane returns the span from lo to hi. An end that is NaN, and so unknown, becomes infinite.
func sane(lo, hi float64) span {
	if lo != lo {
		lo = math.Inf(-1)
	}
	if hi != hi {
		hi = math.Inf(1)
	}
	return span{lo, hi}
}

// product returns the span of the products of numbers of two spans. An infinite end times 0
// is NaN; it counts as 0, since every finite number times 0 is 0, and a span need not contain
// NaN.
func product(a, b span) span {
	if a.lo == a.hi {
		return b.times(a.lo)
	}
	if b.lo == b.hi {
		return a.times(b.lo)
	}
	p := span{math.Inf(1), math.Inf(-1)}
	for _, x := range [...]float64{a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi} {
		if x != x {
			x = 0
		}
		p.lo, p.hi = min(p.lo, x), max(p.hi, x)
	}
	return p
}

// times is product with a single number, such as a weight.
func (s span) times(x float64) span {
	p := span{s.lo * x, s.hi * x}
	if x < 0 {
		p.lo, p.hi = p.hi, p.lo
	}
	if p.lo != p.lo {
		p.lo = 0
	}
	if p.hi != p.hi {
		p.hi = 0
	}
	return p
}

// or returns the least span that contains s and b.
func (s span) or(b span) span { return span{min(s.lo, b.lo), max(s.hi, b.hi)} }

// choose returns the span of "s ? yes : no", where s is the span of a boolean.
func (s span) choose(yes, no span) span {
	switch {
	case s.lo == 1:
		return yes
	case s.hi == 0:
		return no
	}
	return yes.or(no)
}

// truth returns the span of a boolean. Its lo is 0 if it can be false, else 1; its hi is 1
// if it can be true, else 0.
func (c *Ceilings) truth(v *Value) span {
	switch v.Op {
	case Not:
		a := c.spans[v.Args[0]]
		return span{1 - a.hi, 1 - a.lo}
	case And:
		a, b := c.spans[v.Args[0]], c.spans[v.Args[1]]
		return span{min(a.lo, b.lo), min(a.hi, b.hi)}
	case Or:
		a, b := c.spans[v.Args[0]], c.spans[v.Args[1]]
		return span{max(a.lo, b.lo), max(a.hi, b.hi)}
	case Select:
		return c.spans[v.Args[0]].choose(c.spans[v.Args[1]], c.spans[v.Args[2]])
	case In:
		if list := v.Args[1]; c.p.Values[list].Deps&(Record|Entity) == 0 && c.empty(list) {
			return span{}
		}
	}
	return either
}

// empty reports whether a list that the request decides is empty.
func (c *Ceilings) empty(list int) bool {
	if c.p.Values[list].Kind == Strings {
		return len(c.m.strss[list][0]) == 0
	}
	return len(c.m.lists[list][0]) == 0
}

func (c *Ceilings) table(t *compute.Table) span {
	lo, hi := t.Range()
	return span{lo, hi}
}

// call returns the span of a function's results; a is the span of its first argument. It
// computes a function that only ascends, or only descends, at both ends of a.
func (c *Ceilings) call(v *Value, a span) span {
	ends := func(f func(float64) float64) span {
		return loose(sane(f(a.lo), f(a.hi)))
	}
	arg := func(i int) span { return c.spans[v.Args[i]] }
	switch v.Name {
	case "age":
		b := arg(1)
		return loose(sane((b.lo-a.hi)/1000, (b.hi-a.lo)/1000))
	case "decay":
		half := arg(1)
		if half.lo == half.hi && half.lo > 0 {
			return loose(sane(compute.Decay(a.hi, half.lo), compute.Decay(a.lo, half.lo)))
		}
	case "coalesce":
		return a.or(arg(1))
	case "min":
		b := arg(1)
		return span{min(a.lo, b.lo), min(a.hi, b.hi)}
	case "max":
		b := arg(1)
		return span{max(a.lo, b.lo), max(a.hi, b.hi)}
	case "clamp":
		if lo, hi := arg(1), arg(2); lo.lo == lo.hi && hi.lo == hi.hi && lo.lo <= hi.lo {
			return span{compute.Clamp(a.lo, lo.lo, hi.lo), compute.Clamp(a.hi, lo.lo, hi.lo)}
		}
	case "abs":
		if a.lo > 0 || a.hi < 0 {
			return span{min(math.Abs(a.lo), math.Abs(a.hi)), max(math.Abs(a.lo), math.Abs(a.hi))}
		}
		return span{0, max(-a.lo, a.hi)}
	case "exp":
		return ends(compute.Exp)
	case "log1p":
		return ends(func(x float64) float64 { return compute.Log1p(max(x, -1)) })
	case "sqrt":
		return ends(func(x float64) float64 { return math.Sqrt(max(x, 0)) })
	case "sigmoid":
		return span{0, 1}
	case "bucketize":
		bounds := v.Args[1]
		if c.p.Values[bounds].Deps&(Record|Entity) == 0 {
			return span{compute.Bucketize(a.lo, c.m.lists[bounds][0]), compute.Bucketize(a.hi, c.m.lists[bounds][0])}
		}
	}
	return anything
}
