package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// backlog is what was fetched of one stream of a partition and is not applied yet. Only
// the ingest goroutine uses it.
type backlog struct {
	fetched []streams.Fetched
	reading uint64                      // the count Replica.reading when it was fetched
	held    *Held                       // why the first of fetched could not be applied whole; nil: it can, as far as is known
	again   time.Time                   // if held is set: when the fetch is tried again
	letters map[millrace.Offset]*letter // refused records since the last commit, by offset
}

// letter is a refused record on its way to the topic of dead letters. The applied offset
// does not pass the record before the topic has it. state is one of those below.
type letter struct{ state atomic.Int32 }

// maxLetterBytes bounds the refused records that are on their way to the dead letters, so
// that handing one to the producer never waits for room.
const maxLetterBytes = 16 << 20

// The states of a letter.
const (
	letterSent   int32 = iota // handed to the producer, which has not answered
	letterKept                // the topic has it
	letterFailed              // to be sent again
)

// apply applies the first fetch of a backlog to a replica, as far as that can be done
// now. It commits at every mark (see trail.go), and at the end. An error that is a *Held
// says what holds the rest back; errGap and errDetach say that the log must be read anew.
func (in *ingest) apply(ctx context.Context, r *Replica, b *backlog) error {
	f := &b.fetched[0]
	for {
		applied := r.applied[f.Stream].Load()
		if int64(f.Next) <= applied {
			return nil // all of it is applied already: reading may have begun again at an older offset
		}
		if int64(f.From) > applied {
			return fmt.Errorf("%w: %s was fetched from %d on, and is applied up to %d", errGap, f.TopicPartition, f.From, applied)
		}
		if until := in.all.Paused(time.Now()); !until.IsZero() {
			return held(Paused, fmt.Errorf("nothing is applied until %s: millrace ingest resume ends that", until.UTC().Format(time.RFC3339)))
		}
		end, stops := r.bound(f.Stream, millrace.Offset(applied))
		if stops && int64(end) <= applied {
			return held(Compared, errStands)
		}
		next, stop := in.gather(ctx, f, millrace.Offset(applied), end)
		if err := in.lettersKept(ctx, f.TopicPartition, b); err != nil {
			return err
		}
		if int64(next) > applied {
			if err := in.commit(r, b, next); err != nil {
				return err
			}
			clear(b.letters)
		}
		if stop != nil {
			return stop
		}
	}
}

// errStands says that a replica stands still for now (see Stop).
var errStands = errors.New("the replica is compared with another, for some seconds")

// errGap says that a fetch does not continue what is applied.
var errGap = errors.New("replica: a gap between fetches")

// gather puts the records of a fetch into the batch, from the offset applied up to, but not
// including, the offset end. It stops earlier at a record that is held back, and then
// returns why. next is the offset up to which the batch reaches. Records that are refused
// for their bytes go to in.refused.
func (in *ingest) gather(ctx context.Context, f *streams.Fetched, applied, end millrace.Offset) (next millrace.Offset, stop *Held) {
	in.batch.Reset()
	in.routes, in.refused, in.gathered = in.routes[:0], in.refused[:0], 0
	first := sort.Search(len(f.Records), func(i int) bool { return f.Records[i].Offset >= applied })
	for i := range f.Records[first:] {
		rec := &f.Records[first+i]
		if rec.Offset >= end {
			break
		}
		err := in.put(ctx, f.TopicPartition, rec)
		if errors.As(err, &stop) {
			return rec.Offset, stop
		}
		if in.cfg.Aged && f.Stream == kafka.Timeline {
			in.batch.SetClock(f.Partition, rec.Time)
		}
		if err != nil {
			in.refused = append(in.refused, refusal{rec, refusedFor(err)})
		}
		in.gathered++
	}
	return min(f.Next, end), nil
}

// refusal is a record that is refused for what its bytes say.
type refusal struct {
	record *streams.Record
	why    *schemas.Error
}

// refusedFor returns why put refused a record. err is put's error, and no Held.
func refusedFor(err error) *schemas.Error {
	var bad *schemas.Error
	if !errors.As(err, &bad) {
		bad = &schemas.Error{Reason: "unreadable", Detail: err.Error()}
	}
	return bad
}

