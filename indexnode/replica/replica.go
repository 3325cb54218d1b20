// Package replica is a partition as an index node has it: its life, its
// ingest, and the evidence by which it may answer. A node's replicas are one
// [Replicas], which brings what is into line with what the cluster wants.
//
// Applying is a function of the log alone: what a record's bytes say decides
// what becomes of it, on every replica alike. What is missing here, such as a
// schema that has not come or room on the disk, holds the partition back until
// it is there, and is told; no clock drops anything. See DESIGN.md.
package replica

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

// Replica is one partition on this node. Readers use Look, RLock and Lag; the
// rest belongs to [Replicas].
type Replica struct {
	partition millrace.Partition
	log       *slog.Logger

	// mu orders readers and the writer: while it is held for reading, the
	// store and the cache of the partition agree and do not change.
	mu      sync.RWMutex
	state   atomic.Int32
	applied [kafka.Streams]atomic.Int64
	clock   atomic.Int64 // the store's, where some type is kept by age
	// commits counts twice what the writer committed, and is odd while it
	// commits: who reads the same even number before and after has seen one
	// state. It changes under mu.
	commits atomic.Uint64
	// fresh is the time up to which everything that was in the log is known to
	// be applied; nil is none.
	fresh atomic.Pointer[moment]
	// through is the time, in Unix milliseconds, up to which what came in is
	// known to be applied: what partitioners had said before the end of the log
	// was asked for that has been reached; 0 is not known.
	through atomic.Int64
	// reading counts the times that reading the log began and ended anew; it
	// is odd while the log is read. What was fetched under another count is
	// dropped.
	reading atomic.Uint64
	// cold says that the replica is not announced, since the caches are not
	// filled for it yet.
	cold  atomic.Bool
	trail trail
	stop  atomic.Pointer[stop] // where it is to stand still; nil: nowhere
	// begins is where the log of each stream begins.
	begins [kafka.Streams]atomic.Int64
	// again is when a renewal that failed is tried again, in Unix milliseconds.
	again atomic.Int64

	life struct {
		sync.Mutex
		why   Why
		cause Why                  // what it was condemned for last
		good  agreement            // of one that differs
		since time.Time            // of the state
		held  [kafka.Streams]*Held // what holds the streams back
		// heldSince is when that first did for the same reason.
		heldSince [kafka.Streams]time.Time
		from      Origin // of what the store has
		known     bool   // that origin
	}

	backlogs [kafka.Streams]backlog // of the ingest goroutine alone
	marks    [kafka.Streams]marks   // of the reconciler alone
	drained  time.Time              // when Draining ends; likewise
	shorter  time.Time              // since when the log ends before what was applied; likewise
	renewal  *renewal               // under way; likewise
	sought   bool                   // a backup was, and there is none; likewise
	gone     bool                   // the order to delete it was carried out; likewise
	spared   bool                   // it was told that the order is not carried out; likewise
	dropped  bool                   // the caches know it as empty, as it was then; likewise
}

// Look is a replica at one moment, as a reader has it without a lock: it holds
// if Commits is even and a later look has the same.
type Look struct {
	Commits uint64
	Applied [kafka.Streams]int64
	Clock   millrace.Time
	State   State
	whole   whole
}

// Look returns a replica as it is now. What is known of its age is read
// first, for what is learned later may be of what is applied later; then the
// commits.
func (all *Replicas) Look(p millrace.Partition) Look {
	r := &all.replicas[p]
	whole := all.whole(r)
	return Look{
		Commits: r.commits.Load(), State: r.State(),
		Applied: [kafka.Streams]int64{r.applied[0].Load(), r.applied[1].Load()}, Clock: millrace.Time(r.clock.Load()), whole: whole,
	}
}

// Unmoved reports whether nothing was committed since a look, nor the state
// changed.
func (r *Replica) Unmoved(l *Look) bool { return r.commits.Load() == l.Commits && r.State() == l.State }

// RLock holds the writer up until RUnlock: the store and the cache agree.
func (r *Replica) RLock() { r.mu.RLock() }

// RUnlock ends RLock.
func (r *Replica) RUnlock() { r.mu.RUnlock() }

// Barrier returns when whoever held the replica at its call has let go of it.
func (r *Replica) Barrier() {
	r.mu.Lock()
	r.mu.Unlock() //lint:ignore SA2001 a barrier
}

// State returns where the replica is in its life.
func (r *Replica) State() State { return State(r.state.Load()) }

