//go:build linux

package campaign

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// The two streams that index nodes read.
const (
	content = iota
	features
)

// logged is a record of a stream, as far as the fold needs it.
type logged struct {
	offset int64
	env    schemas.Envelope
}

// posting is an input in one timeline: what the log must come to have.
type posting struct {
	postingKey
	acked  time.Time // zero while it is not acknowledged
	offset int64     // in its partition of the stream; -1 while the log lacks it
}

// postingKey names a posting.
type postingKey struct {
	stream  int
	entity  millrace.Entity
	id      string // of the record, or the subject of features
	version int64
	deleted bool
}

// truth is what was sent and what the log has of it: the timeline and features
// topics as one independent reader of committed records finds them.
type truth struct {
	topics   [kafka.Streams]string
	registry *registry.Registry
	told     func(kind, detail string)

	mu struct {
		sync.Mutex
		next     [kafka.Streams]offsets
		logs     [kafka.Streams]map[millrace.Entity][]logged
		sent     map[postingKey]*posting
		of       map[millrace.Entity][]*posting // in the order they were sent
		sources  map[string]bool                // of the log: the key and the header src
		waiting  map[*posting]bool              // acknowledged, and not in the log
		acked    int
		skipped  int           // records of the log that no reader may take
		progress chan struct{} // closed and replaced when next rises
	}
}

func newTruth(topics [kafka.Streams]string, told func(kind, detail string)) (*truth, error) {
	registry, err := registry.New(nil, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Features()} {
		if _, err := registry.Admit(s); err != nil {
			return nil, err
		}
	}
	l := &truth{topics: topics, registry: registry, told: told}
	l.mu.logs = [kafka.Streams]map[millrace.Entity][]logged{{}, {}}
	l.mu.sent = map[postingKey]*posting{}
	l.mu.of = map[millrace.Entity][]*posting{}
	l.mu.waiting = map[*posting]bool{}
	l.mu.sources = map[string]bool{}
	l.mu.progress = make(chan struct{})
	return l, nil
}

// readOptions let a client read both streams from their beginnings, committed
// records alone, and the marks of transactions, which move the position too.
func (l *truth) readOptions() []kgo.Opt {
	from := map[string]map[int32]kgo.Offset{}
	for _, topic := range l.topics {
		from[topic] = map[int32]kgo.Offset{}
		for p := range int32(partition.Count) {
			from[topic][p] = kgo.NewOffset().At(0)
		}
	}
	return []kgo.Opt{
		kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(250 * time.Millisecond),
	}
}

// follow reads until ctx is done.
func (l *truth) follow(ctx context.Context, cl *kgo.Client) {
	for ctx.Err() == nil {
		fetches := cl.PollRecords(ctx, 10_000)
		l.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) { l.take(r) })
		close(l.mu.progress)
		l.mu.progress = make(chan struct{})
		l.mu.Unlock()
	}
}

// take folds one record in. The caller holds the lock.
func (l *truth) take(r *kgo.Record) {
	stream := content
	if r.Topic == l.topics[features] {
		stream = features
	}
	l.mu.next[stream][r.Partition] = r.Offset + 1
	if r.Attrs.IsControl() {
		return
	}
	env, entity, err := l.read(stream, r)
	if err != nil {
		l.mu.skipped++
		return
	}
	source := string(r.Key)
	for _, h := range r.Headers {
		if h.Key == "src" {
			source += " " + string(h.Value)
		}
	}
	key := keyOf(stream, entity, env)
	at := l.mu.sent[key]
	if at == nil {
		l.told("doubled", fmt.Sprintf("%s/%d has at %d a record that nobody sent: %+v", r.Topic, r.Partition, r.Offset, key))
		return
	}
	l.mu.logs[stream][entity] = append(l.mu.logs[stream][entity], logged{r.Offset, env})
	if l.mu.sources[source] {
		l.told("doubled", fmt.Sprintf("%s/%d has %+v of %s at %d and at %d, there by producer %d/%d", r.Topic, r.Partition, key, source, at.offset, r.Offset, r.ProducerID, r.ProducerEpoch))
		return
	}
	l.mu.sources[source] = true
	if at.offset >= 0 {
		return // the load's own producer sent it twice: another place of the input
	}
	at.offset = r.Offset
	delete(l.mu.waiting, at)
}

