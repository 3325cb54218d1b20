package plan

import (
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// Similarity is a value that says how alike two lists are: dot, cosine or l2. One list is
// of the record, of its object or of the entity. The other list is the probe, as a rule
// one that the request decides. A similarity is computed for many rows at a time, over the
// lists in the slab (the memory of the rows), without a copy. Generated code does not
// compute it: it reads the vector of [compute.ModelArgs] with the similarity's index in
// [Plan.Similarities], which [Machine.Similar] fills. If the similarity changes with the
// entity alone, only the first number of the vector is set.
//
// The fields are indices in Plan.Values.
type Similarity struct {
	Value int // the similarity
	List  int // the value that loads the list
	Probe int // the probe: a value that the request decides, or that loads a list too
}

// similarities are, by name, the functions that compute similarities of many lists and one
// probe.
var similarities = map[string]func(dst []float64, lists []column.List, probe *column.Probe){
	"dot":    compute.Dots,
	"cosine": compute.Cosines,
	"l2":     compute.L2s,
}

// Similarities returns the similarities of the plan, in the order of its values. The
// caller must not change them.
func (p *Plan) Similarities() []Similarity { return p.similar }

// findSimilarities sets p.similar and p.similarAt.
func (p *Plan) findSimilarities() {
	p.similar, p.similarAt = nil, make([]int, len(p.Values))
	for i := range p.Values {
		v := &p.Values[i]
		if v.Op != Call || similarities[v.Name] == nil || p.fixed(i) {
			continue
		}
		list, probe := v.Args[0], v.Args[1]
		if p.Values[list].Deps&(Record|Entity) < p.Values[probe].Deps&(Record|Entity) {
			list, probe = probe, list // the one that changes less often is the probe
		}
		if p.loads(list) && (p.loads(probe) || p.fixed(probe)) {
			p.similar = append(p.similar, Similarity{i, list, probe})
			p.similarAt[i] = len(p.similar)
		}
	}
}

// loads reports whether a value loads a field of the record, of its object or of the entity.
func (p *Plan) loads(i int) bool {
	op := p.Values[i].Op
	return op == Field || op == ObjField || op == EntField
}

// fixed reports whether the request decides a value.
func (p *Plan) fixed(i int) bool { return p.Values[i].Deps&(Record|Entity) == 0 }

// similarity returns the index in p.similar of value i; -1 if it is no similarity.
func (p *Plan) similarity(i int) int {
	if len(p.similar) == 0 {
		return -1
	}
	return p.similarAt[i] - 1
}

// Similar reports whether a value is a similarity.
func (p *Plan) Similar(i int) bool { return p.similarity(i) >= 0 }

// stands reports whether some operation reads list i in the slab, without a copy. Another
// operation may read a copy of the same list; see copied.
func (p *Plan) stands(i int) bool {
	return p.Picked(i) || slices.ContainsFunc(p.similar, func(s Similarity) bool { return s.List == i || s.Probe == i && p.loads(i) })
}

// copied reports whether some operation reads list i from a copy, in memory of the machine or
// of generated code.
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

// Picked reports whether value i is a list of numbers that is never copied. A list of the
// record is so if only its items and similarities are read, one of the entity if only its
// similarities are.
func (p *Plan) Picked(i int) bool {
	v := &p.Values[i]
	return (v.Op == Field || v.Op == EntField) && v.Kind == Numbers && !p.copied(i)
}

// probed reports whether a list is the probe of a similarity, for which it is copied.
func (p *Plan) probed(i int) bool {
	return slices.ContainsFunc(p.similar, func(s Similarity) bool { return s.Probe == i })
}

// bindProbes prepares the probes that the request decides.
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

// similar computes similarity n of lists into dst. probes are the lists to compare them
// with: one for all, or one for each; none if the request decides the probe. It is missing
// if a list and its probe differ in length.
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

// probe makes a list the probe of similarity n.
func (m *Machine) probe(n int, list column.List) {
	m.numbers = list.Append(m.numbers[:0])
	m.probes[n].Set(m.numbers)
}

// between computes similarity n of the lists that the machine has loaded for this batch.
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

// Similar computes the similarities of the rows of a, for generated code. It writes each
// similarity to the vector of a that has its index in [Plan.Similarities].
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
	clear(m.standing) // so that the lists do not keep the rows alive
}

// stand sets dst to the lists that value list loads, for generated code: one for each row of
// sel, or only one if it is a list of the entity. It returns as many of dst as it has set.
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
