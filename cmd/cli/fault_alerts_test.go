//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"google.golang.org/grpc/metadata"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/schemas"
)

// hurried is by how much the alerts' times are shortened, so that a fault takes
// seconds until it is told, and an hour of normal load three minutes.
const hurried = 20

// TestFaultAlerts has a real Prometheus watch processes by the alerts of ops/, and
// breaks them: the alerts fire that are for the fault, and no others; in an hour of
// normal load none does. Left out are those that compare with weeks before, and those whose
// fault takes longer than a test may.
func TestFaultAlerts(t *testing.T) {
	each, measured := faultTime(t, 0)
	if !measured {
		t.Skip("takes minutes: run make outages")
	}
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Fatal("needs prometheus, of Debian's package of that name")
	}
	c := startFaultCluster(t, 3, loadLines())
	coordinator := clitest.FreeAddr(t)
	start(t, c.failed, "coordinator", "coordinator", "--config", clitest.WriteConfig(t, "coordinator",
		"name: one\nbrokers: [%q]\ntopic_prefix: %s\netcd: [%q]\nadmin: %q\ngrace: 1h\n", c.kafka, c.prefix, c.etcd.Addr(), coordinator))
	const good = "busy a-token-of-some-length\n"
	tokens := clitest.Written(t, good)
	second := c.startBroker("broker-2", fmt.Sprintf("authorization: {identities: {\"token:busy\": [caller]}, tokens: %q}\nquotas: {\"token:busy\": {per_second: 1}}\n", tokens))
	w := c.watchedBy(map[string][]string{
		"millrace-indexnode": c.admin, "millrace-broker": {c.front, second.front}, "millrace-partitioner": {c.sorter}, "millrace-coordinator": {coordinator},
	})
	busy, err := client.Dial(second.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	w.until("every process to be seen", func() bool { return w.up() == 7 && len(w.firing()) == 0 })
	began := time.Now()
	w.until("an hour of normal load", func() bool { return time.Since(began) > 6*each })
	if met := w.met(); len(met) > 0 {
		t.Errorf("on normal load %v fire", met)
	}

	command := func(line string) {
		t.Helper()
		run(t, append(strings.Fields(line), "--etcd", c.etcd.Addr())...)
	}
	of := kafkatest.Cluster{Brokers: kafka.At(c.kafka), Topics: kafka.Prefixed(c.prefix), Content: c.prefix + "activity"}
	topics := func(line string) string {
		t.Helper()
		return run(t, append(append([]string{"topics"}, strings.Fields(line)...), "--brokers", c.kafka, "--topic-prefix", c.prefix)...)
	}
	var host string  // of a replica of partition 17
	var end func()   // of a transaction
	var files string // of the second broker
	for _, f := range []struct {
		fault          string
		fires, mayAlso []string // what it is for, and what follows from it
		make, mend     func()
	}{
		{"a node is killed", []string{"MillraceProcessDown", "MillraceNodesGone"}, nil, c.nodes[2].kill, c.nodes[2].restart},
		{
			"both replicas of some partitions are gone", []string{"MillraceProcessDown", "MillraceNodesGone", "MillraceAnswersPartial"}, []string{"MillraceMassLoss"},
			func() { c.nodes[1].kill(); c.nodes[2].kill() }, func() { c.nodes[1].restart(); c.nodes[2].restart() },
		},
		{
			"a node is paused", []string{"MillraceNodePaused", "MillraceNodeBehind"}, []string{"MillraceAnswersOld"},
			func() { command("ingest pause node-1 --for 1h --apply --yes") }, func() { command("ingest resume node-1 --apply --yes") },
		},
		{"a replica is quarantined", []string{"MillraceReplicasQuarantined"}, nil, func() {
			for _, host = range []string{"node-1", "node-2"} { // one of which has it
				if _, err := output("partition", "quarantine", "17", "--node", host, "--why", "a test", "--apply", "--yes", "--etcd", c.etcd.Addr()); err == nil {
					return
				}
			}
			t.Fatal("no node has a replica of partition 17")
		}, func() { command("partition release 17 --apply --yes --node " + host) }},
		{
			"a caller asks for more than its quota", []string{"MillraceQuotaRefusals"}, nil,
			func() {
				w.beside = func() {
					ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(c.ctx, "authorization", "Bearer a-token-of-some-length"), time.Second)
					defer cancel()
					_, _ = busy.GetFeed(ctx, w.question) // most are refused
				}
			}, func() { w.beside = func() {} },
		},
		{"a file of tokens is malformed", []string{"MillraceFilesUnusable"}, nil, func() { rewrite(t, tokens, "busy short\n") }, func() { rewrite(t, tokens, good) }},
		{
			"no node is there", []string{"MillraceProcessDown", "MillraceNodesGone", "MillraceRequestsFail"}, []string{"MillraceMassLoss", "MillraceAnswersPartial"},
			func() {
				for _, n := range c.nodes {
					n.kill()
				}
			}, func() {
				for _, n := range c.nodes {
					n.restart()
				}
			},
		},
		{
			"a process has few files left", []string{"MillraceFilesNearLimit"}, nil,
			func() {
				files = strings.TrimSpace(second.broker.files(t, "--raw", "--noheadings", "--output", "SOFT", "--nofile"))
				second.broker.files(t, fmt.Sprintf("--nofile=%.0f:", metric(c.ctx, second.front, "process_open_fds")+1))
			}, func() { second.broker.files(t, "--nofile="+files+":") },
		},
		{
			"the plan in etcd is none", []string{"MillraceCoordinatorFault"}, nil,
			func() { c.put("steer/plan", "{") }, func() { c.put("steer/plan", "") },
		},
		{
			"a feed's definition is none", []string{"MillraceFeedNotTaken"}, nil,
			func() { c.serve(feeds.Kind, "broken", "feed: [") }, func() { c.serve(feeds.Kind, "broken", "") },
		},
		{
			"a document of experiments is none", []string{"MillraceExperimentNotTaken"}, nil,
			func() { c.serve(experiments.Kind, "broken", "[") }, func() { c.serve(experiments.Kind, "broken", "") },
		},
		{
			"a model is none", []string{"MillraceModelRefused"}, nil,
			func() { c.serve(indexnode.ModelsKind, "broken", "no archive") }, func() { c.serve(indexnode.ModelsKind, "broken", "") },
		},
		{
			"a process has little memory", []string{"MillraceMemoryNearLimit"}, []string{"MillraceProcessDown"},
			func() {
				os.Setenv("GOMEMLIMIT", "32MiB")
				second.broker.kill()
				second.broker.restart()
				os.Unsetenv("GOMEMLIMIT")
			}, func() { second.broker.kill(); second.broker.restart() },
		},
		{
			"a producer leaves its transaction open", []string{"MillraceIngestWaits"}, []string{"MillraceNodeBehind", "MillraceAnswersOld"},
			func() { end = c.holdsUp(of.Content) }, func() { end() },
		},
		{
			"a batch cannot be opened", []string{"MillraceIngestStuck"}, []string{"MillraceNodeBehind", "MillraceAnswersOld", "MillraceIngestWaits"},
			func() { kafkatest.Bomb(t, of, of.Content, 1) },
			func() {
				_, way, ok := strings.Cut(topics("show"), "millrace topics ")
				way, _, _ = strings.Cut(way, "\n")
				if !ok {
					t.Fatal("topics show names no way out")
				}
				topics(way + " --yes")
			},
		},
		{"records are refused", []string{"MillraceDeadLetters"}, nil, func() { w.bad = true }, func() { w.bad = false }},
		{
			"etcd is away", []string{"MillraceEtcdAway", "MillraceNoLeader"}, nil,
			func() { w.etcd = c.etcd.Addr(); c.etcd.Close() }, func() { c.startEtcd(w.etcd) },
		},
	} {
		w.met()
		f.make()
		w.until(fmt.Sprintf("%s: %v", f.fault, f.fires), func() bool {
			now := w.firing()
			return !slices.ContainsFunc(f.fires, func(name string) bool { return !slices.Contains(now, name) })
		})
		t.Logf("%s: %v fire", f.fault, w.firing())
		f.mend()
		w.until("nothing to fire after "+f.fault, func() bool { return len(w.firing()) == 0 })
		for _, name := range w.met() {
			if !slices.Contains(f.fires, name) && !slices.Contains(f.mayAlso, name) {
				t.Errorf("%s: %s fires, too", f.fault, name)
			}
		}
	}
}

