//go:build linux

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/exposures"
)

// shownTopic is what a broker writes exposures to.
const shownTopic = "shown"

// TestRolloutExposures breaks the Kafka that a broker writes exposures to, under
// load: it is frozen, and killed. No feed fails; each exposure is written or
// counted; and what is written is what callers got. With MILLRACE_FAULTS it is a
// real Kafka (which needs Java, and root for its disk), whose disk is full besides.
func TestRolloutExposures(t *testing.T) {
	lasts, measured := faultTime(t, time.Second)
	if measured {
		apart(t)
	}
	e := startExposing(t, measured)
	perSecond := 50.0
	if measured { // by the broker that writes nothing
		perSecond = min(400, newCaller(t, e.faultCluster.grpc, 5*time.Second, e.reqs).closed(e.ctx, 8, lasts/6).goodput()/3)
	}
	stage := func(what string) time.Duration {
		all := &tally{lasted: lasts}
		e.open(all, perSecond)
		all.want(t, what)
		clitest.WaitFor(e.ctx, t, "each answer to be counted", func() bool { return e.counts().added == float64(len(e.shown)) })
		t.Logf("%s: %s", what, e.counts())
		return all.quantile(0.99)
	}
	var well []time.Duration
	ratio := func(what string, p99 time.Duration) {
		before, after := well[len(well)-2], well[len(well)-1]
		if measured {
			figure.Print("exposures_"+what+"_p99", 2*p99.Seconds()/(before.Seconds()+after.Seconds()), "x")
			figure.Print("exposures_"+what+"_p99_well", max(before, after).Seconds()/min(before, after).Seconds(), "x") // how far what nothing happens to differs
		}
	}
	well = append(well, stage("all well"))

	e.kafka.signal(syscall.SIGSTOP)
	frozen := stage("frozen")
	e.kafka.signal(syscall.SIGCONT)
	e.drained()
	well = append(well, stage("thawed"))
	ratio("frozen", frozen)

	if !measured { // it comes back at another address
		e.drained()
		e.compare(false)
		e.kafka.signal(syscall.SIGKILL)
		stage("killed")
		return
	}
	e.kafka.signal(syscall.SIGKILL)
	killed := stage("killed")
	e.kafka.start(t)
	e.drained()
	well = append(well, stage("started again"))
	ratio("killed", killed)

	e.kafka.fill(t)
	full := stage("full")
	e.kafka.empty(t)
	e.drained()
	well = append(well, stage("emptied"))
	ratio("full", full)

	e.drained()
	e.compare(true)
}

// exposingCluster is a broker whose answers an experiment has a part in, all of
// them, and the Kafka that it writes them to, which has nothing else.
type exposingCluster struct {
	*faultCluster
	*frontEnd
	client *client.Client
	kafka  *shownKafka
	reqs   []*feedv1.GetFeedRequest
	seed   maphash.Seed

	mu    sync.Mutex
	shown map[string]uint64 // what callers got, by the answers' ids
}

func startExposing(t *testing.T, measured bool) *exposingCluster {
	t.Helper()
	e := &exposingCluster{kafka: &shownKafka{}, reqs: rollingRequests("home", rollingFollows), seed: maphash.MakeSeed(), shown: map[string]uint64{}}
	if measured {
		e.kafka.real(t)
	} else {
		e.kafka.fake(t)
	}
	e.faultCluster = startFaultCluster(t, 3, rollingLines())
	e.frontEnd = e.startBroker("exposing", fmt.Sprintf("exposures: %s\nbrokers: [%q]\n", shownTopic, e.kafka.addr))
	var err error
	if e.client, err = client.Dial(e.frontEnd.grpc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.client.Close() })
	etcd := e.etcd.Addr()
	run(t, "experiment", "define", "--etcd", etcd, clitest.WriteConfig(t, "shown", `
layers: [{name: shape, salt: shape, unit: viewer}]
experiments:
  - {name: shape, layer: shape, feeds: [home], state: draft, slots: [0-9999], share: 10000, features: 10000,
     variants: [{name: control, weight: 5000}, {name: one, weight: 5000, set: {cap_per_entity: 1}}]}
`))
	run(t, "experiment", "start", "shape", "--etcd", etcd)
	clitest.WaitFor(e.ctx, t, "the experiment to have a part in answers", func() bool {
		resp, err := e.client.GetFeed(e.ctx, e.reqs[0])
		if err == nil && len(resp.Receipt.Variants) > 0 {
			e.took(e.reqs[0], resp)
			return true
		}
		return false
	})
	return e
}

