package random

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// code is an expression in CEL, for Millrace, and in Go, for the baseline. A feature of a
// model also has a function, eval. It computes the samples by which thresholds and weights
// are drawn, and the model's golden rows (see goldenRows).
type code struct {
	cel, golang string
	eval        func(x *record, q *question) float64 // nil for clauses of a filter
}

// double returns a number as a literal of CEL and of Go that is not an integer.
func double(x float64) string {
	s := strconv.FormatFloat(x, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	} else if !strings.Contains(s, ".") { // 1e+21 is no literal of CEL
		s = strings.Replace(s, "e", ".0e", 1)
	}
	return s
}

func quoted(list []string) string {
	var all []string
	for _, s := range list {
		all = append(all, strconv.Quote(s))
	}
	return strings.Join(all, ", ")
}

// of returns the fields of some kinds, in the world's order; with nullable, those that may
// be null too. It returns nil if there are none.
func (w *world) of(nullable bool, kinds ...kind) (all []*field) {
	for _, f := range w.fields {
		if slices.Contains(kinds, f.kind) && (nullable || !f.nullable) {
			all = append(all, f)
		}
	}
	return all
}

// set returns a condition of the baseline that is false where the field is null, since a
// filter on null is not true. It must not be negated: not false is true. No clause negates it.
func (f *field) set(condition string) string {
	if !f.nullable {
		return condition
	}
	return "(p." + f.goName() + "Set && " + condition + ")"
}

// viewerHas adds an attribute unless there is one of its name, and returns its index in
// attrs.
func (w *world) viewerHas(a attr) int {
	for i, have := range w.attrs {
		if have.name == a.name {
			return i
		}
	}
	w.attrs = append(w.attrs, &a)
	return len(w.attrs) - 1
}

// likes returns the index in attrs of an attribute that is a list of values of the field.
func (w *world) likes(f *field) int {
	n := 1 + w.IntN(min(len(f.dict), 12))
	return w.viewerHas(attr{name: "likes_" + f.name, kind: tags, draw: drawSome(f.dict, n)})
}

// home returns the index in attrs of an attribute that is one value of the field.
func (w *world) home(f *field) int {
	return w.viewerHas(attr{name: "home_" + f.name, kind: texts, draw: drawTexts(f.dict, true)})
}

// drawFilter draws a filter: zero to five clauses, joined by "and".
func (w *world) drawFilter() {
	n := one(w.Rand, 0, 1, 1, 2, 2, 3, 3, 4, 5)
	var kinds []string
	for range n {
		c := w.clause(2)
		w.filter = append(w.filter, c)
		kinds = append(kinds, c.cel)
	}
	w.say("filter: %s", strings.Join(kinds, " && "))
}

// clause draws a clause of a filter. With depth above 0 it may be two clauses joined by "or".
func (w *world) clause(depth int) code {
	if depth > 0 && w.IntN(6) == 0 {
		a, b := w.clause(depth-1), w.clause(depth-1)
		return code{cel: "(" + a.cel + " || " + b.cel + ")", golang: "(" + a.golang + " || " + b.golang + ")"}
	}
	for {
		if c, ok := w.simple(); ok {
			return c
		}
	}
}

