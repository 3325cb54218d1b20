package cli

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/minicluster"
)

// A definition of a feed, new or of before, that changes what a variant of a running
// experiment leaves to the feed waits for --serve, and says what it changes and the way
// out. What it changes of nobody's, or while the experiment is paused, passes.
func TestDefineUnderARunningExperiment(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	define := func(text string, more ...string) []string {
		return append([]string{"feed", "define", s.File("home.yaml", "name: home\n"+text)}, more...)
	}
	rollback := []string{"feed", "rollback", "home", "--apply", "--yes"}
	drop := []string{"feed", "drop", "home", "--apply", "--yes"}
	refused := func(what string) string {
		return "it changes " + what + " in experiment fresher, which runs; pause or stop fresher first, or add --serve: the evidence on fresher begins anew then"
	}
	for _, c := range []struct {
		args      []string
		says, err string
	}{
		{args: define("model: recency\n")},
		{args: []string{"experiment", "define", s.File("ranking.yaml", strings.NewReplacer("state: draft", "state: running", "share: 0", "share: 100").Replace(clitest.Fresher))}},
		{args: define("model: home\n"), err: refused("the model of control and treatment")},
		{args: define("model: recency\nlimit: 7\n"), err: refused("limit of control")},
		{args: define("model: recency\nlimit: 20\n"), says: "version 2\n"},
		{args: define("model: recency\nshadow: [home]\nforbid: {explain: true}\n"), says: "version 3\n"},
		{args: define("model: recency\nwindow: 1h\ntypes: [a]\ncap_per_entity: 1\nspacing: {type: 1}\ndistinct_objects: true\n"),
			err: refused("window of control and treatment, types of control and treatment, cap_per_entity of control and treatment, spacing of control and treatment, distinct_objects of control and treatment")},
		{args: define("model: home\n", "--serve"), says: "version 4\nnote: it changes the model of control and treatment in experiment fresher, which runs; its evidence begins anew then\n"},
		{args: rollback, err: refused("the model of control and treatment")},
		{args: append(rollback, "--serve"), says: "feed home is as it was before, version 3\n"},
		{args: drop, err: refused("the model of control and treatment, types of control and treatment, cap_per_entity of control and treatment, distinct_objects of control and treatment")},
		{args: []string{"experiment", "pause", "fresher"}},
		{args: define("model: home\nlimit: 3\n"), says: "version 5\n"},
	} {
		out, err := s.run(c.args...)
		if !strings.Contains(out, c.says) || c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%v: %v, want %q\n%s\nwant %q", c.args, err, c.err, out, c.says)
		}
		if c.says != "" && !strings.Contains(c.says, "note") && strings.Contains(out, "note: it changes") && c.args[1] != "rollback" {
			t.Errorf("%v says\n%s", c.args, out)
		}
	}
	out, err := s.run("experiment", "history", "fresher")
	s.Check(err)
	for _, want := range []string{"feed home: serve     4        " + clusters.Who() + ": it changed the model of control and treatment in fresher\n", "feed home: rollback  3        " + clusters.Who() + ": it changed the model of"} {
		if !strings.Contains(out, want) {
			t.Errorf("history lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "serve     2  ") && strings.Contains(out, "feed home: serve     2") {
		t.Errorf("history tells of what changed nothing:\n%s", out)
	}
}

// Which answers are evidence follows from what serves, whoever wrote it: past the
// commands, too. Definitions that mean the same are one; one that cannot be read is
// none.
func TestBasisOfAnExperiment(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	s.must("model", "push", s.RatePack("1", "likes"), "--timeout", "1m")
	s.NewsAt("model: recency\n", "model: recency\nshadow: [rate]\n")
	s.must("experiment", "define", s.File("a.yaml", strings.NewReplacer("[home]", "[news, home]", "limit: 30", "model: rate", "state: draft", "state: running", "share: 0", "share: 100").Replace(clitest.Fresher)))
	set, err := s.experiments()
	s.Check(err)
	e := &set.Experiments()[0].Experiment
	lean, err := leans.Of(t.Context(), s.Client)
	s.Check(err)
	store, err := artefacts.Watch(t.Context(), s.Client, feeds.Kind)
	s.Check(err)
	last := func(kind string) time.Time {
		t.Helper()
		of := s.Models
		name := "rate"
		if kind == "feed" {
			of, name = store, "news"
		}
		events, err := of.History(t.Context(), name)
		s.Check(err)
		return events[len(events)-1].When
	}
	at := lean.Revision() // is another after each change
	becomes := func(what string, since time.Time, why string, news []int64, rate string) {
		t.Helper()
		got, err := lean.Basis(t.Context(), e)
		is := func() bool {
			slices.Sort(got.Feeds["news"])
			return err == nil && got.Since.Equal(since) && got.Why == why && slices.Equal(got.Feeds["news"], news) && slices.Equal(got.Feeds["home"], []int64{0}) && got.Models["rate"] == rate
		}
		for began := time.Now(); !is() && time.Since(began) < clitest.Patience; got, err = lean.Basis(t.Context(), e) {
			time.Sleep(10 * time.Millisecond) // its watcher is not the test's
		}
		if !is() {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
		for end := time.Now().Add(clitest.Patience); what != "the first" && lean.Revision() == at && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond) // the history is read past the watcher
		}
		at = lean.Revision()
	}
	becomes("the first", time.Time{}, "", []int64{1, 2}, "1")
	s.NewsAt("model: home\n")
	s.Check(store.Settle(t.Context()))
	home := last("feed")
	becomes("another model", home, "feed news came to its version 3, which changed the model of control", []int64{3}, "1")
	s.NewsAt("model: home\nforbid: {explain: true}\n", "model: {\n")
	becomes("the same, and none", home, "feed news came to its version 3, which changed the model of control", []int64{3, 4}, "1")
	s.must("model", "push", s.RatePack("2", "likes"), "--serve", "--timeout", "1m")
	becomes("another version", last("model"), "model rate came to version 2", []int64{3, 4}, "2")
	s.Check(s.Models.Settle(t.Context()))
	s.Check(s.Failed.Condemn(t.Context(), s.Models, s.Models.All()["rate"][1], "it panicked", "n1", time.Now()))
	becomes("one that is condemned", last("model"), "model rate came to version 1", []int64{3, 4}, "1")
	s.NewsAt("model: recency\n")
	becomes("back", last("feed"), "feed news came to its version 1, which changed the model of control", []int64{1}, "1")
}