// put adds one record of the log to the batch. An error that is a *schemas.Error refuses
// the record for what its bytes say; one that is a *Held says that it cannot be judged
// yet.
func (in *ingest) put(ctx context.Context, tp kafka.TopicPartition, r *streams.Record) error {
	if at := partition.OfBytes(r.Key); at != tp.Partition {
		return &schemas.Error{Reason: "wrong-partition", Detail: fmt.Sprintf("key %.200q belongs to partition %d", r.Key, at)}
	}
	if err := kafka.CheckCRC(r.CRC, r.Value); err != nil {
		return &schemas.Error{Reason: "bad-checksum", Detail: err.Error()}
	}
	framed, err := schemas.Unframe(r.Value)
	if err != nil {
		return err
	}
	if framed.Confluent {
		return &schemas.Error{Reason: schemas.BadFraming, Detail: "a registry's framing, which no partitioner writes"}
	}
	writer, err := in.writer(ctx, framed)
	if err != nil {
		return err
	}
	if writer.Features() != (tp.Stream == kafka.Features) {
		return &schemas.Error{Reason: "wrong-stream", Detail: fmt.Sprintf("schema %s on %s", writer.Name(), tp.Stream)}
	}
	env, err := writer.Envelope(framed.Body)
	if err != nil {
		return err
	}
	key := millrace.Entity(r.Key)
	if tp.Stream == kafka.Features {
		if env.Entity != key {
			return &schemas.Error{Reason: schemas.KeyMismatch, Detail: fmt.Sprintf("key %q, entity %q", key, env.Entity)}
		}
		in.batch.PutFeatures(tp.Partition, key, store.Features{
			Subject: env.Subject, Version: env.Record.Version, Time: env.Record.Time, Schema: env.Record.Schema, Body: env.Record.Body,
		})
		in.routes = append(in.routes, key)
		return nil
	}
	if env.Entity != key && !slices.Contains(env.About, key) {
		return &schemas.Error{Reason: schemas.KeyMismatch, Detail: fmt.Sprintf("key %q is neither the entity %q nor in about", key, env.Entity)}
	}
	in.batch.Put(tp.Partition, millrace.Timeline{Entity: key, Type: env.Type}, env.Record)
	return nil
}

// writer returns the schema that a value was written with. Partitioners publish a schema
// before any record of it. So a schema that is not known is either still on its way, or
// no partitioner wrote the record. Only the schemas topic can show which of the two holds,
// and nobody knows when. So the record is held back until the schema comes or an operator
// has it refused.
func (in *ingest) writer(ctx context.Context, f schemas.Framed) (*schemas.Schema, error) {
	s, err := in.cfg.Schemas.Writer(ctx, f)
	var bad *schemas.Error
	switch {
	case err == nil:
		return s, nil
	case !errors.As(err, &bad):
		return nil, held(StoreFailing, err)
	case bad.Reason != schemas.UnknownSchema || in.cfg.SchemaLog.Refused(f.Fingerprint):
		return nil, err
	}
	return nil, held(SchemaUnknown, fmt.Errorf("schema %s has not come on the schemas topic; "+
		"publish it there, or let all replicas refuse its records: millrace schema refuse %[1]s", f.Fingerprint))
}

// lettersKept sends the refused records to the topic of dead letters, byte for byte. It
// returns a *Held while some of them are not there yet. Every replica of the partition
// sends them, and a restart may send them again.
func (in *ingest) lettersKept(ctx context.Context, tp kafka.TopicPartition, b *backlog) error {
	waiting := 0
	for _, x := range in.refused {
		l := b.letters[x.record.Offset]
		switch {
		case l == nil:
			in.cfg.Host.Refused(x.why.Reason)
			in.cfg.Log.Warn("record refused", "partition", tp, "offset", x.record.Offset, "reason", x.why.Reason, "detail", x.why.Error())
			l = new(letter)
			if b.letters == nil {
				b.letters = map[millrace.Offset]*letter{}
			}
			b.letters[x.record.Offset] = l
		case l.state.Load() == letterKept:
			continue
		case l.state.Load() == letterSent:
			waiting++
			continue
		}
		waiting++
		size := int64(len(x.record.Key) + len(x.record.Value))
		if sent := in.letterBytes.Load(); sent > 0 && sent+size > maxLetterBytes {
			l.state.Store(letterFailed) // it is sent at the next call
			continue
		}
		in.letterBytes.Add(size)
		l.state.Store(letterSent)
		in.cfg.Letters.ProduceThen(ctx, in.newDeadLetter(tp, x), func(err error) {
			in.letterBytes.Add(-size)
			if err == nil {
				l.state.Store(letterKept)
				in.wake()
				return
			}
			in.cfg.Log.Warn("a dead letter is not kept; trying again", "partition", tp, "offset", x.record.Offset, "err", err)
			l.state.Store(letterFailed)
		})
	}
	if waiting > 0 {
		return held(DeadLetters, fmt.Errorf("%d refused records are not in topic %s yet", waiting, in.cfg.Topics.DeadLetters))
	}
	return nil
}

