package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/cluster/topology"
)

// State is where a replica is in its life. The zero State is Absent.
type State int32

// The states. Those that answer are Ready, Stale and Draining.
const (
	Absent      State = iota // this node does not host the partition
	Restoring                // what it has is being replaced, for it cannot be trusted
	CatchingUp               // it reads the log from its beginning, or a backup's end, and has not reached its end
	Ready                    // whole since the log's beginning, and the end of the log was confirmed lately
	Stale                    // whole up to some time, and the end of the log was not confirmed lately
	Draining                 // assigned elsewhere; it answers until brokers have heard of that
	Quarantined              // what it has cannot be trusted, or cannot be continued
	states
)

// States print as the cluster is told of them.
func (s State) String() string {
	return [states]string{"absent", "restoring", "catching_up", "ready", "stale", "draining", "quarantined"}[s]
}

// Answers reports whether a replica in this state answers questions.
func (s State) Answers() bool { return s == Ready || s == Stale || s == Draining }

// Missing is what an answer says of a partition in this state that it does not
// cover; empty where it covers it.
func (s State) Missing() string {
	return [states]string{Absent: "not_hosted", Restoring: "not_ready", CatchingUp: "not_ready", Quarantined: "quarantined"}[s]
}

// Event is what happens to a replica.
type Event uint8

// The events.
const (
	Assigned  Event = iota // to this node, which has nothing whole of it
	Resumed                // assigned to this node, which has all of it up to some offset
	CaughtUp               // the end of the log was reached
	Confirmed              // all that is in the log, and all that came in, was applied lately
	Aged                   // that was not confirmed for too long
	Rewound                // the disk lost what was not flushed: memory has more than the store
	Condemned              // see Quarantined
	Replaced               // what it has, if anything, is replaced by a backup or read anew from the log's beginning
	Restored               // that is done
	Failed                 // that could not be done
	Released               // assigned elsewhere
	Left                   // brokers have had the time to hear of that
	events
)

func (e Event) String() string {
	return [events]string{"assigned", "resumed", "caught up", "confirmed", "aged", "rewound", "condemned", "replaced", "restored", "not restored", "released", "left"}[e]
}

// transitions is the whole life of a replica: the state after each event that
// changes something. Every other event changes nothing.
var transitions = map[State]map[Event]State{
	Absent:      {Assigned: CatchingUp, Resumed: Stale, Condemned: Quarantined},
	Restoring:   {Restored: CatchingUp, Failed: Quarantined, Released: Absent}, // who condemns it has looked at what gives way
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

// Reason is a stable word for why a replica is in its state, or what it waits for.
// The cluster, metrics and `millrace doctor` tell it.
type Reason string

// The reasons.
const (
	KafkaAway      Reason = "kafka_away"                // the end of the log could not be confirmed
	InputStalled   Reason = "input_stalled"             // partitioners have not brought what came in to the log
	Behind         Reason = "behind"                    // the log is read, and its end not reached
	SchemaUnknown  Reason = "schema_unknown"            // a record's schema has not come yet
	DiskFull       Reason = topology.DiskFullReason     // the store takes nothing in
	StoreFailing   Reason = topology.StoreFailingReason // the store cannot write or read now
	DeadLetters    Reason = "dead_letters"              // records that were refused are not among the dead letters yet
	Corrupt        Reason = "corrupt"                   // what is stored cannot be right
	Differs        Reason = "differs"                   // it differs from what its log makes of a replica; others do not
	ByOperator     Reason = topology.ByOperatorReason   // an operator has quarantined it, until it is released
	Compared       Reason = "compared"                  // it stands still for some seconds, to be compared with another
	Paused         Reason = topology.PausedReason       // an operator has said that nothing is to be applied for a time
	LogBeginsLater Reason = "log_begins_later"          // the log no longer has what comes next
	OtherLog       Reason = "other_log"                 // the log is not the one that was read
	LogShorter     Reason = "log_shorter"               // the log ends before what was read of it
	LogDeletes     Reason = "log_deletes"               // the topic deletes records, and no backup reaches as far
	BatchTooLarge  Reason = "batch_too_large"           // a batch of the log cannot be opened within bounds
	BatchBroken    Reason = "batch_broken"              // a batch of the log is broken there: nobody can read it
	BackupAway     Reason = "backup_away"               // the place of the backups does not answer
	Restores       Reason = "restores"                  // a backup is being brought back
	Warming        Reason = "warming"                   // what peers hold hot is read into the cache
	LogTrimmed     Reason = "log_trimmed"               // of a ready one: the log no longer has its beginning, and no backup has it
	TooManyTypes   Reason = "too_many_types"            // of a node that answers: what asks for all content types is refused
	Moved          Reason = "moved"                     // assigned to other nodes
	Leaving        Reason = "leaving"                   // of a node that is being stopped: it answers until brokers have heard
)

// Why says why a replica is in its state. The zero Why is no reason.
type Why struct {
	Reason Reason
	Detail string // for people
}

// Held says that a record cannot be applied here and now: the cause is here, and
// neither in the record's bytes nor need it be elsewhere. It is tried again for as
// long as it takes. A record that is refused for what its bytes say is a
// *schemas.Error, and the same on every replica.
type Held struct {
	Reason Reason
	Err    error
}

// Error implements error.
func (h *Held) Error() string { return fmt.Sprintf("held back (%s): %v", h.Reason, h.Err) }

// Unwrap returns what is in the way.
func (h *Held) Unwrap() error { return h.Err }

func held(reason Reason, err error) *Held { return &Held{reason, err} }

// heldBy returns err as a Held; what is no Held yet is the store's failure.
func heldBy(err error) *Held {
	var h *Held
	if errors.As(err, &h) {
		return h
	}
	return held(StoreFailing, err)
}

// retryAfter is the pause before what is held back is tried again without a
// sign that it would go better.
const retryAfter = 500 * time.Millisecond
