package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/schemas"
)

// operated is a cluster of two nodes that have everything, and their audit logs.
type operated struct {
	*minicluster.Cluster
	t   *testing.T
	ctx context.Context
	dir string

	logs map[millrace.NodeID]*audit.Log
}

func startOperated(t *testing.T) *operated {
	t.Helper()
	ctx := clitest.Bounded(t)
	o := &operated{t: t, ctx: ctx, dir: t.TempDir(), logs: map[millrace.NodeID]*audit.Log{}}
	var err error
	o.Cluster, err = minicluster.Start(ctx, minicluster.Config{Dir: t.TempDir(), Nodes: 2, Replicas: 2, Node: func(n *indexnode.Config) {
		n.Audit, err = audit.Open(o.acts(n.ID))
		o.must(err)
		o.logs[n.ID] = n.Audit
	}})
	o.must(err)
	t.Cleanup(func() { o.must(o.Close()) })
	return o
}

func (o *operated) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *operated) acts(id millrace.NodeID) string {
	return filepath.Join(o.dir, "audit-"+string(id))
}

// audited returns what both audit logs have.
func (o *operated) audited() (all []audit.Entry) {
	o.t.Helper()
	for _, id := range []millrace.NodeID{"node-1", "node-2"} {
		text, err := os.ReadFile(o.acts(id))
		o.must(err)
		for line := range strings.Lines(string(text)) {
			var e audit.Entry
			o.must(json.Unmarshal([]byte(line), &e))
			all = append(all, e)
		}
	}
	return all
}

// load brings notes in, and waits until both nodes have them.
func (o *operated) load(notes ...string) {
	o.t.Helper()
	_, err := o.Produce(o.ctx, o.ContentTopic(), schemas.Note(), clitest.Lines(notes...))
	o.must(errors.Join(err, o.WaitReady(o.ctx), o.WaitIndexed(o.ctx)))
}

// run runs a command on the cluster.
func (o *operated) run(line string, more ...string) (string, error) {
	o.t.Helper()
	return execute(o.ctx, append(append(strings.Fields(line), "--etcd", o.Etcd), more...)...)
}