// newDeadLetter returns the message for a refused record: its key and value as they are,
// and headers that say why it was refused and where it was read.
func (in *ingest) newDeadLetter(tp kafka.TopicPartition, x refusal) kafka.Outgoing {
	from := kafka.Source{Topic: in.cfg.Topics.Of(tp.Stream), Partition: int32(tp.Partition), Offset: x.record.Offset}
	return kafka.Outgoing{Topic: in.cfg.Topics.DeadLetters, Key: x.record.Key, Value: x.record.Value, Headers: []kafka.Header{
		{Key: kafka.HeaderReason, Value: []byte(x.why.Reason)},
		{Key: kafka.HeaderDetail, Value: []byte(x.why.Error())},
		{Key: kafka.HeaderSource, Value: from.Append(nil)},
	}}
}

// commit applies the batch to the store, and sets the applied offset to next, the offset
// that the batch reaches. It updates the caches too, with r.mu held, so that no reader sees
// the one without the other. An error that is a *Held says why the store took nothing;
// errDetach says that the log must be read anew.
func (in *ingest) commit(r *Replica, b *backlog, next millrace.Offset) error {
	f := &b.fetched[0]
	in.batch.SetApplied(f.Partition, streamOf(f.Stream), next)
	if err := in.cfg.Store.Admit(); err != nil { // before the lock is taken: Admit may take as long as a flush of the store
		return held(whyFailing(err).Reason, err) // the whole store is at fault, and not this partition
	}
	r.mu.Lock()
	if r.reading.Load() != b.reading {
		r.mu.Unlock()
		return errDetach // reading was ended meanwhile
	}
	if st := r.stop.Load(); st != nil && next > st.at[f.Stream] {
		r.mu.Unlock()
		return held(Compared, errStands) // the replica was told to stand still after the batch was gathered
	}
	origin := r.origin() // while the log is read, the reconciler too changes it only under r.mu
	moved := f.Epoch >= 0 && origin.Epochs[f.Stream] != f.Epoch
	if moved {
		origin.Epochs[f.Stream] = f.Epoch
		in.batch.SetOrigin(f.Partition, origin.encode())
	}
	r.commits.Add(1)
	changes, err := in.cfg.Store.Apply(&in.batch, in.changes[:0])
	in.changes = changes
	if err == nil {
		in.cfg.Host.Written(f.Stream, changes, in.routes)
		r.applied[f.Stream].Store(int64(next))
		r.trail.pass(f.Stream, next, in.cfg.Store.Digest(f.Partition))
		if moved {
			r.setOrigin(origin)
		}
		if in.cfg.Aged {
			r.clock.Store(int64(in.cfg.Store.Clock(f.Partition)))
		}
	} else if errors.Is(err, store.ErrRewound) {
		in.all.rewind(r, Why{StoreFailing, err.Error()})
	}
	r.commits.Add(1)
	r.mu.Unlock()
	if err != nil {
		return in.failed(r, err)
	}
	in.cfg.Host.Applied(f.Stream, changes, in.gathered)
	return nil
}

// failed handles an error of a commit. If the store lost what was not flushed, it empties
// the caches; if the content is corrupt, it condemns the replica. Then it returns errDetach.
// For any other error it returns a *Held, by which the stream is held back.
func (in *ingest) failed(r *Replica, err error) error {
	switch {
	case errors.Is(err, store.ErrDiskFull):
		return held(DiskFull, err)
	case errors.Is(err, store.ErrRewound):
		in.cfg.Log.Error("the store lost what was not flushed: reading it from the log again", "partition", r.partition, "err", err)
		in.cfg.Host.Forget()
		return errDetach
	case errors.Is(err, store.ErrCorrupt):
		in.all.Condemn(r.partition, Why{Corrupt, err.Error()})
		return errDetach
	}
	return held(StoreFailing, err)
}

// errDetach says that the log of a replica must not be read on before the reconciler begins
// reading it anew.
var errDetach = errors.New("replica: no longer read")

// streamOf returns the store's name for a stream of the log.
func streamOf(s kafka.Stream) store.Stream {
	if s == kafka.Features {
		return store.FeatureStream
	}
	return store.Content
}
