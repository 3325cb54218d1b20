package plan

import (
	"slices"

	"github.com/millrace/millrace/internal/column"
)

// Reading is a text or a list that a plan reads from end to end: what that takes
// depends on how long it is, and so on who wrote it.
type Reading struct {
	Column int
	Kind   Kind // String, Numbers or Strings
	Each   int  // how often for each record
	Once   int  // how often for all records of a call; of the entity alone
}

// Readings are those of records, of the features of their objects, and of those of
// the entity.
type Readings struct{ Record, Object, Entity []Reading }

// None reports whether there are none.
func (r *Readings) None() bool { return len(r.Record)+len(r.Object)+len(r.Entity) == 0 }

// Length returns how many bytes a row's text has, or a list of texts, or how many
// items a list of numbers. Of no rows it is 0.
func (r *Reading) Length(rows *column.Slab, row int) int {
	switch {
	case rows == nil:
		return 0
	case r.Kind == Numbers:
		return rows.Size(r.Column, row) / 8
	}
	return rows.Size(r.Column, row)
}

// Lengths is the sum of Length of some rows.
func (r *Reading) Lengths(rows *column.Slab, sel []int32) int {
	switch {
	case rows == nil:
		return 0
	case r.Kind == Numbers:
		return rows.Sizes(r.Column, sel) / 8
	}
	return rows.Sizes(r.Column, sel)
}

// decoding is how many readings it is to decode a list: of a byte or two come up to
// sixteen, in memory that may be new to the question.
const decoding = 8

// Readings tells what the plan reads from end to end, and how often. A text that is
// compared, or looked up, with what is no field is not among them: one of another
// length differs.
func (p *Plan) Readings() (all Readings) {
	from := make([][]int, len(p.Values)) // fields of which a value may be the text or list, or a cross
	times := func(n, by int, args ...int) {
		for _, a := range args {
			for _, f := range from[a] {
				r := p.reading(&all, f)
				if p.Values[by].Deps&Record == 0 {
					r.Once += n
				} else {
					r.Each += n
				}
			}
		}
	}
	read := func(by int, args ...int) { times(1, by, args...) }
	both := func(args []int) bool { return len(from[args[0]]) > 0 && len(from[args[1]]) > 0 }
	for i := range p.Values {
		v := &p.Values[i]
		switch v.Op {
		case Field, EntField, ObjField:
			if v.Kind == String || v.Kind == Numbers || v.Kind == Strings {
				from[i] = []int{i}
			}
			if v.Kind != String && (!p.Picked(i) || p.probed(i)) {
				times(decoding, i, i)
			}
		case Select, Cross:
			for _, a := range v.Args {
				from[i] = append(from[i], from[a]...)
			}
			slices.Sort(from[i])
			from[i] = slices.Compact(from[i])
			if v.Op == Cross {
				read(i, v.Args...)
			}
		case Size:
			read(i, v.Args[0])
		case In:
			read(i, v.Args[1])
		case Eq, Ne, Lt, Le, Gt, Ge:
			if both(v.Args) {
				read(i, v.Args...)
			}
		case Call:
			if v.Name != "startsWith" && v.Name != "endsWith" || both(v.Args) {
				read(i, v.Args...)
			}
		}
	}
	return all
}

// reading returns what all says of the field that a value loads.
func (p *Plan) reading(all *Readings, field int) *Reading {
	v := &p.Values[field]
	of, loads := &all.Record, p.Record
	switch v.Op {
	case EntField:
		of, loads = &all.Entity, p.Entity
	case ObjField:
		of, loads = &all.Object, p.Object
	}
	c := loads[v.Index].Column
	i := slices.IndexFunc(*of, func(r Reading) bool { return r.Column == c })
	if i < 0 {
		i, *of = len(*of), append(*of, Reading{Column: c, Kind: v.Kind})
	}
	return &(*of)[i]
}
