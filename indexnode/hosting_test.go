package indexnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/partition"
)

// Every fault of a configuration is told, by its field.
func TestConfigsAreValidated(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"": func(c *Config) {
			c.Zone, c.QuestionMemory, c.Drain = strings.Repeat("z", maxZoneBytes), DefaultQuestionMemory, time.Second
		},
		"id data brokers etcd": func(c *Config) { *c = Config{} },
		"zone question_memory_mib drain": func(c *Config) {
			c.Zone, c.QuestionMemory, c.Drain = strings.Repeat("z", maxZoneBytes+1), DefaultQuestionMemory-1, -1
		},
		"id":            func(c *Config) { c.ID = "a/b" },
		"connect.kafka": func(c *Config) { c.Brokers = kafka.At("no port") },
		"backup.every":  func(c *Config) { c.Backup = backups.Config{To: "file:///backups", Every: -1} },
	} {
		c := Config{ID: "test", Dir: t.TempDir(), Brokers: kafka.At("127.0.0.1:1"), Cluster: new(cluster.Client)}
		change(&c)
		err := c.Validate()
		_, opened := Open(c)
		if want == "" {
			if err != nil {
				t.Errorf("what is right is refused: %v", err)
			}
			continue
		}
		if err == nil || opened == nil {
			t.Errorf("%s: no fault is told", want)
			continue
		}
		var got []string
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			if e, is := errors.AsType[*millrace.Error](e); is {
				got = append(got, e.Field)
			} else {
				got = append(got, want)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("at fault are %q, not %s: %v", got, want, err)
		}
	}
}

// The cluster is told of a lag that differs by half, or is of other partitions.
func TestALagIsToldWhenItDiffers(t *testing.T) {
	var one topology.Set
	one.Add(1)
	for _, c := range []struct {
		told, now topology.Lag
		want      bool
	}{
		{topology.Lag{}, topology.Lag{}, false},
		{topology.Lag{}, topology.Lag{Behind: one}, true},
		{topology.Lag{Behind: one, Seconds: 9}, topology.Lag{Seconds: 9}, true},
		{topology.Lag{Seconds: 8}, topology.Lag{Seconds: 12}, false},
		{topology.Lag{Seconds: 8}, topology.Lag{Seconds: 12.5}, true},
		{topology.Lag{Seconds: 12}, topology.Lag{Seconds: 8}, false},
		{topology.Lag{Seconds: 12}, topology.Lag{Seconds: 7.5}, true},
	} {
		if got := worthTelling(c.told, c.now); got != c.want {
			t.Errorf("%v after %v: %t", c.now, c.told, got)
		}
	}
}

// Partitions in one state for one reason are reported together, with the longest age and the
// earliest time; what operators have quarantined is apart by what they said.
func TestReportsAreByStateAndReason(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	for p, why := range map[millrace.Partition]replica.Why{
		3: {Reason: replica.ByOperator, Detail: "slow"}, 4: {Reason: replica.Corrupt, Detail: "a bit"}, 5: {Reason: replica.ByOperator, Detail: "odd"}, 6: {Reason: replica.Corrupt, Detail: "another bit"}, 7: {Reason: replica.ByOperator, Detail: "slow"},
	} {
		h.Condemn(p, why)
	}
	_, since3 := h.Of(4).Why()
	_, since := h.Of(6).Why()
	if since3.Before(since) {
		since = since3
	}
	n.replicas.Serve(9, time.Now().Add(-time.Hour))
	n.replicas.Serve(8, time.Now().Add(-2*time.Hour))
	n.replicas.Serve(10, time.Now().Add(-replica.UnknownAge))
	got := map[string]topology.Report{}
	for _, r := range n.reports(time.Now()) {
		what := fmt.Sprintf("%s %s %s", r.State, r.Reason, r.Detail)
		if _, twice := got[what]; twice {
			t.Errorf("%s is reported twice", what)
		}
		got[what] = r
	}
	for what, parts := range map[string][]millrace.Partition{"quarantined by_operator slow": {3, 7}, "quarantined by_operator odd": {5}, "quarantined corrupt a bit": {4, 6}} {
		var want topology.Set
		for _, p := range parts {
			want.Add(p)
		}
		if r := got[what]; r.Partitions != want || r.Warning || what == "quarantined corrupt a bit" && !r.Since.Equal(since) {
			t.Errorf("%s is reported of %v, since %s: %+v", what, &r.Partitions, r.Since, r)
		}
		delete(got, what)
	}
	if r := got["ready  "]; len(got) != 1 || r.Partitions.Len() != partition.Count-5 || r.Seconds < 7200 || r.Seconds > 7300 || r.Warning {
		t.Errorf("besides are reported %v", got)
	}
}

