package experiment

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/slot"
)

// What stands exactly at a bound is taken, and what is beyond it by one is refused.
func TestBoundsOfDocuments(t *testing.T) {
	list := func(n int, format string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, ", ")
	}
	const forced, limit, share = "forced: {alice: treatment}", "limit: 30", "share: 500"
	x := func(n int) string { return strings.Repeat("x", n) }
	ramp := func(text string) string { return forced + "\n    guards: {empty: 1.5}\n    ramp: {" + text + "}" }
	guards := func(text string) string { return forced + "\n    features: 1\n    guards: {" + text + "}" }
	outcomes := func(text string) string { return forced + "\n    outcomes: {topic: t, " + text + "}" }
	for _, c := range []struct{ old, ok, bad, want string }{
		{"name: ranking", "name: R" + x(62), "name: R" + x(63), "layers[0].name"},
		{"name: ranking", "name: R_.-0", "name: 0R", "layers[0].name"},
		{"name: ranking", "name: R", "name: ''", "layers[0].name"},
		{"salt: ranking-2026", "salt: '0" + x(62) + "'", "salt: '0" + x(63) + "'", "layers[0].salt"},
		{"unit: viewer", "unit: attribute a" + x(127), "unit: attribute a" + x(128), "layers[0].unit"},
		{"unit: viewer", "unit: attribute _0", "unit: attribute 0", "layers[0].unit"},
		{"name: fresher", "name: F" + x(62), "name: F" + x(63), "experiments[0].name"},
		{"layer: ranking\n", "layer: ranking\n", "layer: 'r a'\n", "experiments[0].layer"},
		{"[home]", "[" + list(50, "f%d") + "]", "[" + list(51, "f%d") + "]", "experiments[0].feeds: 51 of them"},
		{"[home]", "[home]", "[]", "experiments[0].feeds: 0 of them"},
		{"[home]", "[home]", "['h m']", `experiments[0].feeds[0]: "h m" is no name`},
		{"[home]", "[home]", "[home, a, home]", `experiments[0].feeds[2]: "home" is there twice`},
		{"state: running", "state: draft", "state: begun", `experiments[0].state: "begun" is no state`},
		{"[0-3999, 4500]", "[100-299, 9999]", "[100-299, 10000]", `experiments[0].slots[1]: "10000" is no range of slots from 0 to 9999`},
		{"[0-3999, 4500]", "[0-0, 5-300]", "[1-0]", `"1-0" is no range`},
		{"[0-3999, 4500]", "[0-3999, 4000]", "[0-3999, 3999]", "experiments[0].slots[1]: slot 3999 stands in two ranges"},
		{"[0-3999, 4500]", "[0-3999]", "[0-x]", `"0-x" is no range`},
		{"[0-3999, 4500]", "[0-3999]", "[-1-3]", `"-1-3" is no range`},
		{"[0-3999, 4500]", "[" + list(100, "%d") + "]", "[" + list(101, "%d") + "]", "experiments[0].slots: 101 ranges"},
		{"[0-3999, 4500]", "[0-3999]", "[]", "experiments[0].slots: it takes no slot"},
		{share, "share: 10000", "share: 10001", "experiments[0].share"},
		{share, "share: 3", "share: 2", "experiments[0].share: 2 of 10,000 of 4001 slots is less than one slot"},
		{`viewer.country in ["de", "fr"]`, "viewer.a == '" + x(MaxTargetingBytes-14) + "'", "viewer.a == '" + x(MaxTargetingBytes-13) + "'", "experiments[0].targeting: 4001 bytes, more than 4000"},
		{"      - {name: control, weight: 5000}\n", unweighted(14) + "      - {name: zz, weight: 5000}\n", unweighted(14) + "      - {name: zz, weight: 5000}\n      - {name: z, weight: 0}\n", "experiments[0].variants: 17 of them"},
		{"control, weight: 5000", "control, weight: 5000", "control, weight: 10001", "experiments[0].variants[0].weight: 10001 is not between 0 and 10000"},
		{"alice: treatment", list(100, "v%d: control"), list(101, "v%d: control"), "experiments[0].forced: 101 of them"},
		{"alice: treatment", x(512) + ": control", x(513) + ": control", "experiments[0].forced: "},
		{"model: home2", "model: H" + x(62), "model: H" + x(63), "set.model: "},
		{limit, "limit: 1000", "limit: 1001", "set.limit: 1001"},
		{limit, "limit: 0", "limit: -1", "set.limit: -1"},
		{limit, "filter: '" + x(maxFilterBytes) + "'", "filter: '" + x(maxFilterBytes+1) + "'", "set.filter: 8001 bytes are not a filter"},
		{limit, "filter: ''", `filter: "a\0"`, "set.filter: 2 bytes are not a filter"},
		{limit, "window: 0s", "window: -1ns", "set.window: -1ns is negative"},
		{limit, "types: [" + list(100, "t%d") + "]", "types: [" + list(101, "t%d") + "]", "set.types: 101 of them"},
		{limit, "types: [a]", "types: []", "set.types: 0 of them"},
		{limit, "types: [" + x(millrace.MaxTypeBytes) + "]", "types: [" + x(millrace.MaxTypeBytes+1) + "]", "set.types[0]: "},
		{limit, "types: [a, b]", "types: [a, '']", `set.types[1]: "" is no content type`},
		{limit, "cap_per_entity: 0", "cap_per_entity: -1", "set.cap_per_entity: -1"},
		{limit, "cap_per_entity: 2147483647", "cap_per_entity: 2147483648", "set.cap_per_entity: 2147483648"},
		{limit, "spacing: {entity: 10, type: 10}", "spacing: {entity: 11}", "set.spacing: entity 11 and type 0"},
		{limit, "spacing: {entity: 0, type: 0}", "spacing: {entity: -1}", "set.spacing: entity -1 and type 0"},
		{limit, "spacing: {entity: 1, type: 0}", "spacing: {type: -1}", "set.spacing: entity 0 and type -1"},
		{limit, "spacing: {entity: 1, type: 0}", "spacing: {type: 11}", "set.spacing: entity 0 and type 11"},
		{"model: home2, limit: 30", "interleave: [a, b]", "interleave: [a]", "set.interleave: it does not name two"},
		{"model: home2, limit: 30", "interleave: [a, b]", "interleave: [a, b, c]", "set.interleave: it does not name two"},
		{"model: home2, limit: 30", "interleave: [a, b]", "interleave: [a, 'b c']", `set.interleave: "b c" is no name of a model`},
		{"model: home2, limit: 30", "interleave: [a, b]", "interleave: [a, b], weights: {a: 1}", "set.interleave: two models rank"},
		{limit, "weights: {" + list(100, "w%d: 1") + "}", "weights: {" + list(101, "w%d: 1") + "}", "set.weights: 101 of them"},
		{limit, "weights: {" + x(128) + ": 1}", "weights: {" + x(129) + ": 1}", "set.weights: "},
		{forced, forced + "\n    features: 10000", forced + "\n    features: 10001", "experiments[0].features: 10001"},
		{forced, forced + "\n    features: 0", forced + "\n    features: -1", "experiments[0].features: -1"},
		{forced, ramp("steps: [1, 10000], least: 1h, viewers: 1"), ramp("steps: [0], least: 1h, viewers: 1"), "ramp.steps[0]: 0 is not between"},
		{forced, ramp("steps: [1000], least: 1h, viewers: 1"), ramp("steps: [10001], least: 1h, viewers: 1"), "ramp.steps[0]: 10001 is not between"},
		{forced, ramp("steps: [1000, 1001], least: 1h, viewers: 1"), ramp("steps: [1000, 1000], least: 1h, viewers: 1"), "ramp.steps[1]: 1000 is not between"},
		{forced, ramp("steps: [" + list(50, "1%03d") + "], viewers: 1"), ramp("steps: [" + list(51, "1%03d") + "], viewers: 1"), "ramp.steps: 51 of them"},
		{forced, ramp("steps: [1000], viewers: 1"), ramp("steps: [], viewers: 1"), "ramp.steps: 0 of them"},
		{forced, ramp("steps: [1000], least: 0s, viewers: 1"), ramp("steps: [1000], least: -1s, viewers: 1"), "ramp.least: -1s is negative"},
		{forced, ramp("steps: [1000], viewers: 0, least: 1ns"), ramp("steps: [1000], viewers: -1, least: 1s"), "ramp.viewers: -1 is negative"},
		{forced, ramp("steps: [1000], viewers: 1"), ramp("steps: [1000]"), "experiments[0].ramp: nothing holds it at a step"},
		{forced, ramp("steps: [1000], viewers: 1"), forced + "\n    ramp: {steps: [1000], viewers: 1}", "experiments[0].ramp: it would ramp whatever it does"},
		{forced, guards("refused: 1, empty: 1, partial: 1, nan: 1, cost: 1"), guards("refused: 0.9"), "guards.refused: 0.9 is below 1"},
		{forced, guards("milliseconds: 0.1, p99: 0.1"), guards("milliseconds: -0.1"), "guards.milliseconds: -0.1 is below 0"},
		{forced, guards("cost: 1.5"), guards("cost: .inf"), "guards.cost"},
		{forced, guards("share_of_entity: 1, share_of_type: 0.1, features_missing: 0.1"), guards("share_of_entity: 1.1"), "guards.share_of_entity: 1.1 is not between 0 and 1"},
		{forced, guards("share_of_type: 0.5"), guards("share_of_type: -0.5"), "guards.share_of_type: -0.5 is not between 0 and 1"},
		{forced, guards("features_missing: 0.1"), forced + "\n    guards: {features_missing: 0.1}", "guards.features_missing: no exposure has the features of items"},
		{forced, guards("empty: 1, alpha: 0.5"), guards("empty: 1, alpha: 0.51"), "guards.alpha: 0.51 is none, or more than a half"},
		{forced, guards("empty: 1, alpha: 0"), guards("empty: 1, alpha: -0.1"), "guards.alpha: -0.1 is none"},
		{forced, guards("p99: 1"), guards("alpha: 0.1"), "experiments[0].guards: nothing is guarded"},
		{forced, outcomes("actions: [" + list(16, "a%d") + "]"), outcomes("actions: [" + list(17, "a%d") + "]"), "outcomes.actions: 17 of them"},
		{forced, outcomes("actions: [" + x(128) + "]"), outcomes("actions: [" + x(129) + "]"), "outcomes.actions[0]: "},
		{forced, outcomes("actions: [a], window: 720h"), outcomes("actions: [a], window: 720h0m1s"), "outcomes.window: 720h0m1s is not between"},
		{forced, outcomes("actions: [a], answer_field: " + x(128)), outcomes("actions: [a], answer_field: " + x(129)), "outcomes.answer_field: 129 bytes"},
		{"forced: {alice: treatment}", "outcomes: {topic: " + x(249) + ", actions: [a]}", "outcomes: {topic: " + x(250) + ", actions: [a]}", "outcomes.topic: 250 bytes"},
	} {
		if !strings.Contains(shown, c.old) {
			t.Fatalf("no %s", c.old)
		}
		if _, err := Parse("", []byte(strings.Replace(shown, c.old, c.ok, 1))); err != nil {
			t.Errorf("%.100s: %v", c.ok, err)
		}
		if _, err := Parse("", []byte(strings.Replace(shown, c.old, c.bad, 1))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100s: %v, want %q", c.bad, err, c.want)
		}
	}
	// What YAML cannot say, a program can.
	for _, c := range []struct {
		set  Sets
		want string
	}{
		{Sets{Weights: map[string]float64{"a": math.NaN()}}, `NaN of "a" is not finite`},
		{Sets{Weights: map[string]float64{"a": math.Inf(-1)}}, `-Inf of "a" is not finite`},
		{Sets{Weights: map[string]float64{"\xff": 1}}, "is no feature"},
		{Sets{Types: []millrace.ContentType{"\xff"}}, "is no content type"},
	} {
		f := &faults{}
		if c.set.check(f, "set"); f.orNil() == nil || !strings.Contains(f.orNil().Error(), c.want) {
			t.Errorf("%+v: %v", c.set, f.orNil())
		}
	}
	layers := func(n int) string {
		var b strings.Builder
		b.WriteString("layers:\n")
		for i := range n {
			fmt.Fprintf(&b, "  - {name: l%d, salt: s%d, unit: viewer}\n", i, i)
		}
		return b.String()
	}
	if _, err := Parse("", []byte(layers(MaxLayers))); err != nil {
		t.Errorf("as many layers as may be: %v", err)
	}
	if _, err := Parse("", []byte(layers(MaxLayers+1))); err == nil || !strings.Contains(err.Error(), "layers: 101 of them, more than 100") {
		t.Errorf("a layer more: %v", err)
	}
	// A full document of the largest size is read, and one of a byte more is not.
	if _, err := Parse("", []byte(shown+strings.Repeat("#", MaxDocumentBytes-len(shown)))); err != nil {
		t.Error(err)
	}
}

