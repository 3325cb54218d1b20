// Package replica is a partition as an index node has it: its state, its ingest from the
// log, and the evidence by which it may answer. A node's replicas are one [Replicas]. Its
// reconciler, one goroutine, begins, renews and ends replicas until the node has those
// that the cluster wants.
//
// The log of a partition has two streams in Kafka: the timeline, which holds records, and
// the features of entities. Only a record's bytes decide what becomes of it, so that every
// replica of a partition comes to the same content. If something is missing on this node,
// such as a schema that has not come or room on the disk, the partition is held back until
// it is there, and the node says so. Nothing is dropped because time has passed.
//
// Something comes in when a service writes it to a content or feature topic of Kafka;
// partitioners bring it from there to the log. The age of a replica is how long ago everything that had come
// in was known to be applied. A replica is condemned when its content cannot be trusted or
// continued; it is then quarantined, and renewed from a backup or the log. See DESIGN.md.
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

// Replica is one partition on this node. Readers use its exported methods; all else
// belongs to [Replicas].
type Replica struct {
	partition millrace.Partition
	log       *slog.Logger

	// mu orders readers and the writer: while it is held for reading, the
	// store and the caches of the partition agree and do not change.
	mu      sync.RWMutex
	state   atomic.Int32                // a State
	applied [kafka.Streams]atomic.Int64 // the offset of each stream that is to be applied next
	clock   atomic.Int64                // the store's clock of the partition, by which records age; kept only with Config.Aged
	// commits is twice the number of commits, and odd during one. A reader that finds
	// the same even number before and after its reads has seen one state. It changes
	// under mu.
	commits atomic.Uint64
	// fresh is the time up to which everything that was in the log is known to be
	// applied; nil: not known.
	fresh atomic.Pointer[moment]
	// through is the time, in Unix milliseconds, up to which everything that came in
	// from outside is known to be applied; 0: not known. See whole.
	through atomic.Int64
	// reading counts how often reading the log began and ended. It is odd while the
	// log is read. What was fetched under another count is dropped.
	reading atomic.Uint64
	// cold says that the replica is not announced to brokers, since the caches are not
	// filled for it yet.
	cold  atomic.Bool
	trail trail                // the digests at the last offsets, by which replicas are compared
	stop  atomic.Pointer[stop] // where it is to stand still; nil: nowhere
	// begins is the offset at which the log of each stream begins; 0 also before the
	// first look.
	begins [kafka.Streams]atomic.Int64
	// again is when a renewal that failed is tried again, in Unix milliseconds; 0: at
	// once.
	again atomic.Int64

	life struct {
		sync.Mutex
		why       Why                      // why it is in its state
		cause     Why                      // why it was condemned last; zero once that is mended
		good      agreement                // of a replica that was found to differ: up to where it was right
		since     time.Time                // since when it is in its state
		held      [kafka.Streams]*Held     // what holds each stream back; nil: nothing
		heldSince [kafka.Streams]time.Time // since when held has had the same reason
		from      Origin                   // the log that the store's content was read from
		known     bool                     // from is known
	}

	backlogs [kafka.Streams]backlog // of the ingest goroutine alone

	// These belong to the reconciler alone.
	marks   [kafka.Streams]marks
	drained time.Time // in the state Draining: when that state ends
	shorter time.Time // since when the log ends before what was applied; zero: it does not
	renewal *renewal  // under way; nil: none
	sought  bool      // a renewal has looked for a backup, and did not fail: no further one need look
	gone    bool      // the order to delete the partition was carried out
	spared  bool      // the node has logged that it does not carry out the order to delete the partition
	dropped bool      // the caches may still note timelines of it as empty, although a renewal brings them back; see delete
}

// Look is a replica at one moment, as a reader sees it without a lock. What the reader
// reads between two Looks is of one state if both have the same even Commits.
type Look struct {
	Commits uint64
	Applied [kafka.Streams]int64 // the offsets that are to be applied next
	Clock   millrace.Time        // the time by which records age; 0 without Config.Aged
	State   State
	whole   whole // up to when the replica had everything that came in
}

