package exposure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
)

// topic is a producer that does as it is told.
type topic struct {
	mu      sync.Mutex
	written []Entry
	calls   int
	// answer says what becomes of entries; nil writes all.
	answer func(ctx context.Context, entries []Entry) []error
}

func (p *topic) Produce(ctx context.Context, entries []Entry) []error {
	p.mu.Lock()
	p.calls++
	answer := p.answer
	p.mu.Unlock()
	var errs []error
	if answer != nil {
		errs = answer(ctx, entries)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range entries {
		if errs == nil || errs[i] == nil {
			p.written = append(p.written, e)
		}
	}
	return errs
}

func (p *topic) set(answer func(ctx context.Context, entries []Entry) []error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

var errAway = errors.New("away")

// away fails every entry.
func away(_ context.Context, entries []Entry) []error { return all(entries, errAway) }

// frozen answers nothing, and fails when the caller waits no longer.
func frozen(ctx context.Context, entries []Entry) []error {
	<-ctx.Done()
	return all(entries, ctx.Err())
}

func all(entries []Entry, err error) []error { return slices.Repeat([]error{err}, len(entries)) }

// ids returns the ids of what was written, in the order of the topic.
func (p *topic) ids(t *testing.T) (ids []string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.written {
		ids = append(ids, read(t, e).ID)
	}
	return ids
}

// read reads an entry as a consumer does.
func read(t *testing.T, e Entry) *Record {
	t.Helper()
	f, err := schemas.Unframe(e.Value)
	must(t, err)
	if f.Fingerprint != schemas.Exposure().Fingerprint() {
		t.Fatalf("an entry of schema %s", f.Fingerprint)
	}
	r, err := Decode(f.Fingerprint, f.Body)
	must(t, err)
	if string(e.Key) != r.Viewer {
		t.Fatalf("the key of %s is %q", r.Viewer, e.Key)
	}
	return r
}

func open(t *testing.T, cfg Config) *Log {
	t.Helper()
	l, err := Open(cfg)
	must(t, err)
	t.Cleanup(l.Close)
	return l
}

// add adds records r<from>, r<from+1>, ... and fails the test where that takes
// any time: in a bubble the clock goes on as soon as all wait for something.
func add(t *testing.T, l *Log, from, n int) {
	t.Helper()
	began := time.Now()
	for i := range n {
		r := record()
		r.ID = fmt.Sprint("r", from+i)
		l.Add(r)
	}
	if took := time.Since(began); took > 0 {
		t.Errorf("Add took %s", took)
	}
}

// names returns r<from>, r<from+1>, ...
func names(from, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint("r", from+i))
	}
	return ids
}

// balanced checks that every record is counted once, and that those written are
// in the topic.
func balanced(t *testing.T, l *Log, p *topic) Counts {
	t.Helper()
	c := l.Counts()
	if c.Added != c.Waiting+c.Written+c.DroppedFull+c.DroppedEnd+c.Invalid+c.Refused || c.WaitingBytes < 0 || c.WaitingBytes > int64(l.cfg.MaxBytes) || (c.Waiting == 0) != (c.WaitingBytes == 0) {
		t.Errorf("not each is counted once: %+v", c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Written != int64(len(p.written)) {
		t.Errorf("%d counted as written, %d in the topic", c.Written, len(p.written))
	}
	return c
}

func sameIDs(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%d written, want %d: %.200v ..., want %.200v ...", len(got), len(want), got, want)
	}
}

// What is added is written, as it was, in its order, and at once.
func TestLogWritesWhatWasAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &topic{}
		l := open(t, Config{Producer: p})
		rng := rand.New(rand.NewPCG(1, 1))
		var want []any
		for range 500 {
			r := randomRecord(rng)
			want = append(want, comparable(r))
			l.Add(r)
			*r = Record{} // the log keeps nothing of it
		}
		synctest.Wait()
		if c := balanced(t, l, p); c.Written != 500 || c.Waiting != 0 {
			t.Errorf("%+v", c)
		}
		for i, e := range p.written {
			if got := comparable(read(t, e)); got != want[i] {
				t.Fatalf("record %d is\n%v, want\n%v", i, got, want[i])
			}
		}
	})
}

