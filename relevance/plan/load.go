package plan

import (
	"math"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// load reads a field, as value i, for the first n rows of the batch. rows has the records,
// their objects or the entity. If it is nil, as for an entity without features, every value
// is missing.
func (m *Machine) load(i int, rows *column.Slab, l *Load, n int) {
	if rows == nil {
		clear(m.views[i])
		m.set(i, nil)
		return
	}
	sel := m.sel[:n]
	switch m.p.Values[i].Kind {
	case Number:
		loadNumbers(m.nums[i], rows, l, sel, m.run)
	case Bool:
		words := rows.Column(l.Column)
		for k, r := range sel {
			m.bools[i][k] = words[r] != 0
		}
	case String:
		for k, r := range sel {
			m.strs[i][k] = rows.StringAt(l.Column, int(r))
		}
	case Numbers:
		if views := m.views[i]; views != nil {
			rows.ListsAt(views, l.Column, sel)
		}
		if lists := m.lists[i]; lists != nil {
			for k, r := range sel {
				lists[k] = m.arena.Numbers(rows, l.Column, int(r))
			}
		}
	case Strings:
		for k, r := range sel {
			m.strss[i][k] = m.arena.Strings(rows, l.Column, int(r))
		}
	}
}

// loadNumbers reads the numbers of rows sel into dst, a null as missing. run says that sel is
// consecutive rows.
func loadNumbers(dst []float64, rows *column.Slab, l *Load, sel []int32, run bool) {
	words, dst := rows.Column(l.Column), dst[:len(sel)]
	switch {
	case run && l.Kind == column.Double:
		for k, w := range words[sel[0]:][:len(sel)] {
			dst[k] = math.Float64frombits(w)
		}
	case run:
		for k, w := range words[sel[0]:][:len(sel)] {
			dst[k] = float64(int64(w))
		}
	case l.Kind == column.Double:
		for k, r := range sel {
			dst[k] = math.Float64frombits(words[r])
		}
	default:
		for k, r := range sel {
			dst[k] = float64(int64(words[r]))
		}
	}
	if !l.Nullable {
		return
	}
	nulls, bit := rows.Nulls(l.Column)
	for k, r := range sel {
		if nulls[r]&bit != 0 {
			dst[k] = compute.Missing
		}
	}
}

// has computes value i: which of the first n rows of the batch have a field.
func (m *Machine) has(i int, rows *column.Slab, l *Load, n int) {
	for k, r := range m.sel[:n] {
		m.bools[i][k] = rows != nil && !rows.Null(l.Column, int(r))
	}
}

// fold returns the result of operation v, whose arguments, in values, are all constants.
func fold(values []Value, v *Value) any {
	p := &Plan{Output: Output{Own: -1, Score: -1}}
	w := *v
	w.Args = make([]int, len(v.Args))
	for k, a := range v.Args {
		p.Values = append(p.Values, values[a])
		w.Args[k] = k
	}
	p.Values = append(p.Values, w)
	m := p.Machine(true)
	m.Bind(Inputs{})
	i := len(w.Args)
	switch v.Kind {
	case Bool:
		return m.bools[i][0]
	case String:
		return m.strs[i][0]
	case Numbers:
		return m.lists[i][0]
	case Strings:
		return m.strss[i][0]
	}
	return m.nums[i][0]
}