// What is compared of answers by two models says so in capitals, where a feed came to
// another model among them; with --since after that it does not.
func TestStatusTellsOfAnotherModel(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	s.Check(err)
	t.Cleanup(k.Close)
	s.Check(kafka.EnsureContentTopic(t.Context(), kafka.At(k.Addr()), "exposures", 1, nil))
	s.NewsAt("model: recency\n")
	out, err := s.run("experiment", "define", s.File("a.yaml", strings.NewReplacer("[home]", "[news]", "state: draft", "state: running", "share: 0", "share: 100").Replace(clitest.Fresher)))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	shown := func(at time.Time) {
		r := clitest.ShownAt(fmt.Sprint(at.UnixNano()), fmt.Sprint(at.UnixNano()), at, "a")
		r.Interleaving, r.HeldOut, r.ServedBefore, r.Feed = nil, nil, 0, "news"
		r.Items[0].Team = -1
		r.Experiments = []exposure.Experiment{{Layer: "ranking", Experiment: "fresher", Variant: "control", Unit: dealtTo(r.Viewer, "control"), Checksum: "c0", Probability: 0.5, ProbabilityInside: 0.5}}
		clitest.WriteExposures(t.Context(), t, k.Addr(), r)
	}
	status := func(more ...string) string {
		t.Helper()
		out, err := s.run(append([]string{"experiment", "status", "fresher", "--brokers", k.Addr()}, more...)...)
		s.Check(err)
		return out
	}
	shown(time.Now())
	s.NewsAt("model: home\n")
	if out := status(); strings.Contains(out, "CHANGED") {
		t.Errorf("before an answer by it:\n%s", out)
	}
	after := time.Now().Add(time.Second)
	shown(after)
	if out := status(); !strings.Contains(out, "\nCHANGED: at 2") || !strings.Contains(out, " feed news came to its version 2, which changed the model of control and treatment; what is compared pools what was shown before and after, and --since tells the last apart\n") {
		t.Errorf("status says\n%s", out)
	}
	if out := status("-o", "json"); !strings.Contains(out, `"changed":"at 2`) {
		t.Errorf("status says\n%s", out)
	}
	if out := status("--since", after.UTC().Format(time.RFC3339)); strings.Contains(out, "CHANGED") {
		t.Errorf("of the last alone:\n%s", out)
	}
}
