package column

// without has the sums computed in plain Go, until what it returns is called.
func without() func() {
	had := hasAVX2
	hasAVX2 = false
	return func() { hasAVX2 = had }
}
