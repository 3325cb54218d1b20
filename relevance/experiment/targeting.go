package experiment

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
)

// targeting is a condition on viewers: a filter that reads no record.
type targeting struct {
	*filter.Filter
	clauses []string // of the outermost &&, as CEL
	never   string   // why it is true of nobody; "": it may be of somebody
}

// problem is one fault of a targeting.
type problem struct{ detail, wayOut string }

// readTargeting reads a targeting; nil for none.
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

// contradiction says which attribute the clauses of the outermost && want to be of two
// types; "" of none. What is met of each attribute is noted.
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

// wanted returns which attribute a clause reads, and of what type it has to be for the
// clause to be true; "" where that may be several.
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

// judge says whether a viewer is in, and which clause kept it out. A value that
// a filter would refuse keeps it out, by an error.
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
