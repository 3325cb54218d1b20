package replica

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
)

// maxPoll is how many records one poll of Kafka returns at most, of all partitions together.
const maxPoll = 20_000

// ingest applies the records of the log. One goroutine does that for all replicas, and
// waits for none of them: what cannot be applied now stays in the backlog of its stream,
// and is tried again. Kafka is not asked for more of that stream meanwhile.
type ingest struct {
	all *Replicas
	cfg *Config

	// These belong to the goroutine alone.
	batch    store.Batch
	changes  []store.Change
	routes   []millrace.Entity       // the entities whose features the batch changes
	refused  []refusal               // the records of the batch's offsets that are refused
	gathered int                     // how many records the batch was made of, refused ones included
	held     map[*backlog]heldStream // the streams that are held back

	letterBytes atomic.Int64 // the bytes of the refused records on their way to the dead letters

	mu struct {
		sync.Mutex
		woken  bool               // wake was called since the last poll
		cancel context.CancelFunc // ends the poll under way; nil: none is
	}
}

// heldStream says which replica and stream a backlog belongs to.
type heldStream struct {
	replica *Replica
	stream  kafka.Stream
}

// wake ends the poll under way, and has the goroutine try again everything that is held
// back. Any goroutine may call it.
func (in *ingest) wake() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.mu.woken = true
	if in.mu.cancel != nil {
		in.mu.cancel()
	}
}

// run reads and applies the log until ctx ends. No failure of Kafka or of the store ends
// it.
func (in *ingest) run(ctx context.Context) error {
	for ctx.Err() == nil {
		fetched, woken := in.poll(ctx)
		for i := range fetched {
			in.take(ctx, &fetched[i])
		}
		in.retry(ctx, woken)
	}
	return ctx.Err()
}

// wakeForSchemas wakes the goroutine for each schema that comes.
func (in *ingest) wakeForSchemas(ctx context.Context) error {
	for {
		moved := in.cfg.SchemaLog.Moved()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
			in.wake()
		}
	}
}

// poll waits for records, until some come, something that is held back is due, or wake is
// called. woken says that wake was called.
func (in *ingest) poll(ctx context.Context) (fetched []streams.Fetched, woken bool) {
	var cancel context.CancelFunc
	if due, ok := in.due(); ok {
		ctx, cancel = context.WithDeadline(ctx, due)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	in.mu.Lock()
	in.mu.cancel = cancel
	if in.mu.woken {
		cancel()
	}
	in.mu.Unlock()
	fetched, err := in.cfg.Consumer.Poll(ctx, maxPoll)
	if errors.Is(err, kafka.ErrClosed) {
		<-ctx.Done() // the node is closing: do not poll in a tight loop
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	woken, in.mu.woken, in.mu.cancel = in.mu.woken, false, nil
	return fetched, woken
}

// due returns when the next stream that is held back is to be tried again; false if there
// is none.
func (in *ingest) due() (at time.Time, ok bool) {
	for b := range in.held {
		if !ok || b.again.Before(at) {
			at, ok = b.again, true
		}
	}
	return at, ok
}

// take adds one fetch to the backlog of its stream, and applies the backlog unless it is
// held back.
func (in *ingest) take(ctx context.Context, f *streams.Fetched) {
	r := &in.all.replicas[f.Partition]
	b := &r.backlogs[f.Stream]
	reading := r.reading.Load()
	if reading%2 == 0 {
		return // the log of this replica is not read now
	}
	if f.Err != nil && !in.goesOn(r, f) {
		return
	}
	if b.reading != reading {
		in.drop(r, f.Stream)
		b.reading = reading
	}
	b.fetched = append(b.fetched, *f)
	if b.held == nil {
		in.advance(ctx, r, f.Stream)
	}
}

// goesOn handles the error of a fetch, and reports whether the consumer goes on reading the
// partition by itself.
func (in *ingest) goesOn(r *Replica, f *streams.Fetched) bool {
	if errors.Is(f.Err, kafka.ErrLostPosition) {
		in.all.lost(r, f.Err)
		return false
	}
	in.cfg.Log.Warn("reading the log", "partition", f.TopicPartition, "err", f.Err)
	return true
}

// advance applies the backlog of a stream until it is empty or held back.
func (in *ingest) advance(ctx context.Context, r *Replica, s kafka.Stream) {
	b := &r.backlogs[s]
	for len(b.fetched) > 0 {
		if b.reading != r.reading.Load() {
			in.drop(r, s)
			return
		}
		err := in.apply(ctx, r, b)
		switch {
		case err == nil:
			b.fetched[0] = streams.Fetched{}
			b.fetched = b.fetched[1:]
		case errors.Is(err, errDetach), errors.Is(err, errGap):
			in.drop(r, s)
			in.all.detach(r)
			return
		default:
			in.hold(r, s, heldBy(err))
			return
		}
	}
	b.fetched = nil
	in.release(r, s)
	if r.State() != Ready {
		poke(in.all.changed) // it may have reached the log's end
	}
}

// hold keeps a stream's backlog until it is tried again, and pauses fetching the stream.
func (in *ingest) hold(r *Replica, s kafka.Stream, why *Held) {
	b := &r.backlogs[s]
	if b.held == nil {
		in.cfg.Consumer.Pause(kafka.TopicPartition{Stream: s, Partition: r.partition})
	}
	b.held, b.again = why, time.Now().Add(retryAfter)
	in.held[b] = heldStream{r, s}
	r.setHeld(s, why)
}

// release goes on with fetching a stream that was held back. It does nothing for any other.
func (in *ingest) release(r *Replica, s kafka.Stream) {
	b := &r.backlogs[s]
	if b.held == nil {
		return
	}
	b.held = nil
	delete(in.held, b)
	r.setHeld(s, nil)
	in.cfg.Consumer.Resume(kafka.TopicPartition{Stream: s, Partition: r.partition})
}

// drop forgets a stream's backlog, which will be fetched again.
func (in *ingest) drop(r *Replica, s kafka.Stream) {
	in.release(r, s)
	r.backlogs[s] = backlog{}
}

// retry tries again the streams that are held back and due, or, if all is set, every stream
// that is held back.
func (in *ingest) retry(ctx context.Context, all bool) {
	now := time.Now()
	for b, of := range in.held {
		if all || !b.again.After(now) {
			in.advance(ctx, of.replica, of.stream)
		}
	}
}
