package experiment

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/slot"
)

// What may change, and what is refused with the way out; "" is allowed.
func TestChange(t *testing.T) {
	paused := replace(shown, "running", "paused")
	draft := replace(shown, "running", "draft")
	stopped := replace(shown, "running", "stopped")
	monitored := replace(shown, "share: 500", "share: 500\n    monitored: true")
	hashed := compile(t, everybody)
	same, same2 := in(hashed.Assign("home", &millrace.Viewer{ID: "k:1"})), in(hashed.Assign("home", &millrace.Viewer{ID: "k:2"}))
	others := map[string]string{"a": "b", "b": "a"}
	other, other2 := others[same], same2
	at := slot.Of("s", "k:1")
	lower := replace(everybody, "[0-9999]", fmt.Sprint("[", at, "]"))
	forcing := fmt.Sprintf(`  - {name: f, layer: l, feeds: [home], state: running, slots: [%d], share: 10000, variants: [{name: x, weight: 10000}], forced: {"k:1": x, "k:2": x}}`, (at+1)%slot.Count)
	alone := shown[:strings.Index(shown, "experiments:")]
	for _, c := range []struct{ name, old, next, want string }{
		{"nothing", shown, shown, ""},
		{"ramp", shown, replace(shown, "share: 500", "share: 1000"), ""},
		{"ramp down", shown, replace(shown, "share: 500", "share: 499"), "line 13, column 12: experiments[0].share: slots 199 would go out of use, and their units lose their variant; pause it first, or keep them"},
		{"more slots above", shown, replace(shown, "4500", "4500-5000"), ""},
		{"more slots below", replace(shown, "0-3999", "1-3999"), shown, "experiments[0].slots: slots 200 would go out of use"},
		{"fewer slots, not in use", shown, replace(shown, "0-3999, 4500", "0-3999"), ""},
		{"fewer slots", shown, replace(shown, "0-3999, 4500", "0-3979"), "line 12, column 12: experiments[0].slots: slots 199 would go out of use, and their units lose their variant; pause it first, or keep them"},
		{"slots given back", shown, replace(replace(shown, "0-3999, 4500", "0-1999"), "share: 500", "share: 1000"), ""},
		{"ramp down in a pause", paused, replace(paused, "share: 500", "share: 100"), ""},
		{"down while resuming", paused, replace(shown, "share: 500", "share: 100"), ""},
		{"pause", shown, paused, ""}, {"resume", paused, shown, ""}, {"stop", shown, stopped, ""}, {"stop in a pause", paused, stopped, ""},
		{"start", draft, shown, ""}, {"discard", draft, stopped, ""},
		{"back to draft", shown, draft, "line 11, column 12: experiments[0].state: it is running, and cannot become draft; write one of [running paused stopped]"},
		{"draft paused", draft, paused, "it is draft, and cannot become paused"},
		{"restart", stopped, shown, "experiments[0].state: it is stopped, and cannot become running; define an experiment with a new name"},
		{"salt", shown, replace(shown, "salt: ranking-2026", "salt: other"), "line 4, column 11: layers[0].salt: other instead of ranking-2026 would reshuffle experiment fresher, which is running; stop it first, or define a layer with a new name"},
		{"salt in a pause", paused, replace(paused, "salt: ranking-2026", "salt: other"), "layers[0].salt: other instead of ranking-2026 would reshuffle experiment fresher, which is paused"},
		{"salt of a draft", draft, replace(shown, "salt: ranking-2026", "salt: other"), ""},
		{"salt of a stopped one", stopped, replace(stopped, "salt: ranking-2026", "salt: other"), ""},
		{"unit", shown, replace(shown, "unit: viewer", "unit: attribute a"), "line 5, column 11: layers[0].unit: attribute a instead of viewer would reshuffle experiment fresher"},
		{"layer renamed", shown, strings.ReplaceAll(shown, ": ranking\n", ": order\n"), "line 9, column 12: experiments[0].layer: it is running, and this may not change: every unit would fall into another slot; define an experiment with a new name"},
		{"holdout", shown, replace(shown, "9500-9999", "5000"), ""},
		{"feeds", shown, replace(shown, "[home]", "[home, recent]"), "experiments[0].feeds: it is running, and this may not change: answers from before and after could not be compared"},
		{"targeting", shown, replace(shown, `"fr"`, `"es"`), "line 14, column 16: experiments[0].targeting: it is running, and this may not change: viewers would come and go"},
		{"targeting, written otherwise", shown, replace(shown, `["de", "fr"]`, `["de","fr"]`), ""},
		{"no targeting", shown, replace(shown, "    targeting: viewer.country in [\"de\", \"fr\"]\n", ""), "experiments[0].targeting"},
		{"weights", shown, replace(replace(shown, "control, weight: 5000", "control, weight: 4000"), "treatment, weight: 5000", "treatment, weight: 6000"), "line 16, column 7: experiments[0].variants: it is running, and this may not change: units would change their variant"},
		{"variant renamed", shown, replace(shown, "name: control", "name: base"), "experiments[0].variants: it is running"},
		{"what it sets", shown, replace(shown, "limit: 30", "limit: 31"), "experiments[0].variants: it is running"},
		{"what it sets in a pause", paused, replace(shown, "limit: 30", "limit: 31"), "experiments[0].variants: it is paused"},
		{"of a draft", draft, replace(replace(shown, "limit: 30", "limit: 31"), `"fr"`, `"es"`), ""},
		{"monitoring begins", shown, monitored, "experiments[0].monitored: it is running, and this may not change: units would change their variant; it can be ended, not begun"},
		{"monitoring ends", monitored, shown, ""},
		{"forced", shown, replace(shown, "alice: treatment", "bob: control"), ""},
		{"forced out of its own variant", everybody, replace(everybody, "share: 10000", "share: 10000\n    forced: {\"k:1\": "+other+", \"k:2\": "+other2+"}"), "experiments[0].forced: 1 unit (\"k:1\") would leave "},
		{"forced into the same", everybody, replace(everybody, "share: 10000", "share: 10000\n    forced: {\"k:1\": "+same+"}"), ""},
		{"forced out of another", lower, lower + forcing, "experiments[1].forced: 1 unit (\"k:1\") would leave " + same + " of experiment e, which the hash deals them while it runs; leave them out, or pause e first"},
		{"forced out of another, by name before", lower + forcing, lower + forcing + " # the same", ""},
		{"forced out of another that is paused", lower, replace(lower, "running", "paused") + forcing, ""},
		{"forced by a draft", lower, lower + strings.Replace(forcing, "running", "draft", 1), ""},
		{"the draft starts", lower + strings.Replace(forcing, "running", "draft", 1), lower + forcing, "experiments[1].forced: 1 unit (\"k:1\") would leave "},
		{"forced on another feed", lower, lower + strings.Replace(forcing, "[home]", "[recent]", 1), ""},
		{"removed", shown, alone, "test.yaml: line 1, column 1: experiments: experiment fresher is running and stands here no longer; stop it first, and remove it then"},
		{"removed in a pause", paused, alone, "experiment fresher is paused and stands here no longer"},
		{"a draft removed", draft, alone, ""}, {"a stopped one removed", stopped, alone, ""},
		{"a new one", shown, shown + strings.TrimPrefix(third, "\nexperiments:\n"), ""},
	} {
		if c.name == "removed" || c.name == "removed in a pause" {
			c.want = strings.Replace(c.want, "line 1, column 1", "line 2, column 1", 1)
		}
		err := compile(t, c.old).Change(compile(t, c.next))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: want %q in\n%v", c.name, c.want, err)
		case err != nil:
			faultsOf(t, err)
		}
	}
	if err := compile(t, shown).Change(&Set{}); err == nil || !strings.Contains(err.Error(), "test.yaml: line 1, column 1: experiments: experiment fresher is running and stands here no longer") {
		t.Errorf("a document removed: %v", err)
	}
	if err := (&Set{}).Change(compile(t, shown)); err != nil {
		t.Errorf("from nothing: %v", err)
	}
	moved := parse(t, third)
	moved.Experiments = append(moved.Experiments, parse(t, shown).Experiments...)
	layers := parse(t, alone)
	next, err := admitAll([]Document{moved, layers}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := compile(t, shown, third).Change(next); err != nil {
		t.Errorf("from a document to another: %v", err)
	}
}

