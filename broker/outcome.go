package broker

import (
	"context"
	"errors"
	"iter"
	"maps"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/partition"
)

// Why a partition is missing from an answer, as Missing.reason says it.
const (
	missTimeout     = "timeout"
	missUnreachable = "unreachable"
	missNoReplica   = "no_replica"
	missBehind      = "behind"
	missOverloaded  = "overloaded"
	missTooLarge    = "too_large"
	missModel       = "no_model"
	missOlder       = "older"
	missError       = "error"
)

// part is what one node answered for its share of the partitions, of one group.
type part struct {
	node    millrace.NodeID
	group   *group
	covered cluster.Set
	resp    *nodev1.QueryResponse
}

// answered is what a node says of a partition that it answered.
type answered struct {
	partition         millrace.Partition
	content, features int64
	lag               time.Duration // 0: it keeps up
}

// answers yields each partition that the node answered and the part covers.
func (pt *part) answers() iter.Seq[answered] {
	return func(yield func(answered) bool) {
		all := pt.resp.GetPartitions()
		for i, p := range all.GetAnswered() {
			if !pt.covered.Has(millrace.Partition(p)) {
				continue
			}
			a := answered{partition: millrace.Partition(p), content: all.AppliedContent[i], features: all.AppliedFeatures[i]}
			if len(all.LagMs) > 0 {
				a.lag = time.Duration(all.LagMs[i]) * time.Millisecond
			}
			if !yield(a) {
				return
			}
		}
	}
}

// partitionsOf returns which of the wanted partitions a node has answered, and
// why not the others.
func partitionsOf(resp *nodev1.QueryResponse, want cluster.Set) (covered cluster.Set, missing map[millrace.Partition]string) {
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
		missing[p] = missError // it says nothing about it
		if why, ok := all.GetMissing()[int32(p)]; ok {
			missing[p] = missingOf(why)
		}
	}
	return covered, missing
}

// outcome is what is known of some partitions: the parts that cover them, no
// two the same one of a group, and why the others are missing. What is missing
// of one group no part covers.
type outcome struct {
	parts   []part
	missing map[millrace.Partition]string
	second  bool // it is the hedge's, or what replaced a failure
}

// add joins what is known of other partitions.
func (o *outcome) add(other outcome) {
	o.parts = append(o.parts, other.parts...)
	if o.missing == nil {
		o.missing = other.missing
		return
	}
	maps.Copy(o.missing, other.missing)
}

// none is the outcome when all of some partitions are missing.
func none(parts cluster.Set, why string) outcome {
	n := parts.Len()
	if n == 0 {
		return outcome{}
	}
	o := outcome{missing: make(map[millrace.Partition]string, n)}
	for p := range parts.All() {
		o.missing[p] = why
	}
	return o
}

// all reports whether nothing was answered, and for one reason.
func (o *outcome) all(why string) bool {
	for _, w := range o.missing {
		if w != why {
			return false
		}
	}
	return len(o.parts) == 0 && len(o.missing) > 0
}

// uncover takes what is missing from what the parts cover.
func (o *outcome) uncover() {
	left := o.left()
	if left.Len() == 0 {
		return
	}
	kept := o.parts[:0]
	for _, pt := range o.parts {
		if pt.covered = pt.covered.Minus(left); pt.covered.Len() > 0 {
			kept = append(kept, pt)
		}
	}
	o.parts = kept
}

func (o *outcome) left() (s cluster.Set) {
	for p := range o.missing {
		s.Add(p)
	}
	return s
}

// explained replaces "no replica", where that only means no further one, by
// why the earlier ones did not answer.
func (o outcome) explained(earlier map[millrace.Partition]string) outcome {
	for p, why := range o.missing {
		if was, ok := earlier[p]; ok && why == missNoReplica {
			o.missing[p] = was
		}
	}
	return o
}

// What a call tells of a node that did not come to answer it.
var (
	// errMute ends calls of a node that answers nobody.
	errMute        = errors.New("broker: the node answers nobody")
	errUnreachable = errors.New("broker: the node cannot be reached")
	errTooLarge    = errors.New("broker: the node's answer is larger than a message may be")
	errOlder       = errors.New("broker: the node is of an older version, which does not understand all of the question")
)

// reason says why a call that gave err answered nothing.
func reason(ctx context.Context, err error) string {
	var e *millrace.Error
	switch {
	case errors.Is(context.Cause(ctx), errMute), errors.Is(err, errUnreachable):
		return missUnreachable
	case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		return missTimeout
	case errors.Is(err, errTooLarge):
		return missTooLarge
	case errors.Is(err, errOlder):
		return missOlder
	case !errors.As(err, &e):
		return missError
	}
	switch e.Reason {
	case millrace.ReasonDeadline:
		return missTimeout
	case millrace.ReasonOverloaded:
		return missOverloaded
	case millrace.ReasonNotHere:
		return missModel
	}
	return missError
}

// missingOf translates what a node says of a partition.
func missingOf(node string) string {
	switch node {
	case "not_ready":
		return missBehind
	case "not_hosted":
		return missNoReplica
	case "deadline":
		return missTimeout
	}
	return missError
}
