package experiment

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/slot"
)

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// everybody is a layer and an experiment that all are in.
const everybody = `
layers:
  - {name: l, salt: s, unit: viewer}
experiments:
  - name: e
    layer: l
    feeds: [home]
    state: running
    slots: [0-9999]
    share: 10000
    variants:
      - {name: a, weight: 5000}
      - {name: b, weight: 5000, set: {limit: 5}}
`

// in returns the variant that a viewer has of the only experiment; "" for none.
func in(a Assignment) string {
	if len(a.Experiments) == 0 {
		return ""
	}
	return a.Experiments[0].Variant
}

// The golden assignment: member:42 has slot 4592 and draw 5692 (package slot).
func TestAssign(t *testing.T) {
	s := compile(t, replace(replace(shown, "0-3999, 4500", "4592"), "share: 500", "share: 10000"))
	v := &millrace.Viewer{ID: "member:42", Attributes: map[string]any{"country": "de"}}
	a := s.Assign("home", v)
	want := Assigned{
		Experiment: "fresher", Layer: "ranking", Variant: "treatment", Unit: "member:42", Probability: Probability{1, 5000},
		Checksum: s.Experiments()[0].Checksum, Sets: &Sets{Model: "home2", Limit: 30}, Parameters: []Parameter{OfLimit, OfModel}, SetsSum: (Sets{Model: "home2", Limit: 30}).sum(),
		LifeSum: s.experiments[0].lifeSum(),
	}
	if len(a.Experiments) != 1 || !reflect.DeepEqual(a.Experiments[0], want) {
		t.Errorf("%+v, want %+v", a, want)
	}
	if p := want.Probability; p.Float64() != 0.00005 || p.InExperiment() != 0.5 {
		t.Errorf("probability %v and %v", p.Float64(), p.InExperiment())
	}
	if got := a.Sets(); got.Model != "home2" || got.Limit != 30 || got.Filter != nil {
		t.Errorf("sets %+v", got)
	}
	for why, v := range map[string]*millrace.Viewer{
		"another slot": {ID: "member:43", Attributes: map[string]any{"country": "de"}}, "not meant": {ID: "member:42", Attributes: map[string]any{"country": "us"}},
		"not said": {ID: "member:42"}, "no id": {Attributes: map[string]any{"country": "de"}}, "nobody": nil, "no filter takes it": {ID: "member:42", Attributes: map[string]any{"country": 7}},
	} {
		if a := s.Assign("home", v); len(a.Experiments) != 0 || len(a.HeldOut) != 0 {
			t.Errorf("%s: %+v", why, a)
		}
	}
	if a := s.Assign("recent", v); len(a.Experiments) != 0 {
		t.Errorf("another feed: %+v", a)
	}
	if a := new(Set).Assign("home", v); len(a.Experiments) != 0 {
		t.Errorf("the empty set: %+v", a)
	}
}

// By name, whatever the slot, the targeting, the holdout and the share; in a
// draft too. It has no probability, and excludes the rest of the layer.
func TestForced(t *testing.T) {
	alice := &millrace.Viewer{ID: "alice"}
	for _, state := range []State{Running, Draft} {
		a := compile(t, replace(shown, "running", string(state)), replace(third, "4501-9499", "4501-4600")).Assign("home", alice)
		if len(a.Experiments) != 1 || a.Experiments[0].Variant != "treatment" || !a.Experiments[0].Forced || a.Experiments[0].Probability != (Probability{}) || a.Experiments[0].Unit != "alice" {
			t.Errorf("%s: %+v", state, a)
		}
	}
	for _, state := range []State{Paused, Stopped} {
		if a := compile(t, replace(shown, "running", string(state))).Assign("home", alice); len(a.Experiments) != 0 {
			t.Errorf("%s: %+v", state, a)
		}
	}
	both := compile(t, shown, second).Assign("home", &millrace.Viewer{ID: "alice", Attributes: map[string]any{"country": "de"}})
	if len(both.Experiments) != 2 || both.Experiments[0].Forced || !both.Experiments[1].Forced {
		t.Errorf("of another layer by chance: %+v", both)
	}
	// A forced viewer is not dealt in its layer, but for another feed.
	s := compile(t, replace(replace(everybody, "share: 10000", "share: 10000\n    forced: {zoe: b}"), "0-9999", "1-9999"), `
experiments:
  - {name: f, layer: l, feeds: [recent], state: draft, slots: [0], share: 0, variants: [{name: x, weight: 10000}], forced: {zoe: x}}`[1:])
	if got := in(s.Assign("recent", &millrace.Viewer{ID: "zoe"})); got != "x" {
		t.Errorf("zoe has %q of recent", got)
	}
	if got := in(s.Assign("home", &millrace.Viewer{ID: "zoe"})); got != "b" {
		t.Errorf("zoe has %q of home", got)
	}
}

