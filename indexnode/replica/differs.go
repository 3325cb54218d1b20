package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

// agreement is up to where a replica that differs was equal to the others, in
// the stream in which it differs.
type agreement struct {
	stream kafka.Stream
	offset millrace.Offset // -1: not known
}

// Verdict says that a replica differs from what its log makes of one.
type Verdict struct {
	Stream   kafka.Stream
	At       Pass   // the replica's own
	Expected uint64 // the digest that it should have there
	Agreed   millrace.Offset
	Peer     millrace.NodeID // one that is right
}

// differsText begins the cause of a quarantine of a replica that differs, by
// which it is known again after a restart.
const differsText = "it differs from other replicas"

// whyQuarantined says why the store has a partition in quarantine.
func whyQuarantined(err error) Why {
	switch {
	case strings.Contains(err.Error(), operatorText):
		return Why{ByOperator, err.Error()}
	case strings.Contains(err.Error(), differsText):
		return Why{Differs, err.Error()}
	}
	return Why{Corrupt, err.Error()}
}

// Fits reports why a verdict is not about the replica as it is now, or nil: it
// may have been renewed since, or never have been what the verdict says.
func (r *Replica) Fits(v *Verdict) error {
	switch trail := r.Trail()[v.Stream]; {
	case !r.State().Answers():
		return refuse("the replica of partition %d is %s, and answers nobody", r.partition, r.State())
	case v.At.Digest == v.Expected:
		return refuse("the replica of partition %d has the digest that it should have", r.partition)
	case !slices.Contains(trail, v.At):
		return refuse("the replica of partition %d has not had the digest %x at %d of %s since it last began to read its log", r.partition, v.At.Digest, v.At.At, v.Stream)
	}
	return nil
}

func refuse(detail string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "partition", Detail: fmt.Sprintf(detail, args...), WayOut: "compare the replicas again"}
}

// CondemnDiffering takes a replica out of service, durably, that a verdict
// fits. It is renewed from the log's beginning or, where that is gone, from a
// backup that is not of this replica, or of when it was still right.
func (all *Replicas) CondemnDiffering(p millrace.Partition, v *Verdict) error {
	r := &all.replicas[p]
	if err := r.Fits(v); err != nil {
		return err
	}
	why := fmt.Sprintf("%s: at %d of %s its digest is %x, and should be %x as that of %s", differsText, v.At.At, v.Stream, v.At.Digest, v.Expected, v.Peer)
	if v.Agreed >= 0 {
		why += fmt.Sprintf("; at %d they were equal", v.Agreed)
	}
	r.life.Lock()
	r.life.good = agreement{v.Stream, v.Agreed}
	r.life.Unlock()
	if !all.Condemn(p, Why{Differs, why}) { // as it has become meanwhile
		return refuse("the replica of partition %d is %s, and answers nobody", p, r.State())
	}
	r.Barrier() // nobody reads it any more, nor writes
	return all.cfg.Store.Quarantine(p, errors.New(why))
}

// trusts reports whether a backup is of a replica that was right: of another
// node's, or of this one's when it was still equal to the others.
func (r *Replica) trusts(b *Backup, self millrace.NodeID) bool {
	r.life.Lock()
	defer r.life.Unlock()
	good := r.life.good
	return b.Node != "" && b.Node != self || b.Applied[good.stream] <= good.offset
}
