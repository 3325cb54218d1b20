package relevance

import "testing"

// A set of models is joined once, and again when one of them changes.
func TestRegistryJoin(t *testing.T) {
	r := Builtin()
	join := func() *Joint {
		j, err := r.Join(builtinModel(t, "home"), ID{Name: "recency"})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	first := join()
	if join() != first {
		t.Error("joined anew though nothing changed")
	}
	changed := *r.mu.models[ID{Name: "recency"}].Interpreted()
	r.mu.models[ID{Name: "recency"}] = &changed
	if j := join(); j == first || j.Models()[1] != &changed {
		t.Error("a model changed, and the one before is joined")
	}
	if _, err := r.Join(builtinModel(t, "home"), ID{Name: "nobody"}); err == nil {
		t.Error("joined with a model that there is not")
	}
}

func TestCompareVersions(t *testing.T) {
	order := []string{"", "1", "1.2", "1.9", "1.10-rc1", "1.10-rc2", "1.10", "1.10.1", "2", "10", "2026-01-02", "2026-01-10", "v1", "v2"}
	for i, a := range order {
		for j, b := range order {
			if got := CompareVersions(a, b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%q against %q gives %d", a, b, got)
			}
		}
	}
}
