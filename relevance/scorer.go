package relevance

import (
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/kernel"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/relevance/trees"
)

// Scorer scores records of one layout for one viewer and instant. It is for
// one goroutine at a time.
type Scorer struct {
	machine *plan.Machine // interprets, or only prepares what the request decides
	score   kernel.Func   // nil when interpreted
	args    kernel.Args
	forest  *trees.Forest // nil but for generated trees
	scores  trees.Scores
	plan    *plan.Plan // for Explain
	in      plan.Inputs
}

func newScorer(p *planned, in plan.Inputs) *Scorer {
	s := &Scorer{score: p.score, plan: p.plan, in: in}
	if p.score != nil {
		p.plan.Args(&s.args, in)
		if s.forest = in.Forest; s.forest != nil {
			s.args.Matrix, s.args.Stride = s.forest.Matrix(), s.forest.Columns()*trees.Block
		}
		return s
	}
	s.machine = p.plan.Machine(false)
	s.machine.Bind(in)
	return s
}

// Score writes the score of row sel[i] of rows to out[i]. Entity is one row of
// the entity's features, or nil. In the steady state it does not allocate.
func (s *Scorer) Score(rows *column.Slab, sel []int32, entity *column.Slab, out []float64) {
	if s.score == nil {
		s.machine.BindEntity(entity)
		s.machine.Score(rows, sel, out)
		return
	}
	a := &s.args
	a.Rows, a.Sel, a.Entity, a.Out = rows, sel, entity, out
	if s.forest == nil {
		s.score(a)
		return
	}
	for len(sel) > 0 {
		n := min(trees.Batch, len(sel))
		a.Sel = sel[:n]
		s.score(a)
		s.forest.Score(&s.scores, a.Matrix, n, out[:n])
		sel, out = sel[n:], out[n:]
	}
}

// Execution tells what scores: "generated" or "interpreted". Both give the
// same bits.
func (s *Scorer) Execution() string {
	if s.score == nil {
		return "interpreted"
	}
	return "generated"
}
