package experiment

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
)

// targeting is a condition on viewers: a filter that reads no record.
type targeting struct {
	*filter.Filter
	clauses []string // the operands of the outermost &&, in CEL
	never   string   // why it is true for nobody, by the types of attributes; "": it may be true for somebody
}

// problem is one fault of a targeting.
type problem struct{ detail, wayOut string }

// readTargeting returns the targeting that src says, or the problems that it has; nil for "".
func readTargeting(src string) (*targeting, []problem) {
	if src == "" {
		return nil, nil
	}
	if len(src) > MaxTargetingBytes {
		return nil, []problem{{fmt.Sprintf("%d bytes, more than %d", len(src), MaxTargetingBytes), "send the viewer with an attribute that says it shorter"}}
	}
	root, err := expr.Parse(src, expr.Env{Mode: expr.Filter})
	if err != nil {
		return nil, problemsOf(err)
	}
	if n := find(root, expr.AsOf); n != nil {
		return nil, []problem{{fmt.Sprintf("%d:%d: as_of would make viewers come and go with the hour", n.Line, n.Col), "speak of viewer.NAME alone"}}
	}
	f, err := filter.Compile(src, expr.Env{})
	if err != nil {
		return nil, problemsOf(err)
	}
	return &targeting{f, f.Sources(), contradiction(root, map[string]string{})}, nil
}

// contradiction returns a text on an attribute that would have to be of two types for all
// clauses of the outermost && to be true; "" if there is no such attribute. met has the types
// that were found, by attribute.
func contradiction(n *expr.Node, met map[string]string) string {
	if n.Op == expr.And {
		for _, a := range n.Args {
			if why := contradiction(a, met); why != "" {
				return why
			}
		}
		return ""
	}
	name, kind := wanted(n)
	if before := met[name]; name != "" && before != "" && before != kind {
		return fmt.Sprintf("viewer.%s would have to be %s and %s: of a value of another type a comparison is not true", name, before, kind)
	}
	if name != "" {
		met[name] = kind
	}
	return ""
}

// wanted returns the attribute that a clause reads, and the type that it must have for the
// clause to be true. Both are "" if several types would do, or the clause is of another form.
func wanted(n *expr.Node) (name, kind string) {
	kinds := map[expr.Type]string{expr.String: "a text", expr.Int: "a number", expr.Double: "a number", expr.Bool: "a boolean"}
	switch n.Op {
	case expr.Viewer:
		return n.Name, kinds[expr.Bool]
	case expr.Not:
		if n.Args[0].Op == expr.Viewer {
			return n.Args[0].Name, kinds[expr.Bool]
		}
	case expr.Eq, expr.Lt, expr.Le, expr.Gt, expr.Ge:
		for i, a := range n.Args {
			if other := kinds[n.Args[1-i].Type]; a.Op == expr.Viewer && a.Type == expr.Dyn && other != "" {
				return a.Name, other
			}
		}
	}
	return "", ""
}

// isNever reports whether a targeting is true for nobody, as far as constants tell: it is false,
// looks into an empty list, or has clauses that no value of an attribute fulfils together.
func isNever(src string) bool {
	if src == "" {
		return false
	}
	root, err := expr.Parse(src, expr.Env{Mode: expr.Filter})
	return err == nil && never(root)
}

func never(n *expr.Node) bool {
	switch n.Op {
	case expr.And:
		all := n.Conjuncts()
		return slices.ContainsFunc(all, never) || slices.ContainsFunc(slices.Collect(maps.Values(wants(all))), impossible)
	case expr.Or:
		return !slices.ContainsFunc(n.Args, func(a *expr.Node) bool { return !never(a) })
	case expr.In:
		return n.Args[1].Op == expr.List && len(n.Args[1].Args) == 0
	}
	value, known := constant(n)
	return known && value == false
}

// constant returns the value of an expression that is the same for everybody; known is false if
// it is not, or cannot be told.
func constant(n *expr.Node) (value any, known bool) {
	switch n.Op {
	case expr.Const:
		return n.Value, true
	case expr.Not:
		of, known := constant(n.Args[0])
		return of == false, known
	case expr.Eq, expr.Ne, expr.Lt, expr.Le, expr.Gt, expr.Ge:
		a, known := constant(n.Args[0])
		b, too := constant(n.Args[1])
		order, can := compareConstants(a, b)
		return holds(n.Op, order), known && too && can
	}
	return nil, false
}

// clause is a condition on an attribute: op must hold between it and one of the constants in of.
type clause struct {
	op expr.Op
	of []any
}

