package relevance

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/relevance/trees"
)

// Joint is several models that score the same records: for example the models of two
// variants of an experiment, and a shadow, which ranks only for comparison. What their
// features have in common is computed once for each record, and every model gives the same
// scores as alone, to the bit. A Joint is immutable and safe for concurrent use.
type Joint struct {
	models []*Model
	plans  sync.Map         // the plans made so far, each a *planned, by layouts
	slow   bool             // the models are interpreted even if there is generated code
	shares func() []float64 // see the method Shares
}

// Join joins models; their order is that of the scores. If one of them comes from
// [Model.Interpreted], all are interpreted.
func Join(models ...*Model) *Joint {
	slow := slices.ContainsFunc(models, func(m *Model) bool { return m.slow })
	return &Joint{models: models, slow: slow, shares: sync.OnceValue(func() []float64 { return shares(models) })}
}

// Shares returns each model's part of the cost of scoring, as [Model.Cost] counts it. The
// cost of what several of them compute is divided evenly among these. The parts add up to 1.
// The caller must not change them.
func (j *Joint) Shares() []float64 { return j.shares() }

// Models returns the models, in the order of their scores.
func (j *Joint) Models() []*Model { return j.models }

// ReadsObjects reports whether any of the models reads the features of objects; see
// [Model.ReadsObjects].
func (j *Joint) ReadsObjects() bool { return slices.ContainsFunc(j.models, (*Model).ReadsObjects) }

// Plan plans the models for one pair of layouts: that of the records, and that of the
// entity's features, nil if there are none.
func (j *Joint) Plan(rows, entity *column.Layout) (*plan.Plan, error) {
	sources := make([]*plan.Source, len(j.models))
	for i, m := range j.models {
		sources[i] = &m.spec.source
	}
	return plan.Join(sources, rows, entity)
}

// Bind prepares a scorer, as [Model.Bind] does. It fails if Bind of any of the models
// would.
func (j *Joint) Bind(rows, entity *column.Layout, viewer *millrace.Viewer, asOf millrace.Time) (*JointScorer, error) {
	p := j.plan(layouts{rows, entity})
	if p.err != nil {
		return nil, fmt.Errorf("relevance: bind %s: %w", j.names(), p.err)
	}
	inputs := make([]plan.Inputs, len(j.models))
	for i, m := range j.models {
		inputs[i] = plan.Inputs{Weights: m.weights, Tables: m.tables, Forest: m.params.Forest}
	}
	in := p.plan.Joined(inputs)
	in.AsOf = float64(asOf)
	var err error
	if in.Viewer, err = viewerValues(nil, viewer, p.plan.Viewer); err != nil {
		return nil, err
	}
	return newJointScorer(p, in), nil
}

// plan returns the plan for a pair of layouts, which it makes once and then keeps.
func (j *Joint) plan(l layouts) *planned {
	if p, ok := j.plans.Load(l); ok {
		return p.(*planned)
	}
	p := &planned{}
	if p.plan, p.err = j.Plan(l.rows, l.entity); p.err == nil && !j.slow {
		p.find(true)
	}
	kept, _ := j.plans.LoadOrStore(l, p)
	return kept.(*planned)
}

func (j *Joint) names() string {
	names := make([]string, len(j.models))
	for i, m := range j.models {
		names[i] = m.Name()
	}
	return strings.Join(names, " with ")
}

// JointScorer is a [Scorer] of several models.
type JointScorer struct {
	machine *plan.Machine     // interprets the models; with generated code, it only computes what the request alone decides
	score   compute.ModelFunc // the generated code; nil: the models are interpreted
	args    compute.ModelArgs
	forests []*trees.Forest // the trees of each model, with generated code; nil for a model that is not of trees
	batch   int             // how many rows are scored at a time; 0: all
	scores  trees.Scores
	plan    *plan.Plan
	similar bool // the generated code expects its caller to compute the similarities of lists
	objects objectRows
}

func newJointScorer(p *planned, in plan.Inputs) *JointScorer {
	s := &JointScorer{score: p.score, plan: p.plan, similar: p.similar}
	if s.score == nil {
		s.machine = p.plan.Machine(false)
		s.machine.Bind(in)
		return s
	}
	s.machine = p.plan.Preparer()
	s.machine.Args(&s.args, in)
	s.args.More = make([]compute.Output, len(in.More))
	s.forests = append([]*trees.Forest{in.Forest}, in.More...)
	for i, f := range s.forests {
		if f != nil {
			o := s.output(i)
			o.Matrix, o.Stride = f.Matrix(), f.Columns()*trees.Block
			s.batch = trees.Batch
		}
	}
	return s
}

// output returns where the generated code writes the results of model i.
func (s *JointScorer) output(i int) *compute.Output {
	if i == 0 {
		return &s.args.Output
	}
	return &s.args.More[i-1]
}

// Score writes the score that model m gives row sel[i] of rows to out[m][i]. entity has
// one row, the entity's features, or is nil. Once its memory has grown to what the rows
// need, Score does not allocate.
func (s *JointScorer) Score(rows *column.Slab, sel []int32, entity *column.Slab, out [][]float64) {
	s.args.Objects = s.objects.of(s.plan, rows)
	if s.score == nil {
		s.machine.BindEntity(entity)
		s.machine.SetObjects(s.args.Objects)
		s.machine.ScoreAll(rows, sel, out)
		return
	}
	s.args.Rows, s.args.Entity = rows, entity
	batch := len(sel)
	if s.batch > 0 {
		batch = s.batch
	}
	for from := 0; from < len(sel); from += batch {
		to := min(from+batch, len(sel))
		s.args.Sel = sel[from:to]
		for i := range s.forests {
			s.output(i).Out = out[i][from:to]
		}
		if s.similar {
			s.machine.Similar(&s.args)
		}
		s.score(&s.args)
		for i, f := range s.forests {
			if f != nil {
				f.Score(&s.scores, s.output(i).Matrix, to-from, out[i][from:to])
			}
		}
	}
}

// Reads appends the columns of the record that Score reads, and tells whether it reads the
// entity; see [Scorer.Reads].
func (s *JointScorer) Reads(columns []int) ([]int, bool) {
	for _, l := range s.plan.Record {
		columns = append(columns, l.Column)
	}
	return columns, len(s.plan.Entity) > 0
}

// Readings returns what Score reads from end to end; see [Readings].
func (s *JointScorer) Readings() Readings { return s.plan.Readings() }

// ObjectLayout returns the layout of the features of objects; see [Scorer.ObjectLayout].
func (s *JointScorer) ObjectLayout() *column.Layout { return s.plan.Objects() }

// SetObjects gives the features of objects; see [Scorer.SetObjects].
func (s *JointScorer) SetObjects(objects *column.Slab) { s.objects.given = objects }

// Execution returns what computes the scores: "generated" or "interpreted" code.
func (s *JointScorer) Execution() string {
	if s.score == nil {
		return "interpreted"
	}
	return "generated"
}
