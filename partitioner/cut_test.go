package partitioner

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/groups"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/schemas"
)

// cutsEnv says how many cuts testCuts takes; empty = cutsByDefault.
const (
	cutsEnv       = "MILLRACE_CUTS"
	cutsByDefault = 8
)

func TestCutsOnFake(t *testing.T) {
	t.Parallel()
	testCuts(t, newFake(t))
}

// testCuts takes cuts under load, while one of two partitioners is stopped, is
// stopped and goes on in the middle, or is killed, and finds of every input that
// all its records are on the same side of each cut, and that the groups' offsets
// say which.
func testCuts(t *testing.T, w *world) {
	kinds := [4]string{"works", "is frozen", "is frozen and wakes up", "is killed"}
	w.publish(schemas.Activity(), schemas.Features())
	n, err := strconv.Atoi(os.Getenv(cutsEnv))
	if err != nil {
		n = cutsByDefault
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute+time.Duration(n)*5*time.Second)
	defer cancel()
	w.ctx = ctx
	began := make(chan struct{}, 1)
	var holds, held, longest atomic.Int64
	w.start(func(p *Partitioner) {
		p.on.holding = func() {
			select {
			case began <- struct{}{}:
			default:
			}
		}
		p.on.held = func(d time.Duration) {
			holds.Add(1)
			held.Add(int64(d))
			longest.Store(max(longest.Load(), int64(d)))
		}
	})
	w.cfg.Instance = "two"
	second := w.spawn()
	stop := w.stream()
	w.read(1)
	var cuts []groups.Cut
	took := map[string][]time.Duration{}
	for i := range n {
		select {
		case <-began:
		default:
		}
		cut := make(chan groups.Cut, 1)
		w.untilOpen()
		begin := time.Now()
		if i%4 != 0 {
			second.signal(syscall.SIGSTOP)
		}
		if i%4 == 3 {
			second.kill()
		}
		go func() {
			c, err := groups.TakeCut(w.ctx, groups.CutConfig{Brokers: w.brokers, Topics: w.cfg.Topics, Log: w.logger()})
			if err != nil {
				t.Error(err)
			}
			cut <- c
		}()
		if i%4 == 2 { // it wakes up while the other one holds, or after the cut
			select {
			case <-began:
			case c := <-cut:
				cut <- c
			}
			second.signal(syscall.SIGCONT)
		}
		cuts = append(cuts, <-cut)
		took[kinds[i%4]] = append(took[kinds[i%4]], time.Since(begin))
		switch i % 4 {
		case 1:
			second.signal(syscall.SIGCONT)
		case 3:
			second = w.spawn()
		}
	}
	inputs := stop()
	w.untilConsumed()
	second.kill()
	w.judge(cuts, inputs)
	for kind, all := range took {
		slices.Sort(all)
		t.Logf("while the second partitioner %s, %d cuts took %s at the median, %s at most", kind, len(all), all[len(all)/2], all[len(all)-1])
	}
	t.Logf("%d inputs; the first partitioner held %d times for %s in all, %s at most", inputs, holds.Load(), time.Duration(held.Load()), time.Duration(longest.Load()))
}

// stream produces inputs of several copies until the returned function is
// called, which says how many there were.
func (w *world) stream() (stop func() int) {
	ctx, cancel := context.WithCancel(w.ctx)
	total := 0
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			var records []*kgo.Record
			for range 20 {
				records = append(records, w.input(total))
				total++
			}
			if err := w.cl.ProduceSync(w.ctx, records...).FirstErr(); err != nil {
				w.t.Errorf("load: %v", err)
				return
			}
			<-tick.C
		}
	})
	return func() int {
		cancel()
		done.Wait()
		return total
	}
}