// shows runs a command whose output has texts, and lacks those that begin with !.
func (o *operated) shows(line string, want ...string) string {
	o.t.Helper()
	out, err := o.run(line)
	if err != nil {
		o.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	for _, w := range want {
		if text, not := strings.CutPrefix(w, "!"); strings.Contains(out, text) == not {
			o.t.Errorf("%s: want %q in\n%s", line, w, out)
		}
	}
	return out
}

// refuses runs a command that is refused with a field and a way out.
func (o *operated) refuses(line, field string) {
	o.t.Helper()
	out, err := o.run(line)
	if e := (*millrace.Error)(nil); !errors.As(err, &e) || e.Field != field || e.WayOut == "" {
		o.t.Errorf("%s: %v\n%s", line, err, out)
	}
}

func TestTimelineCommands(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	o.load(
		`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z","stars":5}`,
		`{"id":"b","author":"member:1","kind":"post","at":"2026-01-02T00:00:00Z","stars":1}`,
		`{"id":"b","author":"member:1","kind":"post","at":"2026-01-02T00:00:00Z","stars":2}`,
		`{"id":"c","author":"member:1","kind":"share","at":"2026-01-03T00:00:00Z"}`,
	)
	o.shows("timeline get member:1 --node node-1", `"stars":5`, "  store  ", "!  both  ", "post: not in the cache", "share")
	_, err := execute(o.ctx, "feed", "--addr", o.GRPC, "--viewer", "member:9", "--entities", "member:1")
	o.must(err)
	if a, b := o.run1("timeline get member:1 --node node-1"), o.run1("timeline get member:1 --node node-2"); !strings.Contains(a+b, "  both  ") || strings.Contains(a+b, "  cache  ") || !strings.Contains(a+b, "post: the cache has all of it") {
		t.Errorf("after a question:\n%s\n%s", a, b)
	}
	o.shows("timeline get member:1 --in store --type post --since 2026-01-02T00:00:00Z", "  b  ", "!  a  ", "!share", "!cache")
	o.shows("timeline get member:1 --in store --type post --until 2026-01-02T00:00:00Z", "  a  ", "!  b  ")
	o.shows("timeline get member:1 --type post --limit 1", "  b  ", "!  a  ", "there is more")
	o.shows("timeline get nobody --type post", "no records")
	out := o.shows("timeline get member:1 --type post -o json", `"record":{`, `"in_store":true`)
	if n := strings.Count(out, "\n"); n != 2 {
		t.Errorf("%d lines of JSON:\n%s", n, out)
	}
	// The version that lost is in the log, with where it came from.
	o.shows("timeline history member:1 --id b", `"stars":1`, `"stars":2`, o.ContentTopic()+"/", "!  a  ", "read from 0 to ")
	o.shows("timeline history member:1 --since 600000h", `"stars":1`)
	o.shows("timeline history member:1 --type share -o json", `"id":"c"`, "!post")
	for line, field := range map[string]string{
		"timeline get member:1 --in disk":                         "in",
		"timeline get member:1 --limit 0":                         "limit",
		"timeline get member:1 --limit 100000":                    "limit",
		"timeline get member:1 --since never":                     "since",
		"timeline get member:1 --since 1h --until 2h":             "until",
		"timeline get member:1 -o yaml":                           "output",
		"timeline get member:1 --node node-9":                     "node",
		"timeline get " + strings.Repeat("x", 600):                "entity",
		"timeline history member:1 --since x":                     "since",
		"timeline get member:1 --since=-1h":                       "since",
		"timeline get member:1 --until=-1h":                       "until",
		"timeline history member:1 --since 2099-01-01T00:00:00Z":  "since",
		"timeline get member:1 --type " + strings.Repeat("x", 99): "type",
	} {
		o.refuses(line, field)
	}
	if all := o.audited(); len(all) > 0 {
		t.Errorf("reading is not written down: %v", all)
	}
}

func (o *operated) run1(line string) string {
	o.t.Helper()
	return o.shows(line)
}

// A record that is deleted is gone from the store, the cache and answers of
// every replica, in all timelines it went to; what is only shown touches nothing.
func TestRecordDelete(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	_, err := o.Produce(o.ctx, o.ContentTopic(), schemas.Activity(), clitest.Lines(
		`{"id":"a","actor":"member:1","verb":"post","created_at":1700000000000,"about":["topic:1","topic:2"],"text":"secret"}`,
		`{"id":"b","actor":"member:1","verb":"post","created_at":1700000000001}`,
		`{"id":"c","actor":"member:2","verb":"like","created_at":1700000000002}`,
		`{"id":"d","actor":"member:3","verb":"like","created_at":1700000000003}`,
	))
	o.must(errors.Join(err, o.WaitReady(o.ctx), o.WaitIndexed(o.ctx)))
	feed := func() string {
		out, err := execute(o.ctx, "feed", "--addr", o.GRPC, "--viewer", "member:9", "--entities", "member:1,member:2,member:3,topic:1,topic:2")
		o.must(err)
		return out
	}
	for range 4 { // both nodes have it in their caches, as a rule
		if out := feed(); !strings.Contains(out, "secret") {
			t.Fatalf("the record is not in the feed:\n%s", out)
		}
	}
	for line, field := range map[string]string{
		"record delete":   "ID",
		"record delete a": "entity",
		"record delete a --entity x --everywhere":                     "everywhere",
		"record delete --file /nothing/there":                         "file",
		"record delete a --file x":                                    "file",
		"record delete a --entity member:2":                           "ID",
		"record delete a --entity member:*":                           "ID",
		"record delete * --everywhere":                                "ID",
		"record delete --everywhere":                                  "ID",
		"record delete a --entity " + strings.Repeat("x", 600):        "entity",
		"record delete a --entity member:1 --topic nowhere":           "topic",
		"record delete a --entity member:1 -o yaml":                   "output",
		"record delete " + strings.Repeat("x", 600) + " --everywhere": "id",
	} {
		o.refuses(line, field)
	}
	o.shows("record delete a --entity member:1", "member:1/post", "topic:1/post", "topic:2/post", "node-1", "node-2", "in the store", "1 tombstones would go to topic "+o.ContentTopic(), "!deleted")
	if all := o.audited(); len(all) > 0 || !strings.Contains(feed(), "secret") {
		t.Fatalf("what is only shown was done: %v", all)
	}
	out := o.shows("record delete a --entity topic:2 --apply --yes", "every replica that is there has applied it, in 3 timelines", "deleted", "--everywhere", "!NOT FOUND")
	if n := strings.Count(out, " deleted\n"); n != 6 {
		t.Errorf("%d of 6 replicas of its timelines show it as deleted:\n%s", n, out)
	}
	if out := feed(); strings.Contains(out, "secret") || !strings.Contains(out, "b") {
		t.Errorf("after the deletion:\n%s", out)
	}
	o.shows("timeline history topic:1", "secret", "DELETED") // the log keeps both
	o.shows("record delete a --entity member:1 --apply --yes", "all that was found is deleted already")
	all := o.audited()
	if len(all) != 1 || all[0].Act != "delete" || all[0].Who != "anybody" || !strings.Contains(all[0].On, `"a" of type post`) || !strings.Contains(all[0].After, o.ContentTopic()) {
		t.Errorf("the audit logs have %+v", all)
	}

	// Of a file, everywhere.
	file := filepath.Join(t.TempDir(), "erase")
	o.must(os.WriteFile(file, []byte(`{"id":"c"}`+"\n\n"+`{"id":"d","entity":"member:3"}`+"\n"+`{"id":"nowhere","entity":"member:3"}`+"\n"), 0o600))
	o.shows("record delete --file "+file, `NOT FOUND`, `1 of the records named: "nowhere" of "member:3"`, "--everywhere")
	out = o.shows("record delete --apply --yes -o json --file "+file, `"tombstones":2`, `"applied":true`, `"not_found":[{"id":"nowhere","entity":"member:3"}]`, `"everywhere":false`)
	type sighting struct {
		Deleted bool
		InCache bool `json:"in_cache"`
	}
	var shown struct{ Found, After []sighting }
	o.must(json.Unmarshal([]byte(out), &shown))
	if len(shown.Found) != 4 || len(shown.After) != 4 {
		t.Errorf("found %+v, after %+v", shown.Found, shown.After)
	}
	for _, s := range shown.After {
		if !s.Deleted || s.InCache {
			t.Errorf("after: %+v", s)
		}
	}
	if all := o.audited(); len(all) != 3 {
		t.Errorf("the audit logs have %+v", all)
	}
	o.must(os.WriteFile(file, []byte(`{"name":"c"}`), 0o600))
	o.refuses("record delete --file "+file, "file")
}

// Also where nodes do not know all types by name.
func TestRecordDeleteAmongManyTypes(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	notes := []string{`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`}
	for i := range 300 { // 256 are known by name
		notes = append(notes, fmt.Sprintf(`{"id":"n%d","author":"member:%d","kind":"kind-%[1]d","at":"2026-01-01T00:00:00Z"}`, i, i%40))
	}
	o.load(notes...)
	o.refuses("timeline get member:1", "type")
	for _, line := range []string{"n299 --entity member:19", "n0 --entity member:0", "a --everywhere"} {
		o.shows("record delete "+line, "1 tombstones would go")
		o.shows("record delete "+line+" --apply --yes", "deleted")
		o.shows("record delete "+line, "all that was found is deleted already")
	}
}

// What is cached is dropped where it is named, and only shown before.
func TestCacheDrop(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	o.load(
		`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`,
		`{"id":"b","author":"member:2","kind":"post","at":"2026-01-02T00:00:00Z"}`,
	)
	cached := func() (n int) { // a timeline has one record
		for _, records := range o.gauges("millrace_cache_fat_records") {
			n += int(records)
		}
		return n
	}
	ask := func() {
		_, err := execute(o.ctx, "feed", "--addr", o.GRPC, "--viewer", "member:9", "--entities", "member:1,member:2")
		o.must(err)
	}
	ask()
	all := cached() // two, or more where a slow node's part was asked of the other too
	for line, field := range map[string]string{
		"cache drop":                                      "entity",
		"cache drop --entity x --all":                     "entity",
		"cache drop --all":                                "all",
		"cache drop --all --override mistyped":            "override",
		"cache drop --partition 720":                      "partition",
		"cache drop --entity x --node node-9":             "node",
		"cache drop --entity " + strings.Repeat("x", 600): "entity",
	} {
		o.refuses(line, field)
	}
	o.shows("cache drop --entity member:1", "node-1", "node-2", "!dropped")
	if acts := o.audited(); len(acts) > 0 || cached() != all {
		t.Fatalf("what is only shown was done: %v, %d of %d timelines", acts, cached(), all)
	}
	o.shows("cache drop --entity member:1 --apply --yes", "dropped on 2 nodes")
	if n := cached(); n == 0 || n >= all {
		t.Errorf("%d of %d timelines are left", n, all)
	}
	ask()
	o.shows("cache drop --partition 644 --apply --yes -o json", `"timelines":1`, `"applied":true`) // of member:1
	ask()
	o.shows("cache drop --all --override millrace --apply --yes", "dropped on 2 nodes")
	if n := cached(); n != 0 {
		t.Errorf("%d timelines are left", n)
	}
	if all := o.audited(); len(all) != 6 || all[0].Act != "drop cache" || !strings.Contains(all[0].On, `"member:1"`) {
		t.Errorf("the audit logs have %+v", all)
	}
}

// A node whose ingest is paused applies nothing and says so, answers by the
// other one, and goes on when it is resumed, and by itself.
func TestIngestPause(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	o.load(`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`)
	for line, field := range map[string]string{
		"ingest pause node-1":                           "for",
		"ingest pause node-1 --for 25h":                 "for",
		"ingest pause node-9 --for 1m":                  "node",
		"ingest pause node-1 --for 1m --override other": "override",
		"ingest resume node-9":                          "node",
	} {
		o.refuses(line, field)
	}
	o.shows("ingest pause node-1 --for 1h", "node-1 would apply nothing until", "720 partitions")
	o.shows("ingest resume node-1", "node-1 is not paused", "!goes on")
	if all := o.audited(); len(all) > 0 {
		t.Fatalf("what is only shown was done: %v", all)
	}
	o.shows("ingest pause node-1 --for 1h --apply --yes", "node-1 applies nothing until")
	clitest.WaitFor(o.ctx, t, "the pause to be told while nothing comes", func() bool {
		out, err := o.run("cluster show")
		return err == nil && strings.Contains(out, "node-1: 720 partitions are ready: paused: an operator has paused the node until")
	})
	o.refuses("ingest pause node-2 --for 1h", "override")
	_, err := o.Produce(o.ctx, o.ContentTopic(), schemas.Note(), clitest.Lines(`{"id":"b","author":"member:1","kind":"post","at":"2026-01-02T00:00:00Z"}`))
	o.must(err)
	has := func(node, id string) bool {
		return strings.Contains(o.shows("timeline get member:1 --in store --node "+node), "  "+id+"  ")
	}
	clitest.WaitFor(o.ctx, t, "the other node to have the record", func() bool { return has("node-2", "b") })
	clitest.WaitFor(o.ctx, t, "the pause to be told", func() bool {
		out, err := o.run("cluster show")
		return err != nil && strings.Contains(out, "paused") && strings.Contains(out, "millrace ingest resume")
	})
	if has("node-1", "b") {
		t.Error("a node that is paused has the record")
	}
	if paused := o.gauge("millrace_indexnode_ingest_paused_seconds"); paused < 3000 {
		t.Errorf("paused for %v s", paused)
	}
	o.refuses("ingest pause node-2 --for 1h --apply --yes", "override")
	o.shows("ingest resume node-1 --apply --yes", "paused until 20", "node-1 goes on")
	clitest.WaitFor(o.ctx, t, "the node to go on", func() bool { return has("node-1", "b") })
	clitest.WaitFor(o.ctx, t, "the cluster to be well", func() bool {
		_, err := o.run("cluster show")
		return err == nil
	})
	o.shows("ingest pause node-1 --for 1s --apply --yes -o json", `"applied":true`)
	_, err = o.Produce(o.ctx, o.ContentTopic(), schemas.Note(), clitest.Lines(`{"id":"c","author":"member:1","kind":"post","at":"2026-01-03T00:00:00Z"}`))
	o.must(err)
	clitest.WaitFor(o.ctx, t, "the pause to end by itself", func() bool { return has("node-1", "c") })
	all := o.audited()
	if len(all) != 3 || all[0].Act != "pause ingest" || all[1].Act != "resume ingest" || all[1].Before != all[0].After || all[0].Before != "not paused" {
		t.Errorf("the audit logs have %+v", all)
	}
}

// gauge is the greatest value of a gauge in the cluster.
func (o *operated) gauge(name string) float64 {
	o.t.Helper()
	return slices.Max(append(o.gauges(name), 0))
}

// gauges are all values of a gauge in the cluster.
func (o *operated) gauges(name string) (values []float64) {
	o.t.Helper()
	all, err := o.Metrics().Gather()
	o.must(err)
	for _, f := range all {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				values = append(values, m.GetGauge().GetValue())
			}
		}
	}
	return values
}