// unweighted is n variants without a weight.
func unweighted(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "      - {name: v%d, weight: 0}\n", i)
	}
	return b.String()
}

// What is asked of a set by name is said of experiments that are not stopped, and of no others.
func TestWhatExperimentsUse(t *testing.T) {
	s := compile(t, `
layers: [{name: a, salt: a, unit: viewer}, {name: b, salt: b, unit: viewer}, {name: c, salt: c, unit: entity}]
experiments:
  - {name: drafts, layer: a, feeds: [home, more], state: running, slots: [0-99], share: 10000, variants: [{name: own, weight: 5000}, {name: two, weight: 5000, set: {interleave: [m1, m2]}}]}
  - {name: heavy, layer: b, feeds: [recent], state: paused, slots: [0-99], share: 10000, variants: [{name: own, weight: 5000}, {name: w, weight: 5000, set: {weights: {likes: 2}}}]}
  - {name: swaps, layer: b, feeds: [other], state: draft, slots: [100-199], share: 10000, variants: [{name: m, weight: 5000, set: {model: m3}}, {name: n, weight: 5000, set: {model: m3, weights: {likes: 3}}}]}
  - {name: past, layer: b, feeds: [home], state: stopped, slots: [100-199], share: 10000, variants: [{name: m, weight: 10000, set: {interleave: [m1, m2]}}]}
  - {name: several, layer: a, feeds: [fourth], state: draft, slots: [100-199], share: 10000, variants: [{name: a, weight: 5000, set: {types: [post], limit: 3}}, {name: b, weight: 3000, set: {window: 1h}}, {name: c, weight: 2000, set: {types: [like]}}]}
  - {name: plain, layer: c, feeds: [third], state: running, slots: [0-99], share: 10000, features: 7, variants: [{name: own, weight: 5000}, {name: t, weight: 5000, set: {types: [post]}}]}
`)
	for what, c := range map[string][2]any{
		"uses of m1":            {s.UsesModel("m1"), []string{"drafts"}},
		"uses of m2":            {s.UsesModel("m2"), []string{"drafts"}},
		"uses of m3":            {s.UsesModel("m3"), []string{"swaps"}},
		"uses of none":          {s.UsesModel(""), []string(nil)},
		"uses of home":          {s.UsesFeed("home"), []string{"drafts"}},
		"uses of recent":        {s.UsesFeed("recent"), []string{"heavy"}},
		"drafted second":        {s.DraftsSecond("m2"), []string{"drafts"}},
		"drafted first":         {s.DraftsSecond("m1"), []string(nil)},
		"compared of drafts":    {s.Compared("drafts"), []string{"", "m1", "m2"}},
		"compared of swaps":     {s.Compared("swaps"), []string{"m3", "m3"}},
		"compared of heavy":     {s.Compared("heavy"), []string(nil)},
		"compared of none":      {s.Compared("nosuch"), []string(nil)},
		"weights of heavy":      {len(s.Weighted("heavy")), 1},
		"weights of swaps":      {len(s.Weighted("swaps")), 1},
		"weights of drafts":     {len(s.Weighted("drafts")), 0},
		"weights of none":       {len(s.Weighted("nosuch")), 0},
		"a feed that has some":  {s.Has("home"), true},
		"a feed that has none":  {s.Has("recent"), false},
		"a feed of a draft":     {s.Has("other"), false},
		"a feed of entities":    {s.Has("third"), true},
		"features of division":  {s.Division("third").Features(), []int{7}},
		"features of no such":   {s.Division("home").Features(), []int(nil)},
		"the error of a model":  {OwnModelGone("home", "m").Error() != "", true},
		"parameters of several": {s.experiment("several").parameters(), []Parameter{OfLimit, OfTypes, OfWindow}},
		"parameters of a draft": {s.experiment("drafts").parameters(), []Parameter{OfModel}},
	} {
		if fmt.Sprint(c[0]) != fmt.Sprint(c[1]) {
			t.Errorf("%s: %v, want %v", what, c[0], c[1])
		}
	}
	for name, want := range map[string][2]bool{"drafts": {true, true}, "heavy": {false, true}, "swaps": {true, true}, "plain": {false, false}} {
		e := s.experiment(name)
		if e.ComparesModels() != want[0] || e.LeansOnVersions() != want[1] {
			t.Errorf("%s compares models: %v, and leans on versions: %v", name, e.ComparesModels(), e.LeansOnVersions())
		}
	}
	n := 5
	for _, c := range []struct {
		set      Sets
		leaves   []Parameter
		rankings []string
	}{
		{Sets{}, []Parameter{OfModel, OfLimit, OfCap, OfTypes}, []string{""}},
		{Sets{Weights: map[string]float64{"a": 1}, Limit: 3}, []Parameter{OfModel, OfCap, OfTypes}, []string{""}},
		{Sets{Model: "m", CapPerEntity: &n}, []Parameter{OfLimit, OfTypes}, []string{"m"}},
		{Sets{Interleave: []string{"m", "n"}, Types: []millrace.ContentType{"a"}}, []Parameter{OfLimit, OfCap}, []string{"m", "n"}},
	} {
		var leaves []Parameter
		for _, p := range []Parameter{OfModel, OfLimit, OfCap, OfTypes} {
			if c.set.Leaves(p) {
				leaves = append(leaves, p)
			}
		}
		if !slices.Equal(leaves, c.leaves) || !slices.Equal(c.set.Rankings(), c.rankings) {
			t.Errorf("%+v leaves %v and ranks by %q", c.set, leaves, c.set.Rankings())
		}
	}
	// What variants of several layers set comes together.
	two, all := time.Hour, ""
	got := (&Assignment{Experiments: []Assigned{
		{Sets: &Sets{Model: "m", Weights: map[string]float64{"a": 1}}}, {Sets: &Sets{Filter: &all}}, {Sets: &Sets{Window: &two, Types: []millrace.ContentType{"a"}}},
		{Sets: &Sets{CapPerEntity: &n, Spacing: &Spacing{Entity: 2}}}, {Sets: &Sets{Limit: 7}}, {Sets: &Sets{}},
	}}).Sets()
	if text := got.String(); text != `{"model":"m","weights":{"a":1},"filter":"","types":["a"],"cap_per_entity":5,"spacing":{"entity":2},"limit":7,"window":"1h0m0s"}` {
		t.Errorf("together they set %s", text)
	}
	for _, set := range []Sets{{Weights: map[string]float64{"a": 1}}, {Interleave: []string{"m", "n"}}, {Model: "m"}} {
		if alone := (&Assignment{Experiments: []Assigned{{Sets: &Sets{Limit: 1}}, {Sets: &set}}}).Sets(); alone.Model != set.Model || len(alone.Weights) != len(set.Weights) || len(alone.Interleave) != len(set.Interleave) || alone.Limit != 1 {
			t.Errorf("%+v alone comes as %+v", set, alone)
		}
	}
	if nothing := (&Assignment{}).Sets(); !nothing.Nothing() {
		t.Errorf("nothing sets %+v", nothing)
	}
}