// A change that is allowed while an experiment runs takes no unit out of its
// variant, but where monitoring ends.
func TestAllowedChangesMoveNobody(t *testing.T) {
	allowed := 0
	for seed := range uint64(400) {
		r := random(seed)
		old := compile(t, randomDocument(random(seed/8), 2))
		doc := parse(t, randomDocument(random(seed/8), 2))
		e := &doc.Experiments[r.IntN(len(doc.Experiments))]
		switch r.IntN(5) {
		case 0:
			e.Share = min(slot.Count, e.Share+r.IntN(3000))
		case 1:
			e.Share = max(1, e.Share-r.IntN(300))
		case 2:
			e.Slots = append(e.Slots, fmt.Sprint(8999-r.IntN(50)))
		case 3:
			e.Slots = []string{"9000"}
		case 4:
			e.Variants[0].Weight, e.Variants[len(e.Variants)-1].Weight = e.Variants[len(e.Variants)-1].Weight, e.Variants[0].Weight
		}
		next, err := admitAll([]Document{doc}, nil)
		if err != nil || old.Change(next) != nil {
			continue
		}
		allowed++
		for range 500 {
			v := randomViewer(r)
			for _, feed := range []string{"home", "recent"} {
				was, is := old.Assign(feed, v), next.Assign(feed, v)
				for _, x := range was.Experiments {
					if old.experiment(x.Experiment).State == Running && !slices.ContainsFunc(is.Experiments, func(y Assigned) bool { return y.Experiment == x.Experiment && y.Variant == x.Variant }) {
						t.Fatalf("%+v of %+v becomes %+v\n%v", x, v, is, old.Diff(next))
					}
				}
			}
		}
	}
	if allowed < 100 {
		t.Errorf("%d changes are allowed: the test tries too little", allowed)
	}
}

