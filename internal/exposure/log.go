package exposure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
)

// Producer writes entries to a topic of Kafka.
type Producer interface {
	// Produce writes entries in their order and waits until the result of each is
	// known. It returns nil if all were written, else an error for each entry, nil for
	// those that were. An error that is [ErrRefused] says that the entry can never be
	// written. Any other error says that it was not written, or perhaps not, and may be
	// tried again. When ctx ends, Produce returns soon, with an error for each entry
	// that it does not know to be written. It is called by one goroutine, and keeps
	// nothing of entries.
	Produce(ctx context.Context, entries []Entry) []error
}

// Entry is a key and a value to write.
type Entry struct {
	Key   []byte // the viewer: so all that a viewer is shown is in one partition, in order
	Value []byte // Avro, in single-object encoding
}

// ErrRefused says that an entry can never be written, as when it is too large for its
// topic.
var ErrRefused = errors.New("exposure: refused")

// ErrAnew says that a topic of exposures or outcomes was deleted and made again. What nobody
// had read of the former topic is lost, so counts that are made from the topic are
// incomplete.
var ErrAnew = errors.New("was deleted and made again: what had not been read of the one before is lost")

// Topic is a topic of exposures or outcomes that somebody reads. Outcomes are what viewers
// did with the items of answers.
type Topic struct {
	Name string `json:"name"`
	ID   string `json:"id"` // Kafka's; a topic that was made again has another; empty: not known
}

// Anew returns the error [ErrAnew] for the topic.
func (t Topic) Anew() error { return fmt.Errorf("kafka: topic %s %w", t.Name, ErrAnew) }

// Config is how a log works.
type Config struct {
	Producer Producer // required
	// MaxBytes bounds the memory of the entries that wait or are being written, in
	// bytes; 0 is 64 MiB.
	MaxBytes int
	// Drain is how long Close waits until the rest is written; 0 is 5 s.
	Drain time.Duration
	Log   *slog.Logger // nil: silent
}

// DefaultDrain is the default of Config.Drain.
const DefaultDrain = 5 * time.Second

// Bounds and pauses of a log.
const (
	defaultMaxBytes = 64 << 20

	maxBatchBytes   = 1 << 20 // the most bytes of keys and values in one call of the producer; a batch of one entry may have more
	maxBatchEntries = 1000    // the most entries in one call of the producer
	entryBytes      = 64      // what an entry takes in memory beside its key and value

	firstPause = 50 * time.Millisecond // after a failure; each pause is twice the one before
	maxPause   = 5 * time.Second
)

// Counts is what became of the records that were added. Added is the sum of Waiting,
// Written, DroppedFull, DroppedEnd, Invalid and Refused.
type Counts struct {
	Added        int64
	Waiting      int64 // in memory, those that are being written included
	WaitingBytes int64 // the memory of those that wait
	Written      int64
	DroppedFull  int64 // there was no room
	DroppedEnd   int64 // the log was closed, or Close stopped waiting; what was being written then may be in the topic
	Invalid      int64 // no valid record, so that it could not be encoded
	Refused      int64 // the producer returned ErrRefused

	FeaturesLeftOut int64 // of those added: encoded without their features, with which they were too large
	Failures        int64 // calls of the producer that did not write some entries, which are tried again
}

// Log takes records from requests and writes them in the background, in the order in
// which they were added. It never makes a request wait: while nothing can be written,
// records wait in memory. When there is no more room, new records are dropped and counted,
// and those that wait already are kept.
//
// An entry that the producer did not write is tried again, before any that was added
// later. So the order in the topic is that of Add if a producer that fails an entry writes
// none of those behind it.
//
// A Log is a [prometheus.Collector] of what became of the records.
type Log struct {
	cfg    Config
	wake   chan struct{}      // has a value when there may be something to do
	ctx    context.Context    // the context of the producer's calls
	cancel context.CancelFunc // ends ctx
	done   chan struct{}      // closed when the goroutine has ended

	mu struct {
		sync.Mutex
		queue  []queued // in the order of Add, those that are being written included
		counts Counts   // see Counts
		tell   error    // a first refusal, for the goroutine to log; later ones are only counted
		closed bool     // Close was called
	}
}

