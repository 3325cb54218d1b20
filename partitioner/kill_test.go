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
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// childEnv holds a Config, as JSON, for a test binary that is to be a
// partitioner instead: a process that can be killed.
const childEnv = "MILLRACE_TEST_PARTITIONER"

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
	var cfg Config
	err := json.Unmarshal([]byte(text), &cfg)
	if err == nil {
		var p *Partitioner
		if p, err = New(cfg, slog.New(slog.NewTextHandler(os.Stderr, nil)), prometheus.NewRegistry(), func() time.Time { return now }); err == nil {
			err = p.Run(context.Background())
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// spawn runs a partitioner as a process of its own; kill ends it with SIGKILL.
func (w *world) spawn() (kill func()) {
	w.t.Helper()
	exe, err := os.Executable()
	must(w.t, err)
	cfg, err := json.Marshal(w.cfg)
	must(w.t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+string(cfg))
	cmd.Stderr = testWriter{w.t}
	_, err = cmd.StdinPipe() // closes with this process
	must(w.t, err)
	must(w.t, cmd.Start())
	done := false
	kill = func() {
		if done {
			return
		}
		done = true
		cmd.Process.Kill()
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			w.t.Errorf("the partitioner ended by itself: %v", err)
		}
	}
	w.t.Cleanup(kill)
	return kill
}

func TestKillsOnFake(t *testing.T) { testKills(t, newFake(t), 600, 0) }

// The proof of exactly-once is on a real Kafka; scripts/kafka starts one.
func TestKillsOnRealKafka(t *testing.T) {
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		t.Skip("MILLRACE_KAFKA is not set; make kafka starts one on 127.0.0.1:19092")
	}
	w := newWorld(t, []string{addr}, fmt.Sprintf("kills-%d-", time.Now().UnixNano()))
	t.Cleanup(w.deleteTopics)
	testKills(t, w, 3_000, 3)
}

// loadChunk records are loaded at a time, at most loadAhead chunks ahead of what
// has come out, so that there are many transactions to kill.
const (
	loadChunk = 200
	loadAhead = 5
)

// testKills kills the partitioner five times while records are loaded, each
// time within a transaction and at least apart records after the last, and
// finds every record in exactly one place, once. The successor of the kill
// number renamed (0 = none) has another instance name: it has to wait for the
// group and the open transaction to time out.
func testKills(t *testing.T, w *world, apart, renamed int) {
	const kills = 5
	w.publish(schemas.Activity())
	tokens := make(chan struct{}, loadAhead) // one allows one chunk
	for range loadAhead {
		tokens <- struct{}{}
	}
	loaded := make(chan int, 1)
	go func() { loaded <- w.load(tokens) }()

	count := map[string]int{}
	given := loadAhead
	read := func() {
		for _, r := range w.some() {
			count[string(r.Key)]++
		}
		for ; tokens != nil && given < loadAhead+len(count)/loadChunk; given++ {
			tokens <- struct{}{}
		}
	}
	stop := w.spawn()
	for kill := 1; kill <= kills; kill++ {
		for len(count) < kill*apart || !w.openTransaction() {
			read()
		}
		stop()
		if kill == renamed {
			w.cfg.Instance = "another"
		}
		stop = w.spawn()
	}
	close(tokens)
	tokens = nil
	total := <-loaded
	for len(count) < total {
		read()
	}
	stop()
	w.checkOnce(total, count)
}

// load produces records r0, r1, ..., keyed so, a chunk for each token, and
// returns how many. Every twentieth is poison.
func (w *world) load(tokens <-chan struct{}) (total int) {
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
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...), kgo.ConsumeTopics(topics...), kgo.KeepControlRecords(),
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
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.brokers...))
	if err != nil {
		return
	}
	defer cl.Close()
	t := w.cfg.Topics
	all := append(append([]string{t.Timeline, t.Features, t.Schemas, t.DeadLetters}, w.cfg.Content...), w.cfg.Features...)
	if _, err := kadm.NewClient(cl).DeleteTopics(ctx, all...); err != nil {
		w.t.Logf("topics stay behind: %v", err)
	}
}
