//go:build linux

package campaign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/kafka"
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
	// planPatience is how long a plan may take: its moves let questions go first.
	planPatience = 15 * time.Minute
	// diskBytes is the size of a node's disk: what an index node leaves free, and
	// what a campaign fills.
	diskBytes = 700 << 20
)

// world is the cluster, its neighbours, and what is done to it.
type world struct {
	t       *testing.T
	ctx     context.Context
	dir     string
	binary  string // that is tested, and whose commands are run
	roles   string // that roles are started from, but for coordinators
	prefix  string // of topics
	history *history

	kafka   *realKafka
	bucket  string        // URL, for backups; empty: there are none
	backups time.Duration // between two
	etcd    *process
	etcdAt  int // port
	packets *packets
	proxies map[int]*proxy // by the port that they stand for

	partitioners, nodes, brokers []*process
	nodeConfig                   string // what all nodes have
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
	ends [kafka.Streams]offsets
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
		t: t, ctx: ctx, dir: dir, prefix: name + "-", kafka: startKafka(t, dir), etcdAt: freePorts(t, 1),
		proxies: map[int]*proxy{}, admin: map[string]int{},
	}
	w.history = newHistory(t, filepath.Join(dir, "history.ndjson"), s.seed)
	t.Cleanup(func() {
		w.history.close()
		if !t.Failed() {
			os.RemoveAll(dir)
		}
	})
	if s.backups > 0 {
		w.bucket, w.backups = startS3(t), s.backups
		if s.via != nil {
			w.bucket = s.via(w.bucket)
		}
	}
	if w.binary, err = built(); err != nil {
		t.Fatal(err)
	}
	w.roles = cmp.Or(s.roles, w.binary)
	w.packets = newPackets(t)
	t.Cleanup(stop) // ctx itself has ended by then, with the test
	w.startProcesses(atOnce)
	w.begin(s.seed)
	return w
}

// built puts the binary where every user may run it, for all tests.
var built = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("go", "build", "-o", public("built"), "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return public("built"), os.Chmod(public("built"), 0o755)
})

// public is where a binary of this run is that every user may run: t.TempDir is
// root's alone.
func public(name string) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("millrace-%s-%d", name, os.Getpid()))
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
	binary := w.roles
	if command == "coordinator" {
		binary = w.binary
	}
	return w.spawn(name, uid, nil, binary, command, "--config", config)
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
	if err := eventually(w.ctx, patience, func(context.Context) error {
		_, err := w.command("cluster", "assign", "--force", "--etcd", local(w.etcdAt), "--nodes", "node-1,node-2,node-3", "--replicas", strconv.Itoa(replicas))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	look, err := cluster.Open(w.ctx, cluster.Config{Endpoints: []string{local(w.etcdAt)}, Name: "millrace", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	a, _, err := steering.Assigned(w.ctx, look)
	if err != nil {
		t.Fatal(err)
	}
	w.owners = a.Replicas
	w.cl = w.kafka.client(t)
	w.adm = kadm.NewClient(w.cl)
	for _, topic := range []string{w.prefix + "activity", w.prefix + "entity-features"} {
		if _, err := w.adm.CreateTopic(w.ctx, contentParts, -1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}
	kafkaAndEtcd := fmt.Sprintf("brokers: [%q]\ntopic_prefix: %q\netcd: [%q]\n", w.kafka.addr(), w.prefix, local(w.etcdAt))
	kept := ""
	if w.bucket != "" {
		kept = fmt.Sprintf("backup: {to: %q, every: %s, keep: %d}\n", w.bucket, w.backups, backupsKept)
	}
	w.nodeConfig = kafkaAndEtcd + kept
	for _, id := range ids {
		w.startNode(id)
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

// startNode starts an index node that has nothing yet.
func (w *world) startNode(id millrace.NodeID) {
	w.t.Helper()
	port := freePorts(w.t, 1)
	w.nodePort = append(w.nodePort, port)
	w.nodes = append(w.nodes, w.role("indexnode", string(id), w.nodeConfig+"id: %s\ndata: %s\nlisten: %q\n", id, filepath.Join(w.dir, string(id)), local(port)))
	conn, err := grpc.NewClient(local(port), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	w.clients = append(w.clients, nodev1.NewNodeServiceClient(conn))
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
	if w.truth, err = newTruth([kafka.Streams]string{w.prefix + "timeline", w.prefix + "features"}, w.told); err != nil {
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
	w.asker.refused = func(err error) { w.history.note("refused", err.Error()) }
	w.load = newLoad(t, w.truth, w.kafka.client(t, kgo.MaxBufferedRecords(20_000)), seed, [kafka.Streams]string{w.prefix + "activity", w.prefix + "entity-features"})
	w.asker.known = w.load.population
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
	return w.cl.ProduceSync(w.ctx, w.schemaRecord(s)).FirstErr()
}

func (w *world) schemaRecord(s *schemas.Schema) *kgo.Record {
	return &kgo.Record{Topic: w.prefix + "schemas", Key: []byte(s.Fingerprint().String()), Value: []byte(s.JSON())}
}

// command runs the binary to its end.
func (w *world) command(args ...string) (string, error) {
	bound := patience
	if slices.Contains(args, "--wait") {
		bound = planPatience
	}
	ctx, cancel := context.WithTimeout(w.ctx, bound)
	defer cancel()
	out, err := exec.CommandContext(ctx, w.binary, args...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("millrace %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// told notes a violation.
func (w *world) told(kind, detail string) { w.history.violation(kind, detail) }