// queued is an entry that waits, and since when.
type queued struct {
	Entry
	since time.Time
}

// bytes returns the memory that the entry takes.
func (q *queued) bytes() int64 { return int64(len(q.Key) + len(q.Value) + entryBytes) }

// Open starts a log and its goroutine. The caller must call Close. The error names every
// fault of the configuration.
func Open(cfg Config) (*Log, error) {
	var faults []error
	fault := func(field, detail, wayOut string) {
		faults = append(faults, &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut})
	}
	if cfg.Producer == nil {
		fault("Producer", "none", "give one that writes to a topic")
	}
	if cfg.MaxBytes < 0 {
		fault("MaxBytes", "negative", "give the bytes that may wait, or 0 for 64 MiB")
	}
	if cfg.Drain < 0 {
		fault("Drain", "negative", "give the time that Close may take, or 0 for 5 s")
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, defaultMaxBytes)
	cfg.Drain = cmp.Or(cfg.Drain, DefaultDrain)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l := &Log{cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.run()
	return l, nil
}

// Add puts a record into the queue. It does not wait, keeps nothing of the record, and
// returns no error: what becomes of the record is counted. It encodes the record, which
// takes some microseconds for twenty items, so call it after the answer is sent.
//
// If a record is too large with its features, it is written without them.
func (l *Log) Add(r *Record) {
	if l.full() {
		return
	}
	buf := scratch.Get().(*[]byte)
	defer scratch.Put(buf)
	body, err := r.Append((*buf)[:0])
	bare := false
	if e := (*schemas.Error)(nil); errors.As(err, &e) && e.Reason == schemas.OverLimit && r.hasFeatures() {
		without := *r
		without.FeaturesLeftOut, bare = true, true
		body, err = without.Append((*buf)[:0])
	}
	if err != nil {
		l.refuse(err)
		return
	}
	*buf = body
	l.offer(queued{Entry{[]byte(r.Viewer), schemas.Frame(schemas.Exposure().Fingerprint(), body)}, time.Now()}, bare)
}

// scratch are buffers for bodies.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

func (r *Record) hasFeatures() bool {
	return !r.FeaturesLeftOut && slices.ContainsFunc(r.Items, func(it Item) bool { return len(it.Features) > 0 })
}

// full reports whether the log is closed or has no room left for any record. If so, it
// counts the record as dropped. It saves encoding the record.
func (l *Log) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.mu.counts
	switch {
	case l.mu.closed:
		c.DroppedEnd++
	case c.WaitingBytes >= int64(l.cfg.MaxBytes):
		c.DroppedFull++
	default:
		return false
	}
	c.Added++
	return true
}

// refuse counts a record that is invalid.
func (l *Log) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.counts.Added++
	l.mu.counts.Invalid++
	if l.mu.counts.Invalid == 1 { // the goroutine logs it, since logging may take time
		l.mu.tell = err
		l.signal()
	}
}

// offer puts an entry into the queue, or counts it as dropped. bare says that it was
// encoded without its features.
func (l *Log) offer(q queued, bare bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.mu.counts
	c.Added++
	if bare {
		c.FeaturesLeftOut++
	}
	switch {
	case l.mu.closed:
		c.DroppedEnd++
	case c.WaitingBytes+q.bytes() > int64(l.cfg.MaxBytes):
		c.DroppedFull++
	default:
		l.mu.queue = append(l.mu.queue, q)
		c.Waiting++
		c.WaitingBytes += q.bytes()
		l.signal()
	}
}

