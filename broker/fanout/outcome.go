package fanout

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// Why a partition is missing from an answer, as Missing.reason says it.
const (
	MissTimeout     = "timeout"
	MissUnreachable = "unreachable" // the node cannot be reached or is unresponsive
	MissNoReplica   = "no_replica"  // no node that may be asked has the partition
	MissBehind      = "behind"      // the node has not caught up with the log, or lacks a schema that the filter needs
	MissOverloaded  = "overloaded"
	MissTooLarge    = "too_large"
	MissModel       = "no_model" // the node lacks the model, its version or its weights
	MissOlder       = "older"    // the node's version of Millrace does not understand all of the question
	MissError       = "error"
)

// Part is what one node answered for one group of entities.
type Part struct {
	Node    millrace.NodeID
	Group   *questions.Group
	Covered topology.Set // the partitions for which this part counts
	Resp    *nodev1.QueryResponse
}

// Answered is what a node says of a partition that it answered.
type Answered struct {
	Partition         millrace.Partition
	Content, Features int64         // the offsets up to which the node has applied its two logs
	Lag               time.Duration // how long records have waited to be applied; 0: the node keeps up
}

// Answers yields each partition that the node answered and the part covers.
func (pt *Part) Answers() iter.Seq[Answered] {
	return func(yield func(Answered) bool) {
		all := pt.Resp.GetPartitions()
		for i, p := range all.GetAnswered() {
			if p < 0 || p >= partition.Count || !pt.Covered.Has(millrace.Partition(p)) {
				continue
			}
			a := Answered{Partition: millrace.Partition(p), Content: all.AppliedContent[i], Features: all.AppliedFeatures[i]}
			if len(all.LagMs) > 0 {
				a.Lag = time.Duration(all.LagMs[i]) * time.Millisecond
			}
			if !yield(a) {
				return
			}
		}
	}
}

// partitionsOf returns which of the wanted partitions a node has answered, and why the
// others are missing. A response whose lists differ in length answers none.
func partitionsOf(resp *nodev1.QueryResponse, want topology.Set) (covered topology.Set, missing map[millrace.Partition]string) {
	all := resp.GetPartitions()
	n := len(all.GetAnswered())
	if sound := len(all.GetAppliedContent()) == n && len(all.GetAppliedFeatures()) == n && (len(all.GetLagMs()) == n || len(all.GetLagMs()) == 0); sound {
		for _, p := range all.GetAnswered() {
			if p >= 0 && p < partition.Count && want.Has(millrace.Partition(p)) {
				covered.Add(millrace.Partition(p))
			}
		}
	}
	rest := want.Minus(covered)
	if n := rest.Len(); n > 0 {
		missing = make(map[millrace.Partition]string, n)
	}
	for p := range rest.All() {
		missing[p] = MissError // if the node says nothing about p
		if why, ok := all.GetMissing()[int32(p)]; ok {
			missing[p] = missingOf(why)
		}
	}
	return covered, missing
}

// Outcome is the result for some partitions: the parts that cover them, and why the others
// are missing. No two parts of a group cover the same partition. A partition that is
// missing for one group counts as missing for all: no part covers it.
type Outcome struct {
	Parts   []Part
	Missing map[millrace.Partition]string // why each is missing: one of the Miss constants
	second  bool                          // it comes from the nodes asked second, by a hedge or after a failure
}

// add adds the result for other partitions or of another group. It may keep and change
// other.Missing.
func (o *Outcome) add(other Outcome) {
	o.Parts = append(o.Parts, other.Parts...)
	if o.Missing == nil {
		o.Missing = other.Missing
		return
	}
	maps.Copy(o.Missing, other.Missing)
}

// none returns the outcome in which all of parts are missing for the reason why.
func none(parts topology.Set, why string) Outcome {
	n := parts.Len()
	if n == 0 {
		return Outcome{}
	}
	o := Outcome{Missing: make(map[millrace.Partition]string, n)}
	for p := range parts.All() {
		o.Missing[p] = why
	}
	return o
}

// all reports whether nothing was answered, and every partition is missing for the reason
// why.
func (o *Outcome) all(why string) bool {
	for _, w := range o.Missing {
		if w != why {
			return false
		}
	}
	return len(o.Parts) == 0 && len(o.Missing) > 0
}

// uncover removes the missing partitions from what the parts cover, and drops parts that
// then cover nothing.
func (o *Outcome) uncover() {
	left := o.Left()
	if left.Len() == 0 {
		return
	}
	kept := o.Parts[:0]
	for _, pt := range o.Parts {
		if pt.Covered = pt.Covered.Minus(left); pt.Covered.Len() > 0 {
			kept = append(kept, pt)
		}
	}
	o.Parts = kept
}

// Left returns the partitions that are missing.
func (o *Outcome) Left() (s topology.Set) {
	for p := range o.Missing {
		s.Add(p)
	}
	return s
}

// explained replaces the reason MissNoReplica, which here only says that no further replica
// was left, by the reason why an earlier replica did not answer. It changes o.Missing.
func (o Outcome) explained(earlier map[millrace.Partition]string) Outcome {
	for p, why := range o.Missing {
		if was, ok := earlier[p]; ok && why == MissNoReplica {
			o.Missing[p] = was
		}
	}
	return o
}

// missingOf translates the reason a node gives for a missing partition.
func missingOf(node string) string {
	switch node {
	case "not_ready":
		return MissBehind
	case "not_hosted":
		return MissNoReplica
	case "deadline":
		return MissTimeout
	}
	return MissError
}

// oneVersion keeps, of each group, the parts that answered by the model version that
// covers most partitions, or of those that cover equally many, the highest version. The
// partitions of the other parts become missing. Versions differ only for models that are
// built into the binary, while a cluster is being upgraded.
func (o *Outcome) oneVersion() {
	if !slices.ContainsFunc(o.Parts, func(pt Part) bool {
		first := &o.Parts[0]
		return pt.Group != first.Group || pt.Resp.GetModelVersion() != first.Resp.GetModelVersion()
	}) {
		return
	}
	type speaks struct {
		*questions.Group
		version string
	}
	covers, most := map[speaks]int{}, map[*questions.Group]string{}
	for i := range o.Parts {
		s := speaks{o.Parts[i].Group, o.Parts[i].Resp.GetModelVersion()}
		covers[s] += o.Parts[i].Covered.Len()
		best := covers[speaks{s.Group, most[s.Group]}]
		if covers[s] > best || covers[s] == best && s.version > most[s.Group] {
			most[s.Group] = s.version
		}
	}
	if len(covers) == len(most) {
		return
	}
	kept := o.Parts[:0:0]
	left := Outcome{Missing: o.Missing}
	for _, pt := range o.Parts {
		if pt.Resp.GetModelVersion() == most[pt.Group] {
			kept = append(kept, pt)
			continue
		}
		left.add(none(pt.Covered, MissModel))
	}
	o.Parts, o.Missing = kept, left.Missing
	o.uncover()
}
