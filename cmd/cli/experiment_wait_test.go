package cli

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/experiments"
)

const rampedFresher = "    ramp: {steps: [500, 2000], least: 1h, viewers: 10}\n    guards: {refused: 1.5}\n"

// A wait for an experiment ends well with its ramp's last step, and with the reason once
// it is paused, taken back or stopped.
func TestExperimentWait(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	do := func(args ...string) {
		t.Helper()
		if out, err := s.run(append([]string{"experiment"}, args...)...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	type result struct {
		out string
		err error
	}
	begin := func(args ...string) <-chan result {
		done := make(chan result, 1)
		go func() {
			out, err := s.run(append([]string{"experiment", "wait", "fresher"}, args...)...)
			done <- result{out, err}
		}()
		return done
	}
	ends := func(what string, of <-chan result, says, fault string) {
		t.Helper()
		r := <-of
		if (r.err != nil) != (fault != "") || r.err != nil && !strings.Contains(r.err.Error(), fault) || !strings.Contains(r.out, says) {
			t.Errorf("%s: %v, want %q:\n%s", what, r.err, fault, r.out)
		}
	}
	plain := strings.Replace(clitest.Fresher, "fresher", "plain", 1)
	do("define", s.File("plain.yaml", strings.NewReplacer("ranking", "r2").Replace(plain)))
	if _, err := s.run("experiment", "wait", "plain"); err == nil || !strings.Contains(err.Error(), "plain has no ramp; give it one, or wait --for ended") {
		t.Errorf("without a ramp: %v", err)
	}
	do("define", s.File("ranking.yaml", strings.TrimRight(strings.Replace(clitest.Fresher, "limit: 30", "cap_per_entity: 2", 1), "\n")+"\n"+rampedFresher))
	ends("what", begin("--for", "luck"), "", `--for: "luck" is nothing to wait for`)
	ends("a draft", begin("--timeout", "50ms"), "is draft", "is not ramped after 50ms: it is draft, at")
	do("start", "fresher", "--share", "5")
	do("hold", "fresher", "--why", "a sale")
	ends("held", begin("--timeout", "50ms"), "", "is running, at 5% of its slots, and held by ")
	wait := begin()
	do("ramp", "fresher", "--share", "20")
	ends("ramped", wait, "experiment fresher is running, at 20% of its slots", "")
	ended := begin("--for", "ended")
	do("pause", "fresher")
	ends("paused", ended, "", "experiment fresher is paused since ")
	ends("paused before", begin(), "", "; millrace experiment status fresher tells what was seen")
	do("start", "fresher")
	ended = begin("--for", "ended")
	do("stop", "fresher")
	ends("stopped", ended, "experiment fresher is stopped", "")
	ends("stopped before", begin(), "", "experiment fresher is stopped, at 20% of its slots; millrace experiment history fresher")
	do("drop", "ranking", "--apply", "--yes")
	ends("dropped", begin("--for", "ended"), "", "there is no experiment fresher any more")
}

// A wait for an end is over once the experiment is dropped, whatever fault experiments of
// other documents have; not so while its own document is left out.
func TestAWaitEndsWithADrop(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	s.must("model", "push", s.RatePack("1", "likes"), "--timeout", "1m")
	s.NewsAt("model: rate\n")
	rated := strings.NewReplacer("ranking", "r2", "fresher", "rated", "[home]", "[news]", "limit: 30", "weights: {likes: 3}").Replace(clitest.Fresher)
	s.must("experiment", "define", s.File("rated.yaml", rated))
	s.must("experiment", "start", "rated", "--share", "1")
	s.Gone(indexnode.ModelsKind, "rate")
	if out := s.ran("experiment", "list"); !strings.Contains(out, "experiment rated, running, has a fault") {
		t.Fatal(out)
	}
	s.must("experiment", "define", s.File("ranking.yaml", clitest.Fresher))
	out, err := s.waitFor("fresher", func() { s.must("experiment", "drop", "ranking", "--apply", "--yes") })
	if err != nil || !strings.Contains(out, "experiment fresher is dropped\n") {
		t.Errorf("dropped: %v\n%s", err, out)
	}
	s.must("experiment", "define", s.File("ranking.yaml", strings.ReplaceAll(clitest.Fresher, "fresher", "newer")))
	out, err = s.waitFor("newer", func() {
		docs, err := artefacts.Watch(t.Context(), s.Client, experiments.Kind)
		s.Check(err)
		v, _, err := docs.Publish(t.Context(), "ranking", "", []byte("experiments: [\n"), "bob")
		s.Check(err)
		s.Check(docs.Serve(t.Context(), v, nil, "bob"))
	})
	if err == nil || strings.Contains(out, "is dropped") {
		t.Errorf("left out: %v\n%s", err, out)
	}
}

// waitFor waits for the end of an experiment; once it has been seen, something is done.
func (s *stage) waitFor(name string, do func()) (string, error) {
	s.Helper()
	out := &watchedOut{seen: make(chan struct{})}
	c := root()
	c.SetArgs([]string{"experiment", "wait", name, "--for", "ended", "--timeout", "5m", "--etcd", s.Etcd[0], "--cluster", s.Name})
	c.SetOut(out)
	c.SetErr(out)
	done := make(chan error, 1)
	go func() { done <- c.ExecuteContext(s.Context()) }()
	select {
	case <-out.seen:
		do()
		err := <-done
		return out.String(), err
	case err := <-done:
		return out.String(), err
	}
}

// watchedOut is an output that tells of its first line.
type watchedOut struct {
	strings.Builder
	seen chan struct{}
}

func (w *watchedOut) Write(p []byte) (int, error) {
	if w.Len() == 0 {
		close(w.seen)
	}
	return w.Builder.Write(p)
}
