package replica

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
)

// agreement says up to which offset a replica that differs from the others was equal to
// them, and in which stream it differs.
type agreement struct {
	stream kafka.Stream
	offset millrace.Offset // -1: not known
}

// Verdict says that a replica was compared with others, and that its content is not what
// its log gives.
type Verdict struct {
	Stream   kafka.Stream
	At       Pass            // an offset, and the digest that the replica had there
	Expected uint64          // the digest that it should have had there
	Agreed   millrace.Offset // up to where it was equal to the others; -1: not known
	Peer     millrace.NodeID // a node whose replica is right
}

// differsText begins the text of a quarantine's cause if the replica differs. The store
// keeps the text; after a restart whyQuarantined finds the reason by it.
const differsText = "it differs from other replicas"

// whyQuarantined returns the reason of a quarantine from the cause that the store keeps.
func whyQuarantined(err error) Why {
	switch {
	case strings.Contains(err.Error(), operatorText):
		return Why{ByOperator, err.Error()}
	case strings.Contains(err.Error(), differsText):
		return Why{Differs, err.Error()}
	}
	return Why{Corrupt, err.Error()}
}

// Fits returns nil if a verdict is about the replica as it is now, and else an error that
// says why not: the replica may have been renewed since, or never have had that digest.
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

// refuse returns the error that a verdict does not fit the replica; the arguments are those
// of Sprintf.
func refuse(detail string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "partition", Detail: fmt.Sprintf(detail, args...), WayOut: "compare the replicas again"}
}

// CondemnDiffering takes a replica out of service if a verdict fits it; the store keeps
// that it is quarantined. The reconciler then renews it from the log's beginning. If the
// log no longer has its beginning, the reconciler uses a backup of another node's replica,
// or a backup of this one from when it was still right. CondemnDiffering returns an error
// if the verdict does not fit, or if the store cannot write the quarantine.
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
	if !all.Condemn(p, Why{Differs, why}) { // its state has changed meanwhile
		return refuse("the replica of partition %d is %s, and answers nobody", p, r.State())
	}
	r.Barrier() // from here on nobody reads or writes it
	return all.cfg.Store.Quarantine(p, errors.New(why))
}

// trusts reports whether a backup is of a replica that was right: one of another node, or
// this one when it was still equal to the others. self is this node.
func (r *Replica) trusts(b *Backup, self millrace.NodeID) bool {
	r.life.Lock()
	defer r.life.Unlock()
	good := r.life.good
	return b.Node != "" && b.Node != self || b.Applied[good.stream] <= good.offset
}
