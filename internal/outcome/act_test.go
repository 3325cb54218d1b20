package outcome

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// offering offers answers to a ledger.
func offering(answers ...*exposure.Record) func(func(*exposure.Record)) error {
	return func(take func(*exposure.Record)) error {
		for _, r := range answers {
			take(r)
		}
		return nil
	}
}

func actsOf(t *testing.T, l *Ledger, answers ...*exposure.Record) (all []Act) {
	t.Helper()
	_, err := l.Acts("", offering(answers...), func(a *Act) { all = append(all, *a) })
	must(t, err)
	return all
}

// An act has its answer's experiments and the team of its item, and is none
// when it came too late, whatever it names.
func TestActs(t *testing.T) {
	drafted := answer("a", "ann", 1000, "x", "y", "z")
	drafted.Experiments = []exposure.Experiment{{Experiment: "e", Variant: "b", Unit: "ann"}}
	drafted.Interleaving = &exposure.Interleaving{Experiment: "e", Teams: []string{"home", "next"}}
	for i := range drafted.Items {
		drafted.Items[i].Team = i - 1 // nobody, home, next
	}
	plain := answer("b", "bob", 1000, "x")
	l := NewLedger(time.Hour)
	for i, o := range []Outcome{
		{Viewer: "ann", Record: "z", Action: "click", At: 1_002_000},
		{Viewer: "ann", Record: "x", Action: "click", At: 1_001_000},
		{Viewer: "ann", Record: "x", Action: "click", At: 1_009_000},
		{Viewer: "ann", Record: "y", Action: "like", At: 4_600_001, Answer: "a"}, // too late
		{Viewer: "bob", Record: "x", Action: "click", At: 1_000_500, Answer: "b"},
		{Viewer: "eve", Record: "x", Action: "click", At: 1_000_500, Answer: "b"},
	} {
		o.ID = fmt.Sprint(i)
		must(t, l.Add(o))
	}
	got := actsOf(t, l, drafted, plain)
	want := []Act{
		{Place{"b", 1}, "click", 1_000_500, 1_000_000, nil, "", nil, -1},
		{Place{"a", 1}, "click", 1_001_000, 1_000_000, drafted.Experiments, "e", drafted.Interleaving.Teams, -1},
		{Place{"a", 3}, "click", 1_002_000, 1_000_000, drafted.Experiments, "e", drafted.Interleaving.Teams, 1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

// What becomes of outcomes is told by the answers of one experiment, apart for those
// that were looked for before; within the window alone.
func TestActsTell(t *testing.T) {
	ours, other := answer("a", "ann", 1000, "x"), answer("b", "bob", 1000, "x")
	ours.Experiments, other.Experiments = []exposure.Experiment{{Experiment: "e"}}, []exposure.Experiment{{Experiment: "other"}}
	l := NewLedger(time.Hour)
	for i, o := range []Outcome{
		{Viewer: "ann", Answer: "a", Again: true},
		{Viewer: "ann", Answer: "a", ID: "0"},        // twice
		{Viewer: "bob", Answer: "b"},                 // another experiment's
		{Viewer: "eve", Answer: "a"},                 // of another viewer
		{Viewer: "eve", Answer: "b"},                 // the same, of another experiment
		{Viewer: "ann", Answer: "a", Record: "z"},    // not in it
		{Viewer: "eve", Answer: "a", At: 4_600_001},  // too late
		{Viewer: "eve", Answer: "none", Again: true}, // unknown
		{Viewer: "ann", At: 1_001_000, Record: "x"},  // by its viewer
	} {
		if o.ID == "" {
			o.ID = fmt.Sprint(i)
		}
		o.Action, o.Record, o.At = "click", cmp.Or(o.Record, "x"), cmp.Or(o.At, 1_000_500)
		must(t, l.Add(o))
	}
	told, err := l.Acts("e", offering(ours, other), func(*Act) {})
	must(t, err)
	if want := [2]Report{{Attributed: 1, Twice: 1, Elsewhere: 1, Lacking: 1, Nothing: 3}, {Attributed: 1, Nothing: 1}}; told != want {
		t.Errorf("%+v, want %+v", told, want)
	}
}

// Outcomes that are looked for in several passages give the acts that they give
// in one.
func TestActsOfParts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var answers []*exposure.Record
		for i := range 20 {
			r := answer(fmt.Sprint("a", i), fmt.Sprint("v", rnd.IntN(3)), rnd.IntN(100)*30, []string{"x", "y", "z"}[:1+rnd.IntN(3)]...)
			r.Experiments = []exposure.Experiment{{Experiment: "e", Unit: r.ID}}
			answers = append(answers, r)
		}
		whole, parts := NewLedger(10*time.Minute), []*Ledger{NewLedger(10 * time.Minute), NewLedger(10 * time.Minute), NewLedger(10 * time.Minute)}
		for i := range 60 {
			o := Outcome{ID: fmt.Sprint(i), Viewer: fmt.Sprint("v", rnd.IntN(3)), Record: string("xyz"[rnd.IntN(3)]), Action: "click", At: millrace.Time(rnd.IntN(3_600_000))}
			if rnd.IntN(3) == 0 {
				o.Answer = fmt.Sprint("a", rnd.IntN(22))
			}
			must(t, whole.Add(o))
			must(t, parts[rnd.IntN(3)].Add(o))
			if rnd.IntN(4) == 0 { // told again, in another part perhaps
				must(t, parts[rnd.IntN(3)].Add(o))
			}
		}
		who := func(ledgers ...*Ledger) map[string]bool {
			all := map[string]bool{}
			for _, l := range ledgers {
				got := actsOf(t, l, answers...)
				if !slices.IsSortedFunc(got, func(a, b Act) int { return int(a.At - b.At) }) {
					t.Fatal("acts are not in the order of their times")
				}
				for _, a := range got {
					all[a.Experiments[0].Unit] = true
				}
			}
			return all
		}
		if one, three := who(whole), who(parts...); !maps.Equal(one, three) {
			t.Fatalf("in one: %v\nin parts: %v", one, three)
		}
	}
}
