package cli

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
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
