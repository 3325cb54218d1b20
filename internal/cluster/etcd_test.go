package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// server is an etcd that can be stopped, started again and emptied.
type server struct {
	t     *testing.T
	dir   string
	addr  string // host:port, the same after a restart
	token string // that makes it another cluster
	etcd  *embed.Etcd
	judge grpc.UnaryServerInterceptor // of every call; nil: none
}

func startEtcd(t *testing.T) *server {
	s := &server{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	s.start()
	t.Cleanup(func() {
		if s.etcd != nil {
			s.stop()
		}
	})
	return s
}

func (s *server) start() {
	s.t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.UnsafeNoFsync = s.dir, "fatal", true
	cfg.ListenClientUrls = []url.URL{{Scheme: "http", Host: s.addr}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	if s.token != "" {
		cfg.InitialClusterToken = s.token
	}
	if s.judge != nil {
		cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.judge)}
	}
	e, err := embed.StartEtcd(cfg)
	for tries := 0; err != nil && strings.Contains(err.Error(), "address already in use") && tries < 100; tries++ {
		time.Sleep(200 * time.Millisecond) // an outgoing connection may have its port for a moment
		e, err = embed.StartEtcd(cfg)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(20 * time.Second):
		s.t.Fatal("etcd is not ready")
	}
	s.etcd, s.addr = e, e.Clients[0].Addr().String()
}

func (s *server) stop() {
	s.etcd.Close()
	s.etcd = nil
}

func (s *server) empty() {
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) open(dir string) *cluster.Client {
	s.t.Helper()
	return s.openAs(cluster.Config{Dir: dir})
}

// command is a client that waits for etcd as commands do, and longer, however busy the
// machine is.
func (s *server) command() *cluster.Client {
	s.t.Helper()
	return s.openAs(cluster.Config{Wait: 2 * time.Minute})
}

func (s *server) openLogging(dir string, log *slog.Logger) *cluster.Client {
	s.t.Helper()
	return s.openAs(cluster.Config{Dir: dir, Log: log})
}

