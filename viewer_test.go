package millrace

import (
	"reflect"
	"testing"
)

func TestViewerValue(t *testing.T) {
	v := &Viewer{
		ID:         "member:1",
		Attributes: map[string]any{"lang": "en", "tags": []string{"a"}, "beta": false},
		Features:   map[string]float64{"age": 0},
	}
	for name, want := range map[string]any{"id": "member:1", "lang": "en", "tags": []string{"a"}, "beta": false, "age": 0.0} {
		if got, ok := v.Value(name); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("viewer.%s is %v, %v; want %v", name, got, ok, want)
		}
	}
	if got, ok := v.Value("none"); ok {
		t.Errorf("viewer.none is %v", got)
	}
	if _, ok := new(Viewer).Value("none"); ok {
		t.Error("a viewer without values has one")
	}
}
