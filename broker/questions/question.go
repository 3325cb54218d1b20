// Package questions holds what index nodes are asked: the entities of a request by
// partition, in groups that are asked alike, and how much memory the answers may take.
// It sends nothing; package fanout does.
package questions

import (
	"cmp"
	"fmt"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/memory"
)

// Question is a checked request in the form in which index nodes are asked.
type Question struct {
	FeedName string               // the expected size of items is remembered by it
	Query    *nodev1.QueryRequest // all but the entities; where groups differ, it has what the first asks
	Viewer   string               // its id

	Distinct  int          // how many entities
	Want      topology.Set // their partitions
	Groups    []*Group     // of the entities; the first has those to which no variant sets anything
	undivided struct {     // memory for Groups, if there is only one
		Group
		list [1]*Group
	}

	Depth     int    // how many items nodes are asked for; 0: Query.Limit
	BesideSum string // the checksum of the second model of an interleaved page; nodes that lack it are asked later
	Aside     bool   // nobody waits for the answer

	Times Times
	Loan  *memory.Loan // the memory reserved for the answer; nil: the fan-out borrows it itself
}

// Times is how long each stage of a request took.
type Times struct{ Read, Route, FanOut, Merge, Records time.Duration }

// Inquires reports whether the question may take nodes much longer than an answer
// commonly does: nobody waits for it, or it asks what became of a record. How long it
// takes then says nothing about a node's health.
func (q *Question) Inquires() bool {
	return q.Aside || q.Query.Examine != "" || len(q.Query.Above) > 0
}

// Protocol returns the lowest protocol version that a node must understand to answer for
// a group. Below 1 a node does not know served_key, and would repeat what earlier pages
// served. Below 2 it does not know weights, and would score by the model's own.
func (q *Question) Protocol(g *Group) int32 {
	switch {
	case g.Query.Weights != "":
		return 2
	case len(q.Query.Exclude) > 0:
		return 1
	}
	return 0
}

// Ask returns the request to a node for a group's entities in a set of partitions. The
// answer may take room bytes.
func (q *Question) Ask(g *Group, parts topology.Set, room int64) *nodev1.QueryRequest {
	n := 0
	for p := range parts.All() {
		n += len(g.entities(p))
	}
	of, all := g.Query, q.Query
	r := &nodev1.QueryRequest{
		Entities: g.Encoded, Types: of.Types, FromMs: of.FromMs, ToMs: all.ToMs, AsOfMs: all.AsOfMs,
		Filter: of.Filter, RequestFilter: all.RequestFilter, Model: of.Model, ModelVersion: of.ModelVersion, ModelSum: of.ModelSum, Weights: of.Weights, WeightsSum: of.WeightsSum,
		Viewer: all.Viewer, Limit: int32(q.Deep()), CapPerEntity: of.CapPerEntity, DistinctObjects: all.DistinctObjects, Exclude: all.Exclude, ServedKey: all.ServedKey,
		Explain: all.Explain, Examine: all.Examine, Above: all.Above, MaxBytes: room, Beside: all.Beside, Features: all.Features,
		GivesWay: true, Measure: all.Measure,
	}
	if r.Explain {
		r.Shadow = all.Shadow
	}
	if n < len(g.Encoded) {
		r.Entities = make([]byte, 0, n)
		for p := range parts.All() {
			r.Entities = append(r.Entities, g.entities(p)...)
		}
	}
	return r
}

// Whole makes Groups one empty group, without an allocation.
func (q *Question) Whole() {
	u := &q.undivided
	u.list[0] = &u.Group
	q.Groups = u.list[:]
}

// Deep returns how many items each node is asked for.
func (q *Question) Deep() int { return cmp.Or(q.Depth, int(q.Query.GetLimit())) }

// Model returns the model version that the question names.
func (q *Question) Model() artefacts.Version {
	return artefacts.Version{Name: q.Query.Model, Version: q.Query.ModelVersion, Sum: q.Query.ModelSum}
}

// Affordable returns the refusal (TOO_LARGE) of a question for more than most timelines,
// else nil.
func (q *Question) Affordable(most int) error {
	if n := q.Asked(); n > most {
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "entities", Detail: fmt.Sprintf("%d entities of %d types are %d timelines, more than %d", q.Distinct, n/q.Distinct, n, most), WayOut: "ask for fewer entities, or for fewer types"}
	}
	return nil
}

// Timelines returns how many timelines of partition p are asked for.
func (q *Question) Timelines(p millrace.Partition) (n int) {
	for _, g := range q.Groups {
		n += g.Timelines(p)
	}
	return n
}

// Asked returns how many timelines are asked for.
func (q *Question) Asked() (n int) {
	for _, g := range q.Groups {
		n += g.Distinct * g.Types
	}
	return n
}

// Among returns how many entities are asked for in a set of partitions.
func (q *Question) Among(parts topology.Set) (n int) {
	for p := range parts.All() {
		n += q.Work(p)
	}
	return n
}

// Bytes returns how many bytes the encoded entities take.
func (q *Question) Bytes() (n int) {
	for _, g := range q.Groups {
		n += len(g.Encoded)
	}
	return n
}

// Work returns how many entities are asked for in partition p.
func (q *Question) Work(p millrace.Partition) (n int) {
	for _, g := range q.Groups {
		n += int(g.counts[p])
	}
	return n
}

// GroupsIn returns the groups with entities in a set of partitions.
func (q *Question) GroupsIn(parts topology.Set) []*Group {
	if len(q.Groups) == 1 {
		return q.Groups
	}
	in := make([]*Group, 0, len(q.Groups))
	for _, g := range q.Groups {
		if both := g.Want.And(parts); both.Len() > 0 {
			in = append(in, g)
		}
	}
	return in
}
