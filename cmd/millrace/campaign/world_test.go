//go:build linux

package campaign

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

const (
	partitioners = 2
	nodes        = 3
	brokers      = 2
	replicas     = 2
	// patience is how long the campaign waits for what takes seconds on an idle
	// machine.
	patience = 3 * time.Minute
	// diskBytes is the size of a node's disk: what an index node leaves free, and
	// what a campaign fills.
	diskBytes = 700 << 20
)

// world is the cluster, its neighbours, and what is done to it.
type world struct {
	t       *testing.T
	ctx     context.Context
	dir     string
	binary  string
	prefix  string // of topics
	history *history

	kafka   *realKafka
	etcd    *process
	etcdAt  int // port
	packets *packets
	proxies map[int]*proxy // by the port that they stand for

	partitioners, nodes, brokers []*process
	nodePort, brokerPort         []int
	admin                        map[string]int // port, by process
	clients                      []nodev1.NodeServiceClient
	owners                       [partition.Count][]millrace.NodeID
	probes                       [partition.Count]millrace.Entity // one entity of each partition

	truth *truth
	load  *load
	asker *asker
	adm   *kadm.Client
	cl    *kgo.Client // of the campaign's own

	wholes []wholeness // when the cluster was whole
	late   int         // schemas that came late
}

// offsets are of the partitions of a stream.
type offsets [partition.Count]int64

// wholeness is where the logs ended when every replica had applied all of them.
type wholeness struct {
	at   time.Time
	ends [streams]offsets
}

// startWorld starts everything on a Kafka that has no topics of Millrace's yet,
// at once or after the first node has created them, and begins to read the log.
func startWorld(t *testing.T, s settings, name string, atOnce bool) *world {
	t.Helper()
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM) // so that everything is taken down
	dir, err := os.MkdirTemp("", "millrace-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, ctx: ctx, dir: dir, prefix: name + "-", kafka: startKafka(t), etcdAt: freePorts(t, 1),
		proxies: map[int]*proxy{}, admin: map[string]int{},
	}
	w.history = newHistory(t, filepath.Join(dir, "history.ndjson"), s.seed)
	t.Cleanup(func() {
		w.history.close()
		if !t.Failed() {
			os.RemoveAll(dir)
		}
	})
	w.binary = w.build()
	w.packets = newPackets(t)
	t.Cleanup(stop) // ctx itself has ended by then, with the test
	w.startProcesses(atOnce)
	w.begin(s.seed)
	return w
}

// build puts the binary where every user may run it.
func (w *world) build() string {
	w.t.Helper()
	to := filepath.Join(w.dir, "millrace")
	cmd := exec.Command("go", "build", "-o", to, "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("go build: %v: %s", err, out)
	}
	if err := os.Chmod(to, 0o755); err != nil {
		w.t.Fatal(err)
	}
	return to
}

// spawn makes a process, which ends with the test.
func (w *world) spawn(name string, uid uint32, env []string, args ...string) *process {
	w.t.Helper()
	p := &process{name: name, uid: uid, args: args, env: env, log: filepath.Join(w.dir, name+".log")}
	p.told = func(name, how string) {
		w.told("ended", fmt.Sprintf("%s ended by itself: %s\n%s", name, how, p.lastLines(1000)))
	}
	w.t.Cleanup(func() { p.kill(syscall.SIGKILL) })
	if err := p.start(); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// role starts a role under a user id of its own.
func (w *world) role(command, name, format string, args ...any) *process {
	w.t.Helper()
	uid := 40_000 + uint32(os.Getpid()%1000)*16 + uint32(len(w.admin))
	w.admin[name] = freePorts(w.t, 1)
	data := filepath.Join(w.dir, name)
	if err := errors.Join(os.Mkdir(data, 0o755), w.disk(command, data), os.Chown(data, int(uid), int(uid))); err != nil {
		w.t.Fatal(err)
	}
	text := fmt.Sprintf("admin: %q\n", local(w.admin[name])) + fmt.Sprintf(format, args...)
	config := filepath.Join(w.dir, name+".yaml")
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return w.spawn(name, uid, nil, w.binary, command, "--config", config)
}

// disk gives an index node a small disk of its own.
func (w *world) disk(command, data string) error {
	if command != "indexnode" {
		return nil
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%d", diskBytes), "tmpfs", data).CombinedOutput(); err != nil {
		return fmt.Errorf("mount: %w: %s", err, out)
	}
	w.t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", data).CombinedOutput(); err != nil {
			w.t.Errorf("umount: %v: %s", err, out)
		}
	})
	return nil
}

