package plan

import (
	"slices"

	"github.com/millrace/millrace/internal/column"
)

// Reading is a text or a list that a plan reads from end to end. The time that this takes
// depends on its length, which whoever writes the record chooses.
type Reading struct {
	Column int  // in the layout of the record, the entity or the object
	Kind   Kind // String, Numbers or Strings
	Each   int  // how many times it is read for each record
	Once   int  // how many times it is read for all records of a call together; 0 unless it is of the entity
}

// Readings are the readings of records, of the features of their objects, and of the features
// of the entity.
type Readings struct{ Record, Object, Entity []Reading }

// None reports whether there are no readings.
func (r *Readings) None() bool { return len(r.Record)+len(r.Object)+len(r.Entity) == 0 }

// Length returns how many bytes a row's text or list of texts has, or how many items its
// list of numbers. It is 0 if rows is nil.
func (r *Reading) Length(rows *column.Slab, row int) int {
	switch {
	case rows == nil:
		return 0
	case r.Kind == Numbers:
		return rows.Size(r.Column, row) / 8
	}
	return rows.Size(r.Column, row)
}

// Lengths returns the sum of Length over the rows sel.
func (r *Reading) Lengths(rows *column.Slab, sel []int32) int {
	switch {
	case rows == nil:
		return 0
	case r.Kind == Numbers:
		return rows.Sizes(r.Column, sel) / 8
	}
	return rows.Sizes(r.Column, sel)
}

// decoding is how many readings a list counts for that must be decoded: one or two of its
// bytes become up to sixteen, in memory that may have to be allocated for the request.
const decoding = 8

// Readings returns what the plan reads from end to end, and how often. It leaves out a
// text that is only looked up, or only compared with a text that is no field: a text of
// another length is known to differ without being read.
func (p *Plan) Readings() (all Readings) {
	from := make([][]int, len(p.Values)) // by value, the fields whose text or list it may be, or of which it is a Cross
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

// reading returns the entry in all for the field that a value loads, and adds it if need be.
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
