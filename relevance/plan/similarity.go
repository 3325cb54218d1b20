package plan

import (
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// Similarity is a value that says how alike two lists are, by a function of
// [similarities]: one of the record, of its object or of the entity, and one that the
// request decides, the probe. It is computed over the lists where they stand, without a
// copy, for many rows at a time, and is a number like any other to what reads it.
// Generated code does not compute it: it takes it from the vector of its place among the
// similarities, which [Machine.Similar] fills; of the entity's it takes the first number.
type Similarity struct {
	Value int // that it is
	List  int // the value that loads the list
	Probe int
}

// similarities are the functions whose value is a similarity, for many lists.
var similarities = map[string]func(dst []float64, lists []column.List, probe *column.Probe){
	"dot":    compute.Dots,
	"cosine": compute.Cosines,
}

// Similarities returns those of the plan, in the order of its values.
func (p *Plan) Similarities() []Similarity { return p.similar }

func (p *Plan) findSimilarities() (all []Similarity) {
	for i := range p.Values {
		v := &p.Values[i]
		if v.Op != Call || similarities[v.Name] == nil {
			continue
		}
		for k, a := range v.Args {
			list, probe := &p.Values[a], v.Args[1-k]
			loads := list.Op == Field || list.Op == ObjField || list.Op == EntField
			if loads && p.Values[probe].Deps&(Record|Entity) == 0 {
				all = append(all, Similarity{i, a, probe})
			}
		}
	}
	return all
}

// similarity returns which similarity a value is, or -1.
func (p *Plan) similarity(i int) int {
	return slices.IndexFunc(p.similar, func(s Similarity) bool { return s.Value == i })
}

// Similar tells whether a value is a similarity.
func (p *Plan) Similar(i int) bool { return p.similarity(i) >= 0 }

// stands reports whether a list is read where it stands, and copied whether it is read
// from memory of the machine's, or of generated code's.
func (p *Plan) stands(i int) bool {
	return p.Picked(i) || slices.ContainsFunc(p.similar, func(s Similarity) bool { return s.List == i })
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

// bindProbes prepares what similarities compare with.
func (m *Machine) bindProbes() {
	for n, s := range m.p.similar {
		if m.probes[n] == nil {
			m.probes[n] = new(column.Probe)
		}
		m.probes[n].Set(m.lists[s.Probe][0])
	}
}

// similar computes a similarity of lists.
func (m *Machine) similar(n int, dst []float64, lists []column.List) {
	similarities[m.p.Values[m.p.similar[n].Value].Name](dst, lists, m.probes[n])
}

// Similar computes the similarities of the rows that a has, for generated code: each
// goes to the vector of its place among [Plan.Similarities].
func (m *Machine) Similar(a *compute.ModelArgs) {
	if len(m.standing) == 0 {
		m.standing = make([]column.List, Batch)
	}
	for from := 0; from < len(a.Sel); from += Batch {
		sel := a.Sel[from:min(from+Batch, len(a.Sel))]
		for n, s := range m.p.similar {
			lists := m.standing[:len(sel)]
			switch v := &m.p.Values[s.List]; {
			case v.Op == EntField && from > 0:
				continue
			case v.Op == EntField:
				lists = lists[:1]
				if lists[0] = (column.List{}); a.Entity != nil {
					lists[0] = a.Entity.ListAt(a.EntCols[v.Index], 0)
				}
			case n > 0 && m.p.similar[n-1].List == s.List:
			case v.Op == Field:
				a.Rows.ListsAt(lists, a.Columns[v.Index], sel)
			default:
				a.Objects.ListsAt(lists, m.p.Object[v.Index].Column, sel)
			}
			m.similar(n, a.Vector(n)[from:][:len(lists)], lists)
		}
	}
	clear(m.standing) // which must not outlive the rows
}
