package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// second is another experiment of a layer of its own, that sets what shown does
// not.
const second = `
layers:
  - {name: density, salt: density-1, unit: attribute country}
experiments:
  - name: tighter
    layer: density
    feeds: [home]
    state: running
    slots: [0-9999]
    share: 10000
    variants:
      - {name: off, weight: 2000}
      - {name: on, weight: 8000, set: {cap_per_entity: 1, filter: record.likes > 1}}
`

// third is one more experiment of shown's layer.
const third = `
experiments:
  - name: longer
    layer: ranking
    feeds: [home]
    state: running
    slots: [4501-9499]
    share: 10000
    variants:
      - {name: only, weight: 10000, set: {limit: 50, model: home3}}
`

// Each that has slots of a newcomer is named with its own.
func TestSlotsOfSeveral(t *testing.T) {
	docs := []Document{parse(t, shown), parse(t, third), parse(t, replace(replace(third, "longer", "taker"), "4501-9499", "3990-4600"))}
	_, err := admitAll(docs, nil)
	for _, want := range []string{"experiment fresher in test.yaml has slots 3990-3999, 4500 of layer ranking", "experiment longer in test.yaml has slots 4501-4600 of layer ranking"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

// What contradicts what is already there is refused where it stands.
func TestContradictions(t *testing.T) {
	for _, c := range []struct {
		name, doc, old, with, want string
	}{
		{"overlap", third, "4501-9499", "3000-4600", "line 7, column 12: experiments[0].slots: experiment fresher in a has slots 3000-3999, 4500 of layer ranking; take others, or stop that one first"},
		{"held out", third, "4501-9499", "4501-9500", "line 7, column 12: experiments[0].slots: slots 9500 of layer ranking are held out; take others, or make the holdout smaller"},
		{"no layer", third, "layer: ranking", "layer: rankin", "line 4, column 12: experiments[0].layer: there is no layer rankin; define it, or name another one"},
		{"same name", third, "name: longer", "name: fresher", "line 3, column 11: experiments[0].name: there is an experiment fresher already in a; name it otherwise; or, to change document a, say --name a: a document is named as its file otherwise"},
		{"forced twice", third, "share: 10000", "share: 10000\n    forced: {alice: only}", `line 9, column 13: experiments[0].forced: experiment fresher of the same layer forces "alice" too, for feed home; leave it out of one`},
		{"same salt", second, "density-1", "ranking-2026", "line 3, column 27: layers[0].salt: layer ranking has it too, so that the two would not be independent; choose another one"},
		{"same layer", second, "name: density", "name: ranking", "line 3, column 12: layers[0].name: there is a layer ranking already in a; leave it out here: experiments may be of a layer of another document; or name it otherwise"},
		{"same parameter", second, "cap_per_entity: 1", "limit: 1", "line 12, column 7: experiments[0].variants: limit of feed home is set by experiment fresher of layer ranking in a too; put both into one layer, where they exclude each other"},
		{"of an entity", replace(second, "attribute country", "entity"), "filter: record.likes > 1", "model: m", "the model of feed home is set by experiment fresher of layer ranking in a too; stop that one first, or leave it out of one"},
		{"weights of a model", second, "cap_per_entity: 1", "weights: {likes: 1}", "the model of feed home is set by experiment fresher"},
		{"two models", second, "cap_per_entity: 1", "interleave: [a, b]", "the model of feed home is set by experiment fresher"},
	} {
		b := parse(t, replace(c.doc, c.old, c.with))
		a := parse(t, shown)
		a.Name, b.Name = "a", "b"
		_, err := admitAll([]Document{a, b}, nil)
		if err == nil || !strings.Contains(err.Error(), "b: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: want %q in\n%v", c.name, c.want, err)
			continue
		}
		var e *Error
		if !errors.As(err, &e) || len(e.Documents) != 1 || e.Documents[0].Name != "b" {
			t.Errorf("%s: the later document alone is at fault: %v", c.name, err)
		}
		if _, err := admitAll([]Document{a}, nil); err != nil {
			t.Errorf("%s: what is left does not stand by itself: %v", c.name, err)
		}
	}
	compile(t, shown, second, third)
	// Whom two force on several feeds is told once.
	const twice = "share: 10000\n    forced: {alice: only, bob: only}"
	on := func(src string) string { return replace(src, "[home]", "[home, recent]") }
	_, err := admitAll([]Document{parse(t, on(shown)), parse(t, on(replace(third, "share: 10000", twice)))}, nil)
	if err == nil || strings.Count(err.Error(), `forces "alice" too`) != 1 || strings.Contains(err.Error(), "bob") {
		t.Errorf("forced on two feeds: %v", err)
	}
	// A parameter that several variants set, on several feeds, is told once.
	_, err = admitAll([]Document{parse(t, on(shown)), parse(t, on(replace(replace(second, "weight: 2000", "weight: 2000, set: {limit: 2}"), "cap_per_entity: 1", "limit: 1")))}, nil)
	if err == nil || strings.Count(err.Error(), "limit of feed home is set by") != 1 || strings.Contains(err.Error(), "limit of feed recent") {
		t.Errorf("set by several variants: %v", err)
	}
	// Two models draft a page, or its entities are divided, whichever comes first.
	drafts := replace(shown, "model: home2, limit: 30", "interleave: [a, b]")
	divides := replace(replace(second, "attribute country", "entity"), "cap_per_entity: 1, filter: record.likes > 1", "types: [a]")
	const does = "of feed home, two models draft the page or its entities are divided, and experiment "
	for _, c := range []struct{ first, then, want string }{{drafts, divides, does + "fresher"}, {divides, drafts, does + "tighter"}, {drafts, replace(third, "limit: 50, model: home3", "cap_per_entity: 50"), ""}, {divides, shown, ""}, {drafts, replace(divides, "[home]", "[recent]"), ""}} {
		_, err := admitAll([]Document{parse(t, c.first), parse(t, c.then)}, nil)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	// Of one that sets weights alone, they are named.
	a, b := parse(t, replace(shown, "model: home2", "weights: {likes: 2}")), parse(t, replace(second, "cap_per_entity: 1", "model: home3"))
	a.Name, b.Name = "a", "b"
	if _, err := admitAll([]Document{a, b}, nil); err == nil || !strings.Contains(err.Error(), "experiments[0].variants: weights of the model of feed home are set by experiment fresher of layer ranking in a too") {
		t.Error(err)
	}
	// What has stopped, or is of another feed, contradicts nothing.
	compile(t, shown, replace(replace(third, "4501-9499", "0-4500"), "running", "stopped"))
	compile(t, shown, replace(replace(second, "cap_per_entity: 1", "limit: 1"), "[home]", "[recent]"))
	compile(t, shown, replace(replace(third, "share: 10000", "share: 10000\n    forced: {alice: only}"), "[home]", "[recent]"))
}

// What stands in a variant and sets nothing is refused when it is put in place, and
// stays where it was before.
func TestWhatSetsNothingIsRefused(t *testing.T) {
	const set = "set: {cap_per_entity: 1, filter: record.likes > 1}"
	for with, want := range map[string]string{
		"set: {weights: {claps: null, likes: 2}}":          `experiments[0].variants[1].set.weights: "claps" has none; write a number, such as 0`,
		"set: {weights: {claps: }}":                        `set.weights: "claps" has none`,
		"set: {weights: {}}":                               "set.weights: it sets nothing; write what it sets, or leave it out",
		"set: {weights: null}":                             "set.weights: it sets nothing",
		"set: {limit: 0}":                                  "set.limit: it sets nothing",
		"set: {filter: }":                                  "set.filter: it sets nothing",
		"set: {filter: '', window: 0s, cap_per_entity: 0}": "",
		"set: {weights: {claps: 0}}":                       "",
		"set: {}":                                          "",
		"set: null":                                        "",
	} {
		d := parse(t, replace(second, set, with))
		_, err := Admit([]Document{d}, nil)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", with, err, want)
		}
		if _, err := Serve([]Document{d}, nil); err != nil {
			t.Errorf("%s, that was there: %v", with, err)
		}
	}
}

// A guard that can never fire, or only at once, is refused when it is put in place with
// the bound, and stays where it was before.
func TestGuardsThatNeverFireAreRefused(t *testing.T) {
	for with, want := range map[string]string{
		"guards: {refused: 1e308}":                                                       "experiments[0].guards.refused: 1e+308 would never pause anything: it is more than 1000; write a multiple of the control's, such as 1.5, or leave it out",
		"guards: {cost: 1000.5}":                                                         "guards.cost: 1000.5 would never",
		"guards: {milliseconds: 1e300}":                                                  "guards.milliseconds: 1e+300 would never pause anything: it is more than 3.6e+06; write milliseconds, such as 20",
		"guards: {p99: 1e18}":                                                            "guards.p99: 1e+18 would never",
		"guards: {share_of_type: 1}":                                                     "guards.share_of_type: 1 would never pause anything: no part is larger than the whole",
		"guards: {empty: 1.5, alpha: 1e-300}":                                            "guards.alpha: 1e-300 is not from 1e-06 to below a half",
		"guards: {empty: 1.5, alpha: 0.5}":                                               "guards.alpha: 0.5 is not",
		"guards: {more: {hide: 1e9}}\n    " + hides:                                      "guards.more.hide: 1e+09 would never",
		"guards: {fewer: {hide: 1e-9}}\n    " + hides:                                    "guards.fewer.hide: 1e-09 would never",
		"guards: {empty: 1}\n    " + steps("1ns"):                                        "experiments[0].ramp.least: 1ns is shorter than 1s, the longest that guards wait between two looks; write a time such as 1h, or leave it out",
		"guards: {empty: 1}\n    " + steps("1s"):                                         "",
		"guards: {empty: 1}\n    " + steps("0s"):                                         "",
		"guards: {refused: 1000, p99: 3600000, alpha: 1e-6}":                             "",
		"guards: {fewer: {hide: 0.001}, share_of_type: 0.99, alpha: 0.49}\n    " + hides: "",
	} {
		d := parse(t, replace(second, "share: 10000", "share: 10000\n    "+with))
		_, err := Admit([]Document{d}, nil)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", with, err, want)
		}
		for _, compile := range []func([]Document, Known) (*Set, error){Serve, Steer} {
			if _, err := compile([]Document{d}, nil); err != nil {
				t.Errorf("%s, that was there: %v", with, err)
			}
		}
	}
}