// A rule says which slots others use only where a draft that names values of an attribute needs it.
func TestRulesSayWhatIsTaken(t *testing.T) {
	for _, c := range []struct {
		unit, state, forced string
		taken               bool
	}{
		{"attribute household", "draft", "{zoe: x}", true},
		{"attribute household", "draft", "{}", false},
		{"attribute household", "paused", "{zoe: x}", false},
		{"viewer", "draft", "{zoe: x}", false},
	} {
		s := compile(t, replace(replace(everybody, "[0-9999]", "[0-2999, 3000-3999, 4500]"), "unit: viewer", "unit: "+c.unit), `
experiments:
  - {name: f, layer: l, feeds: [home, digest], state: `+c.state+`, slots: [5000-9999], share: 0, variants: [{name: x, weight: 10000}], forced: `+c.forced+`}`)
		want := map[string][]slot.Range{"home": {{From: 0, To: 3999}, {From: 4500, To: 4500}}}
		if got := s.Experiments()[1].Rule.Taken; c.taken && !reflect.DeepEqual(got, want) || !c.taken && got != nil {
			t.Errorf("%+v: %v is taken", c, got)
		}
	}
}

// A draft gives its variants to those whom it names only as far as no other experiment
// of the layer deals to them: none takes a viewer out of another.
func TestADraftTakesNobodyOut(t *testing.T) {
	draft := func(unit string) *Set {
		return compile(t, replace(replace(replace(replace(everybody, "limit: 5", "cap_per_entity: 1"), "[0-9999]", "[0-4999]"), "[home]", "[home, recent]"), "unit: viewer", "unit: "+unit), `
experiments:
  - {name: f, layer: l, feeds: [home, digest], state: draft, slots: [5000-9999], share: 0, variants: [{name: x, weight: 10000}], forced: {zoe: x, "r:0": x, "r:1": x, "r:2": x, "r:3": x}}`)
	}
	s, met := draft("viewer"), map[string]int{}
	for _, id := range []string{"zoe", "r:0", "r:1", "r:2", "r:3"} {
		hash := in(compile(t, replace(everybody, "[0-9999]", "[0-4999]")).Assign("home", &millrace.Viewer{ID: id}))
		met[hash]++
		v := &millrace.Viewer{ID: id}
		if got, want := in(s.Assign("home", v)), cmp.Or(hash, "x"); got != want {
			t.Errorf("%s has %q of home, want %q", id, got, want)
		}
		if got := in(s.Assign("digest", v)); got != "x" {
			t.Errorf("%s has %q of a feed that the draft has alone", id, got)
		}
		if got := in(s.Assign("recent", v)); got != hash {
			t.Errorf("%s has %q of a feed that the draft is not on", id, got)
		}
		for _, d := range s.Experiments() {
			for _, feed := range []string{"home", "digest", "recent"} {
				want := ""
				if a := s.Assign(feed, v).Experiments; len(a) > 0 && a[0].Experiment == d.Experiment.Name {
					want = a[0].Variant
				}
				if got, _ := d.Rule.Assign(feed, id); got != want {
					t.Errorf("%s, %s: the rule of %s says %q, the set %q", id, feed, d.Experiment.Name, got, want)
				}
			}
		}
		if why := s.Explain("home", v)[0]; why.Experiment != "e" || why.Variant != hash || (why.Cause == CauseDealt) != (hash != "") {
			t.Errorf("%s, in e: %+v, want %q", id, why, hash)
		}
		if why := s.Explain("home", v)[1]; (why.Cause == CauseTaken) != (hash != "") || hash != "" && !strings.Contains(why.Why, "in use by experiment e") {
			t.Errorf("%s: %+v", id, why)
		}
		got := draft("entity").Division("home").Deal(nil, millrace.Entity(id))
		if len(got) != 1 || got[0].Variant != cmp.Or(hash, "x") {
			t.Errorf("entity %s has %+v", id, got)
		}
	}
	if met[""] == 0 || met["a"]+met["b"] == 0 {
		t.Errorf("%v: the test tries too little", met)
	}
}

