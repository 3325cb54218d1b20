package cli

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/leans"
)

// What weights of a variant lean on does not change under them: neither the model
// of a feed nor the version of a model, whichever command would do it, until the
// experiment has stopped.
func TestChangesKeepWeights(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	define := func(model string, limit int) []string {
		return []string{"feed", "define", s.File("home.yaml", fmt.Sprintf("name: home\nmodel: %s\nlimit: %d\n", model, limit))}
	}
	push := func(version, feature string, more ...string) []string {
		return append([]string{"model", "push", s.RatePack(version, feature), "--timeout", "1m"}, more...)
	}
	experiment := func(sets string) []string {
		return []string{"experiment", "define", s.File("ranking.yaml", strings.Replace(clitest.Fresher, "limit: 30", sets, 1))}
	}
	s.must(push("1", "likes")...)
	s.must(push("2", "clicks")...)
	s.must(define("recency", 10)...)
	s.must(define("rate", 10)...)
	if _, err := s.run(experiment("weights: {cliks: 3}")...); err == nil || !strings.Contains(err.Error(), `model rate 2 has no parameter "cliks"; did you mean clicks?`) {
		t.Errorf("%v", err)
	}
	const onHome = "variant treatment of experiment fresher sets weights on feed home, and model %s has no parameter \"clicks\"; stop or change fresher first"
	for _, sets := range []string{"weights: {clicks: 3}", "model: rate, weights: {clicks: 3}"} {
		s.must(experiment(sets)...)
		ofFeed := !strings.Contains(sets, "model")
		for _, c := range []struct {
			args   []string
			lacks  string // the model that would
			serves string // in the end
			feed   bool   // it changes a feed, and no model
		}{
			{define("recency", 10), "recency 1", "2", true},
			{[]string{"feed", "rollback", "home", "--apply", "--yes"}, "recency 1", "2", true},
			{[]string{"feed", "drop", "home", "--apply", "--yes"}, "home 1", "2", true},
			{push("3", "likes"), "rate 3", "2", false},
			{push("3", "likes", "--serve"), "rate 3", "2", false},
			{push("3", "likes", "--no-serve"), "", "2", false},
			{[]string{"model", "rollback", "rate", "--apply", "--yes"}, "rate 1", "2", false},
			{push("4", "clicks"), "", "4", false},
			{[]string{"model", "rollback", "rate", "--apply", "--yes"}, "", "2", false},
			{define("rate", 20), "", "2", true},
			{[]string{"feed", "rollback", "home", "--apply", "--yes"}, "", "2", true},
		} {
			if c.feed && !ofFeed {
				continue // what the variant names itself does not lean on the feed
			}
			_, err := s.run(c.args...)
			switch want := fmt.Sprintf(onHome, c.lacks); {
			case c.lacks == "" && err != nil, c.lacks != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s, %v: %v, want %q", sets, c.args, err, want)
			}
			if out, err := s.run("model", "list"); err != nil || !strings.Contains(out, fmt.Sprintf("rate     %s        serves", c.serves)) {
				t.Errorf("%s, %v: %v\n%s", sets, c.args, err, out)
			}
			if out, err := s.run("feed", "show", "home"); err != nil || !strings.Contains(out, "model: rate") {
				t.Errorf("%s, %v: %v\n%s", sets, c.args, err, out)
			}
		}
	}
	if out, err := s.run("experiment", "explain", "--feed", "home", "--viewer", "nobody"); err != nil || !strings.Contains(out, "1 draft assigns only those whom it forces") || strings.Contains(out, "fresher") {
		t.Errorf("%v\n%s", err, out)
	}
	// What --serve would not get past is said before it is offered.
	s.must("experiment", "start", "fresher", "--share", "10")
	for _, args := range [][]string{push("5", "likes"), push("5", "likes", "--serve")} {
		if _, err := s.run(args...); err == nil || !strings.Contains(err.Error(), fmt.Sprintf(onHome, "rate 5")) || strings.Contains(err.Error(), "add --serve") {
			t.Errorf("%v: %v", args, err)
		}
	}
	s.must("experiment", "pause", "fresher")
	if _, err := s.run("experiment", "start", "fresher", "--share", "33.333"); err == nil || !strings.Contains(err.Error(), "in hundredths of a percent") {
		t.Errorf("a share of 33.333: %v", err)
	}
	s.must("experiment", "stop", "fresher")
	s.must(push("5", "likes")...)
	s.must("feed", "rollback", "home", "--apply", "--yes")
	s.must("feed", "drop", "home", "--apply", "--yes")
}

