package partitioner

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/schemas"
)

// childEnv holds a childConfig, as JSON, for a test binary that is to be a
// partitioner instead: a process that can be killed.
const childEnv = "MILLRACE_TEST_PARTITIONER"

// childConfig is a Config and the addresses of its brokers, which it does not
// show.
type childConfig struct {
	Config  Config
	Brokers []string
}

func TestMain(m *testing.M) {
	if cfg := os.Getenv(childEnv); cfg != "" {
		child(cfg)
		return
	}
	os.Exit(m.Run())
}

func child(text string) {
	go func() { // its parent is gone
		io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	var cfg childConfig
	err := json.Unmarshal([]byte(text), &cfg)
	if err == nil {
		cfg.Config.Brokers = kafka.At(cfg.Brokers...)
		var p *Partitioner
		if p, err = New(cfg.Config, slog.New(slog.NewTextHandler(os.Stderr, nil)), prometheus.NewRegistry()); err == nil {
			err = p.Run(context.Background())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// process is a partitioner in a process of its own.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan error

	fenced told // that another process has its name
}

func (w *world) spawn() *process {
	w.t.Helper()
	exe, err := os.Executable()
	must(w.t, err)
	cfg, err := json.Marshal(childConfig{w.cfg, kafkatest.Addrs(w.cfg.Brokers)})
	must(w.t, err)
	p := &process{t: w.t, cmd: exec.Command(exe), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(cfg))
	p.cmd.Stderr = io.MultiWriter(testWriter{w.t}, &p.fenced)
	_, err = p.cmd.StdinPipe() // closes with this process
	must(w.t, err)
	must(w.t, p.cmd.Start())
	go func() { p.done <- p.cmd.Wait() }()
	w.t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// kill ends it with SIGKILL. That it ended before is a fault.
func (p *process) kill() {
	p.t.Helper()
	p.cmd.Process.Kill()
	err := <-p.done
	p.done <- err
	if err == nil || !strings.Contains(err.Error(), "killed") {
		p.t.Errorf("the partitioner ended by itself: %v", err)
	}
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(s))
}

// told notes that a process has written that it is fenced.
type told struct{ atomic.Bool }

func (f *told) Write(b []byte) (int, error) {
	if strings.Contains(string(b), groups.ErrFenced.Error()) {
		f.Store(true)
	}
	return len(b), nil
}

func TestKillsOnFake(t *testing.T) { testKills(t, newFake(t), 600, 0) }
func TestZombieOnFake(t *testing.T) {
	t.Parallel()
	testZombie(t, newFake(t))
}

// The proof of exactly-once is on a real Kafka; scripts/kafka starts one.
func TestOnRealKafka(t *testing.T) {
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		t.Skip("MILLRACE_KAFKA is not set; make kafka starts one on 127.0.0.1:19092")
	}
	for name, test := range map[string]func(*testing.T, *world){
		"kills":  func(t *testing.T, w *world) { testKills(t, w, 3_000, 3) },
		"zombie": testZombie,
		"fenced": testFenced,
		"bomb":   testBomb,
		"entry":  func(t *testing.T, w *world) { testUnparsable(t, w, true) },
		"last":   func(t *testing.T, w *world) { testUnparsable(t, w, false) },
		"open":   testOpenTransaction,
		"frozen": testFrozen,
		"cuts":   testCuts,
		"output": testRecreatedOutput,
		"input":  testRecreatedInput,
		"trim":   testTrimmedInput,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for Kafka most of the time, on topics of its own
			w := newWorld(t, kafka.At(addr), fmt.Sprintf("%s-%d-", name, time.Now().UnixNano()))
			t.Cleanup(w.deleteTopics)
			test(t, w)
		})
	}
}

// testKills kills the partitioner five times while records are loaded, each
// time within a transaction and at least apart records after the last, and
// finds every record in exactly one place, once. The successor of the kill
// number renamed (0 = none) has another instance name: it has to wait for the
// group and the open transaction to time out.
func testKills(t *testing.T, w *world, apart, renamed int) {
	const kills = 5
	l := w.load()
	p := w.spawn()
	for kill := 1; kill <= kills; kill++ {
		l.untilOpen(kill * apart)
		p.kill()
		if kill == renamed {
			w.cfg.Instance = "another"
		}
		p = w.spawn()
	}
	total := l.finish()
	p.kill()
	w.checkOnce(total, l.count)
}

// testZombie stops a partitioner within a transaction, lets a successor take
// its name over, and wakes it: it must stand by, and nothing it held may count.
func testZombie(t *testing.T, w *world) {
	l := w.load()
	zombie := w.spawn()
	l.untilOpen(500)
	zombie.signal(syscall.SIGSTOP)
	successor := w.spawn()
	for before := len(l.count); len(l.count) < before+500; {
		l.read()
	}
	zombie.signal(syscall.SIGCONT)
	for !zombie.fenced.Load() {
		l.read()
	}
	total := l.finish()
	successor.kill()
	w.checkOnce(total, l.count)
}

// load is a producer that never stops, and a reader of what comes out of it.
type load struct {
	w      *world
	tokens chan struct{} // one allows one chunk
	given  int
	loaded chan int
	count  map[string]int // by key
}

// loadChunk records are loaded at a time, at most loadAhead chunks ahead of what
// has come out, so that there are many transactions to interrupt.
const (
	loadChunk = 200
	loadAhead = 5
)