// files asks or says how many files a process may have open, by prlimit.
func (p *process) files(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("prlimit", append([]string{"--pid", strconv.Itoa(p.cmd.Process.Pid)}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// holdsUp begins a transaction in a topic, which lasts until it is ended.
func (c *faultCluster) holdsUp(topic string) (end func()) {
	c.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.kafka), kgo.TransactionalID(topic+"-open"), kgo.TransactionTimeout(10*time.Minute), kgo.MaxVersions(kversion.V3_5_0()))
	if err == nil {
		err = cl.BeginTransaction()
	}
	if err == nil {
		err = cl.ProduceSync(c.ctx, &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return func() {
		c.t.Helper()
		if err := cl.EndTransaction(c.ctx, kgo.TryAbort); err != nil {
			c.t.Fatal(err)
		}
		cl.Close()
	}
}

// serve has an artefact serve past all checks, or removes it.
func (c *faultCluster) serve(kind, name, body string) {
	c.t.Helper()
	c.past(func(cl *cluster.Client) error {
		if body == "" {
			return documents.Of(cl, kind).Delete(c.ctx, name)
		}
		all, err := artefacts.Watch(c.ctx, cl, kind)
		if err != nil {
			return err
		}
		v, _, err := all.Publish(c.ctx, name, "", []byte(body), "a test")
		if err != nil {
			return err
		}
		return all.Serve(c.ctx, v, nil, "a test")
	})
}

// past does something to what etcd has of the cluster, past all checks.
func (c *faultCluster) past(do func(*cluster.Client) error) {
	c.t.Helper()
	cl, err := cluster.Open(c.ctx, cluster.Config{Endpoints: []string{c.etcd.Addr()}, Name: "millrace"})
	if err == nil {
		err = errors.Join(do(cl), cl.Close())
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// put writes a key of the cluster past all checks, or deletes it.
func (c *faultCluster) put(key, value string) {
	c.t.Helper()
	c.past(func(cl *cluster.Client) (err error) {
		if value == "" {
			_, err = cl.Etcd().Delete(c.ctx, cl.Prefix()+key)
		} else {
			_, err = cl.Etcd().Put(c.ctx, cl.Prefix()+key, value)
		}
		return err
	})
}

func rewrite(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// watched is a cluster under load, and a Prometheus that looks at it.
type watched struct {
	*faultCluster
	addr     string
	question *feedv1.GetFeedRequest
	beside   func()    // what is asked beside it
	written  int       // records, beside those that were loaded
	wrote    time.Time // when the last ones were
	bad      bool      // a tenth of them are refused
	etcd     string    // where one listened that was ended
	fired    map[string]bool
}

var (
	windows = regexp.MustCompile(`(\[|offset |for: )(\d+)([smh])`)
	weeks   = regexp.MustCompile(`offset \d+[dw]`)
)

// rules are the files of ops/alerts, with other times.
func rules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	files, err := filepath.Glob("../../ops/alerts/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no alerts: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if weeks.Match(text) {
			continue
		}
		text = windows.ReplaceAllFunc(text, func(window []byte) []byte {
			m := windows.FindSubmatch(window)
			n, err := strconv.Atoi(string(m[2]))
			if err != nil {
				t.Fatal(err)
			}
			of := map[string]int{"s": 1, "m": 60, "h": 3600}[string(m[3])]
			return fmt.Appendf(nil, "%s%ds", m[1], n*of/hurried)
		})
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "*.yaml")
}

// watchedBy starts a Prometheus that scrapes admin ports, by their jobs.
func (c *faultCluster) watchedBy(jobs map[string][]string) *watched {
	c.t.Helper()
	w := &watched{faultCluster: c, addr: clitest.FreeAddr(c.t), question: c.everything(), beside: func() {}, fired: map[string]bool{}}
	w.question.Entities = w.question.Entities[:20]
	config := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n", rules(c.t))
	for job, admin := range jobs {
		config += fmt.Sprintf("  - {job_name: %s, static_configs: [{targets: [%s]}]}\n", job, `"`+strings.Join(admin, `", "`)+`"`)
	}
	var log strings.Builder
	p := exec.Command("prometheus", "--config.file", clitest.WriteConfig(c.t, "prometheus", "%s", config),
		"--storage.tsdb.path", c.t.TempDir(), "--web.listen-address", w.addr, "--log.level", "warn")
	p.Stdout, p.Stderr = &log, &log
	if err := p.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		_ = p.Process.Kill() // fails if it has ended
		_ = p.Wait()         // it is killed
		if c.t.Failed() {
			c.t.Logf("Prometheus says:\n%s", log.String())
		}
	})
	return w
}

// until asks and writes until something is so, and looks at what fires meanwhile.
func (w *watched) until(what string, is func() bool) {
	w.t.Helper()
	clitest.WaitFor(w.ctx, w.t, what, func() bool {
		_, _ = w.client.GetFeed(w.ctx, w.question) // faults make some fail
		w.beside()
		if time.Since(w.wrote) > time.Second {
			w.wrote = time.Now()
			var lines [][]byte
			for i := range 10 {
				at := time.Now()
				if w.bad && i == 0 {
					at = at.Add(2 * schemas.DefaultFuture)
				}
				lines = append(lines, fmt.Appendf(nil, `{"id":"w%d","actor":"member:%d","verb":"post","created_at":%q}`, w.written, w.written%50, millrace.TimeOf(at)))
				w.written++
			}
			publish(w.ctx, w.t, w.kafka, w.prefix, lines)
		}
		for _, name := range w.firing() {
			w.fired[name] = true
		}
		return is()
	})
}

// met are the alerts that have fired since it was asked last.
func (w *watched) met() (names []string) {
	for name := range w.fired {
		names = append(names, name)
	}
	slices.Sort(names)
	clear(w.fired)
	return names
}

// firing are the alerts that fire now.
func (w *watched) firing() (names []string) {
	var all struct {
		Data struct {
			Alerts []struct {
				State  string
				Labels map[string]string
			}
		}
	}
	w.get("/api/v1/alerts", &all)
	for _, a := range all.Data.Alerts {
		if a.State == "firing" {
			names = append(names, a.Labels["alertname"])
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// up is how many processes Prometheus has scraped.
func (w *watched) up() (n int) {
	var all struct {
		Data struct{ ActiveTargets []struct{ Health string } }
	}
	w.get("/api/v1/targets", &all)
	for _, target := range all.Data.ActiveTargets {
		if target.Health == "up" {
			n++
		}
	}
	return n
}

// get asks Prometheus, which may be starting.
func (w *watched) get(path string, into any) {
	w.t.Helper()
	resp, err := http.Get("http://" + w.addr + path)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		w.t.Fatal(err)
	}
}