func (w *world) startEtcd() *process {
	return w.spawn("etcd", 0, []string{"MILLRACE_CAMPAIGN_ETCD=" + w.etcdDir(), "MILLRACE_CAMPAIGN_LISTEN=" + local(w.etcdAt)}, os.Args[0])
}

func (w *world) etcdDir() string { return filepath.Join(w.dir, "etcd") }

func (w *world) startProcesses(atOnce bool) {
	t := w.t
	t.Helper()
	w.etcd = w.startEtcd()
	ids := make([]millrace.NodeID, nodes)
	for i := range ids {
		ids[i] = millrace.NodeID(fmt.Sprintf("node-%d", i+1))
	}
	a, err := cluster.Spread(ids, replicas)
	if err != nil {
		t.Fatal(err)
	}
	w.owners = a.Replicas
	if err := eventually(w.ctx, patience, func(context.Context) error {
		_, err := w.command("cluster", "assign", "--etcd", local(w.etcdAt), "--nodes", "node-1,node-2,node-3", "--replicas", strconv.Itoa(replicas))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.cl = w.kafka.client(t)
	w.adm = kadm.NewClient(w.cl)
	for _, topic := range []string{w.prefix + "activity", w.prefix + "entity-features"} {
		if _, err := w.adm.CreateTopic(w.ctx, contentParts, -1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}
	kafkaAndEtcd := fmt.Sprintf("brokers: [%q]\ntopic_prefix: %q\netcd: [%q]\n", w.kafka.addr(), w.prefix, local(w.etcdAt))
	for i, id := range ids {
		port := freePorts(t, 1)
		w.nodePort = append(w.nodePort, port)
		w.nodes = append(w.nodes, w.role("indexnode", string(id), kafkaAndEtcd+"id: %s\ndata: %s\nlisten: %q\n", id, filepath.Join(w.dir, string(id)), local(port)))
		conn, err := grpc.NewClient(local(w.nodePort[i]), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		w.clients = append(w.clients, nodev1.NewNodeServiceClient(conn))
		if !atOnce {
			w.awaitTopics()
		}
	}
	for i := range partitioners {
		name := fmt.Sprintf("partitioner-%d", i+1)
		w.partitioners = append(w.partitioners, w.role("partitioner", name, kafkaAndEtcd+"content: [%s]\nfeatures: [%s]\ngroup: %sgroup\ninstance: %s\n",
			w.prefix+"activity", w.prefix+"entity-features", w.prefix, name))
	}
	for i := range brokers {
		name, port := fmt.Sprintf("broker-%d", i+1), freePorts(t, 1)
		w.brokerPort = append(w.brokerPort, port)
		w.brokers = append(w.brokers, w.role("broker", name, "etcd: [%q]\ngrpc: %q\ndata: %s\n", local(w.etcdAt), local(port), filepath.Join(w.dir, name)))
	}
	for _, port := range append([]int{w.kafka.port, w.etcdAt}, w.nodePort...) {
		w.proxies[port] = newProxy(t, local(port))
	}
}

// begin publishes the schemas, waits until the cluster is whole, and starts the
// load, the reader of the log, and the questions.
func (w *world) begin(seed uint64) {
	t := w.t
	t.Helper()
	for i := 0; ; i++ {
		e := millrace.Entity(fmt.Sprintf("probe:%d", i))
		w.probes[partition.Of(e)] = e
		if i > 20*partition.Count {
			break
		}
	}
	var err error
	if w.truth, err = newTruth([streams]string{w.prefix + "timeline", w.prefix + "features"}, w.told); err != nil {
		t.Fatal(err)
	}
	w.awaitTopics()
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Features()} {
		if err := w.publish(s); err != nil {
			t.Fatal(err)
		}
	}
	var addrs []string
	for _, port := range w.brokerPort {
		addrs = append(addrs, local(port))
	}
	w.asker = newAsker(t, w.truth, seed, addrs, w.told)
	w.load = newLoad(t, w.truth, w.kafka.client(t, kgo.MaxBufferedRecords(20_000)), seed, [streams]string{w.prefix + "activity", w.prefix + "entity-features"})
	reader := w.kafka.client(t, w.truth.readOptions()...)
	var wg sync.WaitGroup
	wg.Go(func() { w.truth.follow(w.ctx, reader) })
	wg.Go(func() { w.asker.judgeAll(w.ctx) })
	t.Cleanup(wg.Wait) // after ctx has ended: cleanups run last in, first out
	t.Cleanup(func() { reader.Close() })
}

// awaitTopics returns when the roles have created their topics.
func (w *world) awaitTopics() {
	w.t.Helper()
	for _, topic := range []string{"timeline", "features", "schemas", "dead-letters"} {
		if err := awaitTopic(w.ctx, w.adm, w.prefix+topic); err != nil {
			w.t.Fatal(err)
		}
	}
}

// publish hands a schema to everybody.
func (w *world) publish(s *schemas.Schema) error {
	r := &kgo.Record{Topic: w.prefix + "schemas", Key: []byte(s.Fingerprint().String()), Value: []byte(s.JSON())}
	return w.cl.ProduceSync(w.ctx, r).FirstErr()
}

// command runs the binary to its end.
func (w *world) command(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, w.binary, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("millrace %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// told notes a violation.
func (w *world) told(kind, detail string) { w.history.violation(kind, detail) }

// whole waits until the cluster is as it should be: every acknowledged input
// is in the log, every replica has applied all of it and serves, and every
// broker answers for every partition.
func (w *world) whole(ctx context.Context) error {
	began := time.Now()
	if err := eventually(ctx, patience, func(context.Context) error { return w.truth.missing(began) }); err != nil {
		return err
	}
	var ends [streams]offsets
	if err := eventually(ctx, patience, func(ctx context.Context) (err error) {
		ends, err = w.ends(ctx)
		return err
	}); err != nil {
		return err
	}
	for i, node := range w.clients {
		if err := eventually(ctx, patience, func(ctx context.Context) error { return w.caughtUp(ctx, i, node, &ends, true) }); err != nil {
			return fmt.Errorf("node-%d: %w", i+1, err)
		}
	}
	req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "probe"}}
	for _, e := range w.probes {
		req.Entities = append(req.Entities, string(e))
	}
	for i, c := range w.asker.clients {
		if err := eventually(ctx, patience, func(ctx context.Context) error {
			resp, err := c.GetFeed(ctx, req)
			if err != nil {
				return err
			}
			if n := len(resp.Coverage.Missing); n > 0 || flagged(resp) {
				return fmt.Errorf("%d partitions are missing, the first is %v; %d timelines are behind", n, resp.Coverage.Missing[:min(1, n)], resp.Coverage.TimelinesBehind)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("broker-%d: %w", i+1, err)
		}
	}
	for _, p := range slices.Concat(w.nodes, w.brokers) {
		if err := eventually(ctx, patience, func(ctx context.Context) error {
			since, err := w.metric(ctx, p.name, "millrace_cluster_fault_seconds")
			if err == nil && since > 0 {
				err = fmt.Errorf("it has doubted etcd for %.0f s", since)
			}
			return err
		}); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	w.wholes = append(w.wholes, wholeness{time.Now(), ends})
	return nil
}

// quiet ends the partitioners, and returns where the logs end once every node
// has applied all of them: nothing comes after that.
func (w *world) quiet() (ends [streams]offsets, err error) {
	for _, p := range w.partitioners {
		p.kill(syscall.SIGTERM)
	}
	for i, node := range w.clients {
		if err := eventually(w.ctx, patience, func(ctx context.Context) (err error) {
			if ends, err = w.ends(ctx); err != nil {
				return err
			}
			return w.caughtUp(ctx, i, node, &ends, false)
		}); err != nil {
			return ends, fmt.Errorf("node-%d: %w", i+1, err)
		}
	}
	return ends, nil
}

// ends returns where the streams' committed records end now, once the reader is
// there too.
func (w *world) ends(ctx context.Context) (ends [streams]offsets, err error) {
	for stream, topic := range w.truth.topics {
		listed, err := w.adm.ListCommittedOffsets(ctx, topic)
		if err == nil {
			err = listed.Error()
		}
		if err != nil {
			return ends, err
		}
		listed.Each(func(o kadm.ListedOffset) { ends[stream][o.Partition] = o.Offset })
		for p, end := range ends[stream] {
			if err := w.truth.reached(ctx, stream, millrace.Partition(p), end); err != nil {
				return ends, err
			}
		}
	}
	return ends, nil
}

// caughtUp says what a node lacks of the partitions that it hosts. One that is
// fresh does not call itself behind either.
func (w *world) caughtUp(ctx context.Context, i int, node nodev1.NodeServiceClient, ends *[streams]offsets, fresh bool) error {
	id := millrace.NodeID(fmt.Sprintf("node-%d", i+1))
	hosted := 0
	for _, owners := range w.owners {
		if slices.Contains(owners, id) {
			hosted++
		}
	}
	resp, err := node.Query(ctx, w.probe(id))
	if err != nil {
		return err
	}
	got := resp.GetPartitions()
	for p, why := range got.GetMissing() {
		return fmt.Errorf("%d of %d partitions are missing; %d: %s", len(got.Missing), hosted, p, why)
	}
	if len(got.Answered) != hosted {
		return fmt.Errorf("%d partitions answered of %d", len(got.Answered), hosted)
	}
	for i, p := range got.Answered {
		for stream, at := range [streams]int64{got.AppliedContent[i], got.AppliedFeatures[i]} {
			if at < ends[stream][p] {
				return fmt.Errorf("%s/%d is applied to %d of %d", w.truth.topics[stream], p, at, ends[stream][p])
			}
		}
	}
	for i, lag := range got.LagMs {
		if fresh && lag > 0 {
			return fmt.Errorf("partition %d says that it is %d ms behind", got.Answered[i], lag)
		}
	}
	return nil
}

// metric adds up the samples of a metric of a process.
func (w *world) metric(ctx context.Context, process, name string) (sum float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+local(w.admin[process])+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		series, value, _ := strings.Cut(s.Text(), " ")
		if series == name || strings.HasPrefix(series, name+"{") {
			x, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			sum += x
		}
	}
	return sum, nil
}

// digests ends the nodes in good order, and compares what their stores have:
// replicas with equal offsets have equal digests.
func (w *world) digests() (compared int) {
	ends, err := w.quiet()
	if err != nil {
		w.told("lost", "at the end: "+err.Error())
		return 0
	}
	stores := map[millrace.NodeID]*store.Store{}
	for _, p := range w.nodes {
		p.kill(syscall.SIGTERM)
		s, err := store.Open(filepath.Join(w.dir, p.name, "store"), store.Options{MinFreeBytes: -1})
		if err != nil {
			w.told("differing", fmt.Sprintf("%s: %v", p.name, err))
			return 0
		}
		defer s.Close()
		stores[millrace.NodeID(p.name)] = s
	}
	for p, owners := range w.owners {
		n := millrace.Partition(p)
		first := stores[owners[0]]
		if at := first.Applied(n); int64(at.Content) < ends[content][p] || int64(at.Features) < ends[features][p] {
			w.told("lost", fmt.Sprintf("partition %d of %s is applied to %v, the logs end at %d and %d", p, owners[0], at, ends[content][p], ends[features][p]))
		}
		for _, other := range owners[1:] {
			if a, b := first.Applied(n), stores[other].Applied(n); a != b {
				w.told("lost", fmt.Sprintf("partition %d is applied to %v on %s, to %v on %s", p, a, owners[0], b, other))
			} else if a, b := first.Digest(n), stores[other].Digest(n); a != b {
				w.told("differing", fmt.Sprintf("partition %d has digest %x on %s, %x on %s, at equal offsets", p, a, owners[0], b, other))
			}
			compared++
		}
	}
	return compared
}

// history keeps what was done and what was found, a line of JSON each.
type history struct {
	t     *testing.T
	path  string
	began time.Time
	mu    struct {
		sync.Mutex
		file  *os.File
		found map[string]int
		shown map[string]int // of the chapter
	}
}

func newHistory(t *testing.T, path string, seed uint64) *history {
	t.Helper()
	h := &history{t: t, path: path, began: time.Now()}
	h.mu.found, h.mu.shown = map[string]int{}, map[string]int{}
	var err error
	if h.mu.file, err = os.Create(path); err != nil {
		t.Fatal(err)
	}
	t.Logf("SEED=%d repeats this schedule; the history is in %s", seed, path)
	h.note("seed", fmt.Sprint(seed))
	return h
}

func (h *history) note(what, detail string) {
	line, err := json.Marshal(map[string]any{"seconds": time.Since(h.began).Seconds(), "what": what, "detail": detail})
	if err != nil {
		panic(err) // two strings and a number
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.file != nil {
		_, _ = h.mu.file.Write(append(line, '\n')) // a full disk is not what is tested
	}
}

// printed is how many violations of a kind a chapter prints; all are in the
// history.
const printed = 2

// chapter begins another part of the history.
func (h *history) chapter(what string) {
	h.note("chapter", what)
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.mu.shown)
}

func (h *history) violation(kind, detail string) {
	h.note(kind, detail)
	h.mu.Lock()
	h.mu.found[kind]++
	h.mu.shown[kind]++
	if h.mu.file != nil && h.mu.shown[kind] <= printed {
		h.t.Logf("%s (see %s): %s", kind, h.path, detail)
	}
	h.mu.Unlock()
}

func (h *history) found(kind string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.found[kind]
}

func (h *history) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.file.Close()
	h.mu.file = nil
}