// A producer that is frozen for a minute costs nothing but memory.
func TestProducerFrozenForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		thaw := make(chan struct{})
		p := &topic{answer: func(ctx context.Context, entries []Entry) []error {
			select {
			case <-thaw:
				return nil
			case <-ctx.Done():
				return all(entries, ctx.Err())
			}
		}}
		l := open(t, Config{Producer: p})
		for second := range 60 {
			add(t, l, second*20, 20)
			time.Sleep(time.Second)
			if c := balanced(t, l, p); c.Waiting != int64(second+1)*20 {
				t.Fatalf("after %d s: %+v", second, c)
			}
		}
		if age := l.oldest(); age != time.Minute {
			t.Errorf("the oldest has waited %s", age)
		}
		close(thaw)
		synctest.Wait()
		if c := balanced(t, l, p); c.Written != 1200 || c.Failures != 0 {
			t.Errorf("%+v", c)
		}
		sameIDs(t, p.ids(t), names(0, 1200))
	})
}

// When the queue is full, what waits is kept, what comes is dropped and counted,
// and memory stays within its bound.
func TestQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &topic{answer: away}
		l := open(t, Config{Producer: p, MaxBytes: 64 << 10})
		kept := 0
		for i := range 50 {
			add(t, l, i*20, 20)
			time.Sleep(time.Second)
			if c := balanced(t, l, p); c.DroppedFull == 0 {
				kept = int(c.Waiting)
			}
		}
		c := balanced(t, l, p)
		if c.Waiting < 50 || c.Waiting > 500 || c.Waiting < int64(kept) || c.DroppedFull != 1000-c.Waiting {
			t.Errorf("%d had been kept: %+v", kept, c)
		}
		p.set(nil)
		time.Sleep(maxPause)
		synctest.Wait()
		ids := p.ids(t)
		sameIDs(t, ids, names(0, int(c.Waiting)))
		add(t, l, 5000, 20)
		synctest.Wait()
		sameIDs(t, p.ids(t), append(ids, names(5000, 20)...))
		if got := balanced(t, l, p); got.DroppedFull != c.DroppedFull || got.Waiting != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// A producer that is killed is asked again, less and less often; what Close does
// not get written in its time is counted, and Close ends when it says.
func TestProducerKilled(t *testing.T) {
	for name, answer := range map[string]func(context.Context, []Entry) []error{"killed": away, "frozen": frozen} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &topic{}
				l := open(t, Config{Producer: p, Drain: 3 * time.Second})
				add(t, l, 0, 10)
				synctest.Wait()
				p.set(answer)
				add(t, l, 10, 20)
				time.Sleep(time.Minute)
				synctest.Wait()
				if p.calls > 30 { // 50, 100, 200 ... 5,000 ms
					t.Errorf("asked %d times in a minute", p.calls)
				}
				began := time.Now()
				l.Close()
				if took := time.Since(began); took != 3*time.Second {
					t.Errorf("Close took %s", took)
				}
				add(t, l, 100, 5)
				if c := balanced(t, l, p); c.Added != 35 || c.Written != 10 || c.DroppedEnd != 25 || c.Waiting != 0 {
					t.Errorf("%+v", c)
				}
				l.Close() // again
			})
		})
	}
}

// A producer that comes back while the log is closed gets the rest.
func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &topic{answer: away}
		l := open(t, Config{Producer: p, Drain: time.Minute})
		add(t, l, 0, 3000)
		time.Sleep(10 * time.Second)
		began := time.Now()
		go func() {
			time.Sleep(2 * time.Second)
			p.set(nil)
		}()
		l.Close()
		if took := time.Since(began); took > 2*time.Second+maxPause {
			t.Errorf("Close took %s", took)
		}
		if c := balanced(t, l, p); c.Written != 3000 || c.Failures == 0 {
			t.Errorf("%+v", c)
		}
		sameIDs(t, p.ids(t), names(0, 3000))
	})
}

