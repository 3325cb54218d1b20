package client

import "testing"

// A caller deals by the golden slots of internal/slot: member:42 has slot 4592
// and draw 5692.
func TestRule(t *testing.T) {
	r, err := ReadRule([]byte(`{"experiment":"fresher","feeds":["home"],"salt":"ranking-2026","unit":"viewer","slots":[{"from":4592,"to":4592}],
		"arms":[{"variant":"control","weight":5692},{"variant":"treatment","weight":4308}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := r.Assign("home", "member:42"); v != "treatment" || !ok {
		t.Errorf("member:42 has %q", v)
	}
	if v, ok := r.Assign("home", "member:43"); ok {
		t.Errorf("member:43 has %q", v)
	}
	if _, err := ReadRule([]byte(`{"arms":[]}`)); err == nil {
		t.Error("a rule without variants is taken")
	}
}
