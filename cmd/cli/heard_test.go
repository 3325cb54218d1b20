package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// A command that changes what brokers go by says which have heard of it; one that
// changes nothing, or what only others go by, says nothing of brokers.
func TestCommandsTellWhoHasHeard(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	must := func(line string, args ...string) string {
		t.Helper()
		out, err := s.run(append(strings.Fields(line), args...)...)
		s.Check(err)
		return out
	}
	ranking := s.File("ranking.yaml", clitest.Fresher)
	const none = "\nno broker is registered: whether one has heard of it is not known\n"
	if out := must("experiment define", ranking); !strings.HasSuffix(out, none) {
		t.Errorf("before there is a broker: %q", out)
	}
	s.Broker("one")
	news := func(limit string) string {
		return s.File("news.yaml", "name: news\nmodel: recency\nlimit: "+limit+"\n")
	}
	apply := []string{"--apply", "--yes"}
	for _, step := range []struct {
		line  string
		args  []string
		heard bool
	}{
		{"experiment define", []string{ranking}, false}, // it is as it was
		{"experiment start fresher --share 5", nil, true},
		{"experiment ramp fresher --share 50", nil, true},
		{"experiment hold fresher", nil, false},
		{"experiment resume fresher", nil, false},
		{"experiment pause fresher", nil, true},
		{"experiment stop fresher", nil, true},
		{"experiment drop ranking", nil, false},
		{"experiment drop ranking", apply, true},
		{"feed define", []string{news("1")}, true},
		{"feed define", []string{news("2")}, true},
		{"feed list", nil, false},
		{"feed rollback news", nil, false},
		{"feed rollback news", apply, true},
		{"feed drop news", apply, true},
		{"model push --timeout 1m", []string{s.RatePack("1", "likes")}, true},
		{"model push --timeout 1m --no-serve", []string{s.RatePack("2", "likes")}, false},
		{"model push --timeout 1m", []string{s.RatePack("3", "likes")}, true},
		{"model rollback rate", apply, true},
		{"model drop rate 2", apply, true},
		{"trace --viewer member:9", nil, true},
		{"trace --viewer member:9 --off", nil, true},
		{"trace --viewer member:9 --off", nil, false},
	} {
		out := must(step.line, step.args...)
		if step.heard != strings.HasSuffix(out, "\nheard by 1 broker\n") || strings.Count(out, "heard by") > 1 {
			t.Errorf("%s %v: %q", step.line, step.args, out)
		}
	}
	v := s.Models.All()["rate"][1]
	s.Check(s.Failed.Condemn(t.Context(), s.Models, v, "it panicked", "n1", time.Now()))
	if out := must("model release rate", v.Version); !strings.HasSuffix(out, "\nheard by 1 broker\n") {
		t.Errorf("model release: %q", out)
	}
}

// A broker that does not hear of a change is named, in lines and in JSON, and the
// command does not fail; what shows the cluster names it, too.
func TestWhoHasNotHeardIsNamed(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	if _, err := s.run("experiment", "define", s.File("ranking.yaml", clitest.Fresher)); err != nil {
		t.Fatal(err)
	}
	s.Broker("one")
	cut := s.Broker("two")
	out, err := s.run("experiment", "start", "fresher", "--share", "5")
	if err != nil || !strings.HasSuffix(out, "\nheard by 2 brokers\n") {
		t.Errorf("%q, %v", out, err)
	}
	out, _ = s.run("cluster", "show")
	for _, want := range []string{"BROKER  ADDRESS   ADMIN     VERSION  STATE\n", "one     one:9090  one:6060  v1       goes by all there is\n", "two     two:9090  two:6060  v1       goes by all there is\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in %s", want, out)
		}
	}
	cut()
	out, err = s.run("experiment", "pause", "fresher")
	if want := "\nheard by 1 of 2 brokers\nNOT HEARD by two yet: it goes on with what was before; see millrace doctor --admin two:6060\n"; err != nil || !strings.HasSuffix(out, want) {
		t.Errorf("%q, %v", out, err)
	}
	out, _ = s.run("cluster", "page-keys", "--rotate", "-o", "json")
	if strings.Contains(out, "heard_by") {
		t.Errorf("nothing was done: %s", out)
	}
	out, err = s.run("cluster", "page-keys", "--rotate", "--apply", "--yes", "-o", "json")
	if want := `"heard_by":["one"],"not_heard_by":[{"broker":"two","admin":"two:6060","told":"20`; err != nil || !strings.Contains(out, want) {
		t.Errorf("%s, %v", out, err)
	}
	out, err = s.run("cluster", "page-keys", "--rotate", "--revoke", "--apply", "--yes")
	if err != nil || !strings.Contains(out, "\nheard by 1 of 2 brokers\nNOT HEARD by two") {
		t.Errorf("%s, %v", out, err)
	}
	out, _ = s.run("cluster", "show")
	if want := "two     two:9090  two:6060  v1       BEHIND in experiments, page keys, by "; !strings.Contains(out, want) {
		t.Errorf("%q is not in %s", want, out)
	}
	out, _ = s.run("cluster", "show", "-o", "json")
	if want := `"behind":[{"of":"experiments","revisions":`; !strings.Contains(out, want) || strings.Count(out, `"behind":[`) != 1 {
		t.Errorf("%q is not once in %s", want, out)
	}
}
