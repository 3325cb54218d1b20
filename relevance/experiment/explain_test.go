package experiment

import (
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// member:42 has slot 4592 of shown's layer and draw 5692 of its experiment.
func TestExplain(t *testing.T) {
	at := func(slots, share string) string {
		return replace(replace(shown, "0-3999, 4500", slots), "share: 500", "share: "+share)
	}
	german := &millrace.Viewer{ID: "member:42", Attributes: map[string]any{"country": "de"}}
	for _, c := range []struct {
		name   string
		docs   []string
		feed   string
		viewer *millrace.Viewer
		cause  Cause
		why    string
	}{
		{"dealt", []string{at("4500-4599", "10000")}, "home", german, CauseDealt, "slot 4592 is in use (4500-4599), and draw 5692 is treatment's (5000-9999)"},
		{"paused", []string{replace(shown, "running", "paused")}, "home", german, CauseState, "it is paused"},
		{"draft", []string{replace(shown, "running", "draft")}, "home", german, CauseState, "it is draft, and assigns only those whom it forces"},
		{"feed", []string{shown}, "recent", german, CauseFeed, `it applies to home, not to "recent"`},
		{"forced", []string{shown}, "home", &millrace.Viewer{ID: "alice"}, CauseForced, `the definition names "alice" for treatment`},
		{"forced in a draft", []string{replace(shown, "running", "draft")}, "home", &millrace.Viewer{ID: "alice"}, CauseForced, `the definition names "alice" for treatment`},
		{"weights", []string{replace(shown, "model: home2", "weights: {likes: 3, type.post: 1}")}, "home", &millrace.Viewer{ID: "alice"}, CauseForced, `the definition names "alice" for treatment; it sets weights 3a70dbbed615`},
		{"elsewhere", []string{shown, replace(third, "share: 10000", "share: 10000\n    forced: {bob: only}")}, "home", &millrace.Viewer{ID: "bob"}, CauseElsewhere, `experiment longer of the same layer names "bob"`},
		{"no id", []string{shown}, "home", &millrace.Viewer{}, CauseUnit, "layer ranking divides by viewer, and it has no id"},
		{"nobody", []string{shown}, "home", nil, CauseUnit, "layer ranking divides by viewer, and it has no id"},
		{"no attribute", []string{replace(shown, "unit: viewer", "unit: attribute country")}, "home", &millrace.Viewer{ID: "x"}, CauseUnit, "layer ranking divides by viewer.country, which is missing, or no text, boolean or whole number"},
		{"entities", []string{replace(second, "attribute country", "entity")}, "home", german, CauseUnit, "layer density divides by entity, which was not asked for"},
		{"held out", []string{replace(shown, "9500-9999", "4592")}, "home", german, CauseHeldOut, "slot 4592 of layer ranking is held out"},
		{"slot", []string{shown}, "home", german, CauseSlot, "slot 4592 of layer ranking is not one of 0-3999, 4500"},
		{"share", []string{at("4500-4599", "1000")}, "home", german, CauseShare, "slot 4592 is its own and not in use yet: a share of 1000 of 10,000 uses 4500-4509"},
		{"false", []string{at("4592", "10000")}, "home", &millrace.Viewer{ID: "member:42", Attributes: map[string]any{"country": "us"}}, CauseTargeting, `slot 4592 is in use, and viewer.country in ["de", "fr"] is false (viewer.country = us)`},
		{"long", []string{at("4592", "10000")}, "home", &millrace.Viewer{ID: "member:42", Attributes: map[string]any{"country": strings.Repeat("x", 97) + "ü"}}, CauseTargeting, `slot 4592 is in use, and viewer.country in ["de", "fr"] is false (viewer.country = ` + strings.Repeat("x", 97) + `...)`},
		{"as long as may be", []string{at("4592", "10000")}, "home", &millrace.Viewer{ID: "member:42", Attributes: map[string]any{"country": strings.Repeat("x", 98)}}, CauseTargeting, `slot 4592 is in use, and viewer.country in ["de", "fr"] is false (viewer.country = ` + strings.Repeat("x", 98) + `)`},
		{"missing", []string{at("4592", "10000")}, "home", &millrace.Viewer{ID: "member:42"}, CauseTargeting, `slot 4592 is in use, and viewer.country in ["de", "fr"] is false (viewer.country is missing)`},
		{"null", []string{replace(at("4592", "10000"), `viewer.country in ["de", "fr"]`, "viewer.beta && viewer.age > 18.0")}, "home", &millrace.Viewer{ID: "member:42", Attributes: map[string]any{"beta": true}}, CauseTargeting, "slot 4592 is in use, and viewer.age > 18.0 has no value (viewer.age is missing)"},
		{"of another type", []string{replace(at("4592", "10000"), `viewer.country in ["de", "fr"]`, "viewer.beta")}, "home", &millrace.Viewer{ID: "member:42", Attributes: map[string]any{"beta": 3.0}}, CauseTargeting, "slot 4592 is in use, and viewer.beta is neither true nor false, for a value of another type (viewer.beta = 3)"},
		{"no value", []string{at("4592", "10000")}, "home", &millrace.Viewer{ID: "member:42", Attributes: map[string]any{"country": 7}}, CauseTargeting, "slot 4592 is in use, and the targeting cannot be asked: viewer.country: a viewer value cannot be a int"},
	} {
		x := compile(t, c.docs...).Explain(c.feed, c.viewer)[0]
		if x.Cause != c.cause || !strings.HasPrefix(x.Why, c.why) {
			t.Errorf("%s: %s: %s, want %s: %s", c.name, x.Cause, x.Why, c.cause, c.why)
		}
	}
	x := compile(t, replace(second, "attribute country", "entity")).ExplainEntity("home", "member:1")[0]
	if x.Cause != CauseDealt || x.Variant == "" {
		t.Errorf("an entity: %+v", x)
	}
	x = compile(t, shown).ExplainEntity("home", "member:1")[0]
	if x.Cause != CauseUnit {
		t.Errorf("an entity in a layer of viewers: %+v", x)
	}
}

// What is explained is what is assigned.
func TestExplainAgreesWithAssign(t *testing.T) {
	met := map[Cause]int{}
	for seed := range uint64(60) {
		r := random(seed)
		s := compile(t, randomDocument(r, 5))
		for range 200 {
			v := randomViewer(r)
			if r.IntN(20) == 0 {
				v.ID = []string{"viewer:0", "viewer:1000", "viewer:2001"}[r.IntN(3)]
			}
			feed := []string{"home", "recent", "other"}[r.IntN(3)]
			a := s.Assign(feed, v)
			for _, x := range s.Explain(feed, v) {
				met[x.Cause]++
				i := slices.IndexFunc(a.Experiments, func(y Assigned) bool { return y.Experiment == x.Experiment })
				switch in := x.Cause == CauseDealt || x.Cause == CauseForced; {
				case in != (i >= 0) || in != (x.Variant != ""):
					t.Fatalf("%+v: %+v\n%+v", v, x, a)
				case in:
					if y := a.Experiments[i]; y.Variant != x.Variant || y.Forced != (x.Cause == CauseForced) || y.Unit != x.Unit {
						t.Fatalf("%+v: %+v\n%+v", v, x, y)
					}
				case x.Cause == CauseHeldOut:
					if l := s.layer(x.Layer); slices.Contains(s.feedLayers(feed), l) && !slices.Contains(a.HeldOut, x.Layer) {
						t.Fatalf("%+v: %+v\n%+v", v, x, a)
					}
				}
			}
		}
	}
	for _, c := range []Cause{CauseState, CauseFeed, CauseForced, CauseElsewhere, CauseUnit, CauseHeldOut, CauseSlot, CauseShare, CauseTargeting, CauseDealt} {
		if met[c] < 20 {
			t.Errorf("%s: %d; the test tries too little: %v", c, met[c], met)
		}
	}
}

func (s *Set) feedLayers(name string) []*layer {
	if f := s.feeds[name]; f != nil {
		return f.layers
	}
	return nil
}
