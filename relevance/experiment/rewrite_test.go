package experiment

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// What an author wrote stays but for the state and the share.
func TestRewriteKeepsTheText(t *testing.T) {
	const src = `# who owns this: ranking
layers:
  - {name: ranking, salt: ranking-2026, unit: viewer}
experiments:
  - name: fresher   # é, before
    layer: ranking
    feeds: [home]
    state: draft    # soon
    slots: [0-3999]
    variants: &
  - {name: flow, layer: ranking, feeds: [home], state: "draft", slots: [5000-5999], variants: [{name: a, weight: 10000}]}
`
	good := strings.Replace(src, "variants: &", "variants: [{name: a, weight: 10000}]  # one", 1)
	for _, c := range []struct{ name, old, next string }{
		{"fresher", "state: draft    # soon", "state: running\n    share: 500    # soon"},
		{"flow", `state: "draft", slots`, "state: running, share: 500, slots"},
	} {
		got, err := Rewrite(parse(t, good), []byte(good), c.name, Running, 500)
		if want := strings.Replace(good, c.old, c.next, 1); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.name, err, got, want)
		}
		again, err := Rewrite(parse(t, string(got)), got, c.name, Paused, 1000)
		if want := strings.NewReplacer("running", "paused", "share: 500", "share: 1000").Replace(string(got)); err != nil || string(again) != want {
			t.Errorf("%s again: %v\n%s\nwant\n%s", c.name, err, again, want)
		}
	}
}

// Whatever the document, the result says what was asked for and nothing else.
func TestRewriteAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		src := randomDocument(r, 1+r.IntN(3))
		d := parse(t, src)
		i, share := r.IntN(len(d.Experiments)), 1000+r.IntN(9001)
		state := []State{Draft, Running, Paused, Stopped}[r.IntN(4)]
		got, err := Rewrite(d, []byte(src), d.Experiments[i].Name, state, share)
		if err != nil {
			t.Fatalf("%v\n%s", err, src)
		}
		next := parse(t, string(got))
		d.Experiments[i].State, d.Experiments[i].Share = state, share
		if !reflect.DeepEqual(next.Experiments, d.Experiments) || !reflect.DeepEqual(next.Layers, d.Layers) {
			t.Fatalf("%s %d\n%s", state, share, got)
		}
	}
}

func TestRewriteRefuses(t *testing.T) {
	d := parse(t, shown)
	if _, err := Rewrite(d, []byte(shown), "fresher", Running, 0); err == nil || !strings.Contains(err.Error(), "experiments[0].share") {
		t.Error(err)
	}
	if _, err := Rewrite(d, []byte(shown), "nosuch", Running, 1); err == nil || !strings.Contains(err.Error(), "no experiment nosuch") {
		t.Error(err)
	}
}