// Guards compare variants that chance deals with a control that it deals: where there
// are no two such they are refused, and stay where they were before.
func TestGuardsThatCompareWithNothingAreRefused(t *testing.T) {
	const alone = "experiments[0].guards: its guards compare with nothing: "
	for variants, want := range map[string]string{
		"[{name: all, weight: 10000, set: {limit: 3}}]":                                                                                          alone + "all alone has viewers; add a variant without set",
		"[{name: control, weight: 0}, {name: t, weight: 10000, set: {limit: 3}}]":                                                                alone + "t alone has viewers; give the control a weight; or write monitored: true",
		"[{name: control, weight: 10000}, {name: bad, weight: 0, set: {limit: 3}}]":                                                              alone + "control alone has viewers",
		"[{name: control, weight: 0}, {name: a, weight: 5000, set: {limit: 3}}, {name: b, weight: 5000, set: {limit: 4}}]":                       alone + "a and b are compared with control, which has no viewers",
		"[{name: control, weight: 0}, {name: t, weight: 10000, set: {limit: 3}}]\n    monitored: true":                                           "",
		"[{name: all, weight: 10000, set: {limit: 3}}]\n    monitored: true":                                                                     alone + "all alone",
		"[{name: control, weight: 5000}, {name: a, weight: 5000, set: {limit: 3}}, {name: b, weight: 0, set: {limit: 4}}]":                       "",
		"[{name: a, weight: 5000, set: {limit: 3}}, {name: b, weight: 5000, set: {limit: 4}}]":                                                   "experiments[0].guards: its guards do not know what to compare with: no variant sets nothing, and none of a, b is named control; let the variant",
		"[{name: a, weight: 5000, set: {limit: 3}}, {name: control, weight: 5000, set: {limit: 4}}]":                                             "",
		"[{name: control, weight: 0}, {name: a, weight: 5000}, {name: b, weight: 5000, set: {limit: 4}}]":                                        "",
		"[{name: control, weight: 0}, {name: t, weight: 10000, set: {limit: 3}}]\n    monitored: true\n    ramp: {steps: [10000], viewers: 100}": "",
	} {
		d := parse(t, `layers: [{name: l, salt: s, unit: viewer}]
experiments:
  - name: e
    layer: l
    feeds: [home]
    state: running
    slots: [0-9999]
    share: 100
    variants: `+variants+`
    guards: {empty: 1.5}
`)
		_, err := Admit([]Document{d}, nil)
		if (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v, want %q", variants, err, want)
		}
		for _, compile := range []func([]Document, Known) (*Set, error){Serve, Steer} {
			s, err := compile([]Document{d}, nil)
			if err != nil {
				t.Fatalf("%s, that was there: %v", variants, err)
			}
			if e := s.Experiments()[0].Experiment; (e.ComparesNothing() == "") != (want == "") {
				t.Errorf("%s: %q", variants, e.ComparesNothing())
			}
		}
		if d.Experiments[0].State = Stopped; want != "" {
			if _, err := Admit([]Document{d}, nil); err != nil {
				t.Errorf("%s, stopped: %v", variants, err)
			}
		}
	}
}

