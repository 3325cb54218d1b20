package modelpack

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// mostCompared is how many golden rows generated code is compared by. All of them have been
// scored by the interpreter already.
const mostCompared = 64

// CheckGenerated returns an error unless the generated code that this binary has for the
// pack's model m, if any, gives the interpreter's scores, to the bit, for the records of the
// golden rows, or for made-up ones if no row has a record. A file that somebody has edited, or
// that a compiler got wrong, is found so; one of another spec is not used at all, since code
// is found by what a model computes. Admission does not ask: the pack and the schemas alone
// decide whether nodes take it.
func (p *Pack) CheckGenerated(m *relevance.Model, schemas relevance.Schemas) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it breaks: %v", r)
		}
	}()
	rows, err := p.GoldenRows()
	if err != nil {
		return err
	}
	var with []Golden
	for _, row := range rows {
		if row.Record != nil && len(with) < mostCompared {
			with = append(with, row)
		}
	}
	if len(with) == 0 {
		with, schemas = MadeUp(m, schemas)
	}
	if len(with) == 0 {
		return nil
	}
	generated, err := NewWorkload(m, with, schemas, 0)
	if err != nil {
		return nil // the rows are at fault, which their own check says
	}
	plain, err := NewWorkload(m.Interpreted(), with, schemas, 0)
	if err != nil {
		return nil
	}
	for i := range generated.parts {
		g, want := &generated.parts[i], &plain.parts[i]
		g.scorer.Score(g.rows, g.sel, g.entity, g.out)
		want.scorer.Score(want.rows, want.sel, want.entity, want.out)
		if err := sameScores(g.out, want.out); err != nil {
			return err
		}
		fold, err := m.BindFold(g.rows.Layout(), layoutOf(g.entity))
		if err != nil || fold == nil {
			continue
		}
		own := make([]float64, g.rows.Len())
		fold.Score(g.rows, g.sel, g.entity, own)
		g.scorer.ScoreFolded(own, g.rows, g.sel, g.entity, g.out)
		if err := sameScores(g.out, want.out); err != nil {
			return err
		}
	}
	return nil
}

func layoutOf(s *column.Slab) *column.Layout {
	if s == nil {
		return nil
	}
	return s.Layout()
}

// sameScores returns an error that names the first scores that differ in a bit.
func sameScores(got, want []float64) error {
	for i := range want {
		if math.Float64bits(got[i]) != math.Float64bits(want[i]) {
			return fmt.Errorf("it gives %v where the spec gives %v", got[i], want[i])
		}
	}
	return nil
}
