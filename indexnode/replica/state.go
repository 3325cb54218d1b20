package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/cluster/topology"
)

// State is the state of a replica. The zero State is Absent.
type State int32

// The states. Those that answer are Ready, Stale and Draining.
const (
	Absent      State = iota // this node does not host the partition
	Restoring                // its content, if it has any, is being replaced by a backup or removed
	CatchingUp               // it reads the log, and has not reached the log's end
	Ready                    // it has reached the log's end, and its content was not older than Config.Limit when that was last judged
	Stale                    // it has all of the log up to some time, and its content may be older than Config.Limit
	Draining                 // the partition is assigned elsewhere; the replica answers until brokers have heard of that
	Quarantined              // its content cannot be trusted, or cannot be continued
	states                   // how many there are
)

// String returns the word by which nodes announce a state in the cluster.
func (s State) String() string {
	return [states]string{"absent", "restoring", "catching_up", "ready", "stale", "draining", "quarantined"}[s]
}

// Answers reports whether a replica in this state answers questions.
func (s State) Answers() bool { return s == Ready || s == Stale || s == Draining }

// Missing returns the word by which an answer says that it lacks a partition in this
// state; empty if replicas in this state answer.
func (s State) Missing() string {
	return [states]string{Absent: "not_hosted", Restoring: "not_ready", CatchingUp: "not_ready", Quarantined: "quarantined"}[s]
}

// Event is what happens to a replica.
type Event uint8

// The events.
const (
	Assigned  Event = iota // the partition is assigned to this node, which is not known to have had all of it
	Resumed                // the partition is assigned to this node, which has all of it up to some offset
	CaughtUp               // the end of the log was reached
	Confirmed              // all that is in the log, and all that came in, is known to have been applied lately
	Aged                   // what Confirmed says is not known for the last Config.Limit
	Rewound                // the store lost what was not flushed, so memory has more than the store
	Condemned              // its content cannot be trusted, or cannot be continued
	Replaced               // its content, if there is any, begins to be replaced: by a backup, or by reading the log from its beginning
	Restored               // the replacement is done
	Failed                 // the replacement could not be done
	Released               // the partition is assigned elsewhere
	Left                   // brokers have had the time to hear of the new assignment
	events                 // how many there are
)

func (e Event) String() string {
	return [events]string{"assigned", "resumed", "caught up", "confirmed", "aged", "rewound", "condemned", "replaced", "restored", "not restored", "released", "left"}[e]
}

// transitions is the whole life of a replica: for each state, the events that change it and
// the state that follows. Every other event changes nothing.
var transitions = map[State]map[Event]State{
	Absent:      {Assigned: CatchingUp, Resumed: Stale, Condemned: Quarantined},
	Restoring:   {Restored: CatchingUp, Failed: Quarantined, Released: Absent}, // not Condemned: a fault that is found now is about the content that is being removed
	CatchingUp:  {CaughtUp: Ready, Replaced: Restoring, Condemned: Quarantined, Released: Absent},
	Ready:       {Aged: Stale, Rewound: CatchingUp, Condemned: Quarantined, Released: Draining},
	Stale:       {Confirmed: Ready, Rewound: CatchingUp, Condemned: Quarantined, Released: Draining},
	Draining:    {Assigned: Stale, Resumed: Stale, Left: Absent, Rewound: Absent, Condemned: Absent},
	Quarantined: {Replaced: Restoring, Released: Absent},
}

// next returns the state after an event, and whether that changes anything.
func (s State) next(e Event) (State, bool) {
	if s < 0 || s >= states || e >= events {
		panic(fmt.Sprintf("replica: state %d, event %d", s, e))
	}
	after, ok := transitions[s][e]
	if !ok {
		return s, false
	}
	return after, true
}

// Reason is a stable word for why a replica is in its state, or what it waits for. Nodes
// announce it in the cluster and in metrics, and `millrace doctor` shows it.
type Reason string

// The reasons.
const (
	KafkaAway      Reason = "kafka_away"                // Kafka does not say where the log ends
	InputStalled   Reason = "input_stalled"             // partitioners have not reported that everything that came in is in the log
	Behind         Reason = "behind"                    // the log is read, and its end is not reached
	SchemaUnknown  Reason = "schema_unknown"            // a record's schema has not come yet
	DiskFull       Reason = topology.DiskFullReason     // the store takes nothing in
	StoreFailing   Reason = topology.StoreFailingReason // the store cannot write or read now
	DeadLetters    Reason = "dead_letters"              // records that were refused are not among the dead letters yet
	Corrupt        Reason = "corrupt"                   // what is stored cannot be right
	Differs        Reason = "differs"                   // its content is not what its log gives, as other replicas show
	ByOperator     Reason = topology.ByOperatorReason   // an operator has quarantined it, until it is released
	Compared       Reason = "compared"                  // it stands still for some seconds, to be compared with another replica
	Paused         Reason = topology.PausedReason       // an operator has paused the node's ingest for a time
	LogBeginsLater Reason = "log_begins_later"          // the log no longer has what comes next
	OtherLog       Reason = "other_log"                 // the log is not the one that was read
	LogShorter     Reason = "log_shorter"               // the log ends before what was read of it
	LogDeletes     Reason = "log_deletes"               // the topic deletes records, and no backup reaches as far
	BatchTooLarge  Reason = "batch_too_large"           // a batch of the log cannot be opened within bounds
	BatchBroken    Reason = "batch_broken"              // a batch of the log is broken in Kafka: nobody can read it
	BackupAway     Reason = "backup_away"               // the place of the backups does not answer
	Restores       Reason = "restores"                  // a backup is being brought back
	Warming        Reason = "warming"                   // the caches are being filled with the timelines that other nodes' caches have
	LogTrimmed     Reason = "log_trimmed"               // of a replica that answers: the log no longer has its beginning, so a replica that is lost cannot be made again from it
	TooManyTypes   Reason = "too_many_types"            // of a node that answers: requests for all content types are refused
	Moved          Reason = "moved"                     // the partition is assigned to other nodes
	Leaving        Reason = "leaving"                   // of a node that is being stopped: it answers until brokers have heard of that
)

// Why says why a replica is in its state. The zero Why is no reason.
type Why struct {
	Reason Reason
	Detail string // for people
}

// Held says that a record cannot be applied on this node now, and why. The cause does not
// lie in the record's bytes, and other nodes may be free of it. The record is tried again
// for as long as it takes. A record that every replica refuses for its bytes gives a
// *schemas.Error instead.
type Held struct {
	Reason Reason
	Err    error
}

// Error implements error.
func (h *Held) Error() string { return fmt.Sprintf("held back (%s): %v", h.Reason, h.Err) }

// Unwrap returns Err.
func (h *Held) Unwrap() error { return h.Err }

func held(reason Reason, err error) *Held { return &Held{reason, err} }

// heldBy returns err as a Held. An error that is no Held counts as a failure of the store.
func heldBy(err error) *Held {
	var h *Held
	if errors.As(err, &h) {
		return h
	}
	return held(StoreFailing, err)
}

// retryAfter is the pause before a stream that is held back is tried again, unless
// something wakes the ingest before. After the same pause the reconciler looks again at
// replicas whose log should be read and is not.
const retryAfter = 500 * time.Millisecond
