package cli

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/indexnode"
)

// A feed whose model is gone, past the commands, is told by doctor as by list, with the
// way out; and an experiment that sets weights of that model is as one that names it.
func TestAFeedWhoseModelIsGone(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	pack := s.RatePack("1", "likes")
	s.must("model", "push", pack, "--timeout", "1m")
	s.NewsAt("model: rate\n")
	document := s.File("a.yaml", strings.NewReplacer("[home]", "[news]", "limit: 30", "weights: {likes: 3}").Replace(clitest.Fresher))
	s.must("experiment", "define", document)
	s.must("experiment", "start", "fresher", "--share", "1")
	doctor := []string{"doctor", "--brokers", "127.0.0.1:1", "--grpc", "127.0.0.1:1"}
	if out := s.ran(doctor...); !strings.Contains(out, "ok    feeds are whole ") || !strings.Contains(out, "ok    experiments are whole ") {
		t.Fatalf("doctor says before\n%s", out)
	}

	s.Gone(indexnode.ModelsKind, "rate")
	const says = `model: no model "rate" serves; push it first, or name one of `
	const unfit = "experiment fresher, running, has a fault, and brokers give nobody a variant of it: variant treatment of experiment fresher sets weights on feed news, and no model rate serves, by which feed news is ranked"
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"feed", "list"}, says},
		{[]string{"feed", "show", "news"}, says},
		{doctor, "FAIL  feeds are whole          feed news: " + says},
		{doctor, "warn  experiments are whole    " + unfit},
		{[]string{"experiment", "list"}, unfit},
		{[]string{"experiment", "show", "fresher"}, "# " + unfit},
		{[]string{"experiment", "status", "fresher", "--brokers", "127.0.0.1:1"}, unfit},
		{[]string{"experiment", "explain", "--feed", "news", "--viewer", "alice"}, "nobody gets a variant: variant treatment of experiment fresher sets weights on feed news, and no model rate serves"},
		{[]string{"experiment", "ramp", "fresher", "--share", "5"}, "no model rate serves, by which feed news is ranked"},
		{[]string{"experiment", "pause", "fresher"}, "state running → paused"},
		{[]string{"experiment", "start", "fresher"}, "no model rate serves, by which feed news is ranked; push it first, or let the feed name another"},
		{[]string{"experiment", "define", document}, "no model rate serves, by which feed news is ranked"},
	} {
		if out := s.ran(c.args...); !strings.Contains(out, c.says) {
			t.Errorf("%v says\n%s\nand not %q", c.args, out, c.says)
		}
	}
	s.must("model", "push", pack, "--timeout", "1m")
	if out := s.ran(doctor...); !strings.Contains(out, "ok    feeds are whole ") || !strings.Contains(out, "ok    experiments are whole ") {
		t.Errorf("doctor says once the model is back\n%s", out)
	}
}
