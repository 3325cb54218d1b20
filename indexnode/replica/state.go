package replica

import "fmt"

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
	Quarantined              // what it has cannot be trusted, or not be continued
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
	Replaced               // what it has, or nothing, gives way to a backup or to the log's beginning
	Restored               // that is done
	Released               // assigned elsewhere
	Left                   // brokers have had the time to hear of that
	events
)

func (e Event) String() string {
	return [events]string{"assigned", "resumed", "caught up", "confirmed", "aged", "rewound", "condemned", "replaced", "restored", "released", "left"}[e]
}

// transitions is the whole life of a replica: the state after each event that
// changes something. Every other event changes nothing.
var transitions = map[State]map[Event]State{
	Absent:      {Assigned: CatchingUp, Resumed: Stale, Condemned: Quarantined},
	Restoring:   {Restored: CatchingUp, Condemned: Quarantined, Released: Absent},
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