// openAs fills in what is always the same.
func (s *server) openAs(cfg cluster.Config) *cluster.Client {
	s.t.Helper()
	cfg.Endpoints, cfg.Name = []string{s.addr}, "test"
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c, err := cluster.Open(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	c.SetRelist(200 * time.Millisecond)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// raw writes past this package.
func (s *server) raw(do func(*clientv3.Client) error) {
	s.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.addr}})
	if err == nil {
		err = do(c)
		_ = c.Close()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// loses deletes a key, and returns once somebody has written it anew.
func (s *server) loses(key string) {
	s.t.Helper()
	s.raw(func(c *clientv3.Client) error {
		_, err := c.Delete(s.t.Context(), key)
		if err != nil {
			return err
		}
		await(s.t, key+" is written again", func() <-chan struct{} { return closedAfter(s.t) }, func() bool {
			got, err := c.Get(s.t.Context(), key)
			return err == nil && len(got.Kvs) > 0
		})
		return nil
	})
}

// await waits until ok holds of something that tells of its changes.
func await(t *testing.T, what string, changed func() <-chan struct{}, ok func() bool) {
	t.Helper()
	limit := time.After(2 * time.Minute) // which a busy machine takes for what takes a second
	for {
		next := changed()
		if ok() {
			return
		}
		select {
		case <-next:
		case <-limit:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// alarm returns the metric of faults, by what is watched.
func alarm(t *testing.T, c *cluster.Client) map[string]float64 {
	t.Helper()
	return gauges(t, c, "millrace_cluster_fault_seconds")
}

// gauges returns a metric by its label.
func gauges(t *testing.T, c *cluster.Client, name string) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	check(t, r.Register(c))
	families, err := r.Gather()
	check(t, err)
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return out
}

func TestMapAndDocumentsThroughOutages(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	etcd := startEtcd(t)
	c := etcd.open(dir)
	w, err := c.Watch(ctx)
	check(t, err)
	docs, err := documents.Watch(ctx, c, "feeds")
	check(t, err)
	until := func(what string, ok func(m *topology.Map, fault error) bool) {
		t.Helper()
		await(t, what, w.Changed, func() bool { return ok(w.Current(), w.Fault()) })
	}
	fault := func(text string) func(*topology.Map, error) bool {
		return func(m *topology.Map, err error) bool { return err != nil && strings.Contains(err.Error(), text) }
	}
	if w.Current().Epoch() != 0 {
		t.Fatalf("an empty cluster has epoch %d", w.Current().Epoch())
	}

	// Secrets are made once.
	secret, err := secrets.Get(ctx, c, "pages")
	check(t, err)
	if again, err := secrets.Get(ctx, c, "pages"); err != nil || len(secret) != 32 || string(again) != string(secret) {
		t.Fatalf("secret %x, then %x, %v", secret, again, err)
	}

	// A cluster comes to life.
	n1, err := members.Join(ctx, c, topology.Node{ID: "n1", Addr: "127.0.0.1:1", Zone: "a"})
	check(t, err)
	n2, err := members.Join(ctx, c, topology.Node{ID: "n2", Addr: "127.0.0.1:2"})
	check(t, err)
	a, err := topology.Spread([]millrace.NodeID{"n1", "n2"}, 2)
	check(t, err)
	registered(t, n1)
	registered(t, n2)
	check(t, steering.Assign(ctx, c, a))
	if err := steering.Assign(ctx, c, a); !errors.Is(err, steering.ErrEpoch) {
		t.Fatalf("assigning the same epoch twice gave %v", err)
	}
	n1.SetAnswering(topology.All(), topology.Lag{})
	check(t, putDocument(ctx, docs, "home", []byte("name: home")))
	until("n1 is ready", func(m *topology.Map, err error) bool {
		return err == nil && m.Epoch() == 1 && m.Alive("n2") && m.Ready("n1") == topology.All()
	})
	await(t, "the document is there", docs.Changed, func() bool { return docs.Current()["home"].Body == "name: home" })

	// Lag is told, and again that there is none.
	lag := topology.Lag{Seconds: 12.5, Records: 3}
	lag.Behind.Add(719)
	n1.SetAnswering(topology.All(), lag)
	until("n1 lags", func(m *topology.Map, err error) bool {
		return err == nil && m.Lag("n1") == lag && m.Lag("n2") == topology.Lag{}
	})
	n1.SetAnswering(topology.All(), topology.Lag{})
	until("n1 lags no more", func(m *topology.Map, err error) bool { return m.Lag("n1") == topology.Lag{} })
	n1.SetAnswering(topology.All(), lag) // to be told again after the loss, below

	// Nonsense changes nothing, and is told.
	key := "/millrace/test/map/assignment"
	var good string
	etcd.raw(func(e *clientv3.Client) error {
		got, err := e.Get(ctx, key)
		if err != nil {
			return err
		}
		good = string(got.Kvs[0].Value)
		_, err = e.Put(ctx, key, "nonsense")
		return err
	})
	until("nonsense is told", fault("invalid character"))
	if w.Current().Epoch() != 1 {
		t.Fatal("nonsense changed the map")
	}
	etcd.raw(func(e *clientv3.Client) error { _, err := e.Put(ctx, key, good); return err })
	until("all is well again", func(m *topology.Map, err error) bool { return err == nil })

	// Compaction: the watch must not miss what came after.
	etcd.raw(func(e *clientv3.Client) error {
		put, err := e.Put(ctx, "/elsewhere", "")
		if err == nil {
			_, err = e.Compact(ctx, put.Header.Revision)
		}
		return err
	})
	n2.SetAnswering(topology.All(), topology.Lag{})
	until("n2 is ready", func(m *topology.Map, err error) bool { return m.Ready("n2") == topology.All() })

	// One leaves on purpose.
	check(t, n2.Leave(ctx))
	until("n2 has left", func(m *topology.Map, err error) bool { _, ok := m.Node("n2"); return !ok })

	// etcd away: everything stays, and a new process starts from disk.
	if s := alarm(t, c); s["map"] != 0 || s["feeds"] != 0 || s["node n1"] != 0 || len(s) != 3 {
		t.Fatalf("alarms while all is well: %v", s)
	}
	etcd.stop()
	until("etcd is away", fault("etcd is away"))
	await(t, "documents are old", docs.Changed, func() bool { return docs.Fault() != nil })
	if s := alarm(t, c); s["map"] == 0 || s["feeds"] == 0 {
		t.Fatalf("alarms while etcd is away: %v", s)
	}
	if m := w.Current(); m.Epoch() != 1 || m.Ready("n1") != topology.All() {
		t.Fatal("the map went with etcd")
	}
	c2 := etcd.open(dir)
	if c2.Patient() { // each of those who watch would wait behind the one before
		t.Error("a process that starts waits for a silent etcd again and again")
	}
	w2, err := c2.Watch(ctx)
	check(t, err)
	if m := w2.Current(); m.Epoch() != 1 || m.Ready("n1") != topology.All() || len(m.Nodes()) != 1 {
		t.Fatalf("from disk: epoch %d, nodes %v", m.Epoch(), m.Nodes())
	}
	if kept, err := secrets.Get(ctx, c2, "pages"); err != nil || string(kept) != string(secret) {
		t.Fatalf("from disk: secret %x, %v", kept, err)
	}
	done := c2.Read() // as who asks the silent etcd for something else
	started, cancel := context.WithTimeout(ctx, 10*time.Second)
	docs2, err := documents.Watch(started, c2, "feeds")
	cancel()
	check(t, err)
	done()
	if docs2.Fault() == nil {
		t.Error("what is on disk is taken for what etcd has")
	}
	if docs2.Current()["home"].Body != "name: home" {
		t.Fatalf("from disk: %v", docs2.Current())
	}
	check(t, c2.Close())
	etcd.start()
	until("etcd is back", func(m *topology.Map, err error) bool { return err == nil && m.Alive("n1") })
	await(t, "etcd is trusted to answer", docs.Changed, c.Patient)
	if s := alarm(t, c); s["map"] != 0 {
		t.Fatalf("alarms while etcd is back: %v", s)
	}

	// etcd back empty: everything stays, and nodes register again.
	etcd.stop()
	etcd.empty()
	etcd.start()
	until("the loss is told", fault("holds nothing"))
	await(t, "the loss of documents is told", docs.Changed, func() bool { return docs.Fault() != nil })
	if w.Current().Epoch() != 1 || docs.Current()["home"].Body != "name: home" {
		t.Fatal("the last good state went with etcd's")
	}
	if s := alarm(t, c); s["map"] == 0 || s["feeds"] == 0 {
		t.Fatalf("alarms while etcd is empty: %v", s)
	}

	// A restarted process writes the partition count again; that alone must
	// not make the loss look like a state.
	etcd.open("")
	until("the lost assignment is told", fault("lost the assignment"))
	if docs.Current()["home"].Body != "name: home" {
		t.Fatal("the last good documents went")
	}
	until("n1 registers again", func(m *topology.Map, err error) bool {
		return m.Alive("n1") && m.Ready("n1") == topology.All() && m.Lag("n1") == lag
	})

	// Nor must its revisions, once they have caught up, or a restart.
	etcd.raw(func(e *clientv3.Client) error {
		for range 100 {
			if _, err := e.Put(ctx, "/elsewhere", ""); err != nil {
				return err
			}
		}
		return nil
	})
	n1.SetAnswering(topology.All(), topology.Lag{}) // rings
	c3 := etcd.open(dir)
	docs3, err := documents.Watch(ctx, c3, "feeds")
	check(t, err)
	await(t, "the loss is told after a restart", docs3.Changed, func() bool { return docs3.Fault() != nil })
	await(t, "the loss is still told", docs.Changed, func() bool { return docs.Fault() != nil && strings.Contains(docs.Fault().Error(), "another") })
	if docs.Current()["home"].Body != "name: home" || docs3.Current()["home"].Body != "name: home" {
		t.Fatal("the last good documents went")
	}
	if again, err := secrets.Get(ctx, c3, "pages"); err != nil || string(again) != string(secret) {
		t.Fatalf("the secret of a restarted process is %x, %v", again, err)
	}

	// Restored from what was kept, all is well, and goes on.
	got, err := restoration.Restore(ctx, c3, dir)
	check(t, err)
	if got.Epoch != 2 || len(got.Documents) != 1 || got.Secrets != 0 || got.Stays != nil { // the secret is there already
		t.Fatalf("restored %+v", got)
	}
	until("the restored map is taken", func(m *topology.Map, err error) bool { return err == nil && m.Epoch() == 2 && m.Alive("n1") })
	for _, d := range []*documents.Kind{docs, docs3} {
		await(t, "the restored documents are taken", d.Changed, func() bool { return d.Fault() == nil && d.Current()["home"].Body == "name: home" })
	}
	if _, err := restoration.Restore(ctx, c3, dir); !errors.Is(err, restoration.ErrNothingLost) {
		t.Fatalf("restoring again gives %v", err)
	}
	check(t, docs.Delete(ctx, "home"))
	await(t, "the document is deleted", docs3.Changed, func() bool { return len(docs3.Current()) == 0 })
	a.Epoch = 3
	check(t, steering.Assign(ctx, c, a))
	until("the new assignment is taken", func(m *topology.Map, err error) bool { return err == nil && m.Epoch() == 3 })
}

func TestAnotherPartitionCountRefusesToStart(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	etcd.raw(func(e *clientv3.Client) error {
		_, err := e.Put(t.Context(), "/millrace/test/partitions", "64")
		return err
	})
	_, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{etcd.addr}, Name: "test"})
	if !errors.Is(err, keyspace.ErrPartitions) {
		t.Fatalf("got %v", err)
	}
}

func TestOpenWithoutEtcdEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{"127.0.0.1:1"}, Name: "test"}); err == nil {
		t.Fatal("opened without etcd")
	}
}

// A process that starts while etcd leaves notices by whatever it asks first, and does
// not wait as long for each thing after it.
func TestAnEtcdThatLeavesAtAStartIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	c := etcd.open(t.TempDir())
	ctx := t.Context()
	_, err := secrets.Get(ctx, c, "pages")
	check(t, err)
	etcd.stop()
	if !c.Patient() {
		t.Fatal("it has asked nothing yet")
	}
	_, err = secrets.Get(ctx, c, "pages") // which is on disk
	check(t, err)
	if c.Patient() {
		t.Error("what it asks next waits as long again")
	}
}