func TestStates(t *testing.T) {
	v := &millrace.Viewer{ID: "x"}
	if in(compile(t, everybody).Assign("home", v)) == "" {
		t.Error("running: not in")
	}
	for _, state := range []State{Draft, Paused, Stopped} {
		if a := compile(t, replace(everybody, "running", string(state))).Assign("home", v); len(a.Experiments) != 0 {
			t.Errorf("%s: %+v", state, a)
		}
	}
}

func TestHoldout(t *testing.T) {
	s := compile(t, replace(replace(everybody, "unit: viewer", "unit: viewer, holdout: [9000-9999]"), "[0-9999]", "[0-8999]"))
	held := 0
	for i := range 10_000 {
		v := &millrace.Viewer{ID: fmt.Sprint(i)}
		a := s.Assign("home", v)
		want := slot.Of("s", v.ID) >= 9000
		if (in(a) == "") != want || slices.Equal(a.HeldOut, []string{"l"}) != want {
			t.Fatalf("%s: %+v", v.ID, a)
		}
		if want {
			held++
		}
	}
	if held < 900 || held > 1100 {
		t.Errorf("%d of 10,000 are held out", held)
	}
}

// What of a viewer falls into a slot: the same text in every language.
func TestUnits(t *testing.T) {
	l := &layer{kind: ofAttribute, attribute: "a"}
	for _, c := range []struct {
		value any
		want  string
	}{
		{"x", "x"}, {"", ""}, {true, "true"}, {false, "false"}, {3.0, "3"}, {-3.0, "-3"}, {0.0, "0"}, {math.Copysign(0, -1), "0"}, {9007199254740992.0, "9007199254740992"},
		{9007199254740994.0, ""}, {0.5, ""}, {math.NaN(), ""}, {math.Inf(1), ""}, {[]string{"x"}, ""}, {[]float64{1}, ""}, {nil, ""}, {7, ""},
	} {
		if got := l.unitOf(&millrace.Viewer{ID: "id", Attributes: map[string]any{"a": c.value}}); got != c.want {
			t.Errorf("%v: %q, want %q", c.value, got, c.want)
		}
	}
	if got := l.unitOf(&millrace.Viewer{ID: "id"}); got != "" {
		t.Errorf("nothing said: %q", got)
	}
	if got := l.unitOf(&millrace.Viewer{Features: map[string]float64{"a": 4}}); got != "4" {
		t.Errorf("a feature: %q", got)
	}
}

// What is false, null, an error or NaN keeps out, as a filter drops it.
func TestTargeting(t *testing.T) {
	s := compile(t, replace(everybody, "share: 10000", `share: 10000
    targeting: viewer.age >= 18.0 && viewer.country in ["de", "fr"]`))
	for _, c := range []struct {
		attributes map[string]any
		in         bool
	}{
		{map[string]any{"age": 18.0, "country": "de"}, true}, {map[string]any{"age": 17.0, "country": "de"}, false}, {map[string]any{"age": 18.0}, false},
		{map[string]any{"age": math.NaN(), "country": "de"}, false}, {map[string]any{"age": "18", "country": "de"}, false}, {map[string]any{"age": []string{"x"}, "country": "de"}, false},
		{map[string]any{"age": struct{}{}, "country": "de"}, false}, {nil, false},
	} {
		v := &millrace.Viewer{ID: "x", Attributes: c.attributes}
		if got := in(s.Assign("home", v)) != ""; got != c.in {
			t.Errorf("%v: in is %v", c.attributes, got)
		}
	}
}