// read opens a record of the log; what its bytes refuse is no record.
func (l *truth) read(stream int, r *kgo.Record) (env schemas.Envelope, entity millrace.Entity, err error) {
	framed, err := schemas.Unframe(r.Value)
	if err != nil {
		return env, "", err
	}
	writer, err := l.registry.Writer(context.Background(), framed)
	if err != nil {
		return env, "", err
	}
	if writer.Features() != (stream == features) {
		return env, "", fmt.Errorf("schema %s on the wrong stream", writer.Name())
	}
	env, err = writer.Envelope(framed.Body)
	return env, millrace.Entity(r.Key), err
}

func keyOf(stream int, e millrace.Entity, env schemas.Envelope) postingKey {
	if stream == features {
		return postingKey{stream, e, env.Subject, int64(env.Record.Version), false}
	}
	return postingKey{stream, e, string(env.Record.ID), int64(env.Record.Version), env.Record.Deleted}
}

// send notes an input before it is produced, and returns what to call when it
// is acknowledged.
func (l *truth) send(stream int, env schemas.Envelope) (acked func()) {
	entities := append([]millrace.Entity{env.Entity}, env.About...)
	var made []*posting
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range entities {
		key := keyOf(stream, e, env)
		if l.mu.sent[key] != nil {
			continue // an entity that is also in about
		}
		p := &posting{postingKey: key, offset: -1}
		l.mu.sent[key] = p
		l.mu.of[e] = append(l.mu.of[e], p)
		made = append(made, p)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.mu.acked++
		for _, p := range made {
			p.acked = time.Now()
			if p.offset < 0 {
				l.mu.waiting[p] = true
			}
		}
	}
}

// acknowledged is how many inputs were.
func (l *truth) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.acked
}

// missing says which inputs that were acknowledged before a moment the log
// does not have yet.
func (l *truth) missing(before time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, one := 0, postingKey{}
	for p := range l.mu.waiting {
		if p.acked.Before(before) {
			n, one = n+1, p.postingKey
		}
	}
	if n > 0 {
		return fmt.Errorf("%d acknowledged inputs are not in the log, one is %+v", n, one)
	}
	return nil
}

// reached returns when the reader is past an offset.
func (l *truth) reached(ctx context.Context, stream int, p millrace.Partition, offset int64) error {
	for {
		l.mu.Lock()
		next, progress := l.mu.next[stream][p], l.mu.progress
		l.mu.Unlock()
		if next >= offset {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the log of %s/%d ends at %d, the receipt says %d", l.topics[stream], p, next, offset)
		case <-progress:
		}
	}
}

// positions is where the reader is.
func (l *truth) positions() [kafka.Streams]offsets {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.next
}

// fold applies to a feed what the log has of an entity before two offsets.
func (l *truth) fold(f *oracle.Feed, e millrace.Entity, before [kafka.Streams]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.mu.logs[content][e] {
		if r.offset < before[content] {
			f.Apply(millrace.Timeline{Entity: e, Type: r.env.Type}, r.env.Record)
		}
	}
	for _, r := range l.mu.logs[features][e] {
		if r.offset < before[features] {
			f.ApplyFeatures(e, r.env.Subject, r.env.Record)
		}
	}
}

// age is how long before a moment the oldest input was acknowledged that the
// log's part before two offsets lacks.
func (l *truth) age(e millrace.Entity, before [kafka.Streams]int64, at time.Time) (age time.Duration, lacks postingKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.mu.of[e] {
		if p.acked.IsZero() || at.Sub(p.acked) <= age {
			continue
		}
		if p.offset < 0 || p.offset >= before[p.stream] {
			age, lacks = at.Sub(p.acked), p.postingKey
		}
	}
	return age, lacks
}