// signal wakes the goroutine.
func (l *Log) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run writes what is in the queue until the log is closed and the queue empty, or
// until its context ends.
func (l *Log) run() {
	defer close(l.done)
	pause := firstPause
	for l.wait() {
		batch := l.batch()
		failed := l.settle(len(batch), l.cfg.Producer.Produce(l.ctx, batch))
		if failed == nil {
			if pause > firstPause {
				l.cfg.Log.Info("exposures are written again")
			}
			pause = firstPause
			continue
		}
		if pause == firstPause && l.ctx.Err() == nil {
			l.cfg.Log.Warn("exposures are not written, and tried again", "err", failed)
		}
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
		}
		pause = min(2*pause, maxPause)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := l.mu.counts.Waiting; left > 0 {
		l.cfg.Log.Error("exposures are dropped at the end of the process, which could not be written in time", "records", left)
	}
	l.mu.counts.DroppedEnd += l.mu.counts.Waiting
	l.mu.counts.Waiting, l.mu.counts.WaitingBytes, l.mu.queue = 0, 0, nil
}

// wait waits until something is in the queue, and returns true. It returns false when the
// log is closed and the queue empty, or when ctx has ended.
func (l *Log) wait() bool {
	for {
		l.mu.Lock()
		some, closed, tell := len(l.mu.queue) > 0, l.mu.closed, l.mu.tell
		l.mu.tell = nil
		l.mu.Unlock()
		if tell != nil {
			l.cfg.Log.Error("an exposure is refused; others are only counted", "err", tell)
		}
		switch {
		case l.ctx.Err() != nil:
			return false
		case some:
			return true
		case closed:
			return false
		}
		select {
		case <-l.wake:
		case <-l.ctx.Done():
		}
	}
}

// batch returns the first entries of the queue, which stay there until they are
// settled.
func (l *Log) batch() (batch []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes := 0
	for i := range l.mu.queue {
		q := &l.mu.queue[i]
		if bytes += len(q.Key) + len(q.Value); len(batch) > 0 && (bytes > maxBatchBytes || len(batch) == maxBatchEntries) {
			break
		}
		batch = append(batch, q.Entry)
	}
	return batch
}

// settle takes those of the first n entries that were written or refused out of the queue.
// It returns the error of one that must be tried again; nil if there is none.
func (l *Log) settle(n int, errs []error) (failed error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.mu.counts
	if errs != nil && len(errs) != n {
		panic("exposure: a producer has not told the result of each entry")
	}
	var again []queued
	for i, q := range l.mu.queue[:n] {
		switch {
		case errs == nil || errs[i] == nil:
			c.Written++
		case errors.Is(errs[i], ErrRefused):
			if c.Refused++; c.Refused == 1 {
				l.mu.tell = errs[i]
			}
		default:
			failed = errs[i]
			again = append(again, q)
			continue
		}
		c.Waiting--
		c.WaitingBytes -= q.bytes()
	}
	if failed != nil {
		c.Failures++
	}
	keep := n - len(again)
	copy(l.mu.queue[keep:], again)
	clear(l.mu.queue[:keep]) // so that their memory can be freed
	l.mu.queue = l.mu.queue[keep:]
	return failed
}

// Counts returns what became of the records so far.
func (l *Log) Counts() Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.counts
}

// oldest returns how long the first entry of the queue has waited; 0 if there is none.
func (l *Log) oldest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.mu.queue) == 0 {
		return 0
	}
	return time.Since(l.mu.queue[0].since)
}

// Close closes the log: it waits until everything is written, for Config.Drain at most,
// ends the goroutine, and counts what is left as dropped. It may be called again, and at
// the same time as Add.
func (l *Log) Close() {
	l.mu.Lock()
	l.mu.closed = true
	l.mu.Unlock()
	l.signal()
	drained := time.NewTimer(l.cfg.Drain)
	defer drained.Stop()
	select {
	case <-l.done:
	case <-drained.C:
	}
	l.cancel()
	<-l.done
}
