package plan

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/compute"
)

// exec computes value i for n rows.
func (m *Machine) exec(i, n int) {
	v := &m.p.Values[i]
	switch v.Op {
	case Const:
		m.set(i, v.Const)
	case Input:
		m.set(i, m.in.Viewer[v.Index])
	case HasInput:
		m.bools[i][0] = m.in.Viewer[v.Index] != nil
	case AsOf:
		m.nums[i][0] = m.in.AsOf
	case Param:
		m.nums[i][0] = m.in.Weights[v.Index]
	case Field:
		m.load(i, m.rows, &m.p.Record[v.Index], n)
	case EntField:
		m.load(i, m.rows, &m.p.Entity[v.Index], n)
	case ObjField:
		m.load(i, m.objects, &m.p.Object[v.Index], n)
	case Folded:
		for k, r := range m.sel[:n] {
			m.nums[i][k] = m.own[r]
		}
	case HasField:
		m.has(i, m.rows, &m.p.Record[v.Index], n)
	case HasEnt:
		m.has(i, m.rows, &m.p.Entity[v.Index], n)
	case HasObj:
		m.has(i, m.objects, &m.p.Object[v.Index], n)
	default:
		switch v.Kind {
		case Number:
			m.number(i, v, m.nums[i][:n])
		case Bool:
			m.bool(i, v, m.bools[i][:n])
		case String:
			m.string(v, m.strs[i][:n])
		}
	}
}

// set sets the first element of value i to c; if c is nil, to the missing value.
func (m *Machine) set(i int, c any) {
	switch m.p.Values[i].Kind {
	case Number:
		m.nums[i][0] = compute.Missing
		if x, ok := c.(float64); ok {
			m.nums[i][0] = x
		}
	case Bool:
		m.bools[i][0], _ = c.(bool)
	case String:
		if p, ok := c.(*string); ok {
			m.strs[i][0] = *p
			return
		}
		m.strs[i][0], _ = c.(string)
	case Numbers:
		if m.lists[i] != nil {
			m.lists[i][0], _ = c.([]float64)
		}
	case Strings:
		m.strss[i][0], _ = c.([]string)
	}
}

// number computes an operation that gives a number.
func (m *Machine) number(i int, v *Value, dst []float64) {
	if m.steps.fused[i] != nil {
		m.products(i, dst)
		return
	}
	switch v.Op {
	case Lookup:
		m.lookup(v, dst)
		return
	case Item:
		m.item(v, dst)
		return
	case ToNumber:
		if c := m.steps.fusedTo[i]; c > 0 {
			m.above(&m.p.Values[c], dst)
			return
		}
		for k, b := range m.bools[v.Args[0]][:len(dst)] {
			dst[k] = compute.Bool(b)
		}
		return
	case Size:
		m.size(v, dst)
		return
	case Call:
		m.call(i, v, dst)
		return
	case Select:
		pick(dst, m.bools[v.Args[0]], m.nums[v.Args[1]], m.nums[v.Args[2]])
		return
	}
	a := m.nums[v.Args[0]]
	if v.Op == Mul {
		scale(dst, a, m.nums[v.Args[1]])
		return
	}
	a = a[:len(dst)]
	if v.Op == Neg {
		for k, x := range a {
			dst[k] = -x
		}
		return
	}
	b := m.nums[v.Args[1]][:len(dst)]
	switch v.Op {
	case Add:
		for k, x := range a {
			dst[k] = x + b[k]
		}
	case Sub:
		for k, x := range a {
			dst[k] = x - b[k]
		}
	case Div:
		for k, x := range a {
			dst[k] = x / b[k]
		}
	}
}

// scale sets dst to the products of a and b; a may have one element, which is for all.
func scale(dst, a, b []float64) {
	b = b[:len(dst)]
	if len(a) < len(dst) {
		w := a[0]
		for k, x := range b {
			dst[k] = float64(w * x)
		}
		return
	}
	a = a[:len(dst)]
	for k, x := range b {
		dst[k] = float64(a[k] * x)
	}
}

// products computes value i, a sum that steps.fuse has fused: it adds w*f for each fused
// product, in their order. The conversion float64 rounds each product; without it the
// compiler might fuse a multiplication and an addition into one instruction, which gives
// other bits.
func (m *Machine) products(i int, dst []float64) {
	a := m.nums[m.steps.fusedTo[i]][:len(dst)]
	var w [maxFused]float64
	var f [maxFused][]float64
	fused := m.steps.fused[i]
	for k, p := range fused {
		args := m.p.Values[p].Args
		w[k], f[k] = m.nums[args[0]][0], m.nums[args[1]][:len(dst)]
	}
	w0, w1, w2, w3 := w[0], w[1], w[2], w[3]
	dst = dst[:len(a)]
	f0, f1, f2, f3 := f[0][:len(a)], f[1], f[2], f[3]
	switch len(fused) {
	case 1:
		for k, x := range a {
			dst[k] = x + float64(w0*f0[k])
		}
	case 2:
		f1 = f1[:len(a)]
		for k, x := range a {
			dst[k] = x + float64(w0*f0[k]) + float64(w1*f1[k])
		}
	case 3:
		f1, f2 = f1[:len(a)], f2[:len(a)]
		for k, x := range a {
			dst[k] = x + float64(w0*f0[k]) + float64(w1*f1[k]) + float64(w2*f2[k])
		}
	case 4:
		f1, f2, f3 = f1[:len(a)], f2[:len(a)], f3[:len(a)]
		for k, x := range a {
			dst[k] = x + float64(w0*f0[k]) + float64(w1*f1[k]) + float64(w2*f2[k]) + float64(w3*f3[k])
		}
	}
}