// Of an experiment that sets a weight and a version that lacks it, at the same
// moment, one alone is taken, and the other refused by what is there then.
func TestAnExperimentAndAModelAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	push := func(version int, feature string) []string {
		return []string{"model", "push", s.RatePack(fmt.Sprint(version), feature), "--timeout", "1m"}
	}
	for round := range 8 {
		s.must(push(3*round, "clicks")...)
		s.must(append(push(3*round+1, "likes"), "--no-serve")...) // so that it is soon there
		file := s.File("ranking.yaml", strings.NewReplacer("limit: 30", "model: rate, weights: {clicks: 3}", "name: fresher", fmt.Sprintf("name: fresher%d", round)).Replace(clitest.Fresher))
		var defined, pushed error
		var both sync.WaitGroup
		lacks := push(3*round+1, "likes")
		both.Go(func() { _, defined = s.run("experiment", "define", file) })
		both.Go(func() { _, pushed = s.run(lacks...) })
		both.Wait()
		switch {
		case defined == nil && pushed == nil:
			t.Errorf("round %d: both are taken", round)
		case defined != nil && pushed != nil:
			t.Errorf("round %d: neither is: %v; %v", round, defined, pushed)
		case defined != nil && !strings.Contains(defined.Error(), "clicks"):
			t.Errorf("round %d: %v", round, defined)
		case pushed != nil && !strings.Contains(pushed.Error(), "clicks"):
			t.Errorf("round %d: %v", round, pushed)
		}
		if defined == nil {
			s.must("experiment", "stop", fmt.Sprintf("fresher%d", round))
			s.must("experiment", "drop", "ranking", "--apply", "--yes")
		}
	}
}

// While a version is condemned and what ranks in its place lacks the weights of a
// variant, explain says that it is not applied, and a ramp waits for that; where it
// has them, a ramp waits too.
func TestWeightsThatDoNotRank(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	for i, feature := range []string{"likes", "clicks", "clicks"} {
		s.must("model", "push", s.RatePack(fmt.Sprint(i+1), feature), "--timeout", "1m")
		if i == 0 {
			s.must("feed", "define", s.File("home.yaml", "name: home\nmodel: rate\nlimit: 10\n"))
		}
	}
	weighted := strings.Replace(clitest.Fresher, "limit: 30", "weights: {clicks: 3}", 1)
	s.must("experiment", "define", s.File("ranking.yaml", strings.Replace(weighted, "    share: 0\n", "    share: 0\n    forced: {ann: treatment}\n", 1)))
	lean, err := leans.Of(t.Context(), s.Client)
	s.Check(err)
	const lacks = "variant treatment is not applied: rate 3, whose weights it sets, is condemned, and %s, which ranks in its place, lacks them"
	says := func(want, waits string) {
		t.Helper()
		set, err := s.experiments()
		s.Check(err)
		d := set.Experiments()[0]
		got := lean.Waits(t.Context(), &d.Experiment)
		for began := time.Now(); got != waits && time.Since(began) < clitest.Patience; got = lean.Waits(t.Context(), &d.Experiment) {
			time.Sleep(10 * time.Millisecond) // its watcher is not the test's
		}
		if got != waits {
			t.Errorf("coordinators wait for %q, want %q", got, waits)
		}
		out := s.must("experiment", "explain", "--feed", "home", "--viewer", "ann")
		if said := strings.Contains(out, "not applied"); said != (want != "") || !strings.Contains(out, want) {
			t.Errorf("explain says\n%s\nwant %q", out, want)
		}
	}
	versions := s.Models.All()["rate"]
	condemn := func(i int) {
		s.Check(s.Failed.Condemn(t.Context(), s.Models, versions[i], "it panicked", "n1", time.Now()))
	}
	says("", "")
	condemn(2)
	says("", "rate 3, by which its pages are ranked, is condemned")
	condemn(1)
	says(fmt.Sprintf(lacks, "rate 1"), fmt.Sprintf(lacks, "rate 1"))
	condemn(0)
	says(fmt.Sprintf(lacks, "recency"), fmt.Sprintf(lacks, "recency"))
	s.must("model", "release", "rate", "3")
	says("", "")
}
