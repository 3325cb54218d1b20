package follow

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/patience"
)

// taken is what a Follower has taken, with an x for each time that it began.
type taken struct {
	sync.Mutex
	all   []string
	fault error // of Take; nil: none
	log   strings.Builder
}

func (a *taken) config(brokers kafka.Brokers, topic string) Config {
	return Config{Brokers: brokers, Topic: topic, Log: slog.New(slog.NewTextHandler(a, nil)),
		Begin: func() { a.Lock(); defer a.Unlock(); a.all = append(a.all, "x") },
		Take: func(r *kgo.Record) error {
			a.Lock()
			defer a.Unlock()
			if a.fault == nil || string(r.Value) != "held" {
				a.all = append(a.all, string(r.Value))
				return nil
			}
			return a.fault
		}}
}

func (a *taken) Write(b []byte) (int, error) { // of its log
	a.Lock()
	defer a.Unlock()
	return a.log.Write(b)
}

func (a *taken) now() []string {
	a.Lock()
	defer a.Unlock()
	return slices.Clone(a.all)
}

func (a *taken) said() string {
	a.Lock()
	defer a.Unlock()
	return a.log.String()
}

// until waits for what a Follower comes to by itself.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for ctx := kafkatest.Deadline(t); !ok(); patience.Sleep(ctx, time.Millisecond) {
		if ctx.Err() != nil {
			t.Fatalf("never %s", what)
		}
	}
}

// A topic is read from its beginning, and on; what transactions took back, and what cannot be
// opened, is left out. One that is created again is read anew.
func TestFollow(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, k.Brokers, "one", 1, nil))
	kafkatest.Write(t, k, "one", 0, "a")
	kafkatest.Begin(t, k, "one", map[int32][]byte{0: []byte("taken back")})(kgo.TryAbort)
	kafkatest.Broken(t, k, "one", 0, 2, false)
	kafkatest.Write(t, k, "one", 0, "b")
	kafkatest.Bomb(t, k, "one", 0)
	var a taken
	f := new(Follower)
	kafkatest.Must(t, Open(f, a.config(k.Brokers, "one")))
	defer f.Close()
	if f.Held() != nil {
		t.Error("a record waits")
	}
	kafkatest.Must(t, f.Refresh(ctx))
	if got := a.now(); !slices.Equal(got, []string{"x", "a", "b"}) {
		t.Errorf("it has taken %q", got)
	}
	until(t, "confirmed", func() bool { return f.Read() && f.Fault() == nil })
	until(t, "told of both batches", func() bool { return strings.Count(a.said(), "is passed over") == 2 })
	for _, want := range []string{"one/0 from offset 3 to 4 is broken in the log: its entries do not parse", "one/0 from offset 6 to 6 is of more than"} {
		if !strings.Contains(a.said(), want) {
			t.Errorf("it said %s, want %q", a.said(), want)
		}
	}
	moved := f.Moved()
	select {
	case <-moved:
		t.Error("it has moved by itself")
	default:
	}
	kafkatest.Must(t, Put(ctx, k.Brokers, "one", "key", []byte("c")))
	select {
	case <-moved:
	case <-ctx.Done():
		t.Error("it does not move")
	}
	kafkatest.Must(t, f.Refresh(ctx))
	// Until a record can be taken no later one is.
	a.Lock()
	a.fault = io.ErrShortWrite
	a.Unlock()
	kafkatest.Must(t, Put(ctx, k.Brokers, "one", "key", []byte("held")))
	kafkatest.Must(t, Put(ctx, k.Brokers, "one", "key", []byte("d")))
	until(t, "held up", func() bool { return f.Held() != nil })
	soon, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	if err := f.Refresh(soon); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "kafka: read one at 8 of 10: ") || !errors.Is(f.Held(), io.ErrShortWrite) || !errors.Is(f.Fault(), io.ErrShortWrite) {
		t.Errorf("%v, held by %v: %v", err, f.Held(), f.Fault())
	}
	stop()
	if got := a.now(); !slices.Equal(got, []string{"x", "a", "b", "c"}) {
		t.Errorf("it has taken %q", got)
	}
	a.Lock()
	a.fault = nil
	a.Unlock()
	kafkatest.Must(t, f.Refresh(ctx))
	if got := a.now(); !slices.Equal(got, []string{"x", "a", "b", "c", "held", "d"}) || f.Held() != nil {
		t.Errorf("it has taken %q, held by %v", got, f.Held())
	}
	_, err := Admin(f).DeleteTopics(ctx, "one")
	kafkatest.Must(t, err)
	gone, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	if err := f.Refresh(gone); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without its topic: %v", err)
	}
	stop()
	kafkatest.Must(t, kafka.EnsureContentTopic(ctx, k.Brokers, "one", 1, nil))
	kafkatest.Must(t, Put(ctx, k.Brokers, "one", "key", []byte("e")))
	kafkatest.Must(t, f.Refresh(ctx))
	if got := a.now()[6:]; !slices.Equal(got, []string{"x", "e"}) {
		t.Errorf("of the new topic it has taken %q", got)
	}
	f.Close()
	if err := f.Refresh(ctx); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := Put(ctx, k.Brokers, "nowhere", "key", nil); err == nil || !strings.Contains(err.Error(), "kafka: write to topic nowhere: ") {
		t.Errorf("to a topic that is not there: %v", err)
	}
}

