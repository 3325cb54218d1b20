package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/relevance/experiment"
)

// stage is one on which commands run, as the whole line has them.
type stage struct{ *clitest.Stage }

func newStage(t *testing.T, nodes ...millrace.NodeID) *stage {
	t.Helper()
	return &stage{clitest.NewStage(t, nodes...)}
}

// run runs a command on the stage's cluster, and returns what it prints.
func (s *stage) run(args ...string) (string, error) {
	var out strings.Builder
	c := root()
	c.SetArgs(append(args, "--etcd", s.Etcd[0], "--cluster", s.Name))
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(s.Context())
	return out.String(), err
}

// must is run of what may not fail.
func (s *stage) must(args ...string) string {
	s.Helper()
	out, err := s.run(args...)
	if err != nil {
		s.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// experiments are those of the stage, as everybody reads them.
func (s *stage) experiments() (*experiment.Set, error) {
	documents, err := artefacts.Watch(s.Context(), s.Client, experiments.Kind)
	if err != nil {
		return nil, err
	}
	st, err := (&experiments.Store{Documents: documents}).Read(s.Context())
	if err != nil {
		return nil, err
	}
	return st.Set, nil
}

// An experiment from its document to its end, each step by its command.
func TestExperimentCommands(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	file := s.File("ranking.yaml", clitest.Fresher)
	for _, step := range []struct {
		args []string
		says string // all of it, or a part
		err  string
	}{
		{args: []string{"list"}, says: "NAME"},
		{args: []string{"diff", file}, says: "experiment fresher"},
		{args: []string{"list"}, says: "DOCUMENT\n"},
		{args: []string{"define", file}, says: "document ranking is defined, version 1"},
		{args: []string{"define", file}, says: "document ranking is defined, version 1\nno change"},
		{args: []string{"start", "fresher"}, err: "would run for nobody; say of how many: millrace experiment start fresher --share 1"},
		{args: []string{"ramp", "fresher", "--share", "5"}, says: "share"},
		{args: []string{"start", "fresher"}, says: "running"},
		{args: []string{"ramp", "fresher", "--share", "10"}, says: "come to treatment"},
		{args: []string{"ramp", "fresher", "--share", "5"}, err: "pause it first, or keep them"},
		{args: []string{"ramp", "fresher", "--share", "101"}, err: "--share"},
		{args: []string{"ramp", "nosuch", "--share", "10"}, err: "name one of fresher"},
		{args: []string{"list"}, says: "fresher  running  10%    ranking  home   control 50%, treatment 50%  ranking 4"},
		{args: []string{"explain", "--feed", "home", "--viewer", "member:17"}, says: "slot"},
		{args: []string{"explain", "--feed", "nosuch", "--viewer", "member:17"}, err: "there is no feed"},
		{args: []string{"explain", "--feed", "home", "--viewer", strings.Repeat("v", 513)}, err: "viewer.id: 513 bytes are not an id"},
		{args: []string{"show", "fresher"}, says: "state: running   # until Monday"},
		{args: []string{"define", s.File("ranking.yaml", strings.Replace(clitest.Fresher, "limit: 30", "limit: 40", 1))}, err: "experiments[0].state"},
		{args: []string{"define", s.File("other.yaml", strings.Replace(clitest.Fresher, "ranking-2026", "other", 1))}, err: "there is a layer ranking already in ranking"},
		{args: []string{"define", s.File("weights.yaml", strings.NewReplacer("ranking", "r2", "fresher", "w", "limit: 30", "weights: {lieks: 2}").Replace(clitest.Fresher))}, err: `experiments[0].variants[1].set.weights: model home 1 has no parameter "lieks"`},
		{args: []string{"define", s.File("models.yaml", strings.NewReplacer("ranking", "r3", "fresher", "m", "limit: 30", "model: nosuch").Replace(clitest.Fresher))}, err: "no model nosuch serves"},
		{args: []string{"define", s.File("authors.yaml", strings.NewReplacer("ranking", "authors", "fresher", "a", "unit: viewer", "unit: entity", "limit: 30", "cap_per_entity: 1").Replace(clitest.Fresher)+"    forced: {member:17: treatment}\n")}, says: "layer authors: it is new, of unit entity"},
		{args: []string{"explain", "--feed", "home", "--entity", "member:17"}, says: `a           treatment  the definition names "member:17" for treatment`},
		{args: []string{"explain", "--feed", "home", "--viewer", "member:17"}, says: "layer authors divides by entity, which was not asked for"},
		{args: []string{"explain", "--feed", "home"}, err: "viewer entity"},
		{args: []string{"status", "a"}, err: "a divides entities, and this compares viewers"},
		{args: []string{"hold", "a"}, err: "a divides entities, and no coordinator ramps it"},
		{args: []string{"hold", "nosuch"}, err: "there is no experiment"},
		{args: []string{"define", s.File("limits.yaml", strings.NewReplacer("ranking", "r4", "fresher", "b", "unit: viewer", "unit: entity").Replace(clitest.Fresher))}, err: "experiments[0].variants[1].set.limit: it is one for a whole answer"},
		{args: []string{"drop", "ranking"}, err: "document: experiment fresher is running; stop it first"},
		{args: []string{"drop", "fresher"}, err: `there is no document "fresher": experiment fresher stands in document ranking; name that, to drop all of it`},
		{args: []string{"pause", "ranking"}, err: `there is no experiment "ranking", and a document of this name; name what stands in it: fresher`},
		{args: []string{"hold", "fresher", "--why", "a sale"}, says: "experiment fresher has no ramp, so that only people change its share; one that it is given is held until millrace experiment resume fresher"},
		{args: []string{"history", "ranking"}, says: "held fresher  -        " + clusters.Who() + ": a sale\n"},
		{args: []string{"resume", "fresher"}, says: "experiment fresher may be ramped again"},
		{args: []string{"history", "ranking"}, says: "resumed fresher  -        " + clusters.Who() + "\n"},
		{args: []string{"pause", "fresher"}, says: "paused"},
		{args: []string{"ramp", "fresher", "--share", "5"}, says: "share"},
		{args: []string{"start", "fresher", "--share", "20"}, says: "running"},
		{args: []string{"hold", "fresher"}, says: "experiment fresher has no ramp"},
		{args: []string{"stop", "fresher"}, says: "stopped"},
		{args: []string{"hold", "fresher"}, err: "fresher is stopped, and has no next step"},
		{args: []string{"resume", "fresher"}, says: "experiment fresher is not held any more; it is stopped, and has no next step"},
		{args: []string{"start", "fresher"}, err: "it is stopped, and cannot become running"},
		{args: []string{"history", "ranking"}, says: "serve"},
		{args: []string{"drop", "ranking"}, says: "experiment fresher, stopped, goes with"},
		{args: []string{"drop", "ranking", "--apply", "--yes"}, says: "document ranking is dropped"},
		{args: []string{"drop", "ranking"}, err: "there is no document"},
		{args: []string{"status", "fresher"}, err: "there is no experiment fresher any more: it stood in document ranking; millrace experiment history ranking tells what became of it, and millrace export exposures --experiment fresher has"},
		{args: []string{"history", "ranking"}, says: "drop "},
		{args: []string{"history", "fresher"}, says: "drop "},
		{args: []string{"history", "nosuch"}, err: "millrace experiment list"},
		{args: []string{"define", s.File("ex.yaml", strings.NewReplacer("name: ranking", "name: l5", "layer: ranking", "layer: l5", "ranking-2026", "s5", "fresher", "delta").Replace(clitest.Fresher))}, says: "experiment delta"},
		{args: []string{"history", "delta"}, says: "put"},
		{args: []string{"define", s.File("delta.yaml", strings.NewReplacer("name: ranking", "name: l6", "layer: ranking", "layer: l6", "ranking-2026", "s6", "fresher", "zed", "limit: 30", "window: 1h").Replace(clitest.Fresher))}, says: "experiment zed"},
		{args: []string{"history", "delta"}, says: "NOTE: this is of document delta; experiment delta stands in document ex, of which millrace experiment history ex tells\n"},
		{args: []string{"history", "ex"}, says: "put"},
		{args: []string{"define", s.File("slow.yaml", strings.NewReplacer("name: ranking", "name: l7", "layer: ranking", "layer: l7", "ranking-2026", "s7", "fresher", "slow", "limit: 30", "spacing: {entity: 1}").Replace(clitest.Fresher)+rampedFresher)}, says: "experiment slow"},
		{args: []string{"hold", "slow", "--why", "a sale"}, says: "slow stays at its share"},
		{args: []string{"list"}, says: "\nexperiment slow is HELD by " + clusters.Who() + " since 20"},
		{args: []string{"list", "-o", "json"}, says: `"held":{"when":"20`},
		{args: []string{"hold", "delta"}, says: "delta has no ramp"},
		{args: []string{"list"}, says: ": a sale; to let it go on: millrace experiment resume slow\n"},
	} {
		out, err := s.run(append([]string{"experiment"}, step.args...)...)
		switch {
		case step.err == "" && err != nil, step.err != "" && (err == nil || !strings.Contains(err.Error(), step.err)):
			t.Errorf("%v: %v, want %q", step.args, err, step.err)
		case !strings.Contains(out, step.says):
			t.Errorf("%v says %q, want %q", step.args, out, step.says)
		}
	}
}

// What an experiment needs is not dropped.
func TestExperimentsHoldWhatTheyUse(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	feeds, err := artefacts.Watch(t.Context(), s.Client, feeds.Kind)
	s.Check(err)
	v, _, err := feeds.Publish(t.Context(), "news", "", []byte("name: news\nmodel: recency\n"), "somebody")
	s.Check(err)
	s.Check(feeds.Serve(t.Context(), v, nil, "somebody"))
	m, _, err := s.Models.Publish(t.Context(), "likes", "1", []byte("a pack"), "somebody")
	s.Check(err)
	s.Check(s.Models.Serve(t.Context(), m, nil, "somebody"))
	_, err = s.run("experiment", "define", s.File("a.yaml", strings.NewReplacer("[home]", "[news]", "limit: 30", "model: likes").Replace(clitest.Fresher)))
	s.Check(err)
	for _, args := range [][]string{{"feed", "drop", "news"}, {"model", "drop", "likes", "1"}} {
		if _, err := s.run(args...); err == nil || !strings.Contains(err.Error(), "experiment fresher") {
			t.Errorf("%v: %v", args, err)
		}
	}
	_, err = s.run("experiment", "stop", "fresher")
	s.Check(err)
	for _, args := range [][]string{{"feed", "drop", "news"}, {"model", "drop", "likes", "1", "--override", "test"}} {
		if _, err := s.run(append(args, "--apply", "--yes")...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// startEtcd starts etcd again where it was.
func (s *stage) startEtcd(dir string) *minicluster.Etcd {
	s.Helper()
	etcd, err := minicluster.StartEtcd(s.Context(), dir, s.Etcd[0])
	for tries := 0; err != nil && strings.Contains(err.Error(), "address already in use") && tries < 100; tries++ {
		time.Sleep(200 * time.Millisecond) // an outgoing connection may have the port for a moment
		etcd, err = minicluster.StartEtcd(s.Context(), dir, s.Etcd[0])
	}
	s.Check(err)
	s.Cleanup(etcd.Close)
	return etcd
}

// While etcd has lost what nodes remember, nothing is changed that brokers would
// not take over, and what is shown says so.
func TestNothingIsChangedInALostEtcd(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	if _, err := s.run("experiment", "define", s.File("ranking.yaml", clitest.Fresher)); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s.startEtcd(t.TempDir())
	for _, args := range [][]string{
		{"experiment", "define", s.File("ranking.yaml", clitest.Fresher)}, {"experiment", "stop", "fresher"}, {"feed", "define", s.File("f.yaml", "name: f\nmodel: recency\n")}, {"model", "rollback", "rate"},
	} {
		for began := time.Now(); ; time.Sleep(200 * time.Millisecond) { // until the node has told
			_, err := s.run(args...)
			if err != nil && strings.Contains(err.Error(), "etcd has lost state") && strings.Contains(err.Error(), "millrace cluster restore") {
				if ends := args[1] == "stop"; ends != strings.Contains(err.Error(), "Until etcd is mended brokers go on dealing the variants") {
					t.Errorf("%v: %v", args, err)
				}
				break
			}
			if time.Since(began) > clitest.Patience {
				t.Fatalf("%v: %v", args, err)
			}
		}
	}
	for _, args := range [][]string{{"experiment", "list"}, {"feed", "list"}, {"model", "list"}} {
		out, err := s.run(args...)
		if err != nil || !strings.HasPrefix(out, "warning: etcd has lost state: ") || !strings.Contains(out, "millrace cluster restore") {
			t.Errorf("%v: %q, %v", args, out, err)
		}
	}
}

// The same of an etcd that is restored from a backup, when nothing but a model is
// older than it was: the assignment is as nodes remember it.
func TestNothingIsChangedInAnEtcdThatWentBack(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	push := func(version string) {
		_, err := s.run("model", "push", s.RatePack(version, "likes"), "--timeout", "1m")
		s.Check(err)
	}
	push("1")
	s.Stop()
	backup := t.TempDir()
	s.Check(os.CopyFS(backup, os.DirFS(s.Dir)))
	restart := func() (stop func()) {
		return s.startEtcd(s.Dir).Close
	}
	stop := restart()
	push("2")
	serves := func() {
		t.Helper()
		if v, _ := s.Models.Served("rate"); v.Version != "2" {
			t.Errorf("%s serves", v)
		}
	}
	s.Check(s.Models.Settle(t.Context()))
	serves()
	stop()
	s.Check(errors.Join(os.RemoveAll(s.Dir), os.CopyFS(s.Dir, os.DirFS(backup))))
	restart()
	doctor := []string{"doctor", "--brokers", "127.0.0.1:1", "--grpc", "127.0.0.1:1"}
	for _, args := range [][]string{
		{"model", "rollback", "rate"}, {"feed", "define", s.File("f.yaml", "name: f\nmodel: recency\n")}, {"experiment", "define", s.File("ranking.yaml", clitest.Fresher)},
		{"cluster", "show"}, {"cluster", "pause"}, {"cluster", "rollback"}, doctor,
	} {
		for began := time.Now(); ; time.Sleep(200 * time.Millisecond) { // until who remembers it has told
			out, err := s.run(args...)
			if said := fmt.Sprint(out, err); err != nil && strings.Contains(said, "etcd has lost state: it went back") && strings.Contains(said, "millrace cluster restore") {
				break
			}
			if time.Since(began) > clitest.Patience {
				t.Fatalf("%v: %s, %v", args, out, err)
			}
		}
	}
	for _, args := range [][]string{{"cluster", "status"}, {"node", "list"}, {"cluster", "explain", "3"}} {
		if out, err := s.run(args...); err != nil || !strings.HasPrefix(out, "warning: etcd has lost state: it went back") {
			t.Errorf("%v: %q, %v", args, out, err)
		}
	}
	serves()
	out, _ := s.run(doctor...)
	doubtsDocuments(t, out)
}

// An etcd without space is told, and what to do about it: nobody is told to start
// what runs.
func TestAFullEtcdIsTold(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	_, err := s.run("experiment", "define", s.File("ranking.yaml", clitest.Fresher))
	s.Check(err)
	etcdtest.Fill(t, s.Etcd[0])
	for _, args := range [][]string{
		{"cluster", "show"}, {"doctor", "--brokers", "127.0.0.1:1", "--grpc", "127.0.0.1:1"}, {"experiment", "stop", "fresher"}, {"feed", "define", s.File("f.yaml", "name: f\nmodel: recency\n")},
	} {
		out, err := s.run(args...)
		if said := fmt.Sprint(out, err); err == nil || !strings.Contains(said, "NOSPACE") || !strings.Contains(said, "alarm disarm") || strings.Contains(said, "all is well") || strings.Contains(said, "start etcd") || strings.Contains(said, "start one: millrace coordinator") {
			t.Errorf("%v: %s, %v", args, out, err)
		}
	}
	if out, err := s.run("experiment", "list"); err != nil {
		t.Errorf("it cannot be read: %s, %v", out, err)
	}
}
