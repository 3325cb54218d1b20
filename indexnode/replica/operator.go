package replica

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

// operatorText begins the text of a quarantine's cause if an operator ordered it. The store
// keeps the text; after a restart whyQuarantined finds the reason by it.
const operatorText = "an operator has quarantined it"

// releaseText ends the text of such a cause: only a quarantine by an operator ends by
// release.
const releaseText = "; millrace partition release has it made anew"

// MayQuarantine returns why an operator cannot quarantine the replica; nil: it can.
func (r *Replica) MayQuarantine() error {
	if s := r.State(); s.Answers() || s == CatchingUp {
		return nil
	}
	return r.notToQuarantine()
}

// notToQuarantine returns the error that the replica's state does not allow a quarantine.
func (r *Replica) notToQuarantine() error {
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "partition", Detail: fmt.Sprintf("the replica of partition %d is %s", r.partition, r.State()), WayOut: "millrace cluster explain PARTITION says where it is",
	}
}

// Quarantine takes a replica out of service for an operator; why is the operator's
// reason. The replica is not made anew before Release. If the error has the reason
// millrace.ReasonUnavailable, the replica is out of service, but the store has not written
// that yet, and a restart of the node would forget it.
func (all *Replicas) Quarantine(p millrace.Partition, why string) error {
	r := &all.replicas[p]
	if err := r.MayQuarantine(); err != nil {
		return err
	}
	cause := operatorText + ": " + why + releaseText
	if !all.Condemn(p, Why{ByOperator, cause}) {
		return r.notToQuarantine() // its state has changed meanwhile
	}
	r.Barrier() // from here on nobody reads or writes it
	if err := all.cfg.Store.Quarantine(p, errors.New(cause)); err != nil {
		return &millrace.Error{
			Reason: millrace.ReasonUnavailable, Field: "partition", Detail: fmt.Sprintf("partition %d is quarantined from now on, and that is not on the disk yet: %v", p, err),
			WayOut: "mend the disk: it is written within half a minute then. A restart of the node before that forgets it; give it again",
		}
	}
	return nil
}

// MayRelease returns why an operator cannot release the replica; nil: it can. An operator
// can also release what this node still has of a partition that is assigned elsewhere by
// now. The node then deletes that content, if it was ordered to (see Replicas.Drop).
func (all *Replicas) MayRelease(p millrace.Partition) error {
	r := &all.replicas[p]
	why := r.condemnedFor()
	switch {
	case r.State() == Absent && all.keptByOperator(r):
		return nil
	case r.State() != Quarantined:
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "partition", Detail: fmt.Sprintf("the replica of partition %d is %s", r.partition, r.State()), WayOut: "release what is quarantined: millrace cluster show says what is",
		}
	case why.Reason != ByOperator:
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "partition", Detail: fmt.Sprintf("the replica of partition %d is quarantined by itself (%s: %s)", r.partition, why.Reason, why.Detail),
			WayOut: "what is corrupt or differs is made anew without a word; docs/runbook.md has the other reasons, under MillraceReplicasQuarantined",
		}
	}
	return nil
}

// Release has a replica that an operator has quarantined made anew, like one that differs:
// from the log's beginning, or from a backup of another node's replica. The store writes
// that the replica is released. After an error of the store the replica is not released.
func (all *Replicas) Release(p millrace.Partition) error {
	r := &all.replicas[p]
	if err := all.MayRelease(p); err != nil {
		return err
	}
	why := Why{Differs, differsText + ": an operator has released it, and it is made anew"}
	if err := all.cfg.Store.Requarantine(p, errors.New(why.Detail)); err != nil { // before the reconciler learns of the release: the store must not take the new content for an operator's quarantine
		return err
	}
	r.life.Lock()
	r.life.good = agreement{kafka.Timeline, -1}
	r.life.cause = why
	if r.State() == Quarantined {
		r.life.why = why
	}
	r.life.Unlock()
	r.again.Store(0)
	poke(all.changed)
	return nil
}
