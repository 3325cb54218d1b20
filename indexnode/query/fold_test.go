package query

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// TestFoldedEqualsFull asks with several models in turn of timelines that
// grow: what was kept never changes an answer.
func TestFoldedEqualsFull(t *testing.T) {
	defer func() { folding = true }()
	s := schemas.Activity()
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	keys, all := activities(t, 12, 7)
	home, err := relevance.Builtin().Get("home")
	if err != nil {
		t.Fatal(err)
	}
	recency, err := relevance.Builtin().Get("recency")
	if err != nil {
		t.Fatal(err)
	}
	models := []*relevance.Model{home, home.Interpreted(), recency}
	spec := question(t)
	spec.Limit = 40
	kept := map[cache.ModelID]int{}
	for round := range 120 {
		// Each model alone for a while, then in turn.
		spec.Model = models[(round/30+round%4/3*round)%len(models)]
		spec.From = asOf - millrace.Time(2000*(round%5)*(round%3))
		if round%3 == 0 {
			spec.From = 0
		}
		folding = false
		want := itemsOf(t, spec, keys, all)
		folding = true
		if got := itemsOf(t, spec, keys, all); !slices.Equal(got, want) {
			t.Fatalf("round %d, %s: got %s\nwant %s", round, spec.Model.Name(), got, want)
		}
		i := round % len(all)
		if f := all[i].Folded(); f != nil {
			kept[f.Model]++
		}
		body, err := s.EncodeJSON(fmt.Appendf(nil, `{"id":"new%d","actor":"a","verb":"post","created_at":%d,"language":"en","likes":%d,"impressions":90}`, round, int64(asOf-1), 1+round))
		if err != nil {
			t.Fatal(err)
		}
		k := held.keys[all[i]]
		if !held.Continue(k, s.Layout(), 1000, func(a *column.Appender) error { return d.Append(a, body) }) {
			t.Fatal("a timeline does not continue")
		}
		all[i] = heldAs(k)
		held.keys[all[i]] = k
	}
	for _, m := range models {
		if kept[cache.IDOf(m)] == 0 {
			t.Errorf("nothing was ever kept for %s (%p)", m.Name(), m)
		}
	}
}

func itemsOf(t *testing.T, s Spec, keys []millrace.Timeline, all []*cache.Timeline) []string {
	t.Helper()
	q := New(s)
	defer q.Release()
	for i, tl := range all {
		q.Add(keys[i], tl, column.Packed{})
	}
	if err := q.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	return printed(q.Answer().Items)
}
