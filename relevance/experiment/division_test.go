package experiment

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace"
)

const authors = `
layers:
  - {name: authors, salt: authors-1, unit: entity, holdout: [0-99]}
  - {name: kinds, salt: kinds-1, unit: entity}
experiments:
  - {name: tighter, layer: authors, feeds: [home], state: running, slots: [100-4999], share: 5000, forced: {member:1: on}, variants: [{name: off, weight: 2000}, {name: on, weight: 8000, set: {cap_per_entity: 1}}]}
  - {name: looser, layer: authors, feeds: [home, recent], state: running, slots: [5000-9999], share: 10000, variants: [{name: on, weight: 10000, set: {cap_per_entity: 9}}]}
  - {name: paused, layer: kinds, feeds: [home], state: paused, slots: [0-4999], share: 10000, variants: [{name: on, weight: 10000, set: {types: [a]}}]}
  - {name: draft, layer: kinds, feeds: [home], state: draft, slots: [5000-9999], share: 10000, forced: {member:2: on}, variants: [{name: on, weight: 10000, set: {types: [b]}}]}
`

// dealtTo writes what an entity gets.
func dealtTo(d *Division, e millrace.Entity) (all []string) {
	for _, x := range d.Deal(nil, e) {
		all = append(all, fmt.Sprintf("%s/%s %v %v", x.Experiment, x.Variant, x.Forced, x.Probability))
	}
	return all
}

func entity(i int) millrace.Entity { return millrace.Entity(fmt.Sprint("member:", i)) }

// A division deals as the rules of its experiments do, and as is explained.
func TestDivisionDealsByTheRules(t *testing.T) {
	s := compile(t, authors)
	d := s.Division("home")
	met := map[string]int{}
	for i := range 2000 {
		var want []string
		for _, x := range s.Experiments() { // looser before tighter, and draft before paused
			name, ok := x.Rule.Assign("home", string(entity(i)))
			if !ok {
				continue
			}
			want = append(want, x.Experiment.Name+"/"+name)
		}
		var got []string
		for _, x := range d.Deal(nil, entity(i)) {
			got = append(got, x.Experiment+"/"+x.Variant)
			if x.Unit != string(entity(i)) || x.Forced != (x.Probability == Probability{}) {
				t.Fatalf("%+v", x)
			}
			met[x.Experiment+"/"+x.Variant]++
		}
		slices.Sort(want)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Fatalf("%s has %q, want %q", entity(i), got, want)
		}
		for _, x := range s.ExplainEntity("home", entity(i)) {
			if in := slices.Contains(got, x.Experiment+"/"+x.Variant); in != (x.Variant != "") {
				t.Fatalf("%s has %q, and %+v", entity(i), got, x)
			}
		}
	}
	if met["tighter/on"] < 300 || met["tighter/off"] < 50 || met["looser/on"] < 800 || met["draft/on"] != 1 || met["paused/on"] > 0 {
		t.Errorf("%v", met)
	}
	for _, feed := range []string{"other", ""} {
		if d := s.Division(feed); d != nil || d.Deal(nil, "member:1") != nil || d.Dealt() != nil || d.Features() != nil {
			t.Errorf("feed %q is divided", feed)
		}
	}
	if got := dealtTo(s.Division("recent"), "member:1"); len(got) > 1 {
		t.Errorf("another feed: %q", got)
	}
	left := d.Without(func(name string, sets []Parameter) bool { return name == "tighter" && slices.Contains(sets, OfCap) })
	if got := dealtTo(left, "member:1"); len(got) > 1 || len(left.Dealt()) != 2 {
		t.Errorf("without it: %q", got)
	}
}

// What was divided is divided so again, however much of it is in use by now and
// whatever its state, as long as it means the same.
func TestRedivide(t *testing.T) {
	first := compile(t, authors).Division("home")
	for what, c := range map[string]struct {
		src  string
		gone string
	}{
		"as it was":         {authors, ""},
		"ramped":            {replace(authors, "share: 5000", "share: 10000"), ""},
		"paused":            {replace(authors, "state: running, slots: [100", "state: paused, slots: [100"), ""},
		"stopped":           {replace(authors, "state: running, slots: [5000", "state: stopped, slots: [5000"), ""},
		"a draft that runs": {replace(authors, "state: draft", "state: running"), ""},
		"another":           {replace(authors, "state: paused, slots: [0-4999]", "state: running, slots: [0-4999]"), ""},
		"other slots":       {replace(authors, "100-4999", "100-4998"), "tighter"},
		"other forced":      {replace(authors, "member:1: on", "member:1: off"), "tighter"},
		"sets another":      {replace(authors, "cap_per_entity: 9", "cap_per_entity: 8"), "looser"},
		"gone":              {replace(authors, "name: looser", "name: looser2"), "looser"},
		"another salt":      {replace(authors, "authors-1", "authors-2"), "looser"},
	} {
		again, gone := compile(t, c.src).Redivide(first.Dealt(), 1)
		if gone != c.gone || (again == nil) != (gone != "") {
			t.Errorf("%s: %q, want %q", what, gone, c.gone)
		}
		if again == nil {
			continue
		}
		for i := range 500 {
			if got, want := dealtTo(again, entity(i)), dealtTo(first, entity(i)); !slices.Equal(got, want) {
				t.Fatalf("%s: %s has %q, and had %q", what, entity(i), got, want)
			}
		}
	}
	again := compile(t, authors)
	again.docs[0].Gone = 7 // and it was defined again as it was
	if _, gone := again.Redivide(first.Dealt(), 7); gone != "looser" {
		t.Errorf("before it was dropped: %q", gone)
	}
	if _, gone := again.Redivide(first.Dealt(), 8); gone != "" {
		t.Errorf("after it was dropped: %q", gone)
	}
	unfit, err := Serve([]Document{parse(t, authors)}, names{"feed recent"})
	if err != nil {
		t.Fatal(err)
	}
	if d, gone := unfit.Redivide(first.Dealt(), 1); d != nil || gone != "looser" {
		t.Errorf("what does not fit any more: %q", gone)
	}
	if d, gone := compile(t, authors).Redivide(nil, 1); d != nil || gone != "" {
		t.Error("what was not divided is divided")
	}
}
