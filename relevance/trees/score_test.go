package trees

// Score1 scores one row.
func (f *Forest) Score1(row []float64) float64 {
	var s Scores
	m, out := f.Matrix(), [1]float64{}
	for c, x := range row {
		m[c*Block] = x
	}
	f.Score(&s, m, 1, out[:])
	return out[0]
}
