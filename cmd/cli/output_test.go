package cli

import (
	"bytes"
	"encoding/json"
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
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/experiment/compare"
	"github.com/millrace/millrace/relevance/interleave"
	"github.com/millrace/millrace/schemas"
)

// tellsByName are names of commands that show something.
var tellsByName = regexp.MustCompile(`(^| )(list|show|history|status|explain|diff|check|get|acts|cuts)$`)

// tells reports whether a command shows something and changes nothing, or may.
func tells(path string) bool {
	guard, said := guards[path]
	also := []string{"feed", "cluster page-keys"}
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
	r.done("experiment define " + r.file("more.yaml", strings.NewReplacer("ranking", "more", "fresher", "longer").Replace(fresher)))
	r.done("experiment start longer --share 50")
	other := r.file("other.yaml", strings.NewReplacer("ranking", "other", "fresher", "another", "limit: 30", "window: 1h").Replace(fresher))
	r.done("cluster page-keys --rotate --apply --yes")
	note := r.file("note.avsc", strings.Replace(schemas.Note().JSON(), `"fields": [`, `"fields": [{"name": "mood", "type": "string", "default": ""},`, 1))
	role := r.file("coordinator.yaml", "etcd: [\"127.0.0.1:2379\"]\n")
	well := httptest.NewServer(admin.Handler(prometheus.NewRegistry(), func() error { return nil }, http.NotFoundHandler()))
	defer well.Close()
	ready := well.Listener.Addr().String()
	shown := shownAt("q1", "member:9", time.Now(), "a", "b")
	shown.Shadows, shown.ShadowRankings = []exposure.Model{{Name: "next", Version: "2"}}, []exposure.ShadowRanking{{Overlap10: 0.5, Tau: math.NaN(), Items: []exposure.ShadowItem{{ID: "b", Entity: "member:9", Type: "post"}}}}
	writeExposures(r.ctx, t, r.Kafka, shown)
	waitFor(r.ctx, t, "the group that is stuck to be missed", func() bool { out, _ := r.run("cluster show"); return strings.Contains(out, "input_stalled") })
	log, who := " --brokers "+r.Kafka, clusters.Who()
	runs := map[string]both{
		"backup acts": {line: "--from " + bucket, facts: []string{"somebody", "cut"}}, "backup cuts": {line: "--from " + bucket}, "backup list": {line: "--from " + bucket},
		"backup status": {line: "--from " + bucket, facts: []string{"720 partitions have no backup", `"ok":false`}}, "backup verify": {line: "--depth meta --from " + bucket},
		"cluster explain": {line: "17", facts: []string{"node-1", "node-2", `"partition":17`}}, "cluster history": {facts: []string{who, "rotate"}}, "cluster plan": {facts: []string{"node-1", `"wanted":2`}},
		"cluster show": {facts: []string{"node-1", "alive", "input_stalled", `"ok":false`, `"unserved":[]`}}, "cluster status": {facts: []string{`"plan":null`}}, "cluster page-keys": {facts: []string{`"taken":true`, `"signs_from":"20`}},
		"context list": {facts: []string{"prod", `"current":true`}}, "context show": {facts: []string{"127.0.0.1:2379", `{"contexts":{"prod":{`}},
		"config check": {line: "--role coordinator " + role, facts: []string{"127.0.0.1:2379", `"faults":[]`}}, "config reference": {line: "contexts", facts: []string{"contexts.NAME.etcd", `{"contexts":[`}},
		"deadletters list": {line: log, facts: []string{"unknown-schema", r.ContentTopic() + "/0/0"}}, "deadletters show": {line: "0" + log, facts: []string{"unknown-schema", `"record":{`}},
		"doctor":          {line: "--grpc " + r.GRPC + log, facts: []string{"its topics fit", "group stuck", "a broker answers", `"result":"ok"`, `"result":"fail"`, `"way_out":"`}},
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
		"topics history": {line: log}, "topics show": {line: log, facts: []string{"timeline", "720", "stuck", "posts", `"partitioned_through":"20`, `"offset":5`}},
		"version": {facts: []string{"go1", `"os":"`}},
		"why":     {line: "--record a --viewer member:9 --entities member:1 --addr " + r.GRPC, facts: []string{"member:1", `"findings":[{`}},
	}
	elsewhere := map[string]string{
		"backup show": "see TestBackupCommands", "backup diff": "see TestBackupCommands", "state": "see TestState",
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
	all := jsonOf(r.t, path, asJSON)
	if want := max(is.lines, 0); is.lines == 0 && len(all) != 1 || is.lines != 0 && len(all) != want {
		r.t.Errorf("%q writes %d values:\n%s", path, len(all), asJSON)
	}
}

var (
	// named are those in which names are people's own choice, or numbers.
	named = []string{"definition", "carries", "did", "record", "forced", "contexts", "has", "backups", "groups"}
	// maybe are what may be null: what there is not.
	maybe = []string{"plan", "leader", "split_p", "items", "millis", "value", "low", "high", "p", "delta", "tau", "served", "shadow", "shift", "receipt", "coverage", "explain", "record"}
	snake = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

// jsonOf reads the values that a command writes, and holds them against what all
// have: names in snake_case, and lists that are empty and not null.
func jsonOf(t *testing.T, path, text string) (all []any) {
	t.Helper()
	var check func(at string, v any, free bool)
	check = func(at string, v any, free bool) {
		if v == nil && !slices.Contains(maybe, at) {
			t.Errorf("%q: %s is null:\n%s", path, at, text)
		}
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				check(at, x, free)
			}
		case map[string]any:
			free = free || slices.Contains(named, at)
			for key, x := range v {
				if !free && !snake.MatchString(key) {
					t.Errorf("%q: %s of %s is no name in snake_case", path, key, at)
				}
				check(key, x, free)
			}
		}
	}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var v any
		err := d.Decode(&v)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("%q writes no JSON: %v\n%s", path, err, text)
		}
		all = append(all, v)
		check("", v, false)
	}
}