// What a producer refuses is counted and takes no other with it.
func TestProducerRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &topic{answer: func(_ context.Context, entries []Entry) []error {
			errs := make([]error, len(entries))
			for i, e := range entries {
				if strings.HasSuffix(read(t, e).ID, "7") {
					errs[i] = fmt.Errorf("%w: too large", ErrRefused)
				}
			}
			return errs
		}}
		l := open(t, Config{Producer: p})
		add(t, l, 0, 100)
		synctest.Wait()
		if c := balanced(t, l, p); c.Refused != 10 || c.Written != 90 || c.Failures != 0 {
			t.Errorf("%+v", c)
		}
		sameIDs(t, p.ids(t), slices.DeleteFunc(names(0, 100), func(id string) bool { return strings.HasSuffix(id, "7") }))
	})
}

// A producer that fails at random: each record is written once, and in order where
// nothing behind a failure is written.
func TestProducerFailsAtRandom(t *testing.T) {
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprint("apart ", apart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng, pauses := rand.New(rand.NewPCG(2, 2)), rand.New(rand.NewPCG(3, 3)) // the producer's and the test's own
				p := &topic{answer: func(_ context.Context, entries []Entry) []error {
					time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
					errs := make([]error, len(entries))
					for i := range errs {
						if !apart && i > 0 && errs[i-1] != nil || rng.IntN(10) == 0 {
							errs[i] = errAway
						}
					}
					return errs
				}}
				l := open(t, Config{Producer: p, Drain: time.Hour})
				for i := range 100 {
					add(t, l, i*10, 10)
					time.Sleep(time.Duration(pauses.IntN(30)) * time.Millisecond)
				}
				l.Close()
				if c := balanced(t, l, p); c.Written != 1000 || c.Failures < 5 {
					t.Errorf("%+v", c)
				}
				got, want := p.ids(t), names(0, 1000)
				if apart {
					slices.Sort(got)
					slices.Sort(want)
				}
				sameIDs(t, got, want)
			})
		})
	}
}

// Many add at the same time, beside Close: each record is counted once, and each
// who adds finds theirs in their order.
func TestManyAddAtOnce(t *testing.T) {
	p := &topic{}
	l := open(t, Config{Producer: p, MaxBytes: 256 << 10})
	const adders, each = 8, 300
	var wg sync.WaitGroup
	for a := range adders {
		wg.Go(func() {
			for i := range each {
				r := record()
				r.Viewer, r.ID = fmt.Sprint("viewer", a), fmt.Sprintf("r%04d", i)
				l.Add(r)
				if a == 0 && i == each/2 {
					l.Close()
				}
			}
		})
	}
	wg.Wait()
	l.Close()
	if c := balanced(t, l, p); c.Added != adders*each || c.Waiting != 0 || c.Written == 0 || c.DroppedEnd == 0 {
		t.Errorf("%+v", c)
	}
	last := map[string]string{}
	for _, e := range p.written {
		r := read(t, e)
		if r.ID <= last[r.Viewer] {
			t.Fatalf("%s: %s after %s", r.Viewer, r.ID, last[r.Viewer])
		}
		last[r.Viewer] = r.ID
	}
}

// A record that is too large goes without its features; what is none is refused.
func TestRecordsThatAreTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &topic{}
		l := open(t, Config{Producer: p})
		r := record()
		r.Items[0].Features[1] = Text(strings.Repeat("x", millrace.MaxBodyBytes))
		l.Add(r)
		if len(r.Items[0].Features) != 2 || r.FeaturesLeftOut {
			t.Error("Add has changed the record")
		}
		r.Items[0].ID = strings.Repeat("x", millrace.MaxBodyBytes)
		l.Add(r)
		r.ID = ""
		l.Add(r)
		synctest.Wait()
		if c := balanced(t, l, p); c.Written != 1 || c.Invalid != 2 || c.FeaturesLeftOut != 1 {
			t.Errorf("%+v", c)
		}
		got := read(t, p.written[0])
		if !got.FeaturesLeftOut || got.Items[0].Features != nil || got.Items[0].Score != 1.5 {
			t.Errorf("%+v", got)
		}
	})
}

