package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/rollouts"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// A feed that becomes private, or goes, does not take variants from viewers unseen:
// the commands name the experiment, and the way out works.
func TestChangesKeepExperiments(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.NewsAt("model: recency\nprivate: true\n", "model: recency\n")
	sets := strings.NewReplacer("[home]", "[news]", "limit: 30", "window: 1h").Replace(clitest.Fresher)
	_, err := s.run("experiment", "define", s.File("a.yaml", sets))
	s.Check(err)
	const private = "variant treatment of experiment fresher sets window on feed news, and feed news is private, and this could show what it drops; stop or change fresher first"
	for _, c := range []struct {
		args []string
		err  string
	}{
		{[]string{"feed", "define", s.File("news.yaml", "name: news\nmodel: recency\nprivate: true\nlimit: 5\n")}, private},
		{[]string{"feed", "rollback", "news"}, private},
		{[]string{"feed", "rollback", "news", "--apply", "--yes"}, private},
		{[]string{"feed", "drop", "news", "--apply", "--yes"}, "experiment fresher is on feed news, and there is no feed news; stop or change fresher first"},
	} {
		if out, err := s.run(c.args...); err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%v: %v, want %q\n%s", c.args, err, c.err, out)
		}
	}
	if out, err := s.run("feed", "define", s.File("news.yaml", "name: news\nmodel: recency\nlimit: 5\n")); err != nil || !strings.Contains(out, "in use by experiment fresher") {
		t.Errorf("%v: %s", err, out)
	}
	s.NewsAt("model: recency\nprivate: true\nlimit: 7\n") // as at the same moment
	for _, c := range []struct {
		args      []string
		says, err string
	}{
		{[]string{"list"}, "experiment fresher, draft, has a fault, and brokers give nobody a variant of it: variant treatment of experiment fresher sets window on feed news, and feed news is private", ""},
		{[]string{"show", "fresher"}, "# experiment fresher, draft, has a fault", ""},
		{[]string{"start", "fresher", "--share", "1"}, "", "feed news is private"},
		{[]string{"define", s.File("b.yaml", strings.NewReplacer("fresher", "taker", "limit: 30", "cap_per_entity: 1").Replace(clitest.Fresher[strings.Index(clitest.Fresher, "experiments:"):]))}, "", "experiment fresher in a has slots 0-3999"},
		{[]string{"stop", "fresher"}, "state draft → stopped", ""},
		{[]string{"list"}, "fresher  stopped", ""},
	} {
		out, err := s.run(append([]string{"experiment"}, c.args...)...)
		if !strings.Contains(out, c.says) || c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%v: %v, want %q\n%s\nlacks %q", c.args, err, c.err, out, c.says)
		}
	}
}