// An operator's pause is reported of the partitions that answer, and that the node leaves too.
func TestWhatIsReportedBesides(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	n.leaving = make(chan struct{})
	until, all := time.Now().Add(time.Hour), topology.All()
	for _, c := range []struct {
		pause, leave   bool
		answering      topology.Set
		paused, leaves int
	}{{answering: all}, {pause: true, answering: all, paused: 1}, {pause: true}, {pause: true, leave: true}, {pause: true, answering: all, paused: 1, leaves: 1}} {
		if c.pause {
			h.Pause(until)
		}
		if c.leave {
			close(n.leaving)
		}
		paused, leaves := n.pausedReport(time.Now(), c.answering), n.leavesReport(c.answering)
		if len(paused) != c.paused || len(leaves) != c.leaves {
			t.Errorf("%+v: reported is %v, and %v", c, paused, leaves)
		}
		for _, r := range paused {
			if r.State != "ready" || r.Reason != "paused" || r.Partitions != all || !r.Warning || !strings.Contains(r.Detail, until.UTC().Format(time.RFC3339)) {
				t.Errorf("a pause is reported as %+v", r)
			}
		}
		for _, r := range leaves {
			if r.State != "draining" || r.Reason != "leaving" || r.Partitions != all || r.Warning {
				t.Errorf("that it leaves is reported as %+v", r)
			}
		}
	}
	if err := n.Ready(); err == nil || err.Error() != "the node is being stopped" {
		t.Errorf("ready: %v", err)
	}
	n.leaving = make(chan struct{})
	n.awaits.Store("etcd")
	if err := n.Ready(); err == nil || err.Error() != "waiting for etcd" {
		t.Errorf("ready: %v", err)
	}
}

