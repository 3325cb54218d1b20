package relevance

import (
	"fmt"
	"math"
	"slices"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
)

// Objects are the features of the objects of records, a row for each record, in
// the layout in which a scorer reads them. What they were written with does
// not matter: fields are found by name, and numbers become doubles.
type Objects struct {
	layout *column.Layout
	rows   *column.Appender
	maps   map[*column.Layout]places

	numbers []float64
	texts   []string
}

// places are where a layout has the fields.
type places struct {
	at    []int // -1 where it has not
	reads []int // ascending
}

// NewObjects returns no rows for scorers of the layout, which
// [Scorer.ObjectLayout] tells.
func NewObjects(layout *column.Layout) *Objects {
	o := &Objects{layout: layout, maps: map[*column.Layout]places{}}
	o.Reset()
	return o
}

// Reset forgets the rows.
func (o *Objects) Reset() { o.rows = column.New(o.layout, 1, 0).Append() }

// Slab returns the rows.
func (o *Objects) Slab() *column.Slab { return o.rows.Slab() }

// Add adds the features of the next record's object: a row of features, or nil
// when there are none.
func (o *Objects) Add(features *column.Slab, row int) error {
	next := o.rows.Begin()
	if features == nil {
		for i := range o.layout.Fields() {
			next.SetNull(i)
		}
		return o.rows.End(next)
	}
	from, err := o.places(features.Layout())
	if err != nil {
		return err
	}
	for i, f := range o.layout.Fields() {
		if c := from.at[i]; c < 0 || features.Null(c, row) {
			next.SetNull(i)
		} else {
			o.copy(&next, i, f.Kind, features, c, row)
		}
	}
	return o.rows.End(next)
}

// Reads returns the columns of a layout of features that Add reads, ascending.
// The caller must not change them.
func (o *Objects) Reads(l *column.Layout) ([]int, error) {
	p, err := o.places(l)
	return p.reads, err
}

func (o *Objects) places(l *column.Layout) (places, error) {
	if p, ok := o.maps[l]; ok {
		return p, nil
	}
	at := make([]int, len(o.layout.Fields()))
	var reads []int
	for i, f := range o.layout.Fields() {
		at[i] = l.Index(f.Name)
		if at[i] < 0 {
			continue
		}
		if has := l.Fields()[at[i]].Kind; has != f.Kind && !(f.Kind == column.Double && (has == column.Int || has == column.Time)) {
			return places{}, fmt.Errorf("relevance: object.%s: the model reads a %s, and these features have a %s", f.Name, f.Kind, has)
		}
		reads = append(reads, at[i])
	}
	slices.Sort(reads)
	p := places{at, reads}
	o.maps[l] = p
	return p, nil
}

func (o *Objects) copy(to *column.Row, i int, k column.Kind, from *column.Slab, c, row int) {
	w := from.Word(c, row)
	switch k {
	case column.Double:
		x := math.Float64frombits(w)
		if from.Layout().Fields()[c].Kind != column.Double {
			x = float64(int64(w))
		}
		to.SetDouble(i, x)
	case column.Bool:
		to.SetBool(i, w != 0)
	case column.String:
		to.SetString(i, from.BytesAt(c, row))
	case column.Doubles:
		o.numbers = from.Doubles(o.numbers[:0], w)
		to.SetDoubles(i, o.numbers)
	case column.Strings:
		o.texts = from.Strings(o.texts[:0], w)
		to.SetStrings(i, o.texts)
	}
}

// objectRows are those of a scorer.
type objectRows struct {
	given *column.Slab
	none  *Objects // for who gave none
}

// of returns the rows of a plan that reads them, one for each of rows.
func (o *objectRows) of(p *plan.Plan, rows *column.Slab) *column.Slab {
	if p.Objects() == nil || o.given != nil {
		return o.given
	}
	if o.none == nil {
		o.none = NewObjects(p.Objects())
	}
	for o.none.Slab().Len() < rows.Len() {
		if err := o.none.Add(nil, 0); err != nil {
			panic(err) // a row of nulls has nothing that could be too long
		}
	}
	return o.none.Slab()
}