// simple draws a clause of one comparison. It returns false if no field is of the kind that
// the drawn clause needs.
func (w *world) simple() (c code, ok bool) {
	pick := func(all []*field) *field {
		if ok = len(all) > 0; !ok {
			return &field{}
		}
		return one(w.Rand, all...)
	}
	switch w.IntN(12) {
	case 0, 1: // an integer and a bound
		f := pick(w.of(true, ints))
		bound := int64(f.at(w.Float64() * 0.7))
		c.cel = fmt.Sprintf("%s >= %d", f.path(), bound)
		c.golang = f.set(fmt.Sprintf("p.%s >= %d", f.goName(), bound))
	case 2:
		f := pick(w.of(true, doubles, singles))
		bound := double(f.at(0.3 + 0.7*w.Float64()))
		c.cel = fmt.Sprintf("%s < %s", f.path(), bound)
		c.golang = f.set(fmt.Sprintf("float64(p.%s) < %s", f.goName(), bound))
	case 3: // one of the viewer's values
		f := pick(w.of(true, texts))
		if ok {
			a := w.attrs[w.likes(f)]
			c.cel = fmt.Sprintf("%s in viewer.%s", f.path(), a.name)
			c.golang = f.set(fmt.Sprintf("slices.Contains(v.%s, p.%s)", a.goName(), f.goName()))
		}
	case 4: // one of a few fixed values
		f := pick(w.of(true, texts))
		if ok {
			some := drawSome(f.dict, 1+w.IntN(min(len(f.dict), 8)))(w.Rand).([]string)
			var either []string
			for _, s := range some {
				either = append(either, fmt.Sprintf("p.%s == %q", f.goName(), s))
			}
			c.cel = fmt.Sprintf("%s in [%s]", f.path(), quoted(some))
			c.golang = f.set("(" + strings.Join(either, " || ") + ")")
		}
	case 5: // not the viewer's value
		f := pick(w.of(false, texts))
		if ok {
			a := w.attrs[w.home(f)]
			c.cel = fmt.Sprintf("%s != viewer.%s", f.path(), a.name)
			c.golang = fmt.Sprintf("p.%s != v.%s", f.goName(), a.goName())
		}
	case 6: // a sum and a bound
		f, g := pick(w.of(false, ints)), pick(w.of(false, ints))
		bound := int64(f.at(w.Float64()*0.5)) + int64(g.at(w.Float64()*0.5))
		c.cel = fmt.Sprintf("%s + %s >= %d", f.path(), g.path(), bound)
		c.golang = fmt.Sprintf("p.%s+p.%s >= %d", f.goName(), g.goName(), bound)
	case 7:
		f := pick(w.of(true, prose))
		word := one(w.Rand, vocabulary...)
		c.cel = fmt.Sprintf("%s.contains(%q)", f.path(), word)
		c.golang = f.set(fmt.Sprintf("strings.Contains(p.%s, %q)", f.goName(), word))
	case 8:
		f := pick(w.of(false, tags, numbers))
		bound := int(f.at(w.Float64() * 0.7))
		c.cel = fmt.Sprintf("size(%s) >= %d", f.path(), bound)
		c.golang = fmt.Sprintf("len(p.%s) >= %d", f.goName(), bound)
	case 9:
		f := pick(w.of(false, tags))
		if ok {
			s := one(w.Rand, f.dict[:min(3, len(f.dict))]...)
			c.cel = fmt.Sprintf("!(%q in %s)", s, f.path())
			c.golang = fmt.Sprintf("!slices.Contains(p.%s, %q)", f.goName(), s)
		}
	case 10:
		f := pick(w.of(false, bools))
		not := one(w.Rand, "", "!")
		c.cel, c.golang = not+f.path(), not+"p."+f.goName()
	case 11:
		f := pick(w.of(false, ints))
		n := 2 + w.IntN(5)
		c.cel = fmt.Sprintf("%s %% %d != 0", f.path(), n)
		c.golang = fmt.Sprintf("p.%s%%%d != 0", f.goName(), n)
	}
	return c, ok
}

// value returns a record's value of a field, as a function.
func (w *world) value(f *field) func(*record) any {
	i := slices.Index(w.fields, f)
	return func(x *record) any { return x.values[i] }
}

// numeric draws a field that is a number; where it is null, the number is 0.
func (w *world) numeric() code {
	f := one(w.Rand, w.of(true, ints, doubles, singles)...)
	value := w.value(f)
	c := code{
		cel: f.path(), golang: "float64(p." + f.goName() + ")",
		eval: func(x *record, _ *question) float64 { n, _ := number(value(x)); return n },
	}
	if f.nullable { // the baseline keeps null as 0
		c.cel = "coalesce(" + c.cel + ", 0)"
	}
	return c
}