// pick sets dst, row by row, to a if c is true, else to b.
func pick[T any](dst []T, c []bool, a, b []T) {
	a, b, c = a[:len(dst)], b[:len(dst)], c[:len(dst)]
	for k := range dst {
		if c[k] {
			dst[k] = a[k]
		} else {
			dst[k] = b[k]
		}
	}
}

func (m *Machine) lookup(v *Value, dst []float64) {
	t, a := m.in.Tables[v.Index], v.Args[0]
	switch {
	case m.p.direct(v):
		words := m.rows.Column(m.p.Record[m.p.Values[a].Index].Column)
		for k, r := range m.sel[:len(dst)] {
			dst[k] = t.Word(m.rows, words[r])
		}
	case m.p.Values[a].Kind == String:
		for k, s := range m.strs[a][:len(dst)] {
			dst[k] = t.String(s)
		}
	default:
		for k, x := range m.nums[a][:len(dst)] {
			dst[k] = t.Number(x)
		}
	}
}

func (m *Machine) item(v *Value, dst []float64) {
	a := v.Args[0]
	if views := m.views[a]; views != nil {
		for k, list := range views[:len(dst)] {
			dst[k] = list.At(v.Index)
		}
		return
	}
	for k, list := range m.lists[a][:len(dst)] {
		dst[k] = compute.Item(list, v.Index)
	}
}

func (m *Machine) size(v *Value, dst []float64) {
	a := v.Args[0]
	for k := range dst {
		switch m.p.Values[a].Kind {
		case String:
			dst[k] = compute.Size(m.strs[a][k])
		case Numbers:
			dst[k] = float64(len(m.lists[a][k]))
		default:
			dst[k] = float64(len(m.strss[a][k]))
		}
	}
}

// call calls a function that gives a number.
func (m *Machine) call(i int, v *Value, dst []float64) {
	if n := m.p.similarity(i); n >= 0 {
		m.between(n, dst)
		return
	}
	if v.Name == "log1p" {
		if a := m.nums[v.Args[0]]; m.p.Always(v.Args[0]) {
			compute.Log1pWholes(dst, a)
		} else {
			compute.Log1ps(dst, a)
		}
		return
	}
	if v.Name == "decay" && m.p.Values[v.Args[1]].Deps&Record == 0 {
		compute.Decays(dst, m.nums[v.Args[0]][:len(dst)], m.nums[v.Args[1]][0])
		return
	}
	switch f := m.steps.funcs[i].(type) {
	case func(float64) float64:
		for k, x := range m.nums[v.Args[0]][:len(dst)] {
			dst[k] = f(x)
		}
	case func(a, b float64) float64:
		a, b := m.nums[v.Args[0]][:len(dst)], m.nums[v.Args[1]][:len(dst)]
		for k, x := range a {
			dst[k] = f(x, b[k])
		}
	case func(a, b, c float64) float64:
		a, b, c := m.nums[v.Args[0]][:len(dst)], m.nums[v.Args[1]][:len(dst)], m.nums[v.Args[2]][:len(dst)]
		for k, x := range a {
			dst[k] = f(x, b[k], c[k])
		}
	case func(float64, []float64) float64: // bucketize, whose bounds are constant
		a, bounds := m.nums[v.Args[0]][:len(dst)], m.lists[v.Args[1]][0]
		if len(bounds) > 4 {
			for k, x := range a {
				dst[k] = compute.Bucketize(x, bounds)
			}
			return
		}
		bucketize(dst, a, bounds, m.p.Always(v.Args[0]))
	case func(a, b []float64) float64:
		a, b := m.lists[v.Args[0]][:len(dst)], m.lists[v.Args[1]][:len(dst)]
		for k, x := range a {
			dst[k] = f(x, b[k])
		}
	}
}

// bucketize is compute.Bucketize over a batch, for at most four bounds and without
// branches. always says that no number of a is missing. dst may be a.
func bucketize(dst, a, bounds []float64, always bool) {
	b := [4]float64{compute.Missing, compute.Missing, compute.Missing, compute.Missing} // NaN, which no number reaches
	copy(b[:], bounds)
	b0, b1, b2, b3 := b[0], b[1], b[2], b[3]
	dst = dst[:len(a)]
	if always && len(bounds) < 4 {
		for k, x := range a {
			dst[k] = float64(compute.One(x >= b0) + compute.One(x >= b1) + compute.One(x >= b2))
		}
		return
	}
	for k, x := range a {
		dst[k] = float64(compute.One(x >= b0) + compute.One(x >= b1) + compute.One(x >= b2) + compute.One(x >= b3))
		if x != x {
			dst[k] = x
		}
	}
}

