package cli

import (
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/schemas"
)

// tellsByName are names of commands that show something.
var tellsByName = regexp.MustCompile(`(^| )(list|show|history|status|explain|diff|check|get|acts|cuts)$`)

// tells reports whether a command shows something and changes nothing, or may.
func tells(path string) bool {
	guard, said := guards[path]
	also := []string{"feed", "cluster page-keys", "model replay"}
	return said && guard == looks && path != "connections" || slices.Contains(also, path) || tellsByName.MatchString(path)
}

// steers reports whether a command changes who hosts what, or tells a plan what to
// do.
func steers(path string) bool {
	return strings.HasPrefix(path, "node ") || slices.Contains([]string{"cluster apply", "cluster pause", "cluster resume", "cluster cancel", "cluster rollback", "cluster roll"}, path)
}

// Every command that shows something, or moves partitions, writes JSON with
// -o json, by the one helper, and refuses a form that it does not have before it asks anybody.
func TestEveryLookHasOutput(t *testing.T) {
	asked := &counted{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go asked.accept(l)
	commands(root(), func(path string, c *cobra.Command) {
		f := c.Flags().Lookup("output")
		if f == nil {
			if tells(path) || steers(path) {
				t.Errorf("%q has no -o", path)
			}
			return
		}
		output, ok := f.Value.(*display.Form)
		if !ok || f.Shorthand != "o" {
			t.Errorf("%q has an --output of its own", path)
			return
		}
		if tells(path) && !strings.Contains(output.Choices(), "json") {
			t.Errorf("%q writes no JSON: %v", path, output.Choices())
		}
		args := append(strings.Fields(path), "-o", "yaml")
		for _, flag := range []string{"etcd", "brokers", "addr", "grpc", "admin"} {
			if c.Flag(flag) != nil {
				args = append(args, "--"+flag, l.Addr().String())
			}
		}
		_, err := execute(t.Context(), args...)
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != "output" || e.WayOut != "say "+output.Choices() {
			t.Errorf("%q with -o yaml: %v", path, err)
		}
	})
	if n := asked.n.Load(); n > 0 {
		t.Errorf("somebody was asked %d times", n)
	}
}

// counted counts connections.
type counted struct{ n atomic.Int64 }

func (c *counted) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		c.n.Add(1)
		conn.Close()
	}
}

// A word that no command has is refused with those that there are, and how the
// command is used.
func TestOutputIsRefusedInWords(t *testing.T) {
	c := root()
	c.SetArgs([]string{"config", "reference", "-o", "text"})
	if err := command.Run(t.Context(), c); err == nil || !strings.HasPrefix(err.Error(), "output: \"text\" is no form of output; say markdown or json\nusage: millrace config reference") {
		t.Errorf("%v", err)
	}
}

// both is what a command tells as text and as JSON.
type both struct {
	line string
	// facts are in the text and in the JSON; those that begin with { or " are in
	// the JSON alone, as text has them in words.
	facts []string
	lines int // of JSON, where there is one for each thing; else 0
}