const hides = "outcomes: {topic: acts, actions: [hide]}"

func steps(least string) string { return "ramp: {steps: [10000], least: " + least + ", viewers: 1}" }

// What does nothing, which its author did not mean, is refused by its name; in a
// document that was put in place before it stays, and its experiments are steered.
func TestWhatDoesNothingIsRefused(t *testing.T) {
	const share = "share: 500"
	guards := func(text string) string { return share + "\n    features: 10\n    guards: {" + text + "}" }
	for with, want := range map[string]string{
		guards("refused: 0, empty: 1.5"):                                                "experiments[0].guards.refused: 0 is no limit; write a multiple of the control's, 1 for any more at all, or leave it out",
		guards("cost: 0.0, empty: 1.5"):                                                 "experiments[0].guards.cost: 0.0 is no limit; write a multiple",
		guards("milliseconds: 0, empty: 1.5"):                                           "experiments[0].guards.milliseconds: 0 is no limit; write how many milliseconds",
		guards("p99: -0, empty: 1.5"):                                                   "experiments[0].guards.p99: -0 is no limit; write how many milliseconds",
		guards("share_of_type: 0, empty: 1.5"):                                          "experiments[0].guards.share_of_type: 0 is no limit; write a part such as 0.01",
		guards("alpha: 0, empty: 1.5"):                                                  "experiments[0].guards.alpha: 0 is no limit; write a chance such as 0.01, or leave it out for 0.05",
		guards("nan: null, empty: 1.5"):                                                 "experiments[0].guards.nan: null is no limit",
		guards("nan: , empty: 1.5"):                                                     "experiments[0].guards.nan: nothing is no limit",
		guards("refused: 1, p99: 0.5, features_missing: 0.1, alpha: 0.01"):              "",
		guards("empty: 1.5") + "\n    ramp: {steps: [100, 499], least: 1h, viewers: 1}": "experiments[0].ramp.steps: it would never ramp: its last step is 499, and the share is 500 already; write a step above it, lower the share, or leave the ramp out",
		guards("empty: 1.5") + "\n    ramp: {steps: [100, 500], least: 1h, viewers: 1}": "",
		guards("empty: 1.5") + "\n    ramp: {steps: [500], least: 1h}":                  "experiments[0].ramp.viewers: guards would be asked at a step before anybody has seen it; write how many of each variant, such as 1000",
		guards("empty: 1.5") + "\n    ramp: {steps: [500], least: 1h, viewers: 0}":      "experiments[0].ramp.viewers: guards would be asked",
		share + "\n    outcomes: {topic: 'my clicks', actions: [click]}":                `experiments[0].outcomes.topic: "my clicks" can be no topic; write 1 to 249 letters, digits, '.', '_' and '-', as Kafka has it`,
		share + "\n    outcomes: {topic: .., actions: [click]}":                         `experiments[0].outcomes.topic: ".." can be no topic`,
		share + "\n    outcomes: {topic: my.clicks_2-x, actions: [click]}":              "",
	} {
		d := parse(t, replace(shown, share, with))
		_, err := Admit([]Document{d}, nil)
		if (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %v, want %q", with, err, want)
		}
		for name, compile := range map[string]func([]Document, Known) (*Set, error){"serves": Serve, "is steered": Steer} {
			if _, err := compile([]Document{d}, nil); err != nil {
				t.Errorf("%s, that was there and %s: %v", with, name, err)
			}
		}
	}
	if _, err := Admit([]Document{parse(t, replace(replace(shown, share, guards("empty: 1.5")+"\n    ramp: {steps: [100], least: 1h}"), "running", "stopped"))}, nil); err != nil {
		t.Errorf("a ramp that is over: %v", err)
	}
}