// bool computes an operation that gives a boolean.
func (m *Machine) bool(i int, v *Value, dst []bool) {
	switch v.Op {
	case Not:
		for k, x := range m.bools[v.Args[0]][:len(dst)] {
			dst[k] = !x
		}
	case And:
		a, b := m.bools[v.Args[0]], m.bools[v.Args[1]]
		for k := range dst {
			dst[k] = a[k] && b[k]
		}
	case Or:
		a, b := m.bools[v.Args[0]], m.bools[v.Args[1]]
		for k := range dst {
			dst[k] = a[k] || b[k]
		}
	case Select:
		pick(dst, m.bools[v.Args[0]], m.bools[v.Args[1]], m.bools[v.Args[2]])
	case In:
		m.contains(i, v, dst)
	case Present:
		m.present(v, dst)
	case Call:
		f := m.steps.funcs[i].(func(a, b string) bool)
		a, b := m.strs[v.Args[0]], m.strs[v.Args[1]]
		for k := range dst {
			dst[k] = f(a[k], b[k])
		}
	default:
		m.compare(v, dst)
	}
}

func (m *Machine) compare(v *Value, dst []bool) {
	a, b := v.Args[0], v.Args[1]
	switch {
	case m.p.direct(v):
		words := m.rows.Column(m.p.Record[m.p.Values[a].Index].Column)
		want := m.strs[b][0]
		for k, r := range m.sel[:len(dst)] {
			dst[k] = m.rows.EqualString(words[r], want) == (v.Op == Eq)
		}
	case m.p.Values[a].Kind == Bool:
		for k := range dst {
			dst[k] = (m.bools[a][k] == m.bools[b][k]) == (v.Op == Eq)
		}
	case m.p.Values[a].Kind == String:
		order(v.Op, dst, m.strs[a], m.strs[b])
	default:
		order(v.Op, dst, m.nums[a], m.nums[b])
	}
}

// order compares a with b, row by row.
func order[T cmp.Ordered](op Op, dst []bool, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch op {
	case Eq:
		for k, x := range a {
			dst[k] = x == b[k]
		}
	case Ne:
		for k, x := range a {
			dst[k] = x != b[k]
		}
	case Lt:
		for k, x := range a {
			dst[k] = x < b[k]
		}
	case Le:
		for k, x := range a {
			dst[k] = x <= b[k]
		}
	case Gt:
		for k, x := range a {
			dst[k] = x > b[k]
		}
	case Ge:
		for k, x := range a {
			dst[k] = x >= b[k]
		}
	}
}

// above computes a > b or a >= b, of numbers, as 0 or 1.
func (m *Machine) above(v *Value, dst []float64) {
	a, b := m.nums[v.Args[0]][:len(dst)], m.nums[v.Args[1]][:len(dst)]
	if v.Op == Gt {
		for k, x := range a {
			dst[k] = compute.Bool(x > b[k])
		}
		return
	}
	for k, x := range a {
		dst[k] = compute.Bool(x >= b[k])
	}
}

func (m *Machine) contains(i int, v *Value, dst []bool) {
	a, list := v.Args[0], v.Args[1]
	set := m.sets[i]
	switch {
	case set != nil && m.p.direct(v):
		words := m.rows.Column(m.p.Record[m.p.Values[a].Index].Column)
		for k, r := range m.sel[:len(dst)] {
			dst[k] = set.Word(m.rows, words[r]) != 0
		}
	case m.p.Values[a].Kind == String:
		for k := range dst {
			if set != nil {
				dst[k] = set.String(m.strs[a][k]) != 0
			} else {
				dst[k] = slices.Contains(m.strss[list][k], m.strs[a][k])
			}
		}
	default:
		for k := range dst {
			if set != nil {
				dst[k] = set.Number(m.nums[a][k]) != 0
			} else {
				dst[k] = slices.Contains(m.lists[list][k], m.nums[a][k])
			}
		}
	}
}

func (m *Machine) present(v *Value, dst []bool) {
	a := v.Args[0]
	for k := range dst {
		if m.p.direct(v) {
			dst[k] = m.rows.Word(m.p.Record[m.p.Values[a].Index].Column, int(m.sel[k])) != 0
		} else {
			dst[k] = m.strs[a][k] != ""
		}
	}
}

// string computes an operation that gives a string.
func (m *Machine) string(v *Value, dst []string) {
	a := v.Args[0]
	switch v.Op {
	case Text:
		for k, x := range m.nums[a][:len(dst)] {
			dst[k] = m.arena.Text(x)
		}
	case Cross:
		b := m.strs[v.Args[1]]
		for k, x := range m.strs[a][:len(dst)] {
			dst[k] = m.arena.Cross(x, b[k])
		}
	case Select:
		pick(dst, m.bools[a], m.strs[v.Args[1]], m.strs[v.Args[2]])
	}
}
