package query

import (
	"fmt"

	"github.com/millrace/millrace/internal/column"
)

// Shadow is what models that rank nothing say of an item.
type Shadow struct {
	Scores []float64 // by model of Spec.Shadow; the first is the item's own
	Err    error     // why there are none
}

// shadow scores a row by the models of Spec.Shadow.
func (q *Query) shadow(p *plan, w *widened) (s Shadow) {
	defer func() { // which is the shadow's own, and nothing of the answer's
		if broken := recover(); broken != nil {
			p.shadow, s = nil, Shadow{Err: fmt.Errorf("a model that ranks nothing panicked: %v", broken)}
		}
	}()
	if q.spec.Shadow == nil {
		return Shadow{Err: q.spec.ShadowErr}
	}
	if p.shadow == nil {
		entity := (*column.Layout)(nil)
		if w.features != nil {
			entity = w.features.Layout()
		}
		s, err := q.spec.Shadow.Bind(w.slab.Layout(), entity, q.spec.Viewer, q.spec.AsOf)
		if err != nil {
			return Shadow{Err: err}
		}
		p.shadow = s
	}
	if err := q.objectsOf(p.shadow, &p.columns, w); err != nil {
		return Shadow{Err: err}
	}
	out := make([][]float64, len(q.spec.Shadow.Models()))
	for i := range out {
		out[i] = make([]float64, 1)
	}
	p.shadow.Score(w.slab, []int32{0}, w.features, out)
	scores := make([]float64, len(out))
	for i, s := range out {
		scores[i] = s[0]
	}
	return Shadow{Scores: scores}
}