// A report in which nothing is known yet is JSON, too, and says what the text says.
func TestReportAsJSON(t *testing.T) {
	none := compare.Effect{Variant: "b", What: compare.Items, Effect: stats.Effect{Value: math.NaN(), Interval: stats.Interval{Low: math.Inf(-1), High: math.Inf(1)}, P: 1}}
	less := compare.Effect{Variant: "b", What: compare.Refused, Effect: stats.Effect{Value: 0.5, Interval: stats.Interval{Low: 0.25, High: 0.75}, P: 0.001}}
	r := compare.Report{
		Control: "a", First: 1, Last: 2, Actions: []string{"click"}, Effects: []compare.Effect{none, less},
		Arms: []compare.Arm{{Variant: "a", Weight: 0.5, Items: math.NaN(), Millis: [3]float64{math.NaN(), 2, 3}, Did: []int64{7}}},
		Drafts: []compare.Draft{
			{Variant: "b", Action: "click", Teams: []string{"home", "next"}, Impressions: interleave.Tally{Wins: 5, Losses: 2, Ties: 3}, Units: interleave.Tally{Wins: 2, Ties: 2}, First: [2]int64{1, 3}, Effect: stats.Effect{Value: 3, Interval: stats.Interval{Low: 0.5, High: math.Inf(1)}, P: 0.5}},
			{Variant: "b", Action: "hide", Teams: []string{"home", "next"}, Effect: stats.Effect{Value: math.NaN(), Interval: stats.Interval{Low: 0, High: math.Inf(1)}, P: 1}},
		},
		BeyondActs: 4, OtherTeams: 6,
	}
	var text, out bytes.Buffer
	if err := errors.Join(printReport(&text, &r, 0.05), display.WriteJSON(&out, reportOf(&r, 0.05))); err != nil {
		t.Fatal(err)
	}
	for said, field := range map[string]string{
		"too little is known": `"what":"items","says":"unknown","times":false,"value":null,"low":null,"high":null,"p":1`,
		"LESS: 0.5 times":     `"what":"refused","says":"less","times":true,"value":0.5,"low":0.25,"high":0.75`,
		"DID CLICK":           `"did":{"click":7},"items":null,"millis":[null,2,3]`,
		"answers from 1970":   `"first_answer":"1970-01-01T00:00:00.001Z"`,
		"\nb, drafted by home and next; next wins by more of its items:\nACTION  BY          WINS  LOSSES  TIES  Δ\nclick   impression  5     2       3     +0.15\nclick   viewer      2     0       2     +0.25\nclick   first item  3     1             no difference seen: 0.5 to any number times\n": `{"variant":"b","action":"click","teams":["home","next"],"impressions":{"wins":5,"losses":2,"ties":3,"delta":0.15},"viewers":{"wins":2,"losses":0,"ties":2,"delta":0.25},"first":[1,3],"says":"no difference","times":true,"value":3,"low":0.5,"high":null,"p":0.5}`,
		"\nhide    impression  0     0       0     -\nhide    viewer      0     0       0     -\nhide    first item  0     0             too little is known\n":                                                                                                                                          `"impressions":{"wins":0,"losses":0,"ties":0,"delta":null}`,
		"\n4 acts are of viewers, or with items of drafts, beyond those that are told apart\n":                                                                                                                                                                                                           `"acts_beyond_those_told_apart":4`,
		"\n6 acts are with drafts of other models than the definition's, and credit nobody\n":                                                                                                                                                                                                            `"acts_with_other_drafts":6`,
	} {
		if !strings.Contains(text.String(), said) || !strings.Contains(out.String(), field) {
			t.Errorf("not %q, or not %q:\n%s\n%s", said, field, &text, &out)
		}
	}
	jsonOf(t, "experiment status", out.String())
}
