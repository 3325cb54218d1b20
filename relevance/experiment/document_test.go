package experiment

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	d := parse(t, shown)
	e := d.Experiments[0]
	if e.Name != "fresher" || e.State != Running || e.Share != 500 || e.Variants[1].Set.Model != "home2" || e.Variants[1].Set.Limit != 30 || e.Forced["alice"] != "treatment" {
		t.Errorf("%+v", e)
	}
	all := parse(t, replace(shown, "set: {model: home2, limit: 30}", `set: {weights: {likes: 0.5, verb.post: -1}, filter: "", window: 0s, types: [post],
        cap_per_entity: 0, spacing: {entity: 2}, limit: 7}`)).Experiments[0].Variants[1].Set
	if *all.Filter != "" || *all.Window != 0 || *all.CapPerEntity != 0 || *all.Spacing != (Spacing{Entity: 2}) || all.Weights["verb.post"] != -1 || all.Types[0] != "post" {
		t.Errorf("%+v", all)
	}
	if parse(t, replace(shown, "limit: 30", "window: 36h")).Experiments[0].Variants[1].Set.Window.Hours() != 36 || (36*time.Hour).Hours() != 36 {
		t.Error("a window of 36h")
	}
}

func replace(s, old, with string) string {
	if !strings.Contains(s, old) {
		panic("no " + old)
	}
	return strings.Replace(s, old, with, 1)
}

// What is written is read again, and means the same.
func TestEncode(t *testing.T) {
	for seed := range uint64(50) {
		d := parse(t, randomDocument(rand.New(rand.NewPCG(seed, 1)), 5))
		text, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again := parse(t, string(text))
		again.root, d.root = nil, nil
		if !reflect.DeepEqual(again, d) {
			t.Fatalf("%s\n%+v\n%+v", text, again, d)
		}
	}
}

