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

// Replicas of a partition can be compared where they have been at equal
// offsets. That they have is arranged so:
//
// The store's digest is two, one of each stream, and each is a function of its
// own stream's log up to its own offset: nothing that is applied of one stream
// looks at the other. So the streams are compared apart, and it does not matter
// at which offset the other one stood.
//
// A commit ends at every offset that is a multiple of markEvery. Where else it
// ends depends on what one fetch brought, which is another thing on every
// replica. So all replicas of a busy partition pass the same marks, and each
// keeps its digests at the last marks. Replicas of a partition that is not busy
// stand at the same offset, or end their commits at the same few records: so
// each keeps the last commits, too.
//
// A mark needs no record of its own: where the offset belongs to a
// transaction's end, the commit ends there all the same, and holds every record
// before it.

const (
	// markEvery is the distance of marks. A commit costs some microseconds
	// beside its records, and they take more than that each.
	markEvery = 1024
	// keptPasses is how many marks a replica keeps of a stream, and how many
	// other commits. It bounds how far one replica may be behind another and
	// still be compared with it: 32,000 records.
	keptPasses = 32
)

// Pass is the digest of a stream at an offset that a replica passed.
type Pass struct {
	At     millrace.Offset
	Digest uint64
}

// trail is where a replica has been since it last began to read the log.
type trail struct {
	sync.Mutex
	marks, commits [kafka.Streams][]Pass // ascending
}

// begin forgets what was: the replica starts anew at some state.
func (t *trail) begin(at [kafka.Streams]millrace.Offset, d store.Digest) {
	t.Lock()
	defer t.Unlock()
	for s, digest := range []uint64{d.Content, d.Features} {
		t.marks[s], t.commits[s] = t.marks[s][:0], append(t.commits[s][:0], Pass{at[s], digest})
	}
}

// pass notes the digest after a commit.
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

// push appends, and forgets the oldest beyond keptPasses.
func push(to []Pass, p Pass) []Pass {
	if len(to) == keptPasses {
		copy(to, to[1:])
		to = to[:keptPasses-1]
	}
	return append(to, p)
}

// Trail returns the digests of a replica at offsets that it has passed, of each
// stream, ascending; the last of them is where it is. Those before are of marks
// and commits.
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

// Log returns which log the replica's offsets are of, in a form to compare;
// empty if it is not known.
func (r *Replica) Log() string {
	r.life.Lock()
	defer r.life.Unlock()
	if !r.life.known {
		return ""
	}
	return kafka.LogID{Cluster: r.life.from.Cluster, Topics: r.life.from.Topics}.String()
}

// HasPast reports whether the replica has what was before its log.
func (r *Replica) HasPast() bool { return r.origin().Past }

// maxStop bounds how long a replica stands still to be compared: less than what
// makes its answers old.
const maxStop = 4 * time.Second

// stop is where a replica is to stand still.
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

// Stop has a replica stand still where it is. It goes on by itself after some
// seconds, or when the Stop is let go of.
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

// At returns where the replica is.
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

// Contents fixes what the replica holds, while it stands still.
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

// bound returns where a commit of a stream has to end that begins at an offset:
// at the next mark, or where the replica is to stand still.
func (r *Replica) bound(s kafka.Stream, applied millrace.Offset) (end millrace.Offset, stops bool) {
	end = (applied/markEvery + 1) * markEvery
	if st := r.stop.Load(); st != nil && st.at[s] <= end {
		return st.at[s], true
	}
	return end, false
}