// Records that were refused for want of their schema come in once it is there,
// and what would be refused again is left out.
func TestDeadLettersReplay(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	p, err := kafka.NewProducer(kafka.At(o.Kafka), "", nil)
	o.must(err)
	defer p.Close()
	late, err := schemas.Parse([]byte(strings.ReplaceAll(schemas.Note().JSON(), "Note", "LateNote")))
	o.must(err)
	body, err := late.EncodeJSON([]byte(`{"id":"late","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`))
	o.must(err)
	for _, value := range [][]byte{schemas.Frame(late.Fingerprint(), body), []byte("poison")} {
		p.Produce(o.ctx, kafka.Outgoing{Topic: o.ContentTopic(), Key: []byte("k"), Value: value})
	}
	o.must(p.Flush(o.ctx))
	clitest.WaitFor(o.ctx, t, "both to be refused", func() bool {
		out, err := execute(o.ctx, "deadletters", "list", "--brokers", o.Kafka)
		return err == nil && strings.Contains(out, "unknown-schema") && strings.Contains(out, "bad-framing")
	})
	replay := "deadletters replay --brokers " + o.Kafka
	for line, field := range map[string]string{
		replay:                       "OFFSET",
		replay + " 0 --all":          "OFFSET",
		replay + " x":                "OFFSET",
		replay + " 99":               "OFFSET",
		replay + " --all --limit 0":  "limit",
		replay + " --all --since no": "since",
		replay + " 0 -o yaml":        "output",
	} {
		o.refuses(line, field)
	}
	o.shows(replay+" --all --apply --yes", "left out", "0 of 2 dead letters would be written again", "!are written again")
	o.load(`{"id":"a","author":"member:2","kind":"post","at":"2026-01-01T00:00:00Z"}`)
	_, err = o.Produce(o.ctx, o.ContentTopic(), late, clitest.Lines(`{"id":"other","author":"member:3","kind":"post","at":"2026-01-01T00:00:00Z"}`)) // publishes its schema
	o.must(errors.Join(err, o.WaitIndexed(o.ctx)))
	o.shows(replay+" --all", "late", "goes to "+o.ContentTopic(), "left out", "1 of 2 dead letters would be written again")
	o.shows(replay+" --all --to nowhere", "0 of 2")
	if all := o.audited(); len(all) > 0 {
		t.Fatalf("what is only shown was done: %v", all)
	}
	o.shows("timeline get member:1", "no records")
	for range 1100 { // more than a node takes in a call
		p.Produce(o.ctx, kafka.Outgoing{Topic: "dead-letters", Value: []byte("poison"), Headers: []kafka.Header{{Key: kafka.HeaderReason, Value: []byte("bad-framing")}}})
	}
	o.must(p.Flush(o.ctx))
	o.shows(replay+" --all --reason unknown-schema --apply --yes", "1 are written again", "!left out")
	o.shows(replay+" --all --limit 5000 --apply --yes", "1 of 1102 dead letters would be written again", "1 are written again")
	o.shows(replay+" --all --after 5 --limit 5000", "!unknown-schema", "0 of 109")
	clitest.WaitFor(o.ctx, t, "the record to come in", func() bool { return strings.Contains(o.shows("timeline get member:1"), "  late  ") })
	o.shows(replay+" 0 1 -o json --apply --yes", `"id":"late"`, `"applied":true`, `"applied":false`)
	if all := o.audited(); len(all) != 3 || all[0].Act != "replay" || !strings.Contains(all[0].On, o.ContentTopic()+"/0/") {
		t.Errorf("the audit logs have %+v", all)
	}
}

