package relevance

import (
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/kernel"
	"github.com/millrace/millrace/relevance/plan"
)

// Scorer scores records of one layout for one viewer and instant. It is for
// one goroutine at a time.
type Scorer struct {
	machine *plan.Machine // interprets, or only prepares what the request decides
	score   kernel.Func   // nil when interpreted
	args    kernel.Args
}

func newScorer(p *planned, in plan.Inputs) *Scorer {
	s := &Scorer{score: p.score}
	if p.score != nil {
		p.plan.Args(&s.args, in)
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
	s.score(a)
}

// Execution tells what scores: "generated" or "interpreted". Both give the
// same bits.
func (s *Scorer) Execution() string {
	if s.score == nil {
		return "interpreted"
	}
	return "generated"
}