// feature draws a feature of a model. It returns false if no field is of the kind that the
// drawn feature needs.
func (w *world) feature() (c code, ok bool) {
	ok = true
	n := w.numeric()
	switch w.IntN(20) {
	case 0, 1:
		return n, true
	case 2, 3, 4:
		return code{"log1p(abs(" + n.cel + "))", "math.Log1p(math.Abs(" + n.golang + "))",
			func(x *record, q *question) float64 { return math.Log1p(math.Abs(n.eval(x, q))) }}, true
	case 5:
		return code{"sqrt(abs(" + n.cel + "))", "math.Sqrt(math.Abs(" + n.golang + "))",
			func(x *record, q *question) float64 { return math.Sqrt(math.Abs(n.eval(x, q))) }}, true
	case 6, 7:
		m := w.numeric()
		return code{n.cel + " / max(abs(" + m.cel + "), 1)", n.golang + " / max(math.Abs(" + m.golang + "), 1)",
			func(x *record, q *question) float64 { return n.eval(x, q) / max(math.Abs(m.eval(x, q)), 1) }}, true
	case 8:
		lo := -w.Float64()
		hi := lo + 100*w.Float64()
		return code{fmt.Sprintf("clamp(%s, %s, %s)", n.cel, double(lo), double(hi)), fmt.Sprintf("min(max(%s, %s), %s)", n.golang, double(lo), double(hi)),
			func(x *record, q *question) float64 { return min(max(n.eval(x, q), lo), hi) }}, true
	case 9:
		return w.bucketed(n), true
	case 10, 11:
		return w.fresh(), true
	case 12:
		return w.lookup()
	case 13, 14:
		return w.same()
	case 15, 16:
		return w.dot()
	case 17:
		return w.sized()
	case 18:
		m := w.numeric()
		return code{n.cel + " * " + m.cel, n.golang + " * " + m.golang, func(x *record, q *question) float64 { return n.eval(x, q) * m.eval(x, q) }}, true
	}
	all := w.of(false, bools)
	if len(all) == 0 {
		return c, false
	}
	f := one(w.Rand, all...)
	value := w.value(f)
	return code{f.path(), "b2f(p." + f.goName() + ")", func(x *record, _ *question) float64 { return fromBool(value(x).(bool)) }}, true
}

func fromBool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// bucketed returns a feature that is the number of bounds which n reaches. The bounds are -1
// and at least one more.
func (w *world) bucketed(n code) code {
	bounds := []float64{-1, 0.5, 3.5, 10.5, 100.5, 1000.5}[:2+w.IntN(5)]
	var text []string
	for _, b := range bounds {
		text = append(text, double(b))
	}
	return code{fmt.Sprintf("bucketize(%s, [%s])", n.cel, strings.Join(text, ", ")), fmt.Sprintf("bucket(%s, %s)", n.golang, strings.Join(text, ", ")),
		func(x *record, q *question) (at float64) {
			for _, b := range bounds {
				if n.eval(x, q) >= b {
					at++
				}
			}
			return at
		}}
}

// fresh draws a feature that decays with the record's age. The half-life is a constant of
// the model or an attribute of the viewer.
func (w *world) fresh() code {
	if w.IntN(2) == 0 {
		i := w.viewerHas(attr{name: "half_hours", kind: doubles, draw: drawHours})
		return code{"decay(record.at, viewer.half_hours * 3600)", "math.Exp2(-float64(asOf-p.At) / 1000 / (v.HALF_HOURS * 3600))",
			func(x *record, q *question) float64 {
				return math.Exp2(-float64(asOf-x.at) / 1000 / (q.values[i].(float64) * 3600))
			}}
	}
	half := one(w.Rand, 3600.0, 86400, 604800)
	return code{fmt.Sprintf("decay(record.at, %v)", half), fmt.Sprintf("math.Exp2(-float64(asOf-p.At) / 1000 / %v)", half),
		func(x *record, q *question) float64 { return math.Exp2(-float64(asOf-x.at) / 1000 / half) }}
}

