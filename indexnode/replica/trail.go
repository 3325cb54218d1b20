package replica

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/wait"
)

// Replicas of a partition are compared by the digests that they had at equal offsets.
// These are the rules that give them equal offsets:
//
// The store keeps one digest for each stream of a partition. It is a function of that
// stream's log up to the stream's own offset, and of nothing in the other stream. So each
// stream is compared by itself, at whatever offset the other one stands.
//
// A mark is an offset that is a multiple of markEvery. A commit ends at every mark. Where
// else commits end depends on what each fetch returned, and differs between replicas. So
// all replicas of a busy partition pass the same marks, and each keeps its digests at the
// last marks. Replicas of a partition that is not busy stand at the same offset, or end
// their commits at the same few records. So each also keeps its digests at the last
// commits. (The marks of freshness.go are something else.)
//
// No record need have the offset of a mark. If the end of a transaction has it, the
// commit ends there all the same, and holds every record before it.

const (
	// markEvery is the distance of marks, in offsets. The commits that end at marks cost
	// little: a commit takes some microseconds beside its records, less than one record
	// takes.
	markEvery = 1024
	// keptPasses is how many marks, and how many commits, a replica keeps of each
	// stream. 32 marks span about 32,000 offsets, so a replica that is up to so many
	// records behind another can be compared with it.
	keptPasses = 32
)

// Pass is an offset of a stream that a replica has passed, and the stream's digest there.
type Pass struct {
	At     millrace.Offset
	Digest uint64
}

// trail has the passes of a replica since it last began to read the log.
type trail struct {
	sync.Mutex
	marks, commits [kafka.Streams][]Pass // ascending, at most keptPasses each
}

// begin forgets all passes but the one at which the replica begins.
func (t *trail) begin(at [kafka.Streams]millrace.Offset, d store.Digest) {
	t.Lock()
	defer t.Unlock()
	for s, digest := range []uint64{d.Content, d.Features} {
		t.marks[s], t.commits[s] = t.marks[s][:0], append(t.commits[s][:0], Pass{at[s], digest})
	}
}

// pass notes the digest of a stream after a commit that ended at an offset.
func (t *trail) pass(s kafka.Stream, at millrace.Offset, d store.Digest) {
	p := Pass{at, d.Content}
	if s == kafka.Features {
		p.Digest = d.Features
	}
	t.Lock()
	defer t.Unlock()
	if at%markEvery == 0 {
		t.marks[s] = push(t.marks[s], p)
	}
	t.commits[s] = push(t.commits[s], p)
}

// push appends a pass, and drops the oldest if there are more than keptPasses.
func push(to []Pass, p Pass) []Pass {
	if len(to) == keptPasses {
		copy(to, to[1:])
		to = to[:keptPasses-1]
	}
	return append(to, p)
}

// Trail returns, for each stream, the passes that a replica keeps, by ascending offset. The
// last is where the replica is now.
func (r *Replica) Trail() (all [kafka.Streams][]Pass) {
	r.trail.Lock()
	defer r.trail.Unlock()
	for s := range all {
		marks, commits := r.trail.marks[s], r.trail.commits[s]
		for _, m := range marks {
			if len(commits) == 0 || m.At < commits[0].At {
				all[s] = append(all[s], m)
			}
		}
		all[s] = append(all[s], commits...)
	}
	return all
}

// Log returns which log the replica's offsets are of, as text to compare (see LogOf);
// empty if that is not known.
func (r *Replica) Log() string {
	r.life.Lock()
	defer r.life.Unlock()
	if !r.life.known {
		return ""
	}
	return kafka.LogID{Cluster: r.life.from.Cluster, Topics: r.life.from.Topics}.String()
}

// HasPast reports whether the replica has records from before its log; see Origin.
func (r *Replica) HasPast() bool { return r.origin().Past }

// maxStop is how long a replica stands still at most to be compared. It is half of the
// default of Config.Limit, the age from which answers are flagged as old.
const maxStop = 4 * time.Second

// stop says at which offsets a replica is to stand still.
type stop struct {
	at [kafka.Streams]millrace.Offset
}

// Stop is a replica that stands still; see [Replicas.Stop].
type Stop struct {
	all  *Replicas
	r    *Replica
	ctx  context.Context
	done context.CancelFunc
}

// Stop has a replica stand still at its offsets, so that it can be compared. It goes on
// after maxStop, when ctx ends, or at [Stop.Release]. A replica that does not answer,
// does not read its log or stands still already is an error.
func (all *Replicas) Stop(ctx context.Context, p millrace.Partition) (*Stop, error) {
	r := &all.replicas[p]
	st := &Stop{all: all, r: r}
	st.ctx, st.done = context.WithTimeout(ctx, maxStop)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.State().Answers() || r.reading.Load()%2 == 0 || r.stop.Load() != nil {
		st.done()
		return nil, &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "partition", Detail: fmt.Sprintf("the replica of partition %d is %s, does not read its log, or is being compared already", p, r.State()),
			WayOut: "wait until it is ready, and try again",
		}
	}
	r.stop.Store(&stop{r.Applied()})
	context.AfterFunc(st.ctx, func() {
		r.mu.Lock()
		r.stop.Store(nil)
		r.mu.Unlock()
		all.ingest.wake()
	})
	return st, nil
}

// At returns the offsets at which the replica is.
func (st *Stop) At() [kafka.Streams]millrace.Offset { return st.r.Applied() }

// Move lets the replica go on up to some offsets, and waits until it is there.
func (st *Stop) Move(to [kafka.Streams]millrace.Offset) error {
	at := st.At()
	for s := range to {
		if to[s] < at[s] {
			return &millrace.Error{
				Reason: millrace.ReasonInvalid, Field: "to", Detail: fmt.Sprintf("the replica of partition %d is at %d of stream %s, and cannot go back to %d", st.r.partition, at[s], kafka.Stream(s), to[s]),
				WayOut: "name offsets that no replica has passed",
			}
		}
	}
	st.r.mu.Lock()
	if st.ctx.Err() == nil {
		st.r.stop.Store(&stop{to})
	}
	st.r.mu.Unlock()
	st.all.ingest.wake()
	for st.At() != to {
		if wait.For(st.ctx, time.Millisecond) != nil {
			return &millrace.Error{
				Reason: millrace.ReasonUnavailable, Field: "to", Detail: fmt.Sprintf("the replica of partition %d is at %v and not at %v yet", st.r.partition, st.At(), to),
				WayOut: "try again when it is not behind its log",
			}
		}
	}
	return nil
}

// Contents returns a snapshot of what the replica holds, which the caller closes. It fails
// if the replica has gone on.
func (st *Stop) Contents() (*store.Contents, error) {
	c, err := st.all.cfg.Store.Contents(st.r.partition)
	if err == nil && st.ctx.Err() != nil {
		c.Close()
		err = st.ctx.Err()
	}
	return c, err
}

// Release lets the replica go on.
func (st *Stop) Release() { st.done() }

// bound returns the offset at which a commit that begins at the offset applied has to end
// at the latest: the next mark, or where the replica is to stand still. stops says that it
// is where the replica is to stand still.
func (r *Replica) bound(s kafka.Stream, applied millrace.Offset) (end millrace.Offset, stops bool) {
	end = (applied/markEvery + 1) * markEvery
	if st := r.stop.Load(); st != nil && st.at[s] <= end {
		return st.at[s], true
	}
	return end, false
}