// input is the i-th of a stream: of ten, seven go to five timelines each, two
// are features and one is poison.
func (w *world) input(i int) *kgo.Record {
	r := &kgo.Record{Topic: w.cfg.Content[i%2], Partition: int32(i % 3)}
	id := fmt.Sprintf("r%d", i)
	switch i % 10 {
	case 7, 8:
		r.Topic = w.cfg.Features[0]
		r.Value = encode(w.t, schemas.Features(), fmt.Sprintf(`{"entity":%q,"subject":"p1","updated_at":"2026-03-01T11:00:00Z","engagement":0.5}`, id))
	case 9:
		r.Value = []byte("poison")
	default:
		r.Value = activity(w.t, id, id, fmt.Sprintf(`,"about":["a%d","b%d","c%d","d%d"]`, i, i, i, i))
	}
	return r
}

// untilOpen waits until a partitioner's transaction is open.
func (w *world) untilOpen() {
	w.until("a transaction is open", w.openTransaction)
}

// untilConsumed waits until the group has done everything.
func (w *world) untilConsumed() {
	in, err := kafka.NewInspector(w.brokers)
	must(w.t, err)
	defer in.Close()
	w.until("everything is consumed", func() bool {
		for _, topic := range w.cfg.inputs() {
			if lag, err := in.Lag(w.ctx, w.cfg.Group, topic); err != nil || lag > 0 {
				return false
			}
		}
		return true
	})
}

// copyOf is a record of the log, with what it was made from.
type copyOf struct {
	kafka.TopicPartition
	streams.Record
	from kafka.Source
}

// log returns every committed record of both streams up to the ends of a cut
// taken now.
func (w *world) log() []copyOf {
	w.t.Helper()
	end, err := groups.TakeCut(w.ctx, groups.CutConfig{Brokers: w.brokers, Topics: w.cfg.Topics, Log: w.logger()})
	must(w.t, err)
	spans := map[kafka.TopicPartition]streams.Span{}
	for s, all := range end.Ends {
		for p, at := range all {
			spans[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: millrace.Partition(p)}] = streams.Span{From: kafka.Position{Epoch: -1}, To: at.Next}
		}
	}
	var out []copyOf
	must(w.t, streams.ReadTails(w.ctx, streams.TailsConfig{Brokers: w.brokers, Topics: w.cfg.Topics}, spans, func(f streams.Fetched) error {
		for _, r := range f.Records {
			from, err := kafka.ParseSource(r.Source)
			if err != nil {
				return err
			}
			out = append(out, copyOf{f.TopicPartition, r, from})
		}
		return f.Err
	}))
	return out
}

// judge compares cuts with the log.
func (w *world) judge(cuts []groups.Cut, inputs int) {
	w.t.Helper()
	log := w.log()
	copies := map[kafka.Source]millrace.Time{}
	for _, r := range log {
		if at, ok := copies[r.from]; ok && at != r.Time {
			w.t.Errorf("records of %s have the times %s and %s", r.from, at, r.Time)
		}
		copies[r.from] = r.Time
	}
	want := 0 // inputs that are no poison
	for i := range inputs {
		if i%10 != 9 {
			want++
		}
	}
	if len(copies) != want {
		w.t.Errorf("records of %d inputs in the log, want %d", len(copies), want)
	}
	for i, cut := range cuts {
		torn, in := 0, 0
		for _, r := range log {
			inside := r.Offset < cut.Ends[r.Stream][r.Partition].Next
			consumed := r.from.Offset < cut.Groups[w.cfg.Group][r.from.Topic][r.from.Partition]
			if inside {
				in++
			}
			if inside == consumed {
				continue
			}
			if torn++; torn <= 3 {
				w.t.Errorf("cut %d: %s at %d, from %s: in the cut %v, consumed %v", i, r.TopicPartition, r.Offset, r.from, inside, consumed)
			}
		}
		if torn > 0 {
			w.t.Errorf("cut %d: %d of %d records are on the wrong side", i, torn, len(log))
		}
		if in == 0 {
			w.t.Errorf("cut %d of %d is empty", i, len(cuts))
		}
	}
}