// A layer of entities divides the entities of one answer: what is one for the
// answer cannot differ, and there is no viewer to target.
func TestLayerOfEntities(t *testing.T) {
	ofEntities := replace(second, "attribute country", "entity")
	s := compile(t, ofEntities)
	if a := s.Assign("home", randomViewer(random(1))); len(a.Experiments) != 0 {
		t.Errorf("a viewer has %+v", a)
	}
	const set, share = "cap_per_entity: 1", "share: 10000"
	for _, with := range []string{"model: m", "weights: {a: 1}", "filter: record.x", "window: 1h", "types: [a]", "model: m, cap_per_entity: 2"} {
		compile(t, replace(ofEntities, "cap_per_entity: 1, filter: record.likes > 1", with))
	}
	for _, c := range [][3]string{
		{set, "interleave: [a, b]", "variants[1].set.interleave: it is one for a whole answer"}, {set, "limit: 3", "variants[1].set.limit: it is one for a whole answer"},
		{set, "spacing: {entity: 1}", "variants[1].set.spacing: it is one for a whole answer"}, {share, share + "\n    targeting: viewer.a == 1", "targeting: layer density divides entities"},
		{share, share + "\n    guards: {empty: 1.5}", "guards: layer density divides entities"}, {share, share + "\n    outcomes: {topic: a, actions: [b]}", "outcomes: layer density divides entities"},
		{share, share + "\n    ramp: {steps: [10000], least: 1h, viewers: 1}\n    guards: {empty: 1.5}", "ramp: layer density divides entities"},
	} {
		_, err := admitAll([]Document{parse(t, replace(ofEntities, c[0], c[1]))}, nil)
		if err == nil || !strings.Contains(err.Error(), c[2]) || !strings.Contains(err.Error(), "use a layer of viewers") {
			t.Errorf("%s: %v", c[1], err)
		}
	}
}

