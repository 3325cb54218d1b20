package relevance

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/expr"
)

// The costs by which the estimate of [Model.Cost] is made, in simple operations. It looks
// only at the spec and the trees, and measures no time. So every node, however busy,
// comes to the same number, and either all of them admit a model or none does.
const (
	callCost = 10 // of a call of a function; every other operation costs 1
	textCost = 32 // more for each text argument of a function
	listCost = 64 // more for each list that an operation reads, which is taken to have 64 items
	// longCost is more for a viewer's text that a function reads from end to end for
	// each record: a caller may send 16 KiB.
	longCost = 4096
	// maxSlower is how many times the cost of the serving version another version may
	// have, if it costs more than minSlow; see MuchSlower.
	maxSlower = 50
	minSlow   = 5_000
)

// Cost estimates what scoring a record costs, in simple operations. A step down a tree
// counts as one.
func (m *Model) Cost() int {
	cost := 0
	for _, f := range m.spec.Features {
		cost += exprCost(f.Tree)
	}
	if f := m.params.Forest; f != nil {
		cost += f.Steps()
	}
	return cost
}

// Readings returns how many operations of the spec read a text or a list of a record from
// end to end, so that their time depends on its length. Comparisons of texts do not
// count: texts of other lengths are not read. It is for the check of a pack's golden
// rows, which are records with the scores that they must have. For the records of one
// layout see [Scorer.Readings].
func (m *Model) Readings() int { return m.readings }

// readings counts for [Model.Readings].
func readings(s *Spec) (n int) {
	var walk func(*expr.Node)
	walk = func(e *expr.Node) {
		for i, a := range e.Args {
			long := a.Type == expr.String || a.Type == expr.Strings || a.Type == expr.Doubles
			if long && (e.Op == expr.Call && e.Name != "item" || e.Op == expr.In && i == 1) && reads(a, expr.Record) {
				n++
			}
			walk(a)
		}
	}
	for _, f := range s.Features {
		walk(f.Tree)
	}
	return n
}

// exprCost counts an expression's operations.
func exprCost(n *expr.Node) int {
	cost := ownCost(n)
	for _, a := range n.Args {
		cost += exprCost(a)
	}
	return cost
}

// ownCost returns the cost of an operation without that of its operands.
func ownCost(n *expr.Node) int {
	cost := 1
	if n.Op == expr.Call {
		cost = callCost
	}
	for _, a := range n.Args {
		if n.Op != expr.Call && n.Op != expr.In && n.Op != expr.Eq && n.Op != expr.Ne {
			continue
		}
		switch {
		case lengthy(n, a):
			cost += longCost
		case (a.Type == expr.Doubles || a.Type == expr.Strings) && a.Op != expr.Const && n.Name != "size" && n.Name != "item":
			cost += listCost
		case a.Type == expr.String && n.Op == expr.Call:
			cost += textCost
		}
	}
	return cost
}

// lengthy reports whether operation n reads its operand a, a text that may be the
// viewer's, from end to end for each record. It is false for an operation on the viewer
// alone, which is computed once a request, and for a look-up or a comparison, which takes
// little time.
func lengthy(n, a *expr.Node) bool {
	if a.Type != expr.String || n.Name != "size" && (n.Name != "contains" || a != n.Args[0]) || n.Op != expr.Call {
		return false
	}
	return reads(a, expr.Viewer) && (reads(n, expr.Record) || reads(n, expr.Entity) || reads(n, expr.Object))
}

// reads reports whether an expression reads anything of what, which is expr.Record,
// expr.Viewer or another root.
func reads(n *expr.Node, what expr.Op) bool {
	return n.Op == what || slices.ContainsFunc(n.Args, func(a *expr.Node) bool { return reads(a, what) })
}

// shares returns each model's part of what several models cost together, in their order.
// The parts add up to 1. An expression that several models have in common is computed
// once, and its cost is divided evenly among them.
func shares(models []*Model) []float64 {
	all := joined{at: map[string]int{}}
	parts := make([]float64, len(models))
	for i, m := range models {
		for _, f := range m.spec.Features {
			all.add(i, f.Tree)
		}
		parts[i] = 1 + float64(len(m.spec.Features)) // for adding up the features
		if f := m.params.Forest; f != nil {
			parts[i] += float64(f.Steps())
		}
	}
	for _, e := range all.expressions {
		for _, i := range e.of {
			parts[i] += float64(e.cost) / float64(len(e.of))
		}
	}
	sum := 0.0
	for _, x := range parts {
		sum += x
	}
	for i := range parts {
		parts[i] /= sum
	}
	return parts
}

// joined is the distinct expressions of several models.
type joined struct {
	at          map[string]int // indexes of expressions, by the expression's text
	expressions []sharedCost
}

// sharedCost is an expression, with the models that have it.
type sharedCost struct {
	cost int
	of   []int // indexes of the models, ascending
}

// add adds an expression of a model, with its operands. It reports whether the expression
// looks into a table of the model's parameters: then no other model has it in common.
func (j *joined) add(model int, n *expr.Node) (tables bool) {
	tables = n.Op == expr.Table
	for _, a := range n.Args {
		tables = j.add(model, a) || tables
	}
	text := n.String()
	if tables {
		text = fmt.Sprint(model, " ", text)
	}
	i, met := j.at[text]
	if !met {
		i = len(j.expressions)
		j.at[text], j.expressions = i, append(j.expressions, sharedCost{cost: ownCost(n)})
	}
	if e := &j.expressions[i]; len(e.of) == 0 || e.of[len(e.of)-1] != model {
		e.of = append(e.of, model)
	}
	return tables
}

const (
	operationsANanosecond = 2 // how many simple operations a core does, at least
	// leastLimit is the least that CostLimit returns: to score a batch costs something
	// beside its records, which counts if the batch has only a few.
	leastLimit = 5 * time.Microsecond
	// ReadLimit is how long a serving version may take to read a byte of a text or an
	// item of a list: fifty times an operation, so 25 ns. The check of golden rows
	// counts one operation for each byte or item. BenchmarkReadings of indexnode/query measures the
	// time. On two busy cores it was, for a byte: 0.4 ns to count letters of ASCII
	// and 1.5 ns of Cyrillic, 0.02 ns to search, and 5 ns to search a text made to be
	// slow. For an item of a list it was 0.2 to 4 ns, and 8 ns in a list of 800,000
	// empty texts.
	ReadLimit = maxSlower * time.Nanosecond / operationsANanosecond
)

// CostLimit returns how long scoring a record may take while the model serves: fifty
// times what Cost estimates, and at least leastLimit. What the model reads from end to
// end comes on top; see [ReadLimit].
func (m *Model) CostLimit() time.Duration {
	return max(maxSlower*time.Duration(m.Cost())*time.Nanosecond/operationsANanosecond, leastLimit)
}

// MuchSlower returns an error if a version costs far more than the one it is to replace.
// now is its cost and before that of the other, in operations a record. Nodes admit such a
// version: the error is for the person who lets it serve.
func MuchSlower(now, before int) error {
	if now <= minSlow || now <= maxSlower*before {
		return nil
	}
	return fmt.Errorf("a record costs %d operations, more than %d times the %d of the version that serves", now, maxSlower, before)
}

// ReadsViewer reports whether a score depends on anything of the viewer.
func (m *Model) ReadsViewer() bool {
	return slices.ContainsFunc(m.spec.Features, func(f Feature) bool { return reads(f.Tree, expr.Viewer) })
}
