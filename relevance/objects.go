package relevance

import (
	"math"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
)

// Objects collects the features of the objects of records, a row for each record, in the
// layout in which a scorer reads them. An object is what a record is about. The features
// may come in any layout: fields are found by name, and whole numbers become doubles
// where the scorer reads doubles.
type Objects struct {
	layout *column.Layout // the layout of rows
	rows   *column.Appender
	maps   map[*column.Layout][]place // where each layout has the fields of layout
	last   *column.Layout             // the layout that was looked up last
	places []place                    // where last has the fields of layout

	numbers []float64 // memory for the list that copy is copying
	texts   []string  // the same, for a list of strings
}

// Features are rows of features: a *[column.Slab] or a [column.Packed]. The argument field
// of its methods is an index of the fields of Layout.
type Features interface {
	Layout() *column.Layout
	Null(field, row int) bool
	Word(field, row int) uint64
	BytesAt(field, row int) []byte
	DoublesAt(dst []float64, field, row int) []float64
	StringsAt(dst []string, field, row int) []string
}

// place is where a layout has a field.
type place struct {
	column int         // the index of the field in that layout; -1: it has no such field, or one of another type
	kind   column.Kind // the kind of the field in that layout
}

// NewObjects returns an Objects without rows. layout is the one that
// [Scorer.ObjectLayout] returns.
func NewObjects(layout *column.Layout) *Objects {
	return &Objects{layout: layout, maps: map[*column.Layout][]place{}, rows: column.New(layout, 1, 0).Append()}
}

// Reset removes all rows and reuses their memory. What Slab returned before must not be
// read afterwards.
func (o *Objects) Reset() {
	s := o.rows.Slab()
	s.Reset(o.layout)
	o.rows = s.Append()
}

// Slab returns the rows, for [Scorer.SetObjects].
func (o *Objects) Slab() *column.Slab { return o.rows.Slab() }

// AddNone adds a row for a record about whose object nothing is known: all its fields are
// null.
func (o *Objects) AddNone() {
	next := o.rows.Begin()
	for i := range o.layout.Fields() {
		next.SetNull(i)
	}
	if err := o.rows.End(next); err != nil {
		panic(err) // End fails only for values that are too long
	}
}

// Add adds a row for the object of the next record, from a row of features. It fails if a
// value is too long for a row.
func (o *Objects) Add(features Features, row int) error {
	o.find(features.Layout())
	next := o.rows.Begin()
	for i, p := range o.places {
		if p.column < 0 || features.Null(p.column, row) {
			next.SetNull(i)
		} else {
			o.copy(&next, i, features, p, row)
		}
	}
	return o.rows.End(next)
}

// find sets places to where a layout has the fields. A field of another type counts as
// missing.
func (o *Objects) find(l *column.Layout) {
	if l == o.last {
		return
	}
	places, ok := o.maps[l]
	if !ok {
		for _, f := range o.layout.Fields() {
			p := place{column: l.Index(f.Name)}
			if p.column >= 0 {
				p.kind = l.Fields()[p.column].Kind
				if number := p.kind == column.Int || p.kind == column.Time; p.kind != f.Kind && !(f.Kind == column.Double && number) {
					p.column = -1
				}
			}
			places = append(places, p)
		}
		o.maps[l] = places
	}
	o.last, o.places = l, places
}

// copy sets field i of a new row from a field that features has at p.
func (o *Objects) copy(to *column.Row, i int, from Features, p place, row int) {
	switch p.kind {
	case column.Int, column.Time:
		to.SetDouble(i, float64(int64(from.Word(p.column, row))))
	case column.Double:
		to.SetDouble(i, math.Float64frombits(from.Word(p.column, row)))
	case column.Bool:
		to.SetBool(i, from.Word(p.column, row) != 0)
	case column.String:
		to.SetString(i, from.BytesAt(p.column, row))
	case column.Doubles:
		o.numbers = from.DoublesAt(o.numbers[:0], p.column, row)
		to.SetDoubles(i, o.numbers)
	case column.Strings:
		o.texts = from.StringsAt(o.texts[:0], p.column, row)
		to.SetStrings(i, o.texts)
	}
}

// objectRows are the rows of objects' features that a scorer reads.
type objectRows struct {
	given *column.Slab // what SetObjects gave; nil: nothing
	none  *Objects     // rows without values, for when nothing was given
}

// of returns a row of objects' features for each of rows. If the plan reads none, it
// returns what was given.
func (o *objectRows) of(p *plan.Plan, rows *column.Slab) *column.Slab {
	if p.Objects() == nil || o.given != nil {
		return o.given
	}
	if o.none == nil {
		o.none = NewObjects(p.Objects())
	}
	for o.none.Slab().Len() < rows.Len() {
		o.none.AddNone()
	}
	return o.none.Slab()
}
