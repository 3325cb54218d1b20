package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// All weights of experiments that may yet assign are asked about: on each feed
// where its model is meant, once where a model is named.
func TestCheckWeights(t *testing.T) {
	var src strings.Builder
	src.WriteString("layers: [{name: l, salt: s, unit: viewer}, {name: authors, salt: a, unit: entity}]\nexperiments:\n")
	for i, x := range []struct{ state, layer, feeds, sets string }{
		{"draft", "l", "home, news", "weights: {likes: 2}"}, {"running", "l", "home, news", "model: m, weights: {clicks: 3}"}, {"paused", "l", "home, news", "limit: 3"},
		{"stopped", "l", "home, news", "weights: {old: 1}"}, {"paused", "authors", "jobs", "weights: {shares: 1}"},
	} {
		fmt.Fprintf(&src, "  - {name: e%d, layer: %s, feeds: [%s], state: %s, slots: [%d-%d], share: 10000, variants: [{name: a, weight: 5000}, {name: b, weight: 5000, set: {%s}}]}\n", i, x.layer, x.feeds, x.state, 100*i, 100*i+99, x.sets)
	}
	s := compile(t, src.String())
	var asked []string
	lack := func(feeds ...string) Weighing {
		return func(feed, model string, set map[string]float64) error {
			asked = append(asked, fmt.Sprint(feed, model, set))
			if !slices.Contains(feeds, feed) {
				return nil
			}
			return &millrace.Error{Field: "weights", Detail: fmt.Sprintf("%s lacks %v", feed, set)}
		}
	}
	if err := s.CheckWeights(lack()); err != nil {
		t.Error(err)
	}
	if want := []string{"homemap[likes:2]", "newsmap[likes:2]", "homemmap[clicks:3]", "jobsmap[shares:1]"}; !slices.Equal(asked, want) {
		t.Errorf("asked about %q, want %q", asked, want)
	}
	var e *millrace.Error
	err := s.CheckWeights(lack("home"))
	want := "variant b of experiment e0 sets weights on feed home, and home lacks map[likes:2]; variant b of experiment e1 sets weights on feed home, and home lacks map[clicks:3]"
	if !errors.As(err, &e) || e.Field != "weights" || e.Detail != want || !strings.HasPrefix(e.WayOut, "stop or change e0, e1 first, ") {
		t.Errorf("%+v", e)
	}
	away := errors.New("etcd is away")
	if err := s.CheckWeights(func(string, string, map[string]float64) error { return away }); !errors.Is(err, away) {
		t.Errorf("%v", err)
	}
}