// Each fault is told with its line and field, and all at once.
func TestFaultsOfADocument(t *testing.T) {
	for _, c := range []struct{ old, with, want string }{
		{"name: fresher", "name: ''", `line 8, column 11: experiments[0].name: "" is no name; want a letter`},
		{"    layer: ranking\n", "", `line 8, column 5: experiments[0].layer: "" is no name; name the layer`},
		{"feeds: [home]", "feeds: []", "line 10, column 12: experiments[0].feeds: 0 of them; name 1 to 50 feeds"},
		{"feeds: [home]", "feeds: [home, '']", `line 10, column 19: experiments[0].feeds[1]: "" is no name of a feed`},
		{"feeds: [home]", "feeds: [home, home]", `experiments[0].feeds[1]: "home" is there twice; remove one`},
		{"state: running", "state: on", `line 11, column 12: experiments[0].state: "on" is no state; write draft, running, paused or stopped`},
		{"    state: running\n", "", `experiments[0].state: "" is no state`},
		{"0-3999, 4500", "", "line 12, column 12: experiments[0].slots: it takes no slot; write ranges such as 0-499"},
		{"4500", "3999-4000", "line 12, column 21: experiments[0].slots[1]: slot 3999 stands in two ranges; leave it out of one"},
		{"4500", "10000", `experiments[0].slots[1]: "10000" is no range of slots from 0 to 9999`},
		{"4500", "7-6", `experiments[0].slots[1]: "7-6" is no range`},
		{"4500", "-1", `experiments[0].slots[1]: "-1" is no range`},
		{"9500-9999", "9500-", `line 6, column 15: layers[0].holdout[0]: "9500-" is no range`},
		{"share: 500", "share: 10001", "line 13, column 12: experiments[0].share: 10001 is not between 0 and 10000; write 100 for 1 %"},
		{"share: 500", "share: -1", "experiments[0].share: -1 is not between"},
		{"share: 500", "share: 0", "experiments[0].share: it runs for nobody; write 100 for 1 %, or make it a draft"},
		{"share: 500", "share: 2", "experiments[0].share: 2 of 10,000 of 4001 slots is less than one slot; raise it, or take more slots"},
		{"share: 500", "share: 5%", `line 13, column 12: experiments[0].share: this is a text, "5%", and not an integer`},
		{"in [", "in [as_of, ", `line 14, column 16: experiments[0].targeting: 1:20`},
		{`viewer.country in ["de", "fr"]`, `as_of > timestamp("2026-01-01T00:00:00Z")`, "experiments[0].targeting: 1:1: as_of would make viewers come and go with the hour; speak of viewer.NAME alone"},
		{`viewer.country in ["de", "fr"]`, `viewer.a && as_of > timestamp("2026-01-01T00:00:00Z")`, "experiments[0].targeting: 1:13: as_of would make"},
		{`viewer.country in ["de", "fr"]`, "record.likes > 5", "experiments[0].targeting: 1:8: no field likes in record; speak of viewer.NAME alone"},
		{`viewer.country in ["de", "fr"]`, "entity.likes > 5", "experiments[0].targeting: 1:8: no field likes in entity; speak of viewer.NAME alone"},
		{`viewer.country in ["de", "fr"]`, "viewer.a > 1.0 &&", "experiments[0].targeting: 1:18: the expression ends too early"},
		{`viewer.country in ["de", "fr"]`, "viewer.a == '" + strings.Repeat("x", MaxTargetingBytes) + "'", "experiments[0].targeting: 4014 bytes, more than 4000"},
		{"control, weight: 5000", "control, weight: 4999", "line 16, column 7: experiments[0].variants: the weights come to 9999; make them come to 10000"},
		{"control, weight: 5000", "control, weight: -5000", "line 16, column 33: experiments[0].variants[0].weight: -5000 is not between 0 and 10000"},
		{"control, weight: 5000", "control, weight: 9223372036854775807", "experiments[0].variants[0].weight: 9223372036854775807 is not between"},
		{"name: control", "name: treatment", `experiments[0].variants[1].name: "treatment" is there twice`},
		{"name: control", "name: ' '", `experiments[0].variants[0].name: " " is no name`},
		{"forced: {alice: treatment}", "forced: {alice: treat}", `line 18, column 13: experiments[0].forced: "alice" is to have "treat", which is no variant; name one of the variants`},
		{"forced: {alice: treatment}", "forced: {'': treatment}", `experiments[0].forced: "" is no id`},
		{"salt: ranking-2026", "salt: a/b", `line 4, column 11: layers[0].salt: "a/b" is no salt`},
		{"    salt: ranking-2026\n", "", `layers[0].salt: "" is no salt`},
		{"unit: viewer", "unit: user", `line 5, column 11: layers[0].unit: "user" is no unit; write viewer, entity, or attribute and its name`},
		{"unit: viewer", "unit: attribute id", `layers[0].unit: "attribute id" is no unit`},
		{"unit: viewer", "unit: attribute ", `layers[0].unit: "attribute" is no unit`},
		{"limit: 30", "limit: 1001", "line 17, column 68: experiments[0].variants[1].set.limit: 1001 is not between 1 and 1000"},
		{"limit: 30", "filter: \"\\0\"", "experiments[0].variants[1].set.filter: 1 bytes are not a filter"},
		{"limit: 30", "window: -1h", "experiments[0].variants[1].set.window: -1h0m0s is negative"},
		{"limit: 30", "types: []", "experiments[0].variants[1].set.types: 0 of them"},
		{"limit: 30", "types: [a, a]", `experiments[0].variants[1].set.types[1]: "a" is there twice`},
		{"limit: 30", "cap_per_entity: -1", "experiments[0].variants[1].set.cap_per_entity: -1 is not between"},
		{"limit: 30", "spacing: {type: 11}", "experiments[0].variants[1].set.spacing: entity 0 and type 11"},
		{"limit: 30", "interleave: [a, b]", "experiments[0].variants[1].set.interleave: two models rank, and another is set beside them; leave out model and weights"},
		{"model: home2, limit: 30", "interleave: [a, a]", "experiments[0].variants[1].set.interleave: it does not name two different models"},
		{"limit: 30", "weights: {a: .nan}", `experiments[0].variants[1].set.weights.a: this is a number, ".nan", and not a finite number`},
		{"limit: 30", "weights: {a: -.inf}", `set.weights.a: this is a number, "-.inf", and not a finite number`},
		{"limit: 30", "weights: {a: 1e400}", `set.weights.a: this is a number, "1e400", and not a finite number`},
		{"limit: 30", "weights: {a: '1e400'}", `set.weights.a: this is a text, "1e400", and not a number`},
		{"limit: 30", "weights: {'': 1}", `experiments[0].variants[1].set.weights: "" is no feature`},
		{"model: home2", "model: 'home 2'", `experiments[0].variants[1].set.model: "home 2" is no name of a model`},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    guards: {fewer: {click: 0.8}}", "experiments[0].guards.fewer.click: it is not among the actions of outcomes; write outcomes: {topic: clicks, actions: [click]}, with this action among them"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    guards: {fewer: {click: 1.1}}\n    outcomes: {topic: t, actions: [click]}", "experiments[0].guards.fewer.click: 1.1 is not between 0.001 and 1"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    guards: {fewer: {click: 0}}\n    outcomes: {topic: t, actions: [click]}", "experiments[0].guards.fewer.click: 0 is not between 0.001 and 1"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    guards: {more: {hide: 0.9}}\n    outcomes: {topic: t, actions: [hide]}", "experiments[0].guards.more.hide: 0.9 is not between 1 and 1000;"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    guards: {fewer: {}}\n    outcomes: {topic: t, actions: [hide]}", "line 19, column 13: experiments[0].guards: nothing is guarded"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    outcomes: {actions: [hide]}", "line 19, column 15: experiments[0].outcomes.topic: 0 bytes; name the topic that outcomes are written to"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    outcomes: {topic: t}", "experiments[0].outcomes.actions: 0 of them; name 1 to 16, such as [click, hide]"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    outcomes: {topic: t, actions: [a, a]}", "experiments[0].outcomes.actions[1]: \"a\" is there twice; name each action once"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    outcomes: {topic: t, actions: ['']}", "experiments[0].outcomes.actions[0]: it is empty"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    outcomes: {topic: t, actions: [" + strings.Repeat("a", 129) + "]}", "has 129 bytes, more than 128"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    outcomes: {topic: t, actions: [a], window: -1h}", "experiments[0].outcomes.window: -1h0m0s is not between 0 and"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    features: 10001", "line 19, column 15: experiments[0].features: 10001 is not between 0 and 10000; write 100 for 1 % of the answers"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    guards: {empty: 0.5}", "experiments[0].guards.empty: 0.5 is below 1"},
		{"forced: {alice: treatment}", "forced: {alice: treatment}\n    ramp: {steps: [100, 50], least: 1h}", "experiments[0].ramp.steps[1]: 50 is not between the one before and 10000"},
		{"model: home2", "modl: home2", "there is no such field; did you mean model?"},
	} {
		_, err := Parse("test.yaml", []byte(replace(shown, c.old, c.with)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s → %s: want %q in\n%v", c.old, c.with, c.want, err)
		}
		if err != nil && strings.HasPrefix(c.want, "line ") && !strings.Contains("\n"+err.Error(), "\ntest.yaml: "+c.want) {
			t.Errorf("%s → %s: %q is not where a fault begins in\n%v", c.old, c.with, c.want, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "test.yaml: line ") {
			t.Errorf("%v does not name its document", err)
		}
	}
	for src, want := range map[string]string{
		"": "the document is empty; begin with layers: or experiments:", "layers: []": "the document is empty", "a: [": "not YAML",
		strings.Repeat("#", MaxDocumentBytes+1): "more than 262144 bytes",
	} {
		if _, err := Parse("", []byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: want %q in %v", src, want, err)
		}
	}
	_, err := Parse("", []byte(strings.NewReplacer("salt: ranking-2026", "salt: ''", "state: running", "state: ''", "weight: 5000}", "weight: 1}", "alice: treatment", "alice: x").Replace(shown)))
	var at []string
	for _, line := range faultsOf(t, err) {
		at = append(at, strings.Split(line, ",")[0])
	}
	if !slices.Equal(at, []string{"line 4", "line 11", "line 16", "line 18"}) {
		t.Errorf("faults at %q", at)
	}
}

// allocated returns the bytes that do allocates, dropped ones included.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Arms, experiments, layers, ranges and forced viewers beyond their bounds are
// refused for little: no document costs more than 64 MiB.
func TestTooMany(t *testing.T) {
	arms := func(n int) string {
		return replace(shown, "      - {name: control, weight: 5000}\n", strings.Repeat("      - {name: a, weight: 1}\n", n))
	}
	list := func(n int, format string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, ", ")
	}
	for name, c := range map[string]struct{ src, want string }{
		"17 arms":               {arms(16), "experiments[0].variants: 17 of them; write 1 to 16 variants"},
		"5,000 arms":            {arms(5000), "experiments[0].variants: 5001 of them"},
		"100,000 arms":          {arms(100_000), "more than 262144 bytes"},
		"100,000 short arms":    {"experiments: [{variants: [" + strings.TrimSuffix(strings.Repeat("a,", 100_000), ",") + "]}]", "line ends, commas"},
		"32,000 short arms":     {"experiments: [{variants: [" + strings.TrimSuffix(strings.Repeat("~,", 32_000), ",") + "]}]", "experiments[0].variants: 32000 of them"},
		"1,001 experiments":     {"experiments: [" + strings.TrimSuffix(strings.Repeat("~,", 1001), ",") + "]", "experiments: 1001 of them, more than 1000"},
		"1,000 bad ones":        {"experiments: [" + strings.TrimSuffix(strings.Repeat("~,", 1000), ",") + "]", "experiments[0].name"},
		"101 layers":            {"layers: [" + strings.TrimSuffix(strings.Repeat("~,", 101), ",") + "]", "layers: 101 of them, more than 100"},
		"101 ranges":            {replace(shown, "0-3999, 4500", list(101, "%d")), "experiments[0].slots: 101 ranges, more than 100"},
		"101 forced":            {replace(shown, "alice: treatment", list(101, "v%d: control")), "experiments[0].forced: 101 of them, more than 100"},
		"51 feeds":              {replace(shown, "[home]", "["+list(51, "f%d")+"]"), "experiments[0].feeds: 51 of them"},
		"101 weights":           {replace(shown, "limit: 30", "weights: {"+list(101, "w%d: 1")+"}"), "experiments[0].variants[1].set.weights: 101 of them"},
		"a deep targeting":      {replace(shown, `viewer.country in ["de", "fr"]`, strings.Repeat("(", 1900)+"viewer.a"+strings.Repeat(")", 1900)), "nests deeper than 64 levels"},
		"a pattern to choke on": {replace(shown, `viewer.country in ["de", "fr"]`, `viewer.country.matches("((a{100}){100}){100}")`), "experiments[0].targeting: 1:"},
	} {
		var err error
		bytes := allocated(func() { _, err = Parse("test.yaml", []byte(c.src)) })
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: want %q in\n%.2000v", name, c.want, err)
		}
		if err != nil && len(faultsOf(t, err)) > maxFaults {
			t.Errorf("%s: %d faults are told", name, len(faultsOf(t, err)))
		}
		if bytes > 64<<20 {
			t.Errorf("%s: %d MiB", name, bytes>>20)
		}
	}
}