// Of two changes at the same moment that do not go together, the later one tells.
func TestTheLaterOfTwoChangesTells(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.Answer("n1", clitest.Admits)
	s.NewsAt("model: recency\n")
	sets := strings.NewReplacer("[home]", "[news]", "limit: 30", "window: 1h").Replace(clitest.Fresher)
	define := []string{"experiment", "define", s.File("a.yaml", sets)}
	_, err := s.run(define...)
	s.Check(err)
	s.NewsAt("model: recency\nprivate: true\n")
	const told = "note: experiment fresher, draft, has a fault, and brokers give nobody a variant of it"
	other := []string{"experiment", "define", s.File("b.yaml", strings.NewReplacer("ranking", "other", "fresher", "else", "limit: 30", "cap_per_entity: 1").Replace(clitest.Fresher))}
	for _, args := range [][]string{other, {"model", "push", s.RatePack("1", "likes"), "--timeout", "1m"}} {
		if out, err := s.run(args...); err != nil || !strings.Contains(out, told) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// A version that could not be defined now is not gone back to.
func TestRollbackRefusesAFault(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	s.NewsAt("model: gone\n", "model: recency\n")
	for _, args := range [][]string{{"feed", "rollback", "news"}, {"feed", "rollback", "news", "--apply", "--yes"}} {
		if out, err := s.run(args...); err == nil || !strings.Contains(err.Error(), `version 1 of feed news has a fault by now, and version 2 serves on: model: no model "gone" serves`) || !strings.Contains(out, "+ model: gone") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	if out, err := s.run("feed", "show", "news"); err != nil || !strings.Contains(out, "model: recency") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A document that cannot be read as it stands is told with its ways out, and its
// drop says what of it runs.
func TestADocumentThatIsLeftOut(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	documents, err := artefacts.Watch(t.Context(), s.Client, experiments.Kind)
	s.Check(err)
	bad := strings.NewReplacer("share: 0", "share: 20000", "state: draft", "state: running").Replace(clitest.Fresher)
	v, _, err := documents.Publish(t.Context(), "a", "", []byte(bad), "somebody")
	s.Check(err)
	s.Check(documents.Serve(t.Context(), v, nil, "somebody"))
	const ways = "mend document a, or give its experiments state: stopped, and let millrace experiment define put it in place; or take it out with millrace experiment drop a"
	for _, c := range []struct {
		args      []string
		says, err string
	}{
		{[]string{"list"}, "document a is left out: ", ""},
		{[]string{"list"}, ways, ""},
		{[]string{"stop", "fresher"}, "", ways},
		{[]string{"drop", "a"}, "experiment fresher, running, goes with", ""},
		{[]string{"define", s.File("a.yaml", strings.Replace(clitest.Fresher, "state: draft", "state: stopped", 1))}, "document a is defined", ""},
		{[]string{"list"}, "fresher  stopped", ""},
	} {
		out, err := s.run(append([]string{"experiment"}, c.args...)...)
		if !strings.Contains(out, c.says) || c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%v: %v, want %q\n%s\nlacks %q", c.args, err, c.err, out, c.says)
		}
	}
}

// A schema is not taken back while somebody reads what no other schema has: feeds,
// variants and models are named, with why.
func TestRetireKeepsReaders(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	admitted, err := registry.New(nil, nil)
	s.Check(err)
	longer, err := schemas.Parse([]byte(strings.Replace(schemas.Activity().JSON(), `"fields": [`, `"fields": [{"name": "zing", "type": "double", "default": 0},`, 1)))
	s.Check(err)
	for _, one := range []*schemas.Schema{schemas.Activity(), longer} {
		_, err = admitted.Admit(one)
		s.Check(err)
	}
	known := admitted.Snapshot()
	after, err := known.Without(longer.Fingerprint())
	s.Check(err)
	withoutFirst, err := known.Without(schemas.Activity().Fingerprint())
	s.Check(err)
	keeps := func(after *registry.Snapshot) error {
		return rollouts.KeepsReaders(s.Context(), &clusters.Flags{Etcd: s.Etcd, Cluster: "test"}, known, after)
	}
	if err := keeps(after); err != nil {
		t.Errorf("nobody reads it: %v", err)
	}

	s.NewsAt("model: recency\nfilter: record.zing > 1.0\n")
	v, _, err := s.Feeds.Publish(s.Context(), "old", "", []byte("name: old\nmodel: zm\nfilter: record.likes > 1\n"), "somebody")
	s.Check(err)
	s.Check(s.Feeds.Serve(s.Context(), v, nil, "somebody"))
	dir := t.TempDir()
	for name, text := range map[string]string{
		modelpack.SpecFile:   "name: zm\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {z: record.zing}\nscorer: linear\nparameters: {weights: {z: 2}}\n",
		modelpack.GoldenFile: `{"features":{"z":1},"score":2,"record":{"zing":1}}`,
		modelpack.CardFile:   "Zing.\n",
	} {
		s.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	_, err = modelpack.Seal(dir, relevance.SchemasOf(known))
	s.Check(err)
	pack, err := modelpack.Open(dir)
	s.Check(err)
	var tar bytes.Buffer
	s.Check(pack.WriteTar(&tar))
	v, _, err = s.Models.Publish(s.Context(), "zm", "1", tar.Bytes(), "somebody")
	s.Check(err)
	s.Check(s.Models.Serve(s.Context(), v, nil, "somebody"))
	documents, err := artefacts.Watch(t.Context(), s.Client, experiments.Kind)
	s.Check(err)
	v, _, err = documents.Publish(s.Context(), "a", "", []byte(strings.Replace(clitest.Fresher, "limit: 30", `filter: "record.zing > 1.0"`, 1)), "somebody")
	s.Check(err)
	s.Check(documents.Serve(s.Context(), v, nil, "somebody"))

	err = keeps(after)
	for _, want := range []string{
		"feed news: filter: 1:8: no field zing in record", "model zm 1, of feed old: ", "variant treatment of experiment fresher sets a filter, and 1:8: no field zing in record", "change, stop or drop these first",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if strings.Contains(fmt.Sprint(err), "likes") {
		t.Errorf("feed old reads nothing that goes: %v", err)
	}
	if err := keeps(withoutFirst); err != nil {
		t.Errorf("the other has all fields: %v", err)
	}
	if _, err = s.run("experiment", "stop", "fresher"); err != nil {
		t.Error(err)
	}
	if err := keeps(after); err == nil || strings.Contains(err.Error(), "fresher") {
		t.Errorf("of a stopped experiment: %v", err)
	}
	err = rollouts.KeepsReaders(s.Context(), &clusters.Flags{Etcd: s.Etcd, Cluster: "mistyped"}, known, after)
	if err == nil || !strings.Contains(err.Error(), "no cluster mistyped has ever been assigned there") {
		t.Errorf("of another cluster: %v", err)
	}
	err = rollouts.KeepsReaders(cancelled(t), &clusters.Flags{Etcd: []string{"127.0.0.1:1"}, Cluster: "test"}, known, after)
	if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Reason != millrace.ReasonUnavailable || e.Field != "etcd" {
		t.Errorf("without a cluster: %v", err)
	}
}

// What a built-in model reads is a reader's like any other: the last schema that has
// a field of it is not taken back.
func TestRetireKeepsBuiltInModels(t *testing.T) {
	t.Parallel()
	s := newStage(t, "n1")
	admitted, err := registry.New(nil, nil)
	s.Check(err)
	shorter, err := schemas.Parse([]byte(strings.Replace(schemas.Activity().JSON(), `{"name": "likes", "type": "long", "default": 0},`, "", 1)))
	s.Check(err)
	for _, one := range []*schemas.Schema{shorter, schemas.Activity()} {
		_, err = admitted.Admit(one)
		s.Check(err)
	}
	known := admitted.Snapshot()
	keeps := func(retired *schemas.Schema) error {
		after, err := known.Without(retired.Fingerprint())
		s.Check(err)
		return rollouts.KeepsReaders(s.Context(), &clusters.Flags{Etcd: s.Etcd, Cluster: "test"}, known, after)
	}
	err = keeps(schemas.Activity())
	if err == nil || !strings.Contains(err.Error(), "what no schema would have then is read by built-in model home: record.likes; keep the schema, or have one with these fields first: built-in models stay") {
		t.Errorf("of the one that alone has likes: %v", err)
	}
	if err := keeps(shorter); err != nil {
		t.Errorf("the other has all fields: %v", err)
	}
}

func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// A cluster with a private feed is well. One whose experiment does not fit any more
// is told by doctor, by the broker's metric and by list, which agree.
func TestDoctorOnPrivateFeeds(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	o.load(`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`)
	write := func(name, text string) string {
		file := filepath.Join(o.dir, name)
		o.must(os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	doctor := "doctor --brokers " + o.Kafka + " --grpc " + o.GRPC
	o.shows(doctor, "ok    experiments are whole    0 in 0 documents", "ok    a broker answers")
	o.shows("feed define " + write("news.yaml", "name: news\nmodel: recency\n"))
	o.shows("experiment define " + write("a.yaml", strings.NewReplacer("[home]", "[news]", "limit: 30", "window: 1h").Replace(clitest.Fresher)))
	o.shows("experiment start fresher --share 100")
	cl, err := (&clusters.Flags{Etcd: []string{o.Etcd}}).Open(o.ctx)
	o.must(err)
	defer cl.Close()
	feeds, err := artefacts.Watch(o.ctx, cl, feeds.Kind)
	o.must(err)
	v, _, err := feeds.Publish(o.ctx, "news", "", []byte("name: news\nmodel: recency\nprivate: true\n"), "somebody")
	o.must(err)
	o.must(feeds.Serve(o.ctx, v, nil, "somebody")) // past the command, which refuses it
	const unfit = "experiment fresher, running, has a fault, and brokers give nobody a variant of it: "
	o.shows(doctor, "warn  experiments are whole    "+unfit, "ok    a broker answers", "index nodes were not asked: the built-in feed recent is not served here", "; --feed names one that is")
	if got := o.shows(doctor+" --feed news", "ok    a broker answers"); strings.Contains(got, "not asked") {
		t.Errorf("by a feed of one's own: %s", got)
	}
	o.shows("experiment list", unfit)
	clitest.WaitFor(o.ctx, t, "the metric", func() bool {
		all, err := o.Metrics().Gather()
		o.must(err)
		for _, f := range all {
			if f.GetName() == "millrace_broker_experiment_fault" {
				return len(f.Metric) == 1
			}
		}
		return false
	})
	o.shows("experiment stop fresher", "state running → stopped")
	o.shows(doctor, "ok    experiments are whole    1 in 1 documents")
}