// In JSON, commands tell what they tell as text.
func TestLooksTellTheSameAsJSON(t *testing.T) {
	r := startRehearsal(t)
	bucket := "file://" + t.TempDir()
	b, err := backup.Open(r.ctx, bucket, backup.Options{})
	r.must(err)
	r.must(errors.Join(b.Claim(r.ctx, backup.Identity{Name: "lost", ID: "1"}), b.WriteAct(r.ctx, audit.Entry{Who: "somebody", Act: "cut"}), b.Close()))
	t.Setenv("MILLRACE_CONTEXTS", r.file("contexts.yaml", "current: prod\ncontexts:\n  prod: {etcd: [\"127.0.0.1:2379\"]}\n"))
	news := r.file("news.yaml", "name: news\nmodel: recency\nlimit: 30\nfilter: record.stars > 3\n")
	r.done("experiment define " + r.file("more.yaml", strings.NewReplacer("ranking", "more", "fresher", "longer").Replace(clitest.Fresher)))
	r.done("experiment start longer --share 50")
	other := r.file("other.yaml", strings.NewReplacer("ranking", "other", "fresher", "another", "limit: 30", "window: 1h").Replace(clitest.Fresher))
	r.done("cluster page-keys --rotate --apply --yes")
	note := r.file("note.avsc", strings.Replace(schemas.Note().JSON(), `"fields": [`, `"fields": [{"name": "mood", "type": "string", "default": ""},`, 1))
	role := r.file("coordinator.yaml", "etcd: [\"127.0.0.1:2379\"]\n")
	well := httptest.NewServer(admin.Handler(prometheus.NewRegistry(), func() error { return nil }, http.NotFoundHandler()))
	defer well.Close()
	ready := well.Listener.Addr().String()
	shown := clitest.ShownAt("q1", "member:9", time.Now(), "a", "b")
	shown.Shadows, shown.ShadowRankings = []exposure.Model{{Name: "next", Version: "2"}}, []exposure.ShadowRanking{{Overlap10: 0.5, Tau: math.NaN(), Items: []exposure.ShadowItem{{ID: "b", Entity: "member:9", Type: "post"}}}}
	clitest.WriteExposures(r.ctx, t, r.Kafka, shown)
	clitest.WaitFor(r.ctx, t, "the group that is stuck to be missed", func() bool { out, _ := r.run("cluster show"); return strings.Contains(out, "input_stalled") })
	log, who := " --brokers "+r.Kafka, clusters.Who()
	runs := map[string]both{
		"backup acts": {line: "--from " + bucket, facts: []string{"somebody", "cut"}}, "backup cuts": {line: "--from " + bucket}, "backup list": {line: "--from " + bucket},
		"backup status": {line: "--from " + bucket, facts: []string{"720 partitions have no backup", `"ok":false`}}, "backup verify": {line: "--depth meta --from " + bucket},
		"cluster explain": {line: "17", facts: []string{"node-1", "node-2", `"partition":17`}}, "cluster history": {facts: []string{who, "rotate"}}, "cluster plan": {facts: []string{"node-1", `"wanted":2`}},
		"cluster show": {facts: []string{"node-1", "alive", "input_stalled", `"ok":false`, `"unserved":[]`, "broker-1", `"brokers":[{`}}, "cluster status": {facts: []string{`"plan":null`, `"gone":[]`}}, "cluster page-keys": {facts: []string{`"taken":true`, `"signs_from":"20`}},
		"context list": {facts: []string{"prod", `"current":true`}}, "context show": {facts: []string{"127.0.0.1:2379", `{"contexts":{"prod":{`}},
		"config check": {line: "--role coordinator " + role, facts: []string{"127.0.0.1:2379", `"faults":[]`}}, "config reference": {line: "contexts", facts: []string{"contexts.NAME.etcd", `{"contexts":[`}},
		"deadletters list": {line: log, facts: []string{"unknown-schema", r.ContentTopic() + "/0/0"}}, "deadletters show": {line: "0" + log, facts: []string{"unknown-schema", `"record":{`}},
		"doctor":          {line: "--grpc " + r.GRPC + log, facts: []string{"its topics fit", "group stuck", "brokers hear of changes", "a broker answers", `"result":"ok"`, `"result":"fail"`, `"way_out":"`}},
		"experiment diff": {line: other, facts: []string{"experiment another: it is new", `"changes":[`}}, "experiment explain": {line: "--feed home --viewer member:9", facts: []string{"fresher", "longer", `"cause":"`}},
		"experiment history": {line: "ranking", facts: []string{who, "put", `"version":"2"`}}, "experiment list": {facts: []string{"fresher", "stopped", "ranking", "treatment", `"share_percent":50`, `"left_out":[]`}},
		"experiment rule": {line: "longer", facts: []string{"treatment"}}, "experiment show": {line: "longer", facts: []string{"more-2026", `"slots_assigning":2000`, `"slots":10000`, `"set":{"limit":30}`, `"share":5000`}},
		"experiment status": {line: "longer" + log, facts: []string{"longer", "next", `"share_percent":50`, `"says":"unknown"`, `"no_exposures":0`}},
		"feed":              {line: "--viewer member:9 --entities member:1 --addr " + r.GRPC, facts: []string{"member:1", `"items":[{`}},
		"feed diff":         {line: news, facts: []string{"limit: 30", "filter: record.stars > 3", `"removed":["limit: 20`}}, "feed history": {line: "news", facts: []string{who, "serve", `{"serving":"2"`}},
		"feed shadows": {line: "home" + log, facts: []string{"next", "member:9", `"tau":null`, `"overlap_10":0.5`}},
		"feed list":    {facts: []string{"news", "recency", "home", `"built_in":true`, `"version":"2"`, `"types":[]`}}, "feed show": {line: "news", facts: []string{"20", `"definition":{"limit":20,"model":"recency","name":"news"}`}},
		"model diff": {line: "recency home", facts: []string{"feature", `"what":"feature"`}}, "model history": {line: "likes", facts: []string{"somebody", "serve", `"checksum":"`}},
		"model list": {facts: []string{"likes", "recency", "node-1", `"built_in":true`, `"serves":true`}}, "model show": {line: "home", facts: []string{"home", "record.", `"weight":`}},
		"model validate": {line: "../../relevance/builtin/home.yaml", facts: []string{"home", `"sealed":false`, `"operations":`}},
		"node list":      {facts: []string{"node-1", "alive", `"hosts":720`}}, "partition check": {line: "17", facts: []string{"node-2", `"partition":17`}}, "partition diff": {line: "17", lines: -1},
		"ready": {line: "--admin " + ready, facts: []string{ready, `"ready":true`}}, "schema check": {line: note + log, facts: []string{"record.mood", "adds", `"fits":true`, `"read_by":[]`}},
		"schema list":  {line: log, facts: []string{"millrace.Note", "known", r.retired.String(), `"notes":[`}},
		"timeline get": {line: "member:1 --in store", facts: []string{"2026-01-01", `"in_store":true`}, lines: 1}, "timeline history": {line: "member:1", facts: []string{r.ContentTopic() + "/0/0"}, lines: 1},
		"topics history": {line: log}, "topics show": {line: log, facts: []string{"timeline", "720", "stuck", "posts", `"partitioned_through":"20`, `"offset":5`, `"inputs":[{"name":"activity","end":1,"last_stable":1`}},
		"version": {facts: []string{"go1", `"os":"`}},
		"why":     {line: "--record a --viewer member:9 --entities member:1 --addr " + r.GRPC, facts: []string{"member:1", `"findings":[{`}},
	}
	elsewhere := map[string]string{
		"backup show": "see TestBackupCommands", "backup diff": "see TestBackupCommands", "state": "see TestState", "model replay": "see TestReplayAsJSON",
	}
	commands(root(), func(path string, c *cobra.Command) {
		is, here := runs[path]
		if here == (elsewhere[path] != "") && tells(path) {
			t.Errorf("%q is to be run, here or elsewhere", path)
		}
		if here {
			r.tellsBoth(path, c, is)
		}
	})
}