// Monitored, the slots in use are dealt evenly, whatever the weights; when it
// ends, nobody leaves the variant that grows.
func TestMonitored(t *testing.T) {
	src := replace(replace(everybody, "name: a, weight: 5000", "name: a, weight: 1000"), "name: b, weight: 5000", "name: b, weight: 9000")
	even, after := compile(t, replace(src, "share: 10000", "share: 10000\n    monitored: true")), compile(t, src)
	n := map[string]int{}
	then, now := even.Experiments()[0], after.Experiments()[0]
	stopped := now
	stopped.Experiment.State = Stopped
	for i := range 20_000 {
		v := &millrace.Viewer{ID: fmt.Sprint(i)}
		x, y := even.Assign("home", v).Experiments[0], after.Assign("home", v).Experiments[0]
		if x.Variant == "b" && y.Variant != "b" {
			t.Fatalf("%s leaves b", v.ID)
		}
		if other := map[string]string{"a": "b", "b": "a"}; !now.Deals()(v.ID, x.Variant, "") || !now.Deals()(v.ID, y.Variant, "") || x.Variant == y.Variant && now.Deals()(v.ID, other[x.Variant], "") ||
			then.Deals()(v.ID, other[x.Variant], "") || !stopped.Deals()(v.ID, "a", "of before") || x.Variant == y.Variant && stopped.Deals()(v.ID, other[x.Variant], stopped.Checksum) {
			t.Fatalf("%s: %s, and then %s", v.ID, x.Variant, y.Variant)
		}
		if x.Probability.Weight != 5000 || y.Probability.Weight != map[string]int{"a": 1000, "b": 9000}[y.Variant] {
			t.Fatalf("%v and %v", x.Probability, y.Probability)
		}
		n[x.Variant]++
	}
	if n["a"] < 9700 || n["a"] > 10_300 {
		t.Errorf("monitored: %v", n)
	}
	three := compile(t, replace(replace(replace(src, "share: 10000", "share: 10000\n    monitored: true"), "weight: 1000}", "weight: 500}\n      - {name: c, weight: 500}"), "[home]", "[home]"))
	var weights []int
	for _, a := range three.Experiments()[0].Rule.Arms {
		weights = append(weights, a.Weight)
	}
	if !slices.Equal(weights, []int{3333, 3333, 3334}) {
		t.Errorf("three arms: %v", weights)
	}
}

// As its share and its slots grow, an experiment keeps every unit with its
// variant.
func TestRampsOnlyGrow(t *testing.T) {
	for seed := range uint64(20) {
		r := random(seed)
		was := map[string]string{}
		share := 0
		for share < slot.Count {
			share = min(slot.Count, share+1+r.IntN(share+200))
			s := compile(t, replace(replace(everybody, "share: 10000", fmt.Sprintf("share: %d", share)), "[0-9999]", fmt.Sprintf("[%d-7999, 200]", 3000+seed)))
			ids, inUse := 0, 0
			for i := range 3000 {
				v := &millrace.Viewer{ID: fmt.Sprintf("%d/%d", seed, i)}
				now := in(s.Assign("home", v))
				if before := was[v.ID]; before != "" && now != before {
					t.Fatalf("at a share of %d %s has %q instead of %q", share, v.ID, now, before)
				}
				was[v.ID] = now
				if ids++; now != "" {
					inUse++
				}
			}
			want := float64(s.experiments[0].usedN) / slot.Count
			if got := float64(inUse) / float64(ids); math.Abs(got-want) > 5*math.Sqrt(want*(1-want)/float64(ids))+0.001 {
				t.Fatalf("at a share of %d %.4f are in, want %.4f", share, got, want)
			}
		}
	}
}

// At most one experiment of a layer has a viewer, none that does not apply to
// the feed, and Sets never loses what a variant sets.
func TestExclusion(t *testing.T) {
	met := 0
	for seed := range uint64(40) {
		r := random(seed)
		s := compile(t, randomDocument(r, 5))
		for range 300 {
			v := randomViewer(r)
			a := s.Assign("home", v)
			var layers []string
			for _, x := range a.Experiments {
				e := s.experiment(x.Experiment)
				of := Defined{Experiment: e.Experiment, Rule: slot.Rule{Experiment: e.Name, Salt: e.layer.Salt, Arms: e.arms}}
				if !x.Forced && !of.Deals()(x.Unit, x.Variant, x.Checksum) {
					t.Fatalf("%+v is not dealt", x)
				}
				if !slices.Contains(e.Feeds, "home") || x.Layer != e.Layer {
					t.Fatalf("%+v", x)
				}
				layers = append(layers, x.Layer)
				met++
			}
			if !slices.IsSorted(layers) || len(slices.Compact(layers)) != len(a.Experiments) {
				t.Fatalf("layers %v", layers)
			}
			all := a.Sets()
			var together []Parameter
			for _, x := range a.Experiments {
				together = append(together, x.Sets.parameters()...)
			}
			slices.Sort(together)
			if !slices.Equal(together, all.parameters()) {
				t.Fatalf("%v are set, and Sets has %v", together, all.parameters())
			}
		}
	}
	if met < 800 {
		t.Errorf("%d assignments: the test tries too little", met)
	}
}