// Batches are bounded, so that a retry is.
func TestBatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		largest, most := 0, 0
		p := &topic{}
		hold := make(chan struct{})
		p.answer = func(_ context.Context, entries []Entry) []error {
			<-hold
			bytes := 0
			for _, e := range entries {
				bytes += len(e.Key) + len(e.Value)
			}
			largest, most = max(largest, bytes), max(most, len(entries))
			return nil
		}
		l := open(t, Config{Producer: p})
		add(t, l, 0, 2500)
		large := record()
		large.Broker = strings.Repeat("b", 300<<10)
		for range 20 {
			l.Add(large)
		}
		close(hold)
		synctest.Wait()
		if c := balanced(t, l, p); c.Written != 2520 || most != maxBatchEntries || largest > maxBatchBytes || largest < 900<<10 {
			t.Errorf("%+v; batches of up to %d entries, %d bytes", c, most, largest)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	_, err := Open(Config{MaxBytes: -1, Drain: -1})
	for _, field := range []string{"Producer", "MaxBytes", "Drain"} {
		if err == nil || !strings.Contains(err.Error(), field+": ") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}

// The metrics tell the counts.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &topic{}
		l := open(t, Config{Producer: p, MaxBytes: 4 << 10, Drain: time.Second})
		add(t, l, 0, 5)
		synctest.Wait()
		p.set(away)
		add(t, l, 5, 20)
		l.Add(&Record{})
		time.Sleep(90 * time.Millisecond)
		c := balanced(t, l, p)
		reg := prometheus.NewPedanticRegistry()
		must(t, reg.Register(l))
		families, err := reg.Gather()
		must(t, err)
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				name := strings.TrimPrefix(f.GetName(), "millrace_exposure_")
				for _, label := range m.Label {
					name += " " + label.GetValue()
				}
				got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		for name, want := range map[string]float64{
			"added_total": 26, "records_total written ": 5, "records_total dropped full": float64(c.DroppedFull), "records_total dropped end": 0,
			"records_total refused invalid": 1, "records_total refused producer": 0, "failures_total": 2, "without_features_total": 0,
			"waiting_bytes": float64(c.WaitingBytes), "waiting_max_bytes": 4096, "waiting_seconds": 0.09,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%q is %v, %t; want %v", name, v, ok, want)
			}
		}
		if len(got) != 11 || c.DroppedFull == 0 || c.WaitingBytes == 0 {
			t.Errorf("%v, %+v", got, c)
		}
	})
}

// BenchmarkAdd is what a request pays for a record of twenty items, without
// features and with fifty an item.
func BenchmarkAdd(b *testing.B) {
	for _, features := range []int{0, 50} {
		b.Run(fmt.Sprint(features, " features"), func(b *testing.B) {
			l, err := Open(Config{Producer: &discard{}, MaxBytes: 1 << 30})
			must(b, err)
			defer l.Close()
			r := record()
			r.Models[0].Features = make([]string, features)
			r.Items[0].Features = make([]Value, features)
			for i := range features {
				r.Models[0].Features[i] = fmt.Sprint("feature", i)
				r.Items[0].Features[i] = Number(float64(i) / 7)
			}
			r.Items = slices.Repeat(r.Items[:1], 20)
			b.ReportAllocs()
			for b.Loop() {
				l.Add(r)
			}
			if c := l.Counts(); c.Invalid > 0 || c.DroppedFull > 0 {
				b.Fatalf("%+v", c)
			}
		})
	}
}

// discard is a producer that writes to nowhere.
type discard struct{}

func (discard) Produce(context.Context, []Entry) []error { return nil }