// What a node has is whole if all of it is ready, and no older than it may be.
func TestWhatIsWhole(t *testing.T) {
	var some topology.Set
	some.Add(1)
	some.Add(2)
	for want, reports := range map[string][]topology.Report{
		"0":  nil,
		"2":  {{State: "ready", Partitions: some}},
		"2 ": {{State: "ready", Partitions: some}, {State: "draining", Partitions: topology.All(), Seconds: 9}},
		"4: 2 partitions are stale (why: so); answers are as the log was 9 s ago, and Kafka has not said since where it ends": {{State: "stale", Reason: "why", Detail: "so", Partitions: some, Seconds: 7}, {State: "ready", Partitions: some, Seconds: 9}},
	} {
		hosted, err := whole(reports)
		got := fmt.Sprint(hosted)
		if err != nil {
			got += ": " + err.Error()
		}
		if got != strings.TrimSpace(want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A new replica needs a log that keeps all that no backup may have.
func TestALogKeepsWhatNoBackupHas(t *testing.T) {
	k := kafkatest.Fake(t)
	adm := kafkatest.Admin(t, k.Brokers)
	set := func(topic, policy string, hours, bytes int64) {
		t.Helper()
		config := func(name, value string) kadm.AlterConfig { return kadm.AlterConfig{Name: name, Value: &value} }
		ms := hours * time.Hour.Milliseconds()
		if hours < 0 {
			ms = -1
		}
		answers, err := adm.AlterTopicConfigs(kafkatest.Deadline(t), []kadm.AlterConfig{config("cleanup.policy", policy), config("retention.ms", fmt.Sprint(ms)), config("retention.bytes", fmt.Sprint(bytes))}, topic)
		if err == nil {
			_, err = answers.On(topic, nil)
		}
		kafkatest.Must(t, err)
	}
	to := backups.Config{To: "file:///backups", Every: 30 * time.Minute} // so a newest backup is an hour old at most
	for i, c := range []struct {
		policy       string
		hours, bytes int64
		reach        time.Duration
		own          backups.Config
		keeps        bool
	}{
		{"delete", -1, -1, 0, backups.Config{}, true},
		{"delete", 99, -1, 0, backups.Config{}, false},
		{"delete", 3, -1, time.Hour, backups.Config{}, true},
		{"delete", 3, -1, time.Hour + time.Second, backups.Config{}, false},
		{"delete", 3, -1, 0, to, true},
		{"delete", 2, -1, 0, to, false},
		{"delete", 2, -1, time.Minute, to, true},
		{"delete", 9, 1 << 40, time.Hour, to, false},
		{"delete", -1, 1 << 40, 0, backups.Config{}, false},
		{"compact", 9, -1, time.Hour, to, false},
	} {
		for _, topic := range []string{k.Topics.Timeline, k.Topics.Features} {
			h := &hosting{node: &Node{cfg: Config{Brokers: k.Brokers, Topics: k.Topics, BackupsReach: c.reach, Backup: c.own}}}
			set(topic, c.policy, c.hours, c.bytes)
			err := h.keeps(kafkatest.Deadline(t))
			if (err == nil) != c.keeps || err != nil && (!strings.Contains(err.Error(), "topic "+topic) || !strings.Contains(err.Error(), "3 times")) {
				t.Errorf("%d, of %s: %v", i, topic, err)
			}
			set(topic, "delete", -1, -1)
		}
	}
	h := &hosting{node: &Node{cfg: Config{Brokers: kafka.At("127.0.0.1:1"), Topics: k.Topics}}}
	gone, goes := context.WithCancel(t.Context())
	goes()
	if err := h.keeps(gone); err == nil {
		t.Error("a log of which nothing is known keeps everything")
	}
}

// Until what partitioners tell has been read once, nothing counts as brought to the log.
func TestNothingIsBroughtBeforeItIsRead(t *testing.T) {
	l, err := progress.Open(progress.Config{Brokers: kafka.At("127.0.0.1:1"), Topic: "progress"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if through, known := (input{l}).Through(); through.UnixMilli() != 1 || !known {
		t.Errorf("through %s, known: %t", through, known)
	}
}

// A node that is told to stop goes on for a time, unless it has failed.
func TestANodeDrains(t *testing.T) {
	for _, fails := range []time.Duration{0, 3 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			n := &Node{cfg: Config{Drain: 5 * time.Second}, leaving: make(chan struct{})}
			n.log = slog.New(slog.DiscardHandler)
			told, tell := context.WithCancel(t.Context())
			hosts, fail := context.WithTimeout(t.Context(), fails)
			defer fail()
			time.AfterFunc(2*time.Second, tell)
			began := time.Now()
			n.drain(told, hosts)
			if took, want := time.Since(began), min(7*time.Second, fails); took != want || n.isLeaving() != (fails > 2*time.Second) {
				t.Errorf("it drains for %s, not %s; it leaves: %t", took, want, n.isLeaving())
			}
			tell()
		})
	}
}

// What retention has dropped of quiet timelines is reclaimed each hour, and uncounted
// partitions are counted.
func TestSpaceIsReclaimed(t *testing.T) {
	keep := map[millrace.ContentType]store.Retention{"post": {MaxAge: time.Hour}}
	n, h := openStored(t, cache.Config{}, store.Options{FS: vfs.NewMem(), FlushEvery: -1, Retention: keep})
	nodetest.Members(t, h, 3, 4)
	var b store.Batch
	for p := range partition.All() {
		b.SetClock(p, 1_700_000_000_000+2*millrace.Time(time.Hour.Milliseconds()))
	}
	if _, err := n.store.Apply(&b, nil); err != nil {
		t.Fatal(err)
	}
	n.cfg.Store.Retention = keep
	expired := func() (sum int64) {
		for _, f := range n.store.Flows() {
			sum += f.Expired
		}
		return sum
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- (&hosting{node: n}).sweep(ctx) }()
		time.Sleep(sweepEvery - 1)
		if was := expired(); was > 0 {
			t.Errorf("%d records are reclaimed before their time", was)
		}
		time.Sleep(time.Nanosecond)
		for expired() < 12 {
			time.Sleep(time.Second) // of the bubble
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	n.cfg.Store.Retention = nil
	if err := (&hosting{node: n}).sweep(t.Context()); err != nil {
		t.Errorf("where nothing is dropped: %v", err)
	}
}

// What the engine tells has its metric; of a closed store there is none.
func TestTheEngineIsTold(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	entities(t, n, h, 5, 50)
	if err := n.store.Flush(); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(engineMetrics{n.store})
	got, e := gathered(t, registry), engine(t, n)
	for name, want := range map[string]float64{
		"compaction_debt_bytes": float64(e.Debt), "compactions_running": float64(e.Running), "read_amplification": float64(e.ReadAmplification), "tables": float64(e.Tables), "memtable_bytes": float64(e.MemtableBytes),
		"block_cache_bytes": float64(e.CacheBytes), "block_cache_hits_total": float64(e.CacheHits), "block_cache_misses_total": float64(e.CacheMisses), "compactions_total": float64(e.Compactions), "compactions_failed_total": float64(e.Failed),
		"compacted_bytes_total": float64(e.CompactedBytes), "flushes_total": float64(e.Flushes), "flushed_bytes_total": float64(e.FlushedBytes), "write_stalls_total": float64(e.Stalls), "disk_bytes": float64(e.DiskBytes),
	} {
		if v, is := got["store_"+name]; !is || v != want {
			t.Errorf("%s is %v (there: %t), not %v", name, v, is, want)
		}
	}
	if e.Flushes == 0 || len(got) != len(engineMetricsAll) {
		t.Errorf("%d flushes, and %d metrics of %d", e.Flushes, len(got), len(engineMetricsAll))
	}
}

func engine(t *testing.T, n *Node) store.Engine {
	t.Helper()
	e, ok := n.store.Engine()
	if !ok {
		t.Fatal("the store tells nothing")
	}
	return e
}
