package trees

// Explain splits the sum behind a row's score into parts that add up to it. base is the
// base score, the bias of a linear booster, and the values of the trees' roots. columns[c]
// is what the splits that read column c add: each adds the value of the child that the row
// goes to, less its own value. An inner node's value is what the file says that the tree
// would give there; 0 if it does not say. The value of a linear leaf is what its model
// gives; what differs from the split before it counts for that split's column. Sums are in
// float64, before the link, and divided by the average if the model has one.
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

// path adds what the splits on a row's way through a tree add to columns, and returns the
// root's value.
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
