package cli

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
)

// A command that changes what brokers go by says which have heard of it; one that
// only shows something, or changes what only others go by, says nothing of brokers.
func TestCommandsTellWhoHasHeard(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	must := func(line string, args ...string) string {
		t.Helper()
		return s.must(append(strings.Fields(line), args...)...)
	}
	ranking := s.File("ranking.yaml", clitest.Fresher)
	const none = "\nno broker is registered: whether one has heard of it is not known\n"
	if out := must("experiment define", ranking); !strings.HasSuffix(out, none) {
		t.Errorf("before there is a broker: %q", out)
	}
	s.Broker("one")
	// On a busy machine it may hear later than a command waits.
	told := regexp.MustCompile(`\n(heard by 1 broker|NOT HEARD by one.*)\n$`)
	news := func(limit string) string {
		return s.File("news.yaml", "name: news\nmodel: recency\nlimit: "+limit+"\n")
	}
	apply := []string{"--apply", "--yes"}
	for _, step := range []struct {
		line  string
		args  []string
		heard bool
	}{
		{"experiment define", []string{ranking}, true}, // it is as it was, which others may not have heard
		{"experiment start fresher --share 5", nil, true},
		{"experiment ramp fresher --share 50", nil, true},
		{"experiment hold fresher", nil, false},
		{"experiment resume fresher", nil, false},
		{"experiment pause fresher", nil, true},
		{"experiment pause fresher", nil, true},
		{"experiment stop fresher", nil, true},
		{"experiment drop ranking", nil, false},
		{"experiment drop ranking", apply, true},
		{"feed define", []string{news("1")}, true},
		{"feed define", []string{news("2")}, true},
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
		if step.heard != told.MatchString(out) || !step.heard && strings.Contains(strings.ToLower(out), "heard by") {
			t.Errorf("%s %v: %q", step.line, step.args, out)
		}
	}
	v := s.Models.All()["rate"][1]
	s.Check(s.Failed.Condemn(t.Context(), s.Models, v, "it panicked", "n1", time.Now()))
	if out := must("model release rate", v.Version); !told.MatchString(out) {
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
	// A command that is given again tells again, and so may wait for a busy machine.
	tells := func(line string, wants ...string) {
		t.Helper()
		clitest.WaitFor(t.Context(), t, fmt.Sprintf("%s to tell: %q", line, wants), func() bool {
			out, err := s.run(strings.Fields(line)...)
			return (err == nil || strings.HasPrefix(line, "cluster show")) && !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(out, want) })
		})
	}
	tells("experiment start fresher --share 5", "\nheard by 2 brokers\n")
	tells("cluster show", "BROKER  ADDRESS   ADMIN     VERSION  STATE\n"+
		"one     one:9090  one:6060  v1       goes by all there is\n"+
		"two     two:9090  two:6060  v1       goes by all there is\n")
	cut()
	tells("experiment pause fresher", "\nheard by 1 of 2 brokers\nNOT HEARD by two", "it goes on with what it took over before; see millrace doctor --admin two:6060\n")
	out, _ := s.run("cluster", "page-keys", "--rotate", "-o", "json")
	if strings.Contains(out, "heard_by") {
		t.Errorf("nothing was done: %s", out)
	}
	tells("cluster page-keys --rotate --revoke --apply --yes -o json", `"heard_by":["one"],"not_heard_by":[{"broker":"two","admin":"two:6060","told":"20`)
	tells("cluster page-keys --rotate --revoke --apply --yes", "\nheard by 1 of 2 brokers\nNOT HEARD by two")
	tells("cluster show", "\none     one:9090  one:6060  v1       goes by all there is\ntwo     two:9090  two:6060  v1       ", "BEHIND in experiments, page keys, by ")
	tells("cluster show -o json", `"behind":[{"of":"experiments","revisions":`)
}

// A broker is registered once, however often it dies and starts again in its data
// directory, until it is told to stop.
func TestABrokerIsRegistered(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	s := newStage(t, "n1")
	ctx, failed := context.WithCancelCause(clitest.Bounded(t))
	grpc, admin := clitest.FreeAddr(t), clitest.FreeAddr(t)
	p := start(t, failed, "broker", "broker", "--config", clitest.WriteConfig(t, "broker", "etcd: [%q]\ncluster: %s\ngrpc: %q\nadmin: %q\ndata: %s\ndrain: 0s\n", s.Etcd[0], s.Name, grpc, admin, t.TempDir()))
	var told time.Time
	registered := func(what string, want int) {
		t.Helper()
		clitest.WaitFor(ctx, t, what, func() bool {
			all, err := (&clusters.Flags{Etcd: s.Etcd, Cluster: s.Name}).Brokers(ctx)
			ok := err == nil && len(all) == want
			for _, b := range all {
				ok = ok && b.Well() && b.Addr == grpc && b.Admin == admin && strings.HasSuffix(b.Name, " "+grpc) && b.Version != "" && b.Told.After(told)
				told = b.Told
			}
			return ok
		})
	}
	registered("the broker to be registered", 1)
	p.kill()
	p.restart()
	registered("the broker to be registered again, as the same", 1)
	p.end()
	registered("nobody to be registered", 0)
}
