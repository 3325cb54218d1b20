package plan

import (
	"errors"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/column"
)

// Join plans several specs as one, so that what their expressions have in common is
// computed once. rows and entity are as in [Build]. Each spec gives an output, with the
// same bits as in a plan of its own. The parameters of the models come one after the
// other; see [Plan.Joined]. The error reports every expression that cannot be planned.
func Join(srcs []*Source, rows, entity *column.Layout) (*Plan, error) {
	b := &builder{rows: rows, entity: entity, seen: map[string]int{}, p: &Plan{}}
	for i, src := range srcs {
		if out := b.model(i, src); i == 0 {
			b.p.Output = out
		} else {
			b.p.More = append(b.p.More, out)
		}
	}
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	p := b.p.prune()
	if err := p.layOutObjects(); err != nil {
		return nil, err
	}
	return p.ready(), nil
}

// layOutObjects gives each field of objects a column, in a layout of the plan's own.
func (p *Plan) layOutObjects() (err error) {
	if len(p.Object) == 0 {
		return nil
	}
	fields := make([]column.Field, len(p.Object))
	for i := range p.Object {
		l := &p.Object[i]
		l.Column = i
		fields[i] = column.Field{Name: l.Name, Kind: l.Kind, Nullable: true}
	}
	p.objects, err = column.NewLayout(fields)
	return err
}

// tableOf says where a plan's table is from: the index of the model, and of the table in it.
type tableOf struct{ model, index int }

// inputs adds to the plan the viewer values and the tables of b.src, whose number is
// model. It does not add those that the plan has already from a model before: viewer
// values of the same name and kind, and equal tables that are written as literals.
func (b *builder) inputs(model int) {
	for _, v := range b.src.Viewer {
		if !slices.Contains(b.p.Viewer, v) {
			b.p.Viewer = append(b.p.Viewer, v)
		}
	}
	b.tables = nil
	for i, t := range b.src.Tables {
		at := slices.Index(b.p.Tables, t)
		if at < 0 || !isLiteral(t) {
			at = len(b.p.Tables)
			b.p.Tables = append(b.p.Tables, t)
			b.p.tables = append(b.p.tables, tableOf{model, i})
		}
		b.tables = append(b.tables, at)
	}
}

// params returns how many scalar parameters a model has, the bias among them.
func (s *Source) params() int {
	n := 1
	for _, w := range s.Weights {
		if !w.Table {
			n = max(n, w.Index+1)
		}
	}
	return n
}

// Joined returns the inputs of a joint plan, made of the inputs of its models, which are in
// their order. It leaves out the viewer's values and the instant, which belong to a request.
func (p *Plan) Joined(models []Inputs) Inputs {
	in := Inputs{Forest: models[0].Forest}
	for i, m := range models {
		in.Weights = append(in.Weights, m.Weights...)
		if i > 0 {
			in.More = append(in.More, m.Forest)
		}
	}
	for _, t := range p.tables {
		in.Tables = append(in.Tables, models[t.model].Tables[t.index])
	}
	return in
}

// isLiteral reports whether a table is written inside an expression, and is not a
// parameter of the spec. The names that [LiteralTable] returns begin with "["; no
// parameter's name does.
func isLiteral(t Var) bool { return strings.HasPrefix(t.Name, "[") }