// wants returns the conditions on each attribute, from those clauses that compare it with
// constants.
func wants(clauses []*expr.Node) map[string][]clause {
	all := map[string][]clause{}
	attribute := func(a *expr.Node) bool { return a.Op == expr.Viewer }
	for _, n := range clauses {
		switch {
		case attribute(n):
			all[n.Name] = append(all[n.Name], clause{expr.Eq, []any{true}})
		case n.Op == expr.Not && attribute(n.Args[0]):
			all[n.Args[0].Name] = append(all[n.Args[0].Name], clause{expr.Eq, []any{false}})
		case n.Op == expr.In && attribute(n.Args[0]) && n.Args[1].Op == expr.List:
			in := clause{op: expr.Eq}
			for _, a := range n.Args[1].Args {
				if value, known := constant(a); known {
					in.of = append(in.of, value)
				}
			}
			if len(in.of) == len(n.Args[1].Args) {
				all[n.Args[0].Name] = append(all[n.Args[0].Name], in)
			}
		case mirrored[n.Op] != 0:
			a, b, op := n.Args[0], n.Args[1], n.Op
			if attribute(b) {
				a, b, op = b, a, mirrored[op]
			}
			if value, known := constant(b); known && attribute(a) {
				all[a.Name] = append(all[a.Name], clause{op, []any{value}})
			}
		}
	}
	return all
}

// mirrored are the comparisons, with the one that means the same when operands are swapped.
var mirrored = map[expr.Op]expr.Op{expr.Eq: expr.Eq, expr.Ne: expr.Ne, expr.Lt: expr.Gt, expr.Le: expr.Ge, expr.Gt: expr.Lt, expr.Ge: expr.Le}

// impossible reports whether no value fulfils all conditions on one attribute: it must equal one
// of some constants, none of which fulfils the others; or it must be above and below bounds that
// exclude each other.
func impossible(all []clause) bool {
	for _, c := range all {
		if c.op == expr.Eq {
			return !slices.ContainsFunc(c.of, func(value any) bool {
				return !slices.ContainsFunc(all, func(other clause) bool { return !other.mayTake(value) })
			})
		}
	}
	for _, low := range all {
		for _, high := range all {
			if (low.op == expr.Gt || low.op == expr.Ge) && (high.op == expr.Lt || high.op == expr.Le) {
				order, can := compareConstants(low.of[0], high.of[0])
				if can && (order > 0 || order == 0 && (low.op == expr.Gt || high.op == expr.Lt)) {
					return true
				}
			}
		}
	}
	return false
}

// mayTake reports whether a value fulfils a clause, as far as can be told.
func (c clause) mayTake(value any) bool {
	return slices.ContainsFunc(c.of, func(of any) bool {
		order, can := compareConstants(value, of)
		return !can || holds(c.op, order)
	})
}

// compareConstants compares two constants. can is false if they are of two types, where all
// numbers are one type, or are integers too large for a float64 to tell apart.
func compareConstants(a, b any) (order int, can bool) {
	switch a := a.(type) {
	case string:
		b, is := b.(string)
		return strings.Compare(a, b), is
	case bool:
		b, is := b.(bool)
		switch {
		case a == b:
			return 0, is
		case a:
			return 1, is
		}
		return -1, is
	}
	x, is := number(a)
	y, too := number(b)
	return cmp.Compare(x, y), is && too && (x != y || math.Abs(x) < 1<<53)
}

func number(value any) (float64, bool) {
	switch value := value.(type) {
	case int64:
		return float64(value), true
	case float64:
		return value, !math.IsNaN(value)
	}
	return 0, false
}

// holds reports whether a comparison is true for two values whose order is negative, 0 or
// positive.
func holds(op expr.Op, order int) bool {
	switch op {
	case expr.Eq:
		return order == 0
	case expr.Ne:
		return order != 0
	case expr.Lt:
		return order < 0
	case expr.Le:
		return order <= 0
	case expr.Gt:
		return order > 0
	}
	return order >= 0
}

func problemsOf(err error) (all []problem) {
	var faults *expr.Error
	if !errors.As(err, &faults) {
		return []problem{{err.Error(), ""}}
	}
	for _, p := range faults.Problems {
		wayOut := p.Suggestion
		if strings.HasSuffix(p.Message, " in record") || strings.HasSuffix(p.Message, " in entity") {
			wayOut = "speak of viewer.NAME alone"
		}
		all = append(all, problem{fmt.Sprintf("%d:%d: %s", p.Line, p.Col, p.Message), wayOut})
	}
	return all
}

func find(n *expr.Node, op expr.Op) *expr.Node {
	if n.Op == op {
		return n
	}
	for _, a := range n.Args {
		if found := find(a, op); found != nil {
			return found
		}
	}
	return nil
}

var oneRow = []int32{0}

// judge returns whether the targeting admits a viewer (the outcome is filter.Kept), and
// otherwise which clause does not. The error says that the targeting could not be evaluated, as
// when an attribute has a value that filters refuse; it then admits nobody. A nil targeting
// admits everybody.
func (t *targeting) judge(v *millrace.Viewer) (filter.Dropped, error) {
	if t == nil {
		return filter.Dropped{}, nil
	}
	c, err := t.BindClauses(nil, nil, v, 0)
	if err != nil {
		return filter.Dropped{Outcome: filter.Error}, err
	}
	return c.Judge(nil, oneRow, nil)[0], nil
}

func (t *targeting) admits(v *millrace.Viewer) bool {
	d, err := t.judge(v)
	return err == nil && d.Outcome == filter.Kept
}
