package relevance

import (
	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/relevance/trees"
)

// Scorer scores records of one layout for one viewer and instant. It is for
// one goroutine at a time.
type Scorer struct {
	machine *plan.Machine     // interprets the model; with generated code, it only computes what the request alone decides
	score   compute.ModelFunc // the generated code; nil: the model is interpreted
	args    compute.ModelArgs
	forest  *trees.Forest // the trees, if the model is of trees and has generated code; else nil
	scores  trees.Scores
	planned *planned
	in      plan.Inputs // the parameters, the viewer's values and the instant that it is bound to
	viewer  []any       // memory for the values of the next viewer
	folded  *Scorer     // scores what depends on more than the record; nil until [Scorer.ScoreFolded] is used

	ceilings *plan.Ceilings // the bounds of the scores of folded; nil: there are none, or bounded is false
	bounded  bool           // ceilings is set
	objects  objectRows

	explainer *plan.Machine // keeps every value; nil until something is explained
	unbound   bool          // the explainer is not bound to the present request
}

func newScorer(p *planned, in plan.Inputs) *Scorer {
	s := &Scorer{score: p.score, planned: p}
	if s.score == nil {
		s.machine = p.plan.Machine(false)
	} else {
		s.machine = p.plan.Preparer()
		if s.forest = in.Forest; s.forest != nil {
			s.args.Matrix, s.args.Stride = s.forest.Matrix(), s.forest.Columns()*trees.Block
		}
	}
	s.bind(in)
	return s
}

// bind binds the scorer, and folded if it is there, to other inputs.
func (s *Scorer) bind(in plan.Inputs) {
	s.unbound = true
	if s.in = in; s.score == nil {
		s.machine.Bind(in)
	} else {
		s.machine.Args(&s.args, in)
	}
	if s.folded != nil {
		s.folded.bind(in)
	}
}

// Rebind prepares the scorer for another viewer and instant, and reuses its memory. viewer
// may be nil. After an error the scorer is as it was before.
func (s *Scorer) Rebind(viewer *millrace.Viewer, asOf millrace.Time) error {
	in := s.in
	in.AsOf = float64(asOf)
	var err error
	if s.viewer, err = viewerValues(s.viewer[:0], viewer, s.planned.plan.Viewer); err != nil {
		return err
	}
	s.viewer, in.Viewer = in.Viewer, s.viewer
	s.bind(in)
	return nil
}

// LetGo frees the texts and lists of the request, which may take much memory. Call Rebind
// before the scorer is used again.
func (s *Scorer) LetGo() {
	s.machine.LetGo()
	clear(s.args.Strings)
	clear(s.args.Lists)
	s.args.LetGo()
	if s.folded != nil {
		s.folded.LetGo()
	}
	s.explainer = nil
}

// Score writes the score of row sel[i] of rows to out[i]. entity has one row, the
// entity's features, or is nil. Once its memory has grown to what the rows need, it does
// not allocate.
func (s *Scorer) Score(rows *column.Slab, sel []int32, entity *column.Slab, out []float64) {
	if s.planned.plan.Objects() != nil {
		s.args.Objects = s.objects.of(s.planned.plan, rows)
	}
	if s.score == nil {
		s.machine.SetObjects(s.args.Objects)
		s.machine.BindEntity(entity)
		s.machine.Score(rows, sel, out)
		return
	}
	a := &s.args
	a.Rows, a.Sel, a.Entity, a.Out = rows, sel, entity, out
	if s.forest == nil {
		s.run()
		return
	}
	for len(sel) > 0 {
		n := min(trees.Batch, len(sel))
		a.Sel = sel[:n]
		s.run()
		s.forest.Score(&s.scores, a.Matrix, n, out[:n])
		sel, out = sel[n:], out[n:]
	}
}

// run calls the generated code.
func (s *Scorer) run() {
	if len(s.args.Sel) == 0 {
		return // generated code expects at least one row
	}
	if s.planned.similar {
		s.machine.Similar(&s.args)
	}
	s.score(&s.args)
}

// ScoreFolded gives the same scores as Score, to the bit, but takes the part of them that
// depends on the record alone from own. own has that part for every row of rows, as the
// scorer of [Model.BindFold] computes it. It is only for models that have such a part.
func (s *Scorer) ScoreFolded(own []float64, rows *column.Slab, sel []int32, entity *column.Slab, out []float64) {
	rest := s.rest()
	rest.args.Folded, rest.objects.given = own, s.objects.given
	rest.machine.SetFolded(own)
	rest.Score(rows, sel, entity, out)
}

// rest returns the scorer of what depends on more than the record.
func (s *Scorer) rest() *Scorer {
	if s.folded == nil {
		s.folded = newScorer(s.planned.rest, s.in)
	}
	return s.folded
}

// Ceilings bounds scores before they are computed; see [plan.Ceilings].
type Ceilings = plan.Ceilings

// Ceilings returns the bounds of the scores of [Scorer.ScoreFolded]; nil if there are
// none. rows is the layout of the records. After each Rebind the caller must set the limits
// in the Ceilings anew.
func (s *Scorer) Ceilings(rows *column.Layout) *Ceilings {
	if !s.bounded {
		s.ceilings, s.bounded = s.rest().machine.Ceilings(rows.Time()), true
	}
	return s.ceilings
}

// ObjectLayout returns the layout in which the scorer reads the features of objects; nil
// if it reads none.
func (s *Scorer) ObjectLayout() *column.Layout { return s.planned.plan.Objects() }

// SetObjects sets the features of the objects of the rows that are scored from now on: a
// row for each of them, in the layout of [Scorer.ObjectLayout], as [Objects] makes them.
// Nil: the features are missing.
func (s *Scorer) SetObjects(objects *column.Slab) { s.objects.given = objects }

// Reads appends to columns the indexes of the record's columns that Score reads, or, if
// folded is set, those that ScoreFolded reads. The bool says whether that method also reads
// the entity's features.
func (s *Scorer) Reads(columns []int, folded bool) ([]int, bool) {
	p := s.planned
	if folded {
		p = p.rest
	}
	for _, l := range p.plan.Record {
		columns = append(columns, l.Column)
	}
	return columns, len(p.plan.Entity) > 0
}

// Readings are the texts and lists that scoring reads from end to end, so that its time
// depends on their length.
type Readings = plan.Readings

// Readings returns what Score reads from end to end, or, if folded is set, what ScoreFolded
// does.
func (s *Scorer) Readings(folded bool) Readings {
	if folded {
		return s.planned.rest.plan.Readings()
	}
	return s.planned.plan.Readings()
}

// Execution returns what computes the scores: "generated" or "interpreted" code. Both
// give the same bits.
func (s *Scorer) Execution() string {
	if s.score == nil {
		return "interpreted"
	}
	return "generated"
}
