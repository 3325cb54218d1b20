package codegen

import (
	"fmt"

	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/plan"
)

// result is an output of the function while it is written: the score of a model or, for a
// model of trees, the features that its trees read.
type result struct {
	*plan.Output
	spec  *relevance.Spec
	first bool // it is the first model of the function
	// args is the expression before its fields of compute.ModelArgs, out the variable with
	// scores by selected row, and x the variable with a row's features, for trees.
	args, out, x string
	next         int             // the index of the first term that is not written yet
	sums         map[lane]string // variables of the sums that are begun
	before       map[lane]int    // sums known before the loop, as values of the plan
}

// lane is one of the sums that a score is made of; see [plan.Term].
type lane struct {
	part plan.Part
	lane int
}

// result returns output i. The first one is in k itself, and the others are in k.More.
func (f *function) result(i int, o *plan.Output) *result {
	r := &result{Output: o, spec: f.w.specs[i], first: i == 0, args: "k.", out: "out", x: "x", sums: map[lane]string{}, before: map[lane]int{}}
	if i > 0 {
		r.args = fmt.Sprintf("k.More[%d].", i-1)
		r.out, r.x = f.names.take(fmt.Sprintf("out%d", i)), f.names.take(fmt.Sprintf("x%d", i))
	}
	return r
}

// outputs writes the terms of each model in its order. If a later model has a term of the
// same value, its terms up to that one follow at once, so that what both need is still in
// registers. The scores come last.
func (f *function) outputs() {
	for i, r := range f.results {
		for r.next < len(r.Terms) {
			value := r.Terms[r.next].Value
			f.term(r)
			for _, other := range f.results[i+1:] {
				f.termsTo(other, value)
			}
		}
	}
	for _, r := range f.results {
		if r.Scorer == plan.Trees {
			continue
		}
		f.share(r.Score)
		fmt.Fprintf(f.out, "\n%s[i] = compute.Score(%s)\n", r.out, f.expr(r.Score))
	}
}

// termsTo writes the next terms of a model up to the first one of a value; none if no next
// term is of the value.
func (f *function) termsTo(r *result, value int) {
	for at := r.next; at < len(r.Terms); at++ {
		if r.Terms[at].Value != value {
			continue
		}
		for r.next <= at {
			f.term(r)
		}
		return
	}
}

// term writes the next term of a model.
func (f *function) term(r *result) {
	t := r.Terms[r.next]
	r.next++
	if r.Scorer == plan.Trees {
		f.input(r, t)
	} else {
		f.addend(r, t)
	}
}

// input writes code that stores a feature where trees read it.
func (f *function) input(r *result, t plan.Term) {
	f.feature(r, t)
	f.share(t.Value)
	if f.uses[t.Value] > 1 && !f.done(t.Value) {
		f.name(t.Value) // another feature takes it too
	}
	fmt.Fprintf(f.out, "%s[%d*compute.MatrixBlock] = %s\n", r.x, r.next-1, f.expr(t.Value))
}

// addend writes code that adds the contribution of a feature to one of the sums of the score.
// The order of additions is part of the score's definition.
func (f *function) addend(r *result, t plan.Term) {
	at := lane{t.Part, t.Lane}
	if f.p.Values[t.Sum].Deps&plan.Record == 0 {
		r.before[at] = t.Sum // known before the loop
		return
	}
	f.feature(r, t)
	f.share(t.Contribution)
	c := f.expr(t.Contribution)
	if r.sums[at] != "" {
		fmt.Fprintf(f.out, "%s += %s\n", r.sums[at], c)
	} else {
		if known, ok := r.before[at]; ok {
			c = f.expr(known) + " + " + c
		}
		r.sums[at] = fmt.Sprintf("%s%d", [...]string{plan.OwnPart: "own", plan.RestPart: "rest"}[t.Part], t.Lane)
		if !r.first {
			r.sums[at] = f.names.take(camel(r.spec.Name+"_"+r.sums[at], false))
		}
		fmt.Fprintf(f.out, "%s := %s\n", r.sums[at], c)
	}
	f.vars[t.Sum] = r.sums[at]
}

// feature writes the comment above the lines of a feature.
func (f *function) feature(r *result, t plan.Term) {
	of := ""
	if !r.first {
		of = " of " + r.spec.Name
	}
	fmt.Fprintf(f.out, "\n// %s%s: %s\n", t.Feature, of, comment(r.spec.Features[t.At].Source))
}
