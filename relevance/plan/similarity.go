package plan

import (
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// Similarity is a value that says how alike two lists are, by a function of
// [similarities]: a list of the record, of its object or of the entity, and the probe,
// as a rule one that the request decides. It is computed over the lists where they stand,
// without a copy, for many rows at a time, and is a number like any other to what reads
// it. Generated code does not compute it: it takes it from the vector of its place among
// the similarities, which [Machine.Similar] fills; what changes with the entity alone is
// the first number there.
type Similarity struct {
	Value int // that it is
	List  int // the value that loads the list
	Probe int // a value that the request decides, or that loads a list too
}

// similarities are the functions whose value is a similarity, for many lists.
var similarities = map[string]func(dst []float64, lists []column.List, probe *column.Probe){
	"dot":    compute.Dots,
	"cosine": compute.Cosines,
	"l2":     compute.L2s,
}

// Similarities returns those of the plan, in the order of its values.
func (p *Plan) Similarities() []Similarity { return p.similar }

func (p *Plan) findSimilarities() {
	p.similar, p.similarAt = nil, make([]int, len(p.Values))
	for i := range p.Values {
		v := &p.Values[i]
		if v.Op != Call || similarities[v.Name] == nil || p.fixed(i) {
			continue
		}
		list, probe := v.Args[0], v.Args[1]
		if p.Values[list].Deps&(Record|Entity) < p.Values[probe].Deps&(Record|Entity) {
			list, probe = probe, list // what changes less often is the probe
		}
		if p.loads(list) && (p.loads(probe) || p.fixed(probe)) {
			p.similar = append(p.similar, Similarity{i, list, probe})
			p.similarAt[i] = len(p.similar)
		}
	}
}

// loads reports whether a value is a list of the record, of its object or of the entity.
func (p *Plan) loads(i int) bool {
	op := p.Values[i].Op
	return op == Field || op == ObjField || op == EntField
}

// fixed reports whether the request decides a value.
func (p *Plan) fixed(i int) bool { return p.Values[i].Deps&(Record|Entity) == 0 }

// similarity returns which similarity a value is, or -1.
func (p *Plan) similarity(i int) int {
	if len(p.similar) == 0 {
		return -1
	}
	return p.similarAt[i] - 1
}

// Similar tells whether a value is a similarity.
func (p *Plan) Similar(i int) bool { return p.similarity(i) >= 0 }

// stands reports whether a list is read where it stands, and copied whether it is read
// from memory of the machine's, or of generated code's.
func (p *Plan) stands(i int) bool {
	return p.Picked(i) || slices.ContainsFunc(p.similar, func(s Similarity) bool { return s.List == i || s.Probe == i && p.loads(i) })
}

func (p *Plan) copied(i int) bool {
	items := p.Values[i].Op == Field
	for at := range p.Values {
		v := &p.Values[at]
		if slices.Contains(v.Args, i) && !(items && v.Op == Item) && !p.Similar(at) {
			return true
		}
	}
	return false
}

// Picked reports whether value i is a list of the record of which only items and
// similarities are read, or one of the entity of which only similarities are: it stays
// where it stands.
func (p *Plan) Picked(i int) bool {
	v := &p.Values[i]
	return (v.Op == Field || v.Op == EntField) && v.Kind == Numbers && !p.copied(i)
}

// probed reports whether a list is what similarities compare with, and is copied for it.
func (p *Plan) probed(i int) bool {
	return slices.ContainsFunc(p.similar, func(s Similarity) bool { return s.Probe == i })
}

// bindProbes prepares what similarities compare with.
func (m *Machine) bindProbes() {
	for n, s := range m.p.similar {
		if m.probes[n] == nil {
			m.probes[n] = new(column.Probe)
		}
		if m.p.fixed(s.Probe) {
			m.probes[n].Set(m.lists[s.Probe][0])
		}
	}
}

// similar computes a similarity of lists. The probes are the lists that these are compared
// with: one for all, or one for each; none where the request decided it.
func (m *Machine) similar(n int, dst []float64, lists, probes []column.List) {
	of, probe := similarities[m.p.Values[m.p.similar[n].Value].Name], m.probes[n]
	if len(probes) < 2 {
		if len(probes) == 1 {
			m.probe(n, probes[0])
		}
		of(dst, lists, probe)
		return
	}
	for i, p := range probes {
		if p.Len() != lists[i].Len() {
			dst[i] = compute.Missing
			continue
		}
		m.probe(n, p)
		of(dst[i:i+1], lists[i:i+1], probe)
	}
}

// probe has a similarity compare with a list.
func (m *Machine) probe(n int, list column.List) {
	m.numbers = list.Append(m.numbers[:0])
	m.probes[n].Set(m.numbers)
}

// between computes a similarity of lists that the machine has loaded.
func (m *Machine) between(n int, dst []float64) {
	s := m.p.similar[n]
	var probes []column.List
	if m.p.loads(s.Probe) {
		probes = m.views[s.Probe][:1]
		if m.p.Values[s.Probe].Deps&Record != 0 {
			probes = m.views[s.Probe][:len(dst)]
		}
	}
	m.similar(n, dst, m.views[s.List][:len(dst)], probes)
}

// Similar computes the similarities of the rows that a has, for generated code: each
// goes to the vector of its place among [Plan.Similarities].
func (m *Machine) Similar(a *compute.ModelArgs) {
	if len(m.standing) == 0 {
		m.standing = make([]column.List, 2*Batch)
	}
	for from := 0; from < len(a.Sel); from += Batch {
		sel := a.Sel[from:min(from+Batch, len(a.Sel))]
		var lists []column.List
		for n, s := range m.p.similar {
			if m.p.Values[s.Value].Deps&Record == 0 && from > 0 {
				continue
			}
			if lists == nil || m.p.similar[n-1].List != s.List {
				lists = m.stand(m.standing[:Batch], a, s.List, sel)
			}
			var probes []column.List
			if m.p.loads(s.Probe) {
				probes = m.stand(m.standing[Batch:], a, s.Probe, sel)
			}
			m.similar(n, a.Vector(n)[from:][:len(lists)], lists, probes)
		}
	}
	clear(m.standing) // which must not outlive the rows
}

// stand finds a list of the rows that generated code scores: of each, or of the entity.
func (m *Machine) stand(dst []column.List, a *compute.ModelArgs, list int, sel []int32) []column.List {
	dst = dst[:len(sel)]
	switch v := &m.p.Values[list]; v.Op {
	case Field:
		a.Rows.ListsAt(dst, a.Columns[v.Index], sel)
	case ObjField:
		a.Objects.ListsAt(dst, m.p.Object[v.Index].Column, sel)
	default:
		dst = dst[:1]
		if dst[0] = (column.List{}); a.Entity != nil {
			dst[0] = a.Entity.ListAt(a.EntCols[v.Index], 0)
		}
	}
	return dst
}