// An answer whose entities are divided is one question for each group, so there
// are not many; and none of two rankings that draft a page.
func TestGroupsAreBounded(t *testing.T) {
	variants := func(n int, set string) string {
		text := fmt.Sprintf("{name: c, weight: %d}", 10_000-100*n)
		for i := range n {
			text += fmt.Sprintf(", {name: v%d, weight: 100, set: {%s}}", i, fmt.Sprintf(set, i+1))
		}
		return text
	}
	layers := func(n, m int) string {
		return fmt.Sprintf(`
layers: [{name: a, salt: a, unit: entity}, {name: b, salt: b, unit: entity}]
experiments:
  - {name: x, layer: a, feeds: [home], state: running, slots: [0-99], share: 10000, variants: [%s]}
  - {name: y, layer: b, feeds: [home], state: running, slots: [0-99], share: 10000, variants: [%s]}
  - {name: z, layer: a, feeds: [home], state: draft, slots: [100-199], share: 10000, variants: [%s]}
`, variants(n, "window: %dh"), variants(m, "cap_per_entity: %d"), variants(1, "window: %dh"))
	}
	compile(t, layers(3, 3)) // what z sets x sets too
	_, err := admitAll([]Document{parse(t, layers(4, 3))}, nil)
	if err == nil || !strings.Contains(err.Error(), "experiments[1].variants: entities of one answer of feed home could be of 20 groups, more than 16") {
		t.Errorf("%v", err)
	}
	drafts := `
layers: [{name: v, salt: v, unit: viewer}]
experiments: [{name: d, layer: v, feeds: [home], state: running, slots: [0-99], share: 10000, variants: [{name: a, weight: 10000, set: {interleave: [m, n]}}]}]
`
	for _, docs := range [][]Document{{parse(t, drafts), parse(t, layers(1, 1))}, {parse(t, layers(1, 1)), parse(t, drafts)}} {
		if _, err := admitAll(docs, nil); err == nil || !strings.Contains(err.Error(), "two models draft the page or its entities are divided") {
			t.Errorf("%v", err)
		}
	}
	compile(t, layers(1, 1), replace(drafts, "[home]", "[recent]"))
}