func TestDiff(t *testing.T) {
	at := slot.Of("s", "k:1")
	lower := replace(everybody, "[0-9999]", fmt.Sprint("[", at, "]"))
	forcing := fmt.Sprintf(`  - {name: f, layer: l, feeds: [home], state: running, slots: [%d], share: 10000, variants: [{name: x, weight: 10000}], forced: {"k:1": x, "k:2": x}}`, (at+1)%slot.Count)
	for _, c := range []struct {
		old, next string
		want      []string
	}{
		{shown, "# the same\n" + shown, nil},
		{shown, replace(shown, "share: 500", "share: 1000"), []string{
			"experiment fresher: share 500 → 1000",
			"experiment fresher: slots 200-399, draws 0-4999 (1 % of those whom the targeting admits) come to control",
			"experiment fresher: slots 200-399, draws 5000-9999 (1 % of those whom the targeting admits) come to treatment",
		}},
		{shown, replace(replace(shown, "control, weight: 5000", "control, weight: 2000"), "treatment, weight: 5000", "treatment, weight: 8000"), []string{
			"experiment fresher: variant control weight 5000, sets {} → weight 2000, sets {}",
			`experiment fresher: variant treatment weight 5000, sets {"model":"home2","limit":30} → weight 8000, sets {"model":"home2","limit":30}`,
			"experiment fresher: slots 0-199, draws 2000-4999 (0.6 % of those whom the targeting admits) move from control to treatment",
		}},
		{shown, replace(shown, "running", "stopped"), []string{
			"experiment fresher: state running → stopped",
			"experiment fresher: slots 0-199, draws 0-4999 (1 % of those whom the targeting admits) leave control",
			"experiment fresher: slots 0-199, draws 5000-9999 (1 % of those whom the targeting admits) leave treatment",
		}},
		{replace(shown, "running", "draft"), replace(shown, "running", "draft") + strings.TrimPrefix(replace(third, "running", "draft"), "\nexperiments:\n"), []string{
			"experiment longer: it is new, draft", "experiment longer: no unit moves",
		}},
		{shown, replace(replace(shown, "salt: ranking-2026", "salt: x"), "limit: 30", "window: 36h"), []string{
			"layer ranking: salt ranking-2026 → x", "layer ranking: every unit falls into another slot",
			`experiment fresher: variant treatment weight 5000, sets {"model":"home2","limit":30} → weight 5000, sets {"model":"home2","window":"36h0m0s"}`,
			"experiment fresher: every unit is dealt anew: of those below, who came in before comes in by chance alone",
			"experiment fresher: slots 0-199, draws 0-4999 (1 % of those whom the targeting admits) leave control",
			"experiment fresher: slots 0-199, draws 5000-9999 (1 % of those whom the targeting admits) leave treatment",
			"experiment fresher: slots 0-199, draws 0-4999 (1 % of those whom the targeting admits) come to control",
			"experiment fresher: slots 0-199, draws 5000-9999 (1 % of those whom the targeting admits) come to treatment",
		}},
		{shown, replace(replace(replace(shown, "alice: treatment", "alice: control, bob: control"), `"fr"`, `"es"`), "9500-9999", "9999"), []string{
			"layer ranking: holdout 9500-9999 → 9999",
			`experiment fresher: targeting viewer.country in ["de", "fr"] → viewer.country in ["de", "es"]`,
			"experiment fresher: forced alice treatment → control", "experiment fresher: forced bob none → control", "experiment fresher: nobody else moves",
		}},
		{replace(shown, "share: 500", "share: 500\n    guards: {refused: 2, empty: 1.5}"), replace(shown, "share: 500", "share: 500\n    outcomes: {topic: t, actions: [click]}\n    guards: {empty: 1.5, fewer: {click: 0.8}, more: {click: 3}, alpha: 0.01}"), []string{
			"experiment fresher: guards {refused: 2, empty: 1.5} → {empty: 1.5, fewer: {click: 0.8}, more: {click: 3}, alpha: 0.01}",
			"experiment fresher: outcomes none → click of t within 1h0m0s, by answer_id", "experiment fresher: no unit moves",
		}},
		{lower, lower + strings.Replace(forcing, "running", "draft", 1), []string{
			"experiment f: it is new, draft", "experiment f: no unit moves",
			`experiment f: 1 unit ("k:1") that it names stay with the experiments that use their slots: a draft takes nobody out`,
		}},
		{replace(lower, "running", "paused") + forcing, lower + forcing, []string{
			"experiment e: state paused → running",
			fmt.Sprintf("experiment e: slots %d, draws 0-4999 (0.005 %% of all units) come to a", at), fmt.Sprintf("experiment e: slots %d, draws 5000-9999 (0.005 %% of all units) come to b", at),
			`experiment e: experiment f names 1 unit ("k:1") whom the hash deals ` + in(compile(t, everybody).Assign("home", &millrace.Viewer{ID: "k:1"})),
		}},
		{second, "layers: [{name: other, salt: x, unit: entity}]", []string{
			"layer density: it is removed", "layer other: it is new, of unit entity: no coordinator ramps or guards its experiments, and experiment status does not compare them, for viewers are what is counted", "experiment tighter: it is removed, which was running",
			"experiment tighter: slots 0-9999, draws 0-1999 (20 % of all units) leave off", "experiment tighter: slots 0-9999, draws 2000-9999 (80 % of all units) leave on",
		}},
	} {
		if got := compile(t, c.old).Diff(compile(t, c.next)); !slices.Equal(got, c.want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// Who moves, as it is told, is who gets another variant.
func TestDiffAgreesWithAssign(t *testing.T) {
	moved := 0
	for seed := range uint64(100) {
		r := random(seed)
		// The same experiment of everybody's layer, twice at random.
		one := func() (*Set, *compiled) {
			w := r.IntN(slot.Count)
			from := r.IntN(5000)
			src := replace(everybody, "[0-9999]", fmt.Sprintf("[%d-%d]", from, from+1000+r.IntN(4000)))
			src = replace(src, "share: 10000", fmt.Sprintf("share: %d\n    monitored: %v", 10+r.IntN(9990), r.IntN(2) == 0))
			src = replace(replace(src, "name: a, weight: 5000", fmt.Sprintf("name: a, weight: %d", w)), "name: b, weight: 5000", fmt.Sprintf("name: b, weight: %d", slot.Count-w))
			src = replace(src, "running", string([]State{Running, Running, Running, Paused}[r.IntN(4)]))
			s := compile(t, src)
			return s, s.experiments[0]
		}
		(func(old *Set, was *compiled) {
			next, is := one()
			_, moves := movesBetween(was, is)
			for range 300 {
				v := &millrace.Viewer{ID: fmt.Sprint(r.Uint64())}
				from, to := in(old.Assign("home", v)), in(next.Assign("home", v))
				told := from
				n := 0
				for _, m := range moves {
					at, draw := slot.Of("s", v.ID), slot.Draw("s", "e", v.ID)
					if slot.In(m.slots, at) && m.draws.From <= draw && draw <= m.draws.To {
						if n++; m.from != from {
							t.Fatalf("%s: %v, and it has %q", v.ID, m, from)
						}
						told = m.to
					}
				}
				if told != to || n > 1 {
					t.Fatalf("%s goes from %q to %q, told is %q by %d of %v", v.ID, from, to, told, n, moves)
				}
				moved += n
			}
		})(one())
	}
	if moved < 3000 {
		t.Errorf("%d move: the test tries too little", moved)
	}
}