// Look returns a replica as it is now. It reads the age first: what becomes known of the
// age later may be about records that are applied later. It reads the commits next, before
// the state and the offsets, so that Unmoved notices a commit after that.
func (all *Replicas) Look(p millrace.Partition) Look {
	r := &all.replicas[p]
	whole := all.whole(r)
	return Look{
		Commits: r.commits.Load(), State: r.State(),
		Applied: [kafka.Streams]int64{r.applied[0].Load(), r.applied[1].Load()}, Clock: millrace.Time(r.clock.Load()), whole: whole,
	}
}

// Unmoved reports whether nothing was committed since a look, and the state is the same.
func (r *Replica) Unmoved(l *Look) bool { return r.commits.Load() == l.Commits && r.State() == l.State }

// RLock keeps the writer from changing the partition until RUnlock. Until then the store
// and the caches agree on the partition.
func (r *Replica) RLock() { r.mu.RLock() }

// RUnlock ends RLock.
func (r *Replica) RUnlock() { r.mu.RUnlock() }

// Barrier waits until every reader and writer that holds the lock now has released it.
func (r *Replica) Barrier() {
	r.mu.Lock()
	r.mu.Unlock() //lint:ignore SA2001 a barrier
}

// State returns where the replica is in its life.
func (r *Replica) State() State { return State(r.state.Load()) }

// Holds reports whether the store's content is what the replica answers with now, or will
// build on once it has reached the log's end. The caller holds the lock.
func (r *Replica) Holds() bool {
	s := r.State()
	return s.Answers() || s == CatchingUp && r.reading.Load()%2 == 1
}

// Applied returns, for each stream, the first offset that answers do not include yet.
func (r *Replica) Applied() [kafka.Streams]millrace.Offset {
	return [kafka.Streams]millrace.Offset{millrace.Offset(r.applied[0].Load()), millrace.Offset(r.applied[1].Load())}
}

// Why returns why the replica is in its state, and since when. If something holds its
// ingest back, it returns that instead, unless the replica is quarantined or only being
// compared.
func (r *Replica) Why() (why Why, since time.Time) {
	r.life.Lock()
	defer r.life.Unlock()
	if r.State() != Quarantined {
		for s, h := range r.life.held {
			if h != nil && h.Reason != Compared { // to be compared is no fault
				return Why{h.Reason, h.Err.Error()}, r.life.heldSince[s]
			}
		}
	}
	return r.life.why, r.life.since
}

// Irreplaceable returns why a replica of this partition could not be made again from the
// log if it were lost; the zero Why if it could, as far as is known, or if this replica does
// not answer.
func (r *Replica) Irreplaceable() Why {
	for s := range r.begins {
		if begin := r.begins[s].Load(); begin > 0 && r.State().Answers() {
			return Why{LogTrimmed, fmt.Sprintf("%s begins at %d: what was before is only in the replicas that are there, and one that is lost cannot be made whole again; keep the disks, and the log from now on", kafka.Stream(s), begin)}
		}
	}
	return Why{}
}

// step moves the replica by an event, and reports whether that changed its state. A
// replica that an operator has quarantined ignores Replaced.
func (r *Replica) step(e Event, why Why) bool {
	r.life.Lock()
	defer r.life.Unlock()
	now := r.State()
	after, moved := now.next(e)
	if !moved || e == Replaced && r.life.why.Reason == ByOperator {
		return false
	}
	if now == Absent || after == CatchingUp { // the caches have nothing of the partition
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

// condemnedFor returns what the replica was condemned for last; the zero Why if that is
// mended.
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

// explain changes the reason of the present state, unless the reason is that an operator
// has quarantined the replica.
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

// origin returns which log the store's content was read from.
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

// UnknownAge is the age of a replica about which nothing is confirmed yet, for example
// after a start without Kafka. It is longer than any known age.
const UnknownAge = 365 * 24 * time.Hour

// age returns how long ago everything that was then in the log is known to have been
// applied; UnknownAge if nothing is known.
func (r *Replica) age(now time.Time) time.Duration { return r.fresh.Load().age(now) }