// A later page has a variant again while the experiment is what it was.
func TestAVariantAgain(t *testing.T) {
	s := compile(t, shown, third)
	got, there := s.Again("fresher", "treatment", 10)
	if !there || got.Variant != "treatment" || got.Experiment != "fresher" || got.Sets.Model != "home2" {
		t.Errorf("%+v, %v", got, there)
	}
	for _, c := range [][2]string{{"fresher", "nosuch"}, {"nosuch", "treatment"}, {"longer", "treatment"}} {
		if _, there := s.Again(c[0], c[1], 10); there {
			t.Errorf("%q has a variant %q", c[0], c[1])
		}
	}
	s.docs[0].Gone = 10
	if _, there := s.Again("fresher", "treatment", 10); there {
		t.Error("its document was dropped since")
	}
	if _, there := s.Again("fresher", "treatment", 11); !there {
		t.Error("its document was dropped before")
	}
	if _, there := s.Again("longer", "only", 10); !there {
		t.Error("another document was dropped")
	}
}

// A definition starts nothing that is paused.
func TestDefinitionsStartNothing(t *testing.T) {
	paused := replace(shown, "running", "paused")
	for _, c := range []struct {
		old, next string
		ok        bool
	}{{paused, shown, false}, {paused, paused, true}, {shown, shown, true}, {shown, paused, true}, {replace(shown, "running", "draft"), shown, true}, {paused, replace(shown, "name: fresher", "name: other"), true}} {
		err := compile(t, c.old).StartsNone(compile(t, c.next))
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "test.yaml: line 11, column 12: experiments[0].state: experiment fresher is paused, and a definition starts nothing that is; write state: paused; then millrace experiment status fresher says why it is, and millrace experiment start fresher starts it") {
			t.Errorf("%v", err)
		}
	}
}