// Holds reports whether what the store has of the replica is what it answers
// with, or will once the log's end is reached. The caller holds the lock.
func (r *Replica) Holds() bool {
	s := r.State()
	return s.Answers() || s == CatchingUp && r.reading.Load()%2 == 1
}

// Applied returns the next offsets of the two streams that answers do not
// include yet.
func (r *Replica) Applied() [kafka.Streams]millrace.Offset {
	return [kafka.Streams]millrace.Offset{millrace.Offset(r.applied[0].Load()), millrace.Offset(r.applied[1].Load())}
}

// Why returns why the replica is in its state, since when, and what holds its
// ingest back, if anything does.
func (r *Replica) Why() (why Why, since time.Time) {
	r.life.Lock()
	defer r.life.Unlock()
	if r.State() != Quarantined {
		for s, h := range r.life.held {
			if h != nil && h.Reason != Compared { // that is no fault
				return Why{h.Reason, h.Err.Error()}, r.life.heldSince[s]
			}
		}
	}
	return r.life.why, r.life.since
}

// Irreplaceable says why a replica of this partition that is lost cannot be
// made whole again from the log; none if it can, as far as is known.
func (r *Replica) Irreplaceable() Why {
	for s := range r.begins {
		if begin := r.begins[s].Load(); begin > 0 && r.State().Answers() {
			return Why{LogTrimmed, fmt.Sprintf("%s begins at %d: what was before is only in the replicas that are there, and one that is lost cannot be made whole again; keep the disks, and the log from now on", kafka.Stream(s), begin)}
		}
	}
	return Why{}
}

// step moves the replica by an event, and reports whether that changed its
// state. What an operator has quarantined is not replaced before it is released.
func (r *Replica) step(e Event, why Why) bool {
	r.life.Lock()
	defer r.life.Unlock()
	now := r.State()
	after, moved := now.next(e)
	if !moved || e == Replaced && r.life.why.Reason == ByOperator {
		return false
	}
	if now == Absent || after == CatchingUp { // nothing of it is cached
		r.cold.Store(true)
	}
	r.state.Store(int32(after))
	r.life.why, r.life.since = why, time.Now()
	level := slog.LevelDebug
	if after == Quarantined {
		level = slog.LevelError
	}
	r.log.Log(context.Background(), level, "replica "+e.String(), "partition", r.partition, "from", now, "to", after, "reason", why.Reason, "detail", why.Detail)
	return true
}

// condemnedFor returns what the replica was condemned for last, for as long as
// that is not mended.
func (r *Replica) condemnedFor() Why {
	r.life.Lock()
	defer r.life.Unlock()
	return r.life.cause
}

func (r *Replica) setCause(why Why) {
	r.life.Lock()
	defer r.life.Unlock()
	r.life.cause = why
}

func (r *Replica) stateSince() time.Time {
	r.life.Lock()
	defer r.life.Unlock()
	return r.life.since
}

// explain changes the reason of the present state, unless that is an operator's.
func (r *Replica) explain(why Why) {
	r.life.Lock()
	defer r.life.Unlock()
	if r.life.why.Reason != ByOperator {
		r.life.why = why
	}
}

// byOperator reports whether an operator has quarantined the replica.
func (r *Replica) byOperator() bool {
	r.life.Lock()
	defer r.life.Unlock()
	return r.State() == Quarantined && r.life.why.Reason == ByOperator
}

// origin returns which log the store's part was read from.
func (r *Replica) origin() Origin {
	r.life.Lock()
	defer r.life.Unlock()
	return r.life.from
}

func (r *Replica) setOrigin(o Origin) {
	r.life.Lock()
	defer r.life.Unlock()
	r.life.from, r.life.known = o, true
}

func (r *Replica) isHeld() bool {
	r.life.Lock()
	defer r.life.Unlock()
	return r.life.held != [kafka.Streams]*Held{}
}

func (r *Replica) setHeld(s kafka.Stream, h *Held) {
	r.life.Lock()
	defer r.life.Unlock()
	if was := r.life.held[s]; h != nil && (was == nil || was.Reason != h.Reason) {
		r.life.heldSince[s] = time.Now()
	}
	r.life.held[s] = h
}

// UnknownAge is the age of a replica of which nothing has been confirmed yet,
// as after a start without Kafka: longer than any that is known.
const UnknownAge = 365 * 24 * time.Hour

// age is how old an answer may be: the time since all that was in the log is
// known to have been applied.
func (r *Replica) age(now time.Time) time.Duration { return r.fresh.Load().age(now) }