// The checksum is the definition's and not the file's: neither order nor layout
// count, and everything that is assigned by does.
func TestChecksum(t *testing.T) {
	sum := func(src string) string { return compile(t, src).Experiments()[0].Checksum }
	want := sum(shown)
	if want != "9099514f22f1295cd3e7593d6db0eb1c4168464bd2d2e176fac34af0029f487d" {
		t.Errorf("%s: the canonical form has changed, and with it every checksum in an exposure", want)
	}
	for _, same := range []string{
		"# a comment\n" + shown,
		replace(shown, "[0-3999, 4500]", `["4500", 2000-3999, 0-1999]`),
		replace(shown, `viewer.country in ["de", "fr"]`, `'viewer.country   in ["de","fr"]'`),
		replace(replace(shown, "      - {name: control, weight: 5000}\n", ""), "limit: 30}}\n", "limit: 30}}\n      - weight: 5000\n        name: control\n        set: {}\n"),
		replace(shown, "state: running", "state: paused"),
		replace(shown, "    holdout: [9500-9999]\n", ""),
		`{experiments: [{forced: {alice: treatment}, variants: [{name: treatment, set: {limit: 30, model: home2}, weight: 5000}, {name: control, weight: 5000}],
			targeting: 'viewer.country in ["de", "fr"]', share: 500, slots: ["4500", 0-3999], monitored: false, state: draft, feeds: [home], layer: ranking, name: fresher}],
			layers: [{unit: viewer, salt: ranking-2026, name: ranking}]}`,
	} {
		if got := sum(same); got != want {
			t.Errorf("it is another one for\n%s", same)
		}
	}
	met := map[string]string{want: "as shown"}
	for _, c := range [][2]string{
		{"salt: ranking-2026", "salt: b"}, {"unit: viewer", "unit: attribute a"}, {"name: fresher", "name: newer"}, {"feeds: [home]", "feeds: [home, recent]"},
		{"4500", "4501"}, {"share: 500", "share: 501"}, {"share: 500", "share: 500\n    monitored: true"}, {`"fr"`, `"es"`}, {"name: control", "name: base"},
		{"limit: 30", "limit: 31"}, {"limit: 30", "limit: 30, cap_per_entity: 0"}, {"limit: 30", `limit: 30, filter: ""`}, {"alice", "bob"}, {"alice: treatment", "alice: control"},
		{"limit: 30", "types: [a]"}, {"limit: 30", "types: [a, b]"}, {"limit: 30", "weights: {a: 1}"}, {"limit: 30", "weights: {a: 1.5}"}, {"limit: 30", "spacing: {entity: 1}"}, {"limit: 30", "window: 1h"},
	} {
		got := sum(replace(shown, c[0], c[1]))
		if other, twice := met[got]; twice {
			t.Errorf("%s has the checksum of %s", c[1], other)
		}
		met[got] = c[1]
	}
	if sum(replace(shown, "limit: 30", "types: [a, b]")) != sum(replace(shown, "limit: 30", "types: [b, a]")) {
		t.Error("the order of types counts")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(shown)
	f.Add(replace(shown, "limit: 30", `filter: "", window: 1h, types: [a], cap_per_entity: 0, spacing: {type: 1}, weights: {a: 1e300}`))
	for seed := range uint64(4) {
		f.Add(randomDocument(rand.New(rand.NewPCG(seed, 2)), 3))
	}
	f.Add("experiments: [{variants: [~], slots: [~], feeds: [~]}]")
	f.Fuzz(func(t *testing.T, src string) {
		d, err := Parse("f", []byte(src))
		if err != nil {
			faultsOf(t, err)
			return
		}
		s, err := admitAll([]Document{d}, nil)
		if err != nil {
			faultsOf(t, err)
			return
		}
		text, err := d.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("f", text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		same, err := admitAll([]Document{again}, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if diff := s.Diff(same); len(diff) > 0 || s.Change(same) != nil {
			t.Fatalf("%v\n%s", diff, text)
		}
		r := rand.New(rand.NewPCG(1, 1))
		for _, e := range s.Experiments() {
			v := randomViewer(r)
			s.Assign(e.Experiment.Feeds[0], v)
			s.Explain(e.Experiment.Feeds[0], v)
		}
	})
}