// Attributes that are too long for targeting count as missing, and those of the viewer stay.
func TestLongAttributesAreMissing(t *testing.T) {
	s := compile(t, replace(everybody, "share: 10000", "share: 10000\n    targeting: has(viewer.a)"))
	texts := func(n, each int) []string { return slices.Repeat([]string{strings.Repeat("x", each)}, n) }
	for _, c := range []struct {
		value any
		short bool
	}{
		{strings.Repeat("x", maxTargeted), true}, {strings.Repeat("x", maxTargeted+1), false},
		{texts(maxTargeted, 4), true}, {texts(maxTargeted+1, 0), false}, {texts(4, maxTargeted), true}, {append(texts(4, maxTargeted), "x"), false},
		{make([]float64, maxTargeted), true}, {make([]float64, maxTargeted+1), false}, {true, true},
	} {
		v := &millrace.Viewer{ID: "x", Attributes: map[string]any{"a": c.value, "b": "short"}}
		if got := in(s.Assign("home", v)) != ""; got != c.short {
			t.Errorf("%.20v: in is %v", c.value, got)
		}
		if len(v.Attributes) != 2 {
			t.Errorf("%.20v: the viewer has %d attributes left", c.value, len(v.Attributes))
		}
		if got := short(v); len(got.Attributes) != map[bool]int{true: 2, false: 1}[c.short] || got.ID != "x" || got.Attributes["b"] != "short" {
			t.Errorf("%.20v: targeting reads %d attributes", c.value, len(got.Attributes))
		}
	}
	if short(nil) != nil {
		t.Error("nobody is somebody")
	}
}