// A replica that an operator has taken out answers nobody and is not made anew
// until it is released; then it has all again.
func TestPartitionQuarantine(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	o.load(`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`)
	const of = " 644 --node node-1" // of member:1
	for line, field := range map[string]string{
		"partition quarantine 720 --node node-1 --why x":              "partition",
		"partition quarantine 1 --node node-9 --why x":                "node",
		"partition quarantine 1 --node node-1 --why x --override bad": "override",
		"partition quarantine 1 --node node-1 --why=":                 "why",
		"partition quarantine 1 --node node-1 --why x\x1b[2J":         "why",
		"partition quarantine 1 --node node-1 --why x -o yaml":        "output",
		"partition release" + of:                                      "partition",
	} {
		o.refuses(line, field)
	}
	o.shows("partition quarantine"+of+" --why doubt", "on node-1 is ready", "it is to answer nobody and apply nothing", "!done")
	if all := o.audited(); len(all) > 0 {
		t.Fatalf("what is only shown was done: %v", all)
	}
	o.shows("partition quarantine"+of+" --why doubt --apply --yes", "done")
	o.shows("partition quarantine 3 --node node-1 --why rumour --apply --yes", "done")
	o.refuses("timeline get member:1 --node node-1", "partition")
	clitest.WaitFor(o.ctx, t, "both quarantines to be told, each with its reason", func() bool {
		out, err := o.run("cluster show")
		return err != nil && strings.Contains(out, "by_operator") && strings.Contains(out, "doubt (anybody)") && strings.Contains(out, "rumour (anybody)")
	})
	if out, err := o.run("partition check 644"); err == nil || !strings.Contains(out, "does not answer: quarantined (by_operator)") || strings.Contains(out, "are equal") {
		t.Errorf("a check while one of two is quarantined: %v\n%s", err, out)
	}
	o.shows("partition release 3 --node node-1 --apply --yes", "done")
	o.refuses("partition quarantine 644 --node node-2 --why doubt --apply --yes", "override")
	o.shows("timeline get member:1", "on node-2", "  a  ")
	o.shows("partition release"+of, "is quarantined", "doubt", "what it holds is deleted, and it is made anew", "!done")
	o.refuses("partition quarantine"+of+" --why again", "partition")
	o.shows("partition release"+of+" --apply --yes -o json", `"applied":true`)
	clitest.WaitFor(o.ctx, t, "the replica to be made anew", func() bool {
		out, err := o.run("timeline get member:1 --in store --node node-1")
		return err == nil && strings.Contains(out, "is ready on node-1") && strings.Contains(out, "  a  ")
	})
	if all := o.audited(); len(all) != 4 || all[0].Act != "quarantine" || all[3].Act != "release" || all[0].On != "partition 644 of node-1" {
		t.Errorf("the audit logs have %+v", all)
	}
	for p := range 3 {
		o.oneOf(fmt.Sprintf("partition quarantine %d --why doubt --apply --yes --node", 700+p))
	}
}

// Of two operators who take out the two replicas of something in the same moment, one
// is refused, who has the word to override.
func TestTwoOperatorsPause(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	o.load(`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`)
	for range 3 {
		node := o.oneOf("ingest pause --for 1h --apply --yes")
		o.shows("ingest resume --apply --yes "+node, "goes on")
		clitest.WaitFor(o.ctx, t, "both nodes to go on", func() bool {
			out, err := o.run("cluster show")
			return err == nil && !strings.Contains(out, "paused")
		})
	}
}

// oneOf runs a command for both nodes at once, and returns the node of which it
// was done.
func (o *operated) oneOf(line string) string {
	o.t.Helper()
	var errs [2]error
	var both sync.WaitGroup
	for i := range errs {
		both.Go(func() { _, errs[i] = o.run(fmt.Sprintf("%s node-%d", line, i+1)) })
	}
	both.Wait()
	done := slices.Index(errs[:], nil)
	var refused *millrace.Error
	if done < 0 || !errors.As(errs[1-done], &refused) || refused.Field != "override" {
		o.t.Fatalf("%s: of node-1 %v, of node-2 %v", line, errs[0], errs[1])
	}
	return fmt.Sprintf("node-%d", done+1)
}