func (w *world) load() *load {
	w.t.Helper()
	w.publish(schemas.Activity())
	l := &load{w: w, tokens: make(chan struct{}, loadAhead), loaded: make(chan int, 1), count: map[string]int{}}
	l.read()
	go func() { l.loaded <- w.produceChunks(l.tokens) }()
	return l
}

// read takes note of what has come out, and lets as much follow.
func (l *load) read() {
	for _, r := range l.w.some() {
		l.count[string(r.Key)]++
	}
	for ; l.tokens != nil && l.given < loadAhead+len(l.count)/loadChunk; l.given++ {
		l.tokens <- struct{}{}
	}
}

// untilOpen reads until so many records have come out and a transaction is open.
func (l *load) untilOpen(records int) {
	l.w.t.Helper()
	for len(l.count) < records || !l.w.openTransaction() {
		l.read()
	}
}

// finish ends the producer, reads the rest, and returns how many there are.
func (l *load) finish() (total int) {
	close(l.tokens)
	l.tokens = nil
	for total = <-l.loaded; len(l.count) < total; {
		l.read()
	}
	return total
}

// produceChunks produces records r0, r1, ..., keyed so, a chunk for each token,
// and returns how many. Every twentieth is poison.
func (w *world) produceChunks(tokens <-chan struct{}) (total int) {
	for range tokens {
		var records []*kgo.Record
		for range loadChunk {
			id := fmt.Sprintf("r%d", total)
			value := activity(w.t, id, id, "")
			if total%20 == 0 {
				value = append(value, 0)
			}
			records = append(records, &kgo.Record{Topic: w.cfg.Content[total%2], Partition: int32(total % 3), Key: []byte(id), Value: value})
			total++
		}
		if err := w.cl.ProduceSync(w.ctx, records...).FirstErr(); err != nil {
			w.t.Errorf("load: %v", err)
			for range tokens { // nobody is to wait for the rest
			}
		}
	}
	return total
}

// some returns the records that come in within a moment.
func (w *world) some() []*kgo.Record {
	w.t.Helper()
	must(w.t, w.ctx.Err())
	ctx, cancel := context.WithTimeout(w.ctx, 20*time.Millisecond)
	defer cancel()
	return w.cl.PollFetches(ctx).Records()
}

// openTransaction reports whether something is in the timeline topic that no
// reader of committed records can see yet.
func (w *world) openTransaction() bool {
	w.t.Helper()
	adm := kadm.NewClient(w.cl)
	ends, err := adm.ListEndOffsets(w.ctx, w.cfg.Topics.Timeline)
	must(w.t, err)
	stable, err := adm.ListCommittedOffsets(w.ctx, w.cfg.Topics.Timeline)
	must(w.t, err)
	open := false
	ends.Each(func(o kadm.ListedOffset) {
		s, ok := stable.Lookup(o.Topic, o.Partition)
		open = open || ok && s.Offset < o.Offset
	})
	return open
}

// checkOnce holds what a reader saw while it happened, and what one sees who
// reads everything afterwards, against r0 to r(total-1), each once.
func (w *world) checkOnce(total int, live map[string]int) {
	w.t.Helper()
	after := map[string]int{}
	for _, r := range w.readAll() {
		after[string(r.Key)]++
		if dead := r.Topic == w.cfg.Topics.DeadLetters; dead != (header(r, kafka.HeaderReason) != "") {
			w.t.Errorf("%s in %s", r.Key, r.Topic)
		}
	}
	for name, count := range map[string]map[string]int{"live": live, "after": after} {
		if len(count) != total {
			w.t.Errorf("%s: %d records of %d", name, len(count), total)
		}
		for i := range total {
			id := fmt.Sprintf("r%d", i)
			if n := count[id]; n != 1 {
				w.t.Errorf("%s: record %s came out %d times", name, id, n)
			}
		}
	}
}

// readAll reads the timeline and the dead letters from their beginning to
// their present end, control records included.
func (w *world) readAll() []*kgo.Record {
	w.t.Helper()
	topics := []string{w.cfg.Topics.Timeline, w.cfg.Topics.DeadLetters}
	ends, err := kadm.NewClient(w.cl).ListEndOffsets(w.ctx, topics...)
	must(w.t, err)
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...), kgo.ConsumeTopics(topics...), kgo.KeepControlRecords(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxBytes(32<<20), kgo.FetchMaxPartitionBytes(32<<20),
		kgo.FetchMaxWait(100*time.Millisecond))
	must(w.t, err)
	defer cl.Close()
	left := 0
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left++
		}
	})
	var out []*kgo.Record
	for left > 0 {
		fetches := cl.PollFetches(w.ctx)
		for _, e := range fetches.Errors() {
			w.t.Fatalf("with %d partitions to read: %s/%d: %v", left, e.Topic, e.Partition, e.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if end, _ := ends.Lookup(r.Topic, r.Partition); r.Offset == end.Offset-1 {
				left--
			}
			if !r.Attrs.IsControl() {
				out = append(out, r)
			}
		})
	}
	return out
}

func (w *world) deleteTopics() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...))
	if err != nil {
		return
	}
	defer cl.Close()
	all := append(w.cfg.Topics.All(), w.cfg.inputs()...)
	if _, err := kadm.NewClient(cl).DeleteTopics(ctx, all...); err != nil {
		w.t.Logf("topics stay behind: %v", err)
	}
}