// Everything that is written and differs is told.
func TestDiffTellsEveryField(t *testing.T) {
	base := replace(shown, "share: 500", "share: 500\n    features: 5\n    ramp: {steps: [1000, 2000], least: 1h, viewers: 10}\n    guards: {empty: 1.5, alpha: 0.01}")
	for _, c := range []struct{ old, with, want string }{
		{"state: running", "state: paused", "experiment fresher: state running → paused"},
		{"feeds: [home]", "feeds: [recent, home]", "experiment fresher: feeds home → home, recent"},
		{"4500]", "4501]", "experiment fresher: slots 0-3999, 4500 → 0-3999, 4501"},
		{"share: 500", "share: 501", "experiment fresher: share 500 → 501"},
		{"share: 500", "share: 500\n    monitored: true", "experiment fresher: monitored false → true"},
		{"features: 5", "features: 6", "experiment fresher: features 5 → 6"},
		{"steps: [1000", "steps: [1001", "experiment fresher: ramp [1000 2000], each for 1h0m0s and 10 viewers → [1001 2000], each for 1h0m0s and 10 viewers"},
		{"alpha: 0.01", "alpha: 0.02", "experiment fresher: guards {empty: 1.5, alpha: 0.01} → {empty: 1.5, alpha: 0.02}"},
		{", alpha: 0.01", "", "experiment fresher: guards {empty: 1.5, alpha: 0.01} → {empty: 1.5}"},
		{"    targeting: viewer.country in [\"de\", \"fr\"]\n", "", `experiment fresher: targeting viewer.country in ["de", "fr"] → none`},
		{"    forced: {alice: treatment}\n", "", "experiment fresher: forced alice treatment → none"},
		{"unit: viewer", "unit: attribute a", "layer ranking: unit viewer → attribute a"},
		{"    holdout: [9500-9999]\n", "", "layer ranking: holdout 9500-9999 → none"},
	} {
		if got := compile(t, base).Diff(compile(t, replace(base, c.old, c.with))); len(got) == 0 || !slices.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.with, got, c.want)
		}
	}
	if got, want := new(Set).Diff(compile(t, second))[0], "layer density: it is new, of unit attribute country"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	other := strings.NewReplacer("name: ranking\n", "name: order\n", "layer: ranking", "layer: order").Replace(base)
	if got := compile(t, base).Diff(compile(t, other)); !slices.Contains(got, "experiment fresher: layer ranking → order") || !slices.Contains(got, "experiment fresher: every unit is dealt anew: of those below, who came in before comes in by chance alone") {
		t.Errorf("%q", got)
	}
	// Slots are shown as eight ranges and the number of the rest.
	var ranges []slot.Range
	for i := range 8 {
		ranges = append(ranges, slot.Range{From: 10 * i, To: 10*i + i%2})
	}
	if got := textOf(ranges); got != "0, 10-11, 20, 30-31, 40, 50-51, 60, 70-71" {
		t.Errorf("eight ranges are %s", got)
	}
	if got := textOf(append(ranges, slot.Range{From: 100, To: 101}, slot.Range{From: 200, To: 200})); got != "0, 10-11, 20, 30-31, 40, 50-51, 60, 70-71, and 3 more" {
		t.Errorf("ten ranges are %s", got)
	}
	for n, want := range map[int]string{1: `1 unit ("a")`, 2: `2 units ("a", "b")`, 3: `3 units ("a", "b", "c")`, 4: `4 units ("a", "b", "c" and 1 more)`, 5: `5 units ("a", "b", "c" and 2 more)`} {
		if got := unitsOf(strings.Split("abcde", "")[:n]); got != want {
			t.Errorf("%d units are %s", n, got)
		}
	}
}

