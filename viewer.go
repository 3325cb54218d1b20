package millrace

// Viewer is who a feed is for, as the caller describes it.
type Viewer struct {
	ID string
	// Attributes are bool, float64, string, []float64 or []string, reached
	// in filters and models as viewer.NAME.
	Attributes map[string]any
	// Features are numbers, reached as viewer.NAME as well. No name is in
	// both.
	Features map[string]float64
}

// Value returns viewer.name: the id, an attribute or a feature.
func (v *Viewer) Value(name string) (any, bool) {
	if name == "id" {
		return v.ID, true
	}
	if x, ok := v.Attributes[name]; ok {
		return x, true
	}
	if x, ok := v.Features[name]; ok {
		return x, true
	}
	return nil, false
}