func TestKnown(t *testing.T) {
	docs := []Document{parse(t, shown), parse(t, second)}
	if _, err := admitAll(docs, names{"feed home", "model home2"}); err != nil {
		t.Errorf("all is known: %v", err)
	}
	_, err := admitAll(docs, names{})
	for _, want := range []string{
		"line 10, column 13: experiments[0].feeds[0]: there is no feed home; define it first",
		"line 17, column 46: experiments[0].variants[1].set: no model home2 serves; push it first",
		"line 7, column 13: experiments[0].feeds[0]: there is no feed home",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in\n%v", want, err)
		}
	}
	docs[1] = parse(t, replace(second, "record.likes", "record.nosuch"))
	if _, err = admitAll(docs, names{"feed home", "model home2"}); err == nil || !strings.Contains(err.Error(), "experiments[0].variants[1].set.filter: filter: no field nosuch in record") {
		t.Errorf("a filter that nodes refuse: %v", err)
	}
	docs = []Document{parse(t, replace(shown, "model: home2", "weights: {likes: 1, lieks: 2}"))}
	if _, err = admitAll(docs, names{"feed home", "weight home//likes"}); err == nil || !strings.Contains(err.Error(), "line 17, column 56: experiments[0].variants[1].set.weights: no parameter lieks; did you mean likes?") {
		t.Errorf("weights that nodes refuse: %v", err)
	}
	if _, err = admitAll(docs, names{"feed home", "weight home//likes", "weight home//lieks"}); err != nil {
		t.Errorf("weights that they take: %v", err)
	}
	docs = []Document{parse(t, replace(shown, "model: home2", "model: home2, weights: {likes: 1}"))}
	if _, err = admitAll(docs, names{"feed home", "model home2", "weight home/home2/likes"}); err != nil {
		t.Errorf("weights of the variant's model: %v", err)
	}
	docs = []Document{parse(t, shown), parse(t, replace(second, "running", "stopped"))}
	if _, err = admitAll(docs, names{"feed home", "model home2"}); err != nil {
		t.Errorf("a stopped one: %v", err)
	}
	s := compile(t, shown, second, third)
	for _, c := range []struct{ got, want []string }{
		{s.UsesModel("home2"), []string{"fresher"}}, {s.UsesModel("home"), nil}, {s.UsesFeed("home"), []string{"fresher", "longer", "tighter"}},
		{compile(t, replace(shown, "running", "paused")).UsesModel("home2"), []string{"fresher"}},
		{compile(t, replace(shown, "running", "stopped")).UsesModel("home2"), nil},
		{compile(t, replace(shown, "model: home2", "interleave: [a, b]")).UsesModel("b"), []string{"fresher"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("used by %v, want %v", c.got, c.want)
		}
	}
}

// Many documents together are bounded as well.
func TestTooManyTogether(t *testing.T) {
	var docs []Document
	for d := range 11 {
		src := "layers: [{name: l" + fmt.Sprint(d) + ", salt: s" + fmt.Sprint(d) + ", unit: viewer}]\nexperiments:\n"
		for i := range 100 {
			src += fmt.Sprintf("  - {name: e%d-%d, layer: l%d, feeds: [f%d], state: draft, slots: [%d], share: 0, variants: [{name: a, weight: 10000}]}\n", d, i, d, d, i)
		}
		docs = append(docs, parse(t, src))
	}
	if _, err := admitAll(docs[:10], nil); err != nil {
		t.Errorf("1,000 experiments: %v", err)
	}
	if _, err := admitAll(docs, nil); err == nil || !strings.Contains(err.Error(), "more than 1000 experiments in all documents of the cluster together: ") {
		t.Errorf("1,100 experiments: %v", err)
	}
	var layers []Document
	for i := range 101 {
		layers = append(layers, parse(t, fmt.Sprintf("layers: [{name: l%d, salt: s%d, unit: viewer}]", i, i)))
	}
	if _, err := admitAll(layers, nil); err == nil || !strings.HasSuffix(err.Error(), "more than 100 layers in all documents of the cluster together: test.yaml has 1, test.yaml has 1, test.yaml has 1, test.yaml has 1, test.yaml has 1, others 96; put experiments that may exclude each other into one layer, or drop documents whose experiments have stopped") {
		t.Errorf("101 layers: %v", err)
	}
}