// What outcomes and guards leave out has its default.
func TestDefaults(t *testing.T) {
	if o := (&Outcomes{}); o.For() != time.Hour || o.Field() != "answer_id" {
		t.Errorf("%s and %s", o.For(), o.Field())
	}
	if o := (&Outcomes{Window: time.Minute, AnswerField: "a"}); o.For() != time.Minute || o.Field() != "a" {
		t.Errorf("%s and %s", o.For(), o.Field())
	}
	if (&Guards{}).Chance() != 0.05 || (&Guards{Alpha: 0.2}).Chance() != 0.2 {
		t.Error("another chance")
	}
	r := &Ramp{Steps: []int{100, 1000}}
	for share, want := range map[int]int{0: 100, 99: 100, 100: 1000, 999: 1000, 1000: 0, 5000: 0} {
		if got := r.Next(share); got != want {
			t.Errorf("after %d comes %d", share, got)
		}
	}
	for name, ok := range map[string]bool{"a.b_c-D9": true, ".": false, "..": false, "...": true, "": false, "a b": false, strings.Repeat("x", 249): true, strings.Repeat("x", 250): false} {
		if isTopic(name) != ok {
			t.Errorf("topic %.10q: %v", name, !ok)
		}
	}
}

// YAML that cannot be edited in place is written anew, and means the same but for what was asked.
func TestRewriteOfUnusualYAML(t *testing.T) {
	for name, src := range map[string]string{
		"a state in a block": replace(shown, "state: running", "state: |-\n      running"),
		"no state":           "layers: [{name: l, salt: s, unit: viewer}]\nexperiments: [{layer: l, \"st\\u0061te\": draft, name: fresher, feeds: [home], slots: [0-3999], variants: [{name: a, weight: 10000}]}]\n",
	} {
		d := parse(t, src)
		got, err := Rewrite(d, []byte(src), "fresher", Running, 700)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		next := parse(t, string(got))
		if e := next.Experiments[0]; e.State != Running || e.Share != 700 || e.Layer != d.Experiments[0].Layer || len(e.Variants) != len(d.Experiments[0].Variants) || len(next.Layers) != 1 {
			t.Errorf("%s:\n%s", name, got)
		}
	}
	for _, c := range []struct{ line, col, want int }{{1, 1, 0}, {1, 3, 3}, {2, 1, 5}, {2, 9, 8}, {3, 1, 8}, {4, 1, 8}} {
		if got := offset([]byte("aüb\n12\n"), c.line, c.col); got != c.want {
			t.Errorf("line %d, column %d is at %d", c.line, c.col, got)
		}
	}
}

