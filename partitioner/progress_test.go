package partitioner

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/schemas"
)

// progress follows what partitioners tell.
func (w *world) progress() *progress.Log {
	w.t.Helper()
	l, err := progress.Open(progress.Config{Brokers: w.brokers, Topic: w.cfg.Topics.Progress})
	must(w.t, err)
	w.t.Cleanup(l.Close)
	return l
}

// untilThrough waits until everything that came before a time is said to be
// partitioned.
func (w *world) untilThrough(l *progress.Log, after time.Time) {
	w.t.Helper()
	w.until("through "+after.String(), func() bool {
		through, ok := l.Through()
		return ok && through.After(after)
	})
}

func TestFrozenPartitionersAge(t *testing.T) {
	t.Parallel()
	testFrozen(t, newFake(t))
}

// testFrozen: while every partitioner is frozen nothing new is proven, and what
// was proven gets old; once they go on it is proven again.
func testFrozen(t *testing.T, w *world) {
	w.publish(schemas.Activity())
	p, l := w.spawn(), w.progress()
	w.produce(&kgo.Record{Topic: w.cfg.Content[0], Value: activity(t, "p1", "member:1", "")})
	w.read(1)
	w.untilThrough(l, time.Now())
	p.signal(syscall.SIGSTOP)
	frozen := time.Now()
	w.produce(&kgo.Record{Topic: w.cfg.Content[0], Value: activity(t, "p2", "member:1", "")})
	const limit = 10 * time.Second // from which on answers are flagged
	w.until("older than the limit", func() bool {
		through, ok := l.Through()
		if !ok || through.After(frozen) {
			t.Fatalf("frozen at %s, and through %s, %v", frozen, through, ok)
		}
		return time.Since(through) > limit
	})
	must(t, l.Refresh(w.ctx)) // and the reader has read all there is
	if through, _ := l.Through(); time.Since(through) < limit {
		t.Errorf("through %s", through)
	}
	p.signal(syscall.SIGCONT)
	w.read(1)
	w.untilThrough(l, frozen)
}

// A partitioner whose loop is stuck goes on writing, and proves nothing by it.
func TestAStuckLoopProvesNothing(t *testing.T) {
	t.Parallel()
	w := newFake(t)
	w.publish(schemas.Activity())
	stuck, free := make(chan struct{}, 100), make(chan struct{})
	w.cfg.SchemaWait = time.Millisecond
	w.start(func(p *Partitioner) { p.on.waiting = func() { stuck <- struct{}{}; <-free } })
	l := w.progress()
	w.untilThrough(l, time.Now())
	w.produce(&kgo.Record{Topic: "posts", Value: schemas.Frame(12345, []byte("body"))})
	produced := time.Now()
	<-stuck
	w.until("a later heartbeat", func() bool {
		p, _ := l.Group("group")
		return p.At().After(produced.Add(2 * time.Second))
	})
	if p, _ := l.Group("group"); p.Through().After(produced) || p.Topics["posts"].Waiting != 1 {
		t.Errorf("a record waits since %s: %+v", produced, p)
	}
	close(free)
	w.read(1)
	w.untilThrough(l, produced)
}

func TestOpenTransactionIsTold(t *testing.T) {
	t.Parallel()
	testOpenTransaction(t, newFake(t))
}

// testOpenTransaction: a producer's transaction that does not end holds up what
// is behind it; that is told, and over when it is aborted. What it held is never
// seen.
func testOpenTransaction(t *testing.T, w *world) {
	w.publish(schemas.Activity())
	topic := w.cfg.Content[0]
	hanging, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(w.brokers)...), kgo.TransactionalID(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(t, err)
	defer hanging.Close()
	must(t, hanging.BeginTransaction())
	must(t, hanging.ProduceSync(w.ctx, &kgo.Record{Topic: topic, Value: activity(t, "never", "member:1", "")}).FirstErr())
	w.produce(&kgo.Record{Topic: topic, Value: activity(t, "behind", "member:1", "")})
	behind := time.Now()

	p, _ := w.start(func(p *Partitioner) { p.pace.open = 0 })
	l := w.progress()
	w.untilReady(p, "a producer's transaction is open")
	if n := value(p.metrics.open.WithLabelValues(topic)); n != 2 {
		t.Errorf("%v records in and behind the transaction, want 2", n)
	}
	if through, ok := l.Through(); ok && through.After(behind) {
		t.Errorf("through %s, while a record from before %s waits", through, behind)
	}
	must(t, hanging.EndTransaction(w.ctx, kgo.TryAbort))
	out := w.read(1)
	if ids := keys(out["timeline"]); !slices.Equal(ids, []string{"member:1"}) {
		t.Errorf("came out: %v", ids)
	}
	w.untilReady(p, "")
	w.untilThrough(l, behind)
	if n := value(p.metrics.consumed.WithLabelValues(topic)); n != 1 {
		t.Errorf("%v records were consumed, want the one that was committed", n)
	}
}

func keys(records []*kgo.Record) []string {
	var all []string
	for _, r := range records {
		all = append(all, string(r.Key))
	}
	return all
}
