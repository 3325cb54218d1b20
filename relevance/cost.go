package relevance

import (
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/internal/expr"
)

// The estimate of what a record costs. It looks at the spec and the trees
// alone and measures no time: every node, however busy, comes to the same, and
// so either all of them admit a pack or none does.
const (
	callCost = 10 // of a function
	textCost = 32 // of a function that reads a text
	listCost = 64 // of an operation on a list, which is taken to have as many items
	// longCost is of a function that reads a viewer's text from end to end for each
	// record: a caller may send 16 KiB.
	longCost = 4096
	// maxSlower is how many times more a version may cost than the one that
	// serves, if it costs more than minSlow.
	maxSlower = 50
	minSlow   = 5_000
)

// Cost estimates what scoring a record costs, in simple operations. A step of a
// tree counts for one.
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

// Readings counts the operations that read a text or a list of a record from end to
// end, as the spec has them, for golden rows: what these take depends on its length.
// Texts that are compared are not among them, since those of other lengths differ.
// What a layout's plan reads where it serves is [Scorer.Readings].
func (m *Model) Readings() int { return m.readings }

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

// ownCost is exprCost without the operands'.
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

// lengthy reports whether an operation reads a text from end to end for each record,
// and the text may be a viewer's. What the viewer alone decides is computed once a
// question; a key is looked up, and a text compared, in little time.
func lengthy(n, a *expr.Node) bool {
	if a.Type != expr.String || n.Name != "size" && (n.Name != "contains" || a != n.Args[0]) || n.Op != expr.Call {
		return false
	}
	return reads(a, expr.Viewer) && (reads(n, expr.Record) || reads(n, expr.Entity) || reads(n, expr.Object))
}

// reads reports whether an expression reads something of a record, a viewer and so on.
func reads(n *expr.Node, what expr.Op) bool {
	return n.Op == what || slices.ContainsFunc(n.Args, func(a *expr.Node) bool { return reads(a, what) })
}

// shares divides what several models cost together: an expression that some of
// them have in common is computed once, and shared evenly among these. The parts
// are in the order of the models and come to 1.
func shares(models []*Model) []float64 {
	all := joined{at: map[string]int{}}
	parts := make([]float64, len(models))
	for i, m := range models {
		for _, f := range m.spec.Features {
			all.add(i, f.Tree)
		}
		parts[i] = 1 + float64(len(m.spec.Features)) // what is done with them
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
	at          map[string]int // in expressions, by their text
	expressions []sharedCost
}

type sharedCost struct {
	cost int
	of   []int // models, ascending
}

// add adds an expression of a model, and reports whether it looks into a table
// of the model's parameters, which it has in common with nobody.
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
	operationsANanosecond = 2 // at least
	// leastLimit is what a record may take of any model: a batch of few records
	// takes as long as one of many.
	leastLimit = 5 * time.Microsecond
	// ReadLimit is what reading a byte of a text or an item of a list may take where a
	// version serves: fifty times an operation, which golden rows reckon for it too.
	// It is 25 ns. BenchmarkReadings of indexnode/query measures what it takes, here on
	// two cores that others used: to count letters 0.4 ns a byte of ASCII and 1.5 ns of
	// Cyrillic, to search 0.02 ns, and 5 ns in a text that is made to be slow to
	// search; of lists 0.2 to 4 ns, and 8 ns of 800,000 empty texts.
	ReadLimit = maxSlower * time.Nanosecond / operationsANanosecond
)

// CostLimit returns what scoring a record may take where the model serves, but for
// what it reads (see [ReadLimit]): fifty times what Cost reckons with, and no less
// than some microseconds.
func (m *Model) CostLimit() time.Duration {
	return max(maxSlower*time.Duration(m.Cost())*time.Nanosecond/operationsANanosecond, leastLimit)
}

// MuchSlower reports a model that costs far more, in operations a record, than
// the one it is to replace. Nodes admit it; who lets it serve should know.
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