// Whom experiments name and the hash deals another variant is told by variant, and not again
// while it stays so.
func TestNamedByVariant(t *testing.T) {
	const many = 40
	var ids []string
	for i := range many {
		ids = append(ids, fmt.Sprintf("\"n:%02d\": x", i))
	}
	whole := replace(everybody, "[0-9999]", "[0-9998]")
	naming := whole + "  - {name: f, layer: l, feeds: [home], state: running, slots: [9999], share: 10000, variants: [{name: x, weight: 10000}], forced: {" + strings.Join(ids, ", ") + "}}\n"
	alone, both := compile(t, whole), compile(t, naming)
	want := map[string][]string{}
	for i := range many {
		id := fmt.Sprintf("n:%02d", i)
		if variant := in(alone.Assign("home", &millrace.Viewer{ID: id})); variant != "" {
			want[variant] = append(want[variant], id)
		}
	}
	got := map[string][]string{}
	for _, d := range both.Experiments() {
		for _, n := range d.Named {
			if n.By != "f" || d.Experiment.Name != "e" || got[n.Variant] != nil {
				t.Errorf("%s: %+v", d.Experiment.Name, n)
			}
			got[n.Variant] = n.Units
		}
	}
	if len(want) != 2 || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("named are %v, want %v", got, want)
	}
	told := 0
	for _, text := range alone.Diff(both) {
		if strings.Contains(text, "experiment e: experiment f names ") {
			told++
		}
	}
	if told != 2 {
		t.Errorf("%d variants lose somebody: %q", told, alone.Diff(both))
	}
	if again := both.Diff(compile(t, replace(naming, "limit: 5", "limit: 6"))); slices.ContainsFunc(again, func(text string) bool { return strings.Contains(text, "names") }) {
		t.Errorf("told again: %q", again)
	}
	if other := compile(t, replace(naming, "feeds: [home], state: running, slots: [9999]", "feeds: [recent], state: running, slots: [9999]")); len(other.Experiments()[0].Named) != 0 {
		t.Errorf("on another feed: %+v", other.Experiments()[0].Named)
	}
	if draft := compile(t, replace(naming, "feeds: [home], state: running, slots: [9999]", "feeds: [home], state: draft, slots: [9999]")); len(draft.Experiments()[0].Named) != 0 {
		t.Errorf("by a draft: %+v", draft.Experiments()[0].Named)
	}
}

// Documents without names are told apart by nothing, and the way out names none.
func TestDocumentsWithoutNames(t *testing.T) {
	a, b := parse(t, shown), parse(t, shown)
	a.Name, b.Name = "", ""
	_, err := admitAll([]Document{a, b}, nil)
	if err == nil || err.Error() != "line 3, column 11: layers[0].name: there is a layer ranking already; leave it out here: experiments may be of a layer of another document; or name it otherwise, with a salt of its own, for one that is independent\nline 8, column 11: experiments[0].name: there is an experiment fresher already; name it otherwise" {
		t.Errorf("%v", err)
	}
	_, err = Admit([]Document{parse(t, replace(replace(shown, "running", "draft"), `viewer.country in ["de", "fr"]`, "false"))}, nil)
	if err == nil || !strings.Contains(err.Error(), "it is true of nobody; leave it out: a draft gives a variant to forced viewers alone") {
		t.Errorf("%v", err)
	}
}