// A rule deals what the set deals: to whom the definition names, in layers of attributes
// too, and to whom the targeting takes, which the caller judges.
func TestRules(t *testing.T) {
	met, named, outside := 0, 0, 0
	for seed := range uint64(20) {
		r := random(seed)
		s := compile(t, randomDocument(r, 5))
		for range 300 {
			v := randomViewer(r)
			if r.IntN(4) == 0 {
				v.ID = fmt.Sprintf("viewer:%d", 1000*r.IntN(5)+r.IntN(4))
			}
			for _, d := range s.Experiments() {
				e := s.experiment(d.Experiment.Name)
				feed := e.Feeds[r.IntN(len(e.Feeds))]
				a := s.Assign(feed, v)
				i := slices.IndexFunc(a.Experiments, func(x Assigned) bool { return x.Experiment == e.Name })
				who := slot.Whom{ID: v.ID, Unit: e.layer.unitOf(v), Outside: !e.target.admits(v)}
				got, ok := d.Rule.AssignTo(feed, who)
				if ok != (i >= 0) || ok && got != a.Experiments[i].Variant {
					t.Fatalf("seed %d, %+v, %v in %s, %s, on %s: the rule says %q, %v; the set %+v", seed, who, v.Attributes, e.Name, e.State, feed, got, ok, a)
				}
				if met++; ok && who.Outside {
					outside++
				}
				if ok && a.Experiments[i].Forced && e.layer.kind == ofAttribute {
					named++
				}
				if has := d.Rule.Targeting != ""; has != (e.target != nil) {
					t.Fatalf("%s: the rule says %q of the targeting", e.Name, d.Rule.Targeting)
				}
			}
		}
	}
	if met < 10_000 || named < 20 || outside < 20 {
		t.Errorf("%d compared, %d named in layers of attributes, %d outside of the targeting: the test tries too little", met, named, outside)
	}
}

// What nothing applies to allocates nothing.
func TestAssignAllocates(t *testing.T) {
	s := compile(t, replace(shown, "share: 500", "share: 3"))
	v := &millrace.Viewer{ID: "member:43", Attributes: map[string]any{"country": "de"}}
	if n := testing.AllocsPerRun(100, func() { s.Assign("recent", v); s.Assign("home", v) }); n != 0 {
		t.Errorf("%v allocations for nothing", n)
	}
	all := compile(t, everybody)
	if n := testing.AllocsPerRun(100, func() { all.Assign("home", v) }); n != 1 {
		t.Errorf("%v allocations for an assignment", n)
	}
}

func BenchmarkAssign(b *testing.B) {
	v := &millrace.Viewer{ID: "member:1234567", Attributes: map[string]any{"country": "de"}}
	b.Run("murmur3", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			slot.Of("salt0", v.ID)
		}
	})
	for _, c := range []struct{ layers, each int }{{1, 1}, {1, 10}, {10, 1}, {10, 10}, {100, 1}} {
		for _, kind := range []string{"in", "out", "targeted"} {
			src := "layers:\n"
			for l := range c.layers {
				src += fmt.Sprintf("  - {name: l%d, salt: salt%d, unit: viewer}\n", l, l)
			}
			src += "experiments:\n"
			for l := range c.layers {
				for i := range c.each {
					wide := slot.Count / c.each
					share := 10_000
					if kind == "out" {
						share = 10_000/wide + 1
					}
					src += fmt.Sprintf("  - {name: e%d-%d, layer: l%d, feeds: [home], state: running, slots: [%d-%d], share: %d, variants: [{name: a, weight: 5000}, {name: b, weight: 5000}]", l, i, l, i*wide, (i+1)*wide-1, share)
					if kind == "targeted" {
						src += `, targeting: 'viewer.country in ["de", "fr"]'`
					}
					src += "}\n"
				}
			}
			s := compile(b, src)
			b.Run(fmt.Sprintf("experiments=%d/layers=%d/%s", c.layers*c.each, c.layers, kind), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					s.Assign("home", v)
				}
			})
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	var docs []Document
	for i := range 100 {
		docs = append(docs, parse(b, replace(replace(replace(replace(replace(shown, "ranking\n", fmt.Sprintf("r%d\n", i)), "ranking-2026", fmt.Sprintf("s%d", i)), "fresher", fmt.Sprintf("f%d", i)), "layer: ranking", fmt.Sprintf("layer: r%d", i)), "[home]", fmt.Sprintf("[home%d]", i))))
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := admitAll(docs, nil); err != nil {
			b.Fatal(err)
		}
	}
}
