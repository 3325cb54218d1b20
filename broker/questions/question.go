// Package questions is what index nodes are asked: entities by partition, in
// groups that are asked alike, and what answers to them may take. It asks nobody.
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

// Question is what index nodes are asked, by partition.
type Question struct {
	FeedName string               // what it takes goes by
	Query    *nodev1.QueryRequest // all but entities; of what a group is asked alone, that of the first
	Viewer   string

	Distinct  int // entities
	Want      topology.Set
	Groups    []*Group // of them; the first is of those that no layer of entities deals anything
	undivided struct { // memory for groups, where there is one
		Group
		list [1]*Group
	}

	Depth     int    // items that nodes are asked for; 0: as many as the answer has
	BesideSum string // the checksum of a model beside; nodes that lack it are asked later
	Aside     bool   // nobody waits for the answer

	Times Times
	Loan  *memory.Loan
}

// Times is where the time of a request goes.
type Times struct{ Read, Route, FanOut, Merge, Records time.Duration }

// Inquires reports whether nodes are asked for what may take much longer than
// an answer does: how long says nothing about them then.
func (q *Question) Inquires() bool {
	return q.Aside || q.Query.Examine != "" || len(q.Query.Above) > 0
}

// Protocol is the least that a node must understand to answer of a group: one
// that does not know served_key would repeat what earlier pages served, and one
// that does not know weights would score by others.
func (q *Question) Protocol(g *Group) int32 {
	switch {
	case g.Query.Weights != "":
		return 2
	case len(q.Query.Exclude) > 0:
		return 1
	}
	return 0
}

// Ask returns the request for a group's part of a set of partitions, whose
// answer may take so many bytes.
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

// Whole lets a question's entities be one group.
func (q *Question) Whole() {
	u := &q.undivided
	u.list[0] = &u.Group
	q.Groups = u.list[:]
}

// Deep returns how many items nodes are asked for.
func (q *Question) Deep() int { return cmp.Or(q.Depth, int(q.Query.GetLimit())) }

// Model is the version that a question names.
func (q *Question) Model() artefacts.Version {
	return artefacts.Version{Name: q.Query.Model, Version: q.Query.ModelVersion, Sum: q.Query.ModelSum}
}

// Affordable refuses a question for more timelines than most.
func (q *Question) Affordable(most int) error {
	if n := q.Asked(); n > most {
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "entities", Detail: fmt.Sprintf("%d entities of %d types are %d timelines, more than %d", q.Distinct, n/q.Distinct, n, most), WayOut: "ask for fewer entities, or for fewer types"}
	}
	return nil
}

// Timelines returns how many timelines of a partition are asked for.
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

// Among returns how many entities a set of partitions is asked for.
func (q *Question) Among(parts topology.Set) (n int) {
	for p := range parts.All() {
		n += q.Work(p)
	}
	return n
}

// Bytes returns what the entities take as they are encoded.
func (q *Question) Bytes() (n int) {
	for _, g := range q.Groups {
		n += len(g.Encoded)
	}
	return n
}

// Work returns how many entities a partition is asked for.
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
