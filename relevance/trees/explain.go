package trees

// Explain splits the sum of a row's leaves: base is the base score, a linear
// booster's bias, and what the trees would give before their first split; each
// split's step belongs to the column it reads. Where a file does not say what
// its inner nodes would give, they count as 0, and a linear leaf's model counts
// for the last split. Sums are in float64.
func (f *Forest) Explain(row []float64) (base float64, columns []float64) {
	columns = make([]float64, f.Inputs)
	block := f.row(row)
	base = f.base[f.class]
	if f.weights != nil {
		base += f.weights[f.Inputs*f.Classes+f.class]
		for c := range columns {
			if x := block[c*Block]; x == x {
				columns[c] = float64(x * f.weights[c*f.Classes+f.class])
			}
		}
	}
	for i := range f.trees {
		if t := &f.trees[i]; int(t.class) == f.class {
			base += f.path(t, block, columns)
		}
	}
	for c := range columns {
		columns[c] /= f.average
	}
	return base / f.average, columns
}

// path adds a tree's steps to columns and returns the root's value.
func (f *Forest) path(t *tree, block, columns []float64) float64 {
	nodes := f.nodes[t.start:t.end]
	n := &nodes[0]
	root := n.value
	for n.kind != leafNode {
		next := &nodes[n.child[f.side(n, block[int(n.feature)*Block])]]
		value := next.value
		if next.kind == leafNode && t.linear {
			value = f.leafValue(next, block)
		}
		columns[n.feature] += value - n.value
		n = next
	}
	return root
}