// Without Kafka it waits, says so at once and then now and then, and ends when it is told to.
func TestFollowWithoutKafka(t *testing.T) {
	if err := Open(new(Follower), Config{Topic: "t"}); err == nil {
		t.Error("it follows nobody")
	}
	if err := Put(t.Context(), kafka.Brokers{}, "t", "key", nil); err == nil {
		t.Error("it writes to nobody")
	}
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		brokers := kafka.At("127.0.0.1:1").Through(func(context.Context, string, string) (net.Conn, error) { return nil, away })
		var a taken
		f := new(Follower)
		if err := Open(f, a.config(brokers, "t")); err != nil {
			t.Fatal(err)
		}
		if f.Fault() == nil || f.Read() {
			t.Errorf("it has just begun: %v", f.Fault())
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !errors.Is(f.Fault(), away) {
			t.Errorf("what it waits for is %v", f.Fault())
		}
		time.Sleep(time.Minute - time.Second)
		synctest.Wait()
		if n := strings.Count(a.said(), "cannot follow a topic"); n < 4 || n > 7 || len(a.now()) > 0 || f.Read() {
			t.Errorf("in a minute it says so %d times, and has begun %q", n, a.now())
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		if err := f.Refresh(ctx); !errors.Is(err, away) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		stop()
		f.Close()
	})
}

// A reader goes on where the last one ended, unless the topic is another, or has lost the
// place; then it begins anew.
func TestWhereReadersBegin(t *testing.T) {
	for _, c := range []struct {
		id        byte
		at        int64
		fromStart bool
		goes      bool
	}{{1, 5, false, true}, {2, 5, false, false}, {1, 0, false, false}, {1, 1, false, true}, {1, 5, true, false}} {
		f, began, ended := new(Follower), 0, 0
		f.cfg.Begin = func() { began++ }
		f.mu.moved, f.mu.id[0] = make(chan struct{}), 1
		f.mu.next = c.at
		next, ok := f.start([16]byte{c.id}, func() { ended++ }, c.fromStart)
		f.mu.again()
		if ok != c.goes || c.goes && next != c.at || (began == 0) != c.goes || ended != 1 || f.mu.id[0] != c.id || (f.mu.next == c.at) != (c.goes || c.at == 0) {
			t.Errorf("%+v: at %d, %v, begun %d times", c, next, ok, began)
		}
	}
}
