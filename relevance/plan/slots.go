package plan

import (
	"github.com/millrace/millrace/compute"
)

// Slots tell where generated code finds the values that the request decides, apart from
// constants and parameters. The value Numbers[i] is in compute.ModelArgs.Numbers[i]; so are
// those of Bools, Strings and Lists (lists of numbers). The list Sets[i], which an In looks
// into, is in compute.ModelArgs.Sets[i].
type Slots struct {
	Numbers, Bools, Strings, Lists []int // indices in Plan.Values
	Sets                           []int // indices in Plan.Values of lists
}

// Slots returns the slots of the plan.
func (p *Plan) Slots() Slots { return p.slots }

// findSlots returns the slots: the arguments of values that change with the record or the
// entity, and the results, as far as the request decides them.
func (p *Plan) findSlots() Slots {
	var s Slots
	seen := make([]bool, len(p.Values))
	set := make([]bool, len(p.Values))
	for i := range p.Values {
		v := &p.Values[i]
		if v.Deps&(Record|Entity) == 0 {
			continue
		}
		for k, a := range v.Args {
			arg := &p.Values[a]
			fixed := arg.Deps&(Record|Entity) == 0
			switch {
			case fixed && v.Op == In && k == 1:
				if !set[a] {
					set[a] = true
					s.Sets = append(s.Sets, a)
				}
			case fixed && arg.Op != Const && arg.Op != Param && !seen[a]:
				seen[a] = true
				s.add(arg.Kind, a)
			}
		}
	}
	for _, o := range p.Outputs() {
		for _, i := range o.results() {
			s.root(p, i, seen)
		}
	}
	return s
}

// root adds result i of an Output, if the request decides it. seen marks the values that
// have a slot.
func (s *Slots) root(p *Plan, i int, seen []bool) {
	v := &p.Values[i]
	if v.Deps&(Record|Entity) == 0 && v.Op != Const && v.Op != Param && !seen[i] {
		seen[i] = true
		s.add(v.Kind, i)
	}
}

func (s *Slots) add(k Kind, i int) {
	switch k {
	case Number:
		s.Numbers = append(s.Numbers, i)
	case Bool:
		s.Bools = append(s.Bools, i)
	case String:
		s.Strings = append(s.Strings, i)
	case Numbers:
		s.Lists = append(s.Lists, i)
	}
}

// Preparer returns a machine for generated code. It computes only similarities and, for
// [Machine.Args], what the request decides.
func (p *Plan) Preparer() *Machine {
	m := p.machine(p.request)
	numbers := make([]float64, len(p.Values))
	for _, i := range p.request.request {
		if p.Values[i].Kind == Number {
			m.nums[i] = numbers[i : i+1]
		} else {
			m.place(i, 1)
		}
	}
	return m
}

// Args binds the machine to a request, and sets in a what the generated code of this plan
// needs besides the rows: the columns, the parameters, and what the request decides. It
// reuses the memory that a has from the request before. The contents of a are valid until
// the machine is bound again.
func (m *Machine) Args(a *compute.ModelArgs, in Inputs) {
	m.Bind(in)
	p := m.p
	a.Columns, a.EntCols = a.Columns[:0], a.EntCols[:0]
	for _, l := range p.Record {
		a.Columns = append(a.Columns, l.Column)
	}
	for _, l := range p.Entity {
		a.EntCols = append(a.EntCols, l.Column)
	}
	a.Weights, a.Tables = in.Weights, in.Tables
	a.Numbers, a.Bools, a.Strings, a.Lists = a.Numbers[:0], a.Bools[:0], a.Strings[:0], a.Lists[:0]
	s := &p.slots
	for _, i := range s.Numbers {
		a.Numbers = append(a.Numbers, m.nums[i][0])
	}
	for _, i := range s.Bools {
		a.Bools = append(a.Bools, m.bools[i][0])
	}
	for _, i := range s.Strings {
		a.Strings = append(a.Strings, m.strs[i][0])
	}
	for _, i := range s.Lists {
		a.Lists = append(a.Lists, m.lists[i][0])
	}
	for k, i := range s.Sets {
		if k == len(a.Sets) {
			a.Sets = append(a.Sets, nil)
		}
		a.Sets[k] = m.setOf(a.Sets[k], i)
	}
}
