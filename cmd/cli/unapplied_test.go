package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/leans"
)

// While a model that an experiment compares is condemned, whichever of its variants is
// ranked by it, all that tells of the experiment says so, and a ramp waits.
func TestComparedModelsThatDoNotRank(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	lean, err := leans.Of(t.Context(), s.Client)
	s.Check(err)
	for i := range 2 {
		s.must("model", "push", s.RatePack(fmt.Sprint(i+1), "likes"), "--timeout", "1m")
	}
	says := func(want, waits, name string) {
		t.Helper()
		set, err := s.experiments()
		s.Check(err)
		e := set.Experiments()[len(set.Experiments())-1].Experiment
		waits = cmp.Or(want, waits)
		got := lean.Waits(t.Context(), &e)
		for began := time.Now(); got != waits && time.Since(began) < clitest.Patience; got = lean.Waits(t.Context(), &e) {
			time.Sleep(10 * time.Millisecond) // its watcher is not the test's
		}
		if got != waits {
			t.Errorf("coordinators wait for %q, want %q", got, waits)
		}
		for _, args := range [][]string{{"list"}, {"list", "-o", "json"}, {"show", name}, {"show", name, "-o", "json"}, {"explain", "--feed", "home", "--viewer", "ann"}} {
			out := s.must(append([]string{"experiment"}, args...)...)
			if said := strings.Contains(out, "not applied"); said != (want != "") || !strings.Contains(out, want) {
				t.Errorf("%v says\n%s\nwant %q", args, out, want)
			}
		}
	}
	s.Check(s.Models.Settle(t.Context()))
	rate2 := s.Models.All()["rate"][1]
	const ranks = "rate 2, which it is ranked by, is condemned, and rate 1 ranks in its place"
	for i, c := range []struct{ own, sets, want, waits string }{
		{"recency", "model: rate", "variant treatment is not applied: " + ranks, ""},
		{"rate", "model: recency", "variant control is not applied: " + ranks, ""},
		{"recency", "interleave: [rate, recency]", "variant treatment is not applied: " + ranks, ""},
		{"recency", "interleave: [recency, rate]", "variant treatment is not applied: rate 2, which drafts its pages as the second, is condemned, and nothing drafts in its place", ""},
		{"rate", "limit: 30", "", "rate 2, by which its pages are ranked, is condemned"},
	} {
		name := fmt.Sprint("fresher", i)
		s.must("feed", "define", s.File("home.yaml", fmt.Sprintf("name: home\nmodel: %s\nlimit: %d\n", c.own, 10+i)))
		s.Check(s.Failed.Condemn(t.Context(), s.Models, rate2, "it panicked", "n1", time.Now()))
		define := func() string {
			return s.must("experiment", "define", s.File("ranking.yaml", strings.NewReplacer("limit: 30", c.sets, "fresher", name, "    share: 0\n", "    share: 0\n    forced: {ann: treatment}\n").Replace(clitest.Fresher)))
		}
		for act, out := range map[string]string{"define": define(), "start": s.must("experiment", "start", name, "--share", "10")} {
			if said := strings.Contains(out, "not applied"); said != (c.want != "") || said && !strings.Contains(out, "note: experiment "+name+", ") || !strings.Contains(out, c.want) {
				t.Errorf("%s, %s says\n%s", c.sets, act, out)
			}
		}
		says(c.want, c.waits, name)
		s.must("model", "release", "rate", "2")
		says("", "", name)
		out := s.must("experiment", "history", name)
		if told := strings.Contains(out, "model rate: release  2"); told != (c.want != "") {
			t.Errorf("%s: history of an experiment by its name says\n%s", c.sets, out)
		}
		s.must("experiment", "stop", name)
		s.must("experiment", "drop", "ranking", "--apply", "--yes")
	}
	if out, err := s.run("experiment", "history", "nobody"); err == nil || !strings.Contains(err.Error(), "there is no experiment and no document of this name; millrace experiment list names what there is") {
		t.Errorf("%s, %v", out, err)
	}
}

