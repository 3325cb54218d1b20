//go:build linux

package cli

import (
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

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/schemas"
)

// hurried is by how much the alerts' times are shortened, so that a fault takes
// seconds until it is told, and an hour of normal load three minutes.
const hurried = 20

// watchedConfig is how a cluster that is watched is set up. Two brokers, a partitioner
// and a coordinator are there besides its nodes.
type watchedConfig struct {
	nodes               int
	coordinator, broker string                // more of the configuration of the coordinator, and of the second broker
	past                func(*watched) string // what Prometheus has of before, as OpenMetrics; nil: nothing
}

// watched is a cluster under load, and a Prometheus that looks at it.
type watched struct {
	*faultCluster
	second      *frontEnd
	coordinator string // admin port
	each        time.Duration
	kafkaServer *minicluster.Kafka
	kafkaDir    string

	addr     string
	question *feedv1.GetFeedRequest
	beside   func()    // what is asked beside it
	mute     bool      // nothing is written
	written  int       // records, beside those that were loaded
	wrote    time.Time // when the last ones were
	bad      bool      // a tenth of them are refused
	verb     string    // the type of all
	etcdAt   string    // where one listened that was ended
	fired    map[string]bool
}

// startWatched starts a cluster, and further processes, each of which says how it is
// scraped. It returns when all of it is seen and nothing fires.
func startWatched(t *testing.T, cfg watchedConfig, further ...func(*watched) (scraped string)) *watched {
	t.Helper()
	each, measured := faultTime(t, 0)
	if !measured {
		t.Skip("takes minutes: run make outages")
	}
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Fatal("needs prometheus, of Debian's package of that name")
	}
	w := &watched{each: each, kafkaDir: t.TempDir(), coordinator: clitest.FreeAddr(t), addr: clitest.FreeAddr(t), beside: func() {}, verb: "post", fired: map[string]bool{}}
	w.startKafka(t, "127.0.0.1:0")
	t.Cleanup(func() { w.kafkaServer.Close() })
	w.faultCluster = startFaultClusterOn(t, w.kafkaServer.Addr(), cfg.nodes, loadLines())
	w.question = w.everything()
	w.question.Entities = w.question.Entities[:20]
	start(t, w.failed, "coordinator", "coordinator", "--config", clitest.WriteConfig(t, "coordinator",
		"name: one\nbrokers: [%q]\ntopic_prefix: %s\netcd: [%q]\nadmin: %q\n%s", w.kafka, w.prefix, w.etcd.Addr(), w.coordinator, cfg.coordinator))
	w.second = w.startBroker("broker-2", fmt.Sprintf("brokers: [%q]\n%s", w.kafka, cfg.broker))
	scraped := []string{
		scrapes("millrace-indexnode", w.admin...), scrapes("millrace-broker", w.front, w.second.front), scrapes("millrace-partitioner", w.sorter), scrapes("millrace-coordinator", w.coordinator),
	}
	for _, start := range further {
		scraped = append(scraped, start(w))
	}
	dir := t.TempDir() // of Prometheus
	if cfg.past != nil {
		cmd := exec.Command("promtool", "tsdb", "create-blocks-from", "openmetrics", clitest.Written(t, cfg.past(w)), dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	w.watch(dir, scraped)
	w.until("every process to be seen", func() bool { return w.up() == cfg.nodes+4+len(further) && len(w.firing()) == 0 })
	return w
}

// scrapes is how Prometheus finds processes of a job, by their admin ports.
func scrapes(job string, admin ...string) string {
	return fmt.Sprintf("{job_name: %s, static_configs: [{targets: [%s]}]}", job, `"`+strings.Join(admin, `", "`)+`"`)
}

// normal is an hour of normal load, in which no alert fires.
func (w *watched) normal() {
	w.t.Helper()
	w.met()
	began := time.Now()
	w.until("an hour of normal load", func() bool { return time.Since(began) > 6*w.each })
	if met := w.met(); len(met) > 0 {
		w.t.Errorf("on normal load %v fire", met)
	}
}

// fires are the alerts that are for a fault.
type fires []string

// alertFault is a fault, and what fires on it.
type alertFault struct {
	fault      string
	fires      fires
	mayAlso    []string // what follows from it
	make, mend func()   // no mend: it is the last
}

// breaks makes faults, each of which has its alerts fire and no others, and mends them.
func (w *watched) breaks(faults ...alertFault) {
	for _, f := range faults {
		w.t.Run(strings.ReplaceAll(f.fault, " ", "-"), func(t *testing.T) {
			w.met()
			f.make()
			w.until(fmt.Sprintf("%s: %v", f.fault, f.fires), func() bool {
				now := w.firing()
				return !slices.ContainsFunc(f.fires, func(name string) bool { return !slices.Contains(now, name) })
			})
			t.Logf("%v fire", w.firing())
			if f.mend != nil {
				f.mend()
				w.until("nothing to fire after "+f.fault, func() bool { return len(w.firing()) == 0 })
			}
			for _, name := range w.met() {
				if !slices.Contains(f.fires, name) && !slices.Contains(f.mayAlso, name) {
					t.Errorf("%s fires, too", name)
				}
			}
		})
	}
}

// command is a command that works on the cluster.
func (w *watched) command(line string) {
	w.t.Helper()
	run(w.t, append(strings.Fields(line), "--etcd", w.etcd.Addr())...)
}

// inKafka is a command that works on the cluster's topics.
func (w *watched) inKafka(line string) string {
	w.t.Helper()
	return run(w.t, append(strings.Fields(line), "--brokers", w.kafka, "--topic-prefix", w.prefix)...)
}

// startKafka starts the Kafka, or again.
func (w *watched) startKafka(t *testing.T, listen string) {
	t.Helper()
	var err error
	if w.kafkaServer, err = minicluster.StartKafka(w.kafkaDir, listen); err != nil {
		t.Fatal(err)
	}
}

var (
	windows = regexp.MustCompile(`(\[|offset |for: )(\d+)([smh])`)
	bounds  = regexp.MustCompile(`(_seconds\) > )\d{3,}`)
)

// rules are the files of ops/alerts, with other times: shorter ones, and where a metric
// may be many minutes until it is too much, one minute.
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
		text = windows.ReplaceAllFunc(text, func(window []byte) []byte {
			m := windows.FindSubmatch(window)
			n, err := strconv.Atoi(string(m[2]))
			if err != nil {
				t.Fatal(err)
			}
			of := map[string]int{"s": 1, "m": 60, "h": 3600}[string(m[3])]
			return fmt.Appendf(nil, "%s%ds", m[1], n*of/hurried)
		})
		text = bounds.ReplaceAll(text, []byte("${1}60"))
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "*.yaml")
}