// took remembers what a caller got.
func (e *exposingCluster) took(req *feedv1.GetFeedRequest, resp *feedv1.GetFeedResponse) {
	var h maphash.Hash
	h.SetSeed(e.seed)
	fmt.Fprint(&h, req.Viewer.Id, resp.Receipt.Variants["shape"], len(resp.Items), resp.Receipt.Model, resp.Receipt.ModelVersion)
	for i, it := range resp.Items {
		hashItem(&h, i+1, it.Id, it.Entity, it.Type, it.Score)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.shown[resp.Receipt.AnswerId] = h.Sum64()
}

func hashItem(h *maphash.Hash, place int, id, entity, kind string, score float64) {
	fmt.Fprint(h, place, " ", id, " ", entity, " ", kind, " ", math.Float64bits(score), " ")
}

// wrote is took of what a broker wrote.
func (e *exposingCluster) wrote(r *exposure.Record) uint64 {
	var h maphash.Hash
	h.SetSeed(e.seed)
	variant := ""
	for _, x := range r.Experiments {
		variant = x.Variant
	}
	fmt.Fprint(&h, r.Viewer, variant, len(r.Items), r.Models[0].Name, r.Models[0].Version)
	for _, it := range r.Items {
		hashItem(&h, it.Place, it.ID, it.Entity, it.Type, it.Score)
	}
	return h.Sum64()
}

// open asks at a rate, and remembers what it got.
func (e *exposingCluster) open(all *tally, perSecond float64) {
	e.t.Helper()
	var asked sync.WaitGroup
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for i := 0; i < int(perSecond*all.lasted.Seconds()); {
		due := began.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))
		if time.Now().Before(due) {
			<-tick.C
			continue
		}
		asked.Go(func() {
			req := e.reqs[i%len(e.reqs)]
			resp, err := e.client.GetFeed(e.ctx, req)
			took := time.Since(due)
			if err == nil {
				e.took(req, resp)
			}
			all.Lock()
			defer all.Unlock()
			switch {
			case err != nil:
				all.failed = append(all.failed, err)
			case len(resp.Coverage.Missing) > 0 || len(resp.Receipt.Variants) == 0:
				all.partial++
			default:
				all.whole, all.took = all.whole+1, append(all.took, took)
			}
		})
		i++
	}
	asked.Wait()
}

// shownCounts is what the broker says became of exposures.
type shownCounts struct {
	added, written, dropped, refused float64
	waits                            float64 // the oldest, in seconds
}

func (c shownCounts) String() string {
	return fmt.Sprintf("%.0f exposures: %.0f written, %.0f dropped, %.0f refused, the oldest waits for %.1f s", c.added, c.written, c.dropped, c.refused, c.waits)
}

func (e *exposingCluster) counts() shownCounts {
	count := func(name string, labels ...string) float64 {
		return metric(e.ctx, e.frontEnd.front, "millrace_exposure_"+name, labels...)
	}
	return shownCounts{
		added: count("added_total"), written: count("records_total", `outcome="written"`), dropped: count("records_total", `outcome="dropped"`),
		refused: count("records_total", `outcome="refused"`), waits: count("waiting_seconds"),
	}
}

// drained returns when none waits.
func (e *exposingCluster) drained() {
	e.t.Helper()
	clitest.WaitFor(e.ctx, e.t, "exposures to be written", func() bool {
		c := e.counts()
		return c.waits == 0 && c.added == c.written+c.dropped+c.refused
	})
}

