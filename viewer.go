package millrace

// Viewer is the person or thing that a feed is for, as the caller describes it.
type Viewer struct {
	ID string
	// Attributes are bool, float64, string, []float64 or []string. Filters and models
	// read them as viewer.NAME.
	Attributes map[string]any
	// Features are numbers, read as viewer.NAME as well. No name is in both maps.
	Features map[string]float64
}

// Value returns what viewer.NAME stands for: the id, an attribute or a feature. The bool is
// false if there is none of that name.
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