// A layer that is refused is there for the experiments of its file: that is the one
// fault.
func TestOneFaultOfALayer(t *testing.T) {
	document := func(name string, from, n int) Document {
		layers, experiments := "layers:\n", "experiments:\n"
		for i := range n {
			layers += fmt.Sprintf("  - {name: %s%d, salt: s%d, unit: viewer}\n", name, i, from+i)
			experiments += fmt.Sprintf("  - {name: e%s%d, layer: %s%d, feeds: [%s%d], state: draft, slots: [0], share: 0, variants: [{name: a, weight: 10000}]}\n", name, i, name, i, name, i)
		}
		d, err := Parse(name, []byte(layers+experiments))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	const tooMany = "more than 100 layers in all documents of the cluster together: a has 98, b has 4, c has 2; "
	for _, c := range []struct {
		docs []Document
		want []string
	}{
		{[]Document{document("a", 0, 98), document("b", 98, 4), document("c", 102, 2)}, []string{"b: line 4, column 5: layers[2]: " + tooMany, "c: line 2, column 5: layers[0]: " + tooMany}},
		{[]Document{document("a", 0, 1), document("b", 0, 1)}, []string{"b: line 2, column 22: layers[0].salt: layer a0 has it too"}},
	} {
		_, err := admitAll(c.docs, nil)
		lines := strings.Split(fmt.Sprint(err), "\n")
		if len(lines) != len(c.want) {
			t.Errorf("%v\nwant %q", err, c.want)
			continue
		}
		for i, want := range c.want {
			if !strings.HasPrefix(lines[i], want) {
				t.Errorf("%s\nwant %s", lines[i], want)
			}
		}
	}
}

// A definition that was changed in Go is checked like one that was read.
func TestCompileChecks(t *testing.T) {
	d := parse(t, shown)
	d.Experiments[0].Share = 20_000
	if _, err := admitAll([]Document{d}, nil); err == nil || !strings.Contains(err.Error(), "line 13, column 12: experiments[0].share: 20000 is not between") {
		t.Errorf("%v", err)
	}
}

// What one viewer's targeting can cost is bounded over all layers of a feed.
func TestTargetingTogether(t *testing.T) {
	layers, tests := "", ""
	for i := range 5 {
		layers += fmt.Sprintf("  - {name: l%d, salt: s%d, unit: viewer}\n", i, i)
		tests += fmt.Sprintf("  - {name: e%d, layer: l%d, feeds: [home], state: running, slots: [0-9], share: 10000, variants: [{name: a, weight: 10000}], targeting: 'viewer.a != \"%s\"'}\n", i, i, strings.Repeat("x", 900))
	}
	_, err := admitAll([]Document{parse(t, "layers:\n"+layers+"experiments:\n"+tests)}, nil)
	if lines := faultsOf(t, err); len(lines) != 1 || !strings.Contains(lines[0], "experiments[4].targeting") {
		t.Errorf("%v", lines)
	}
}

func TestPrivateFeeds(t *testing.T) {
	for set, want := range map[string]string{"{filter: 'true'}": "set.filter", "{window: 0s}": "set.window", "{types: [a]}": "set.types", "{limit: 3}": ""} {
		src := replace(shown, "{model: home2, limit: 30}", set)
		_, err := admitAll([]Document{parse(t, src)}, names{"feed home", "private home"})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want+": feed home is private")) {
			t.Errorf("%s: %v", set, err)
		}
	}
}

// A field of outcomes that is within another, and so never read, is refused of a
// document that is about to be put in place.
func TestAnswerFieldOfTheRecordItself(t *testing.T) {
	for field, refused := range map[string]bool{"answer_id": false, "ctx.answer": true} {
		src := "layers: [{name: l, salt: s, unit: viewer}]\nexperiments:\n  - {name: e, layer: l, feeds: [f], state: draft, slots: [0-9], share: 0, variants: [{name: v, weight: 10000}], outcomes: {topic: clicks, actions: [click], answer_field: " + field + "}}\n"
		d, err := Parse("d", []byte(src))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Admit([]Document{d}, nil)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "only a field of the record itself is read") {
			t.Errorf("%s: %v", field, err)
		}
		if _, err := Serve([]Document{d}, nil); err != nil {
			t.Errorf("%s, which is there already: %v", field, err)
		}
	}
}