// compare holds what was written against what callers got: it is the same, none
// is there twice, and as many are not there as were counted.
func (e *exposingCluster) compare(measured bool) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	read, twice, others := map[string]bool{}, 0, 0
	foreign, _, err := exposures.Read(e.ctx, kafka.At(e.kafka.addr), shownTopic, 0, func(r *exposure.Record) {
		if read[r.ID] {
			twice++
		}
		read[r.ID] = true
		if want, ok := e.shown[r.ID]; !ok || want != e.wrote(r) {
			others++
		}
	})
	if err != nil {
		e.t.Fatal(err)
	}
	lost := 0
	for id := range e.shown {
		if !read[id] {
			lost++
		}
	}
	c := e.counts()
	uncounted := lost - int(c.dropped+c.refused)
	e.t.Logf("%d answers, %d read, %d of them twice, %d other than callers got, %d not there; %s", len(e.shown), len(read), twice, others, lost, c)
	if twice+others+foreign > 0 || uncounted != 0 || len(read) == 0 {
		e.t.Errorf("%d twice, %d others, %d no exposures, %d neither written nor counted", twice, others, foreign, uncounted)
	}
	if measured {
		figure.Print("exposures_answers", float64(len(e.shown)), "answers")
		figure.Print("exposures_uncounted", float64(uncounted), "answers")
		figure.Print("exposures_other_than_served", float64(others+twice), "records")
	}
}

// shownKafka is a Kafka in a process of its own.
type shownKafka struct {
	addr string
	data string // of a real one, a file system of its own
	root string // of the repository
	port string
	pid  int
}

func (k *shownKafka) signal(s syscall.Signal) { _ = syscall.Kill(k.pid, s) } // it may be over

// fake starts the one that this binary has.
func (k *shownKafka) fake(t *testing.T) {
	t.Helper()
	cmd := millraceCommand(context.Background(), "bench", "backing", "--data", t.TempDir())
	in, err := cmd.StdinPipe() // whose end ends it
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(line, &k.addr); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	k.pid = cmd.Process.Pid
}

// real starts a real one, whose disk is in memory and has a bound.
func (k *shownKafka) real(t *testing.T) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	k.root, k.addr = root, clitest.FreeAddr(t)
	k.port = k.addr[strings.LastIndexByte(k.addr, ':')+1:]
	k.data = filepath.Join(root, ".kafka", "data-"+k.port)
	if err := os.MkdirAll(k.data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("none", k.data, "tmpfs", 0, "size=2g"); err != nil {
		t.Fatalf("a disk for Kafka: %v; run it as root", err)
	}
	t.Cleanup(func() {
		k.signal(syscall.SIGCONT)
		if err := k.script("stop"); err != nil {
			t.Error(err)
		}
		if err := syscall.Unmount(k.data, 0); err != nil {
			t.Error(err)
		}
		_ = os.Remove(k.data)
		_ = os.Remove(filepath.Join(k.root, ".kafka", "kafka-"+k.port+".log"))
	})
	k.start(t)
}

func (k *shownKafka) script(verb string) error {
	cmd := exec.Command(filepath.Join(k.root, "scripts", "kafka"), verb)
	cmd.Env = append(os.Environ(), "KAFKA_PORT="+k.port)
	cmd.WaitDelay = time.Second // Kafka keeps its output
	if out, err := cmd.CombinedOutput(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("scripts/kafka %s: %w: %s", verb, err, out)
	}
	return nil
}

func (k *shownKafka) start(t *testing.T) {
	t.Helper()
	err := k.script("start")
	for range 2 { // a busy machine may need more than one try
		if err != nil {
			err = k.script("start")
		}
	}
	text, err2 := os.ReadFile(filepath.Join(k.root, ".kafka", "kafka-"+k.port+".pid"))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if k.pid, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		t.Fatal(err)
	}
}

func (k *shownKafka) ballast() string { return filepath.Join(k.data, "ballast") }

// fill leaves nothing of its disk.
func (k *shownKafka) fill(t *testing.T) {
	t.Helper()
	f, err := os.Create(k.ballast())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 64<<10); err == nil && len(block) > 0; {
		if _, err = f.Write(block); errors.Is(err, syscall.ENOSPC) {
			block, err = block[:len(block)/2], nil
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// empty gives it its disk back. Kafka ends where its disk is full, or else does
// not write there again before it is started anew.
func (k *shownKafka) empty(t *testing.T) {
	t.Helper()
	if err := os.Remove(k.ballast()); err != nil {
		t.Fatal(err)
	}
	t.Logf("with a full disk Kafka lives: %v", syscall.Kill(k.pid, 0) == nil)
	k.signal(syscall.SIGKILL)
	k.start(t)
}