// apart runs a command, and returns what it writes to standard output alone.
func (r *rehearsal) apart(args []string) (string, error) {
	var out bytes.Buffer
	c := root()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(io.Discard)
	err := c.ExecuteContext(r.ctx)
	return out.String(), err
}

func (r *rehearsal) tellsBoth(path string, c *cobra.Command, is both) {
	r.t.Helper()
	args := slices.Concat(strings.Fields(path), strings.Fields(is.line))
	if c.Flag("etcd") != nil {
		args = append(args, "--etcd", r.Etcd)
	}
	text, err := r.apart(args)
	asJSON, err2 := r.apart(append(args, "-o", "json"))
	if (err == nil) != (err2 == nil) {
		r.t.Errorf("%q fails with %v as text, and with %v as JSON", path, err, err2)
	}
	for _, fact := range is.facts {
		alone := strings.ContainsAny(fact[:1], `{"`)
		if !alone && !strings.Contains(text, fact) || !strings.Contains(asJSON, fact) {
			r.t.Errorf("%q does not tell %q in both forms: %v\n%s\n%s", path, fact, err, text, asJSON)
		}
	}
	all := clitest.JSON(r.t, path, asJSON)
	if want := max(is.lines, 0); is.lines == 0 && len(all) != 1 || is.lines != 0 && len(all) != want {
		r.t.Errorf("%q writes %d values:\n%s", path, len(all), asJSON)
	}
}