// lookup draws a feature that is a look-up of a field in a table of some of its values; any
// other value gives 0.
func (w *world) lookup() (c code, ok bool) {
	all := w.of(true, texts)
	if len(all) == 0 {
		return c, false
	}
	f := one(w.Rand, all...)
	keys := drawSome(f.dict, 1+w.IntN(min(len(f.dict), 40)))(w.Rand).([]string)
	table := map[string]float64{}
	var text []string
	for i, k := range keys {
		table[k] = float64(i%7)*0.25 - 0.5
		text = append(text, fmt.Sprintf("%q: %s", k, double(table[k])))
	}
	name := fmt.Sprintf("t%d", len(w.model.tables))
	w.model.tables = append(w.model.tables, strings.Join(text, ", "))
	value := w.value(f)
	return code{fmt.Sprintf("lookup(%s, %s, 0)", name, f.path()), fmt.Sprintf("%s[p.%s]", name, f.goName()),
		func(x *record, _ *question) float64 { s, _ := value(x).(string); return table[s] }}, true
}

// same draws a feature that is 1 where the record's value of a field is the viewer's, or is
// one of the viewer's; else 0.
func (w *world) same() (c code, ok bool) {
	all := w.of(false, texts)
	if len(all) == 0 {
		return c, false
	}
	f := one(w.Rand, all...)
	value := w.value(f)
	if w.IntN(2) == 0 {
		i := w.home(f)
		return code{fmt.Sprintf("%s == viewer.%s", f.path(), w.attrs[i].name), fmt.Sprintf("b2f(p.%s == v.%s)", f.goName(), w.attrs[i].goName()),
			func(x *record, q *question) float64 { return fromBool(value(x) == q.values[i]) }}, true
	}
	i := w.likes(f)
	return code{fmt.Sprintf("%s in viewer.%s", f.path(), w.attrs[i].name), fmt.Sprintf("b2f(slices.Contains(v.%s, p.%s))", w.attrs[i].goName(), f.goName()),
		func(x *record, q *question) float64 {
			return fromBool(slices.Contains(q.values[i].([]string), value(x).(string)))
		}}, true
}

// dot draws a feature that is the dot product of the record's vector with one of the viewer
// or of the model.
func (w *world) dot() (c code, ok bool) {
	all := w.of(false, vectors)
	if len(all) == 0 {
		return c, false
	}
	f := one(w.Rand, all...)
	value := w.value(f)
	product := func(a, b []float64) (s float64) {
		for i := range a {
			s += a[i] * b[i]
		}
		return s
	}
	if w.IntN(2) == 0 {
		i := w.viewerHas(attr{name: "vec_" + f.name, kind: vectors, draw: drawVector(f.dims, false)})
		return code{fmt.Sprintf("dot(%s, viewer.%s)", f.path(), w.attrs[i].name), fmt.Sprintf("dot(p.%s, v.%s)", f.goName(), w.attrs[i].goName()),
			func(x *record, q *question) float64 { return product(value(x).([]float64), q.values[i].([]float64)) }}, true
	}
	weights := drawVector(f.dims, true)(w.Rand).([]float64)
	var text []string
	for _, x := range weights {
		text = append(text, double(x))
	}
	name := fmt.Sprintf("w%d", len(w.model.vectors))
	w.model.vectors = append(w.model.vectors, strings.Join(text, ", "))
	return code{fmt.Sprintf("dot(%s, [%s])", f.path(), strings.Join(text, ", ")), fmt.Sprintf("dot(p.%s, %s)", f.goName(), name),
		func(x *record, _ *question) float64 { return product(value(x).([]float64), weights) }}, true
}

// sized draws a feature that is the length of a list or text.
func (w *world) sized() (c code, ok bool) {
	all := w.of(false, tags, numbers, prose)
	if len(all) == 0 {
		return c, false
	}
	f := one(w.Rand, all...)
	value := w.value(f)
	return code{"size(" + f.path() + ")", "float64(len(p." + f.goName() + "))", func(x *record, _ *question) float64 { n, _ := number(value(x)); return n }}, true
}
