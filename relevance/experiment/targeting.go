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
	return &targeting{f, f.Sources()}, nil
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