// watch starts a Prometheus that scrapes, and keeps what it knows in a directory.
func (w *watched) watch(dir string, scraped []string) {
	w.t.Helper()
	config := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n  - %s\n", rules(w.t), strings.Join(scraped, "\n  - "))
	var log strings.Builder
	p := exec.Command("prometheus", "--config.file", clitest.WriteConfig(w.t, "prometheus", "%s", config),
		"--storage.tsdb.path", dir, "--web.listen-address", w.addr, "--log.level", "warn")
	p.Stdout, p.Stderr = &log, &log
	if err := p.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		_ = p.Process.Kill() // fails if it has ended
		_ = p.Wait()         // it is killed
		if w.t.Failed() {
			w.t.Logf("Prometheus says:\n%s", log.String())
		}
	})
}

// until asks and writes until something is so, and looks at what fires meanwhile.
func (w *watched) until(what string, is func() bool) {
	w.t.Helper()
	clitest.WaitFor(w.ctx, w.t, what, func() bool {
		_, _ = w.client.GetFeed(w.ctx, w.question) // faults make some fail
		w.beside()
		if !w.mute && time.Since(w.wrote) > time.Second {
			w.wrote = time.Now()
			var lines [][]byte
			for i := range 10 {
				at := time.Now()
				if w.bad && i == 0 {
					at = at.Add(2 * schemas.DefaultFuture)
				}
				lines = append(lines, fmt.Appendf(nil, `{"id":"w%d","actor":"member:%d","verb":%q,"created_at":%q}`, w.written, w.written%50, w.verb, millrace.TimeOf(at)))
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