// A push or rollback that changes what a variant of a running experiment is ranked by
// waits for --serve, unless what serves is condemned. It says who uses the model, and the
// history of the experiment when it changed.
func TestPushUnderARunningExperiment(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	push := func(version int, more ...string) string {
		t.Helper()
		out, err := s.run(append([]string{"model", "push", s.RatePack(fmt.Sprint(version), "likes"), "--timeout", "1m"}, more...)...)
		if err != nil {
			return out + err.Error()
		}
		return out
	}
	serves := func(version int) {
		t.Helper()
		s.Check(s.Models.Settle(t.Context()))
		if v, _ := s.Models.Served("rate"); v.Version != fmt.Sprint(version) {
			t.Errorf("%s serves, and not %d", v, version)
		}
	}
	push(1)
	s.must("feed", "define", s.File("home.yaml", "name: home\nmodel: rate\nlimit: 10\n"))
	s.must("experiment", "define", s.File("ranking.yaml", strings.Replace(clitest.Fresher, "limit: 30", "model: recency", 1)))
	if out := push(2); !strings.Contains(out, "in use by feed home, experiment fresher\n") || !strings.Contains(out, "rate 2 serves") {
		t.Errorf("under a draft:\n%s", out)
	}
	s.must("experiment", "start", "fresher", "--share", "10")
	const changes = "it changes what variant control of experiment fresher, which runs, is ranked by"
	if out := push(3); !strings.Contains(out, "rate 3 is published and does not serve: "+changes+"; add --serve") {
		t.Errorf("under a running one:\n%s", out)
	}
	serves(2)
	if out := push(3, "--serve"); !strings.Contains(out, "rate 3: "+changes) {
		t.Errorf("with --serve:\n%s", out)
	}
	serves(3)
	back := []string{"model", "rollback", "rate"}
	for _, args := range [][]string{back, append(slices.Clone(back), "--apply", "--yes")} {
		if out, err := s.run(args...); err == nil || !strings.Contains(err.Error(), "experiment: "+changes+"; pause or stop it first, or add --serve") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	serves(3)
	if out := s.must(append(slices.Clone(back), "--serve", "--apply", "--yes")...); !strings.Contains(out, "note: "+changes+"; its evidence begins anew then") {
		t.Errorf("a rollback with --serve:\n%s", out)
	}
	serves(2)
	push(3, "--serve")
	if out := s.must("experiment", "history", "fresher"); !strings.Contains(out, "model rate: rollback  2") {
		t.Errorf("its history:\n%s", out)
	}
	s.Check(s.Failed.Condemn(t.Context(), s.Models, s.Models.All()["rate"][2], "it panicked", "n1", time.Now()))
	if out := s.must(back...); strings.Contains(out, "changes") {
		t.Errorf("a rollback from what is condemned:\n%s", out)
	}
	push(4)
	serves(4)
	s.must("experiment", "stop", "fresher")
	push(5)
	serves(5)
	// Weights are of the model that ranks; a limit goes with any.
	for i, c := range []struct {
		sets string
		held bool
	}{{"weights: {likes: 3}", true}, {"limit: 30", false}} {
		name := fmt.Sprint("lighter", i)
		s.must("experiment", "define", s.File("lighter.yaml", strings.NewReplacer("limit: 30", c.sets, "ranking", name, "fresher", name).Replace(clitest.Fresher)))
		s.must("experiment", "start", name, "--share", "10")
		out := push(6 + i)
		if !strings.Contains(out, "in use by feed home, experiment "+name+"\n") || strings.Contains(out, "it changes what variant control of experiment "+name) != c.held {
			t.Errorf("%s:\n%s", c.sets, out)
		}
		serves(map[bool]int{true: 5, false: 6 + i}[c.held])
		s.must("experiment", "stop", name)
		s.must("experiment", "drop", "lighter", "--apply", "--yes")
	}
}
