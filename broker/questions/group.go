package questions

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// Group is entities of a question that are asked alike. Where no layer divides
// entities, a question has one.
type Group struct {
	// Query has what is asked of the group alone: the model with its version and
	// weights, the filter, the beginning of the window, types and cap. That of the
	// first group is the question's.
	Query *nodev1.QueryRequest
	Types int // timelines an entity counts for

	Names     string             // the model that variants set; empty: the question's
	Weights   map[string]float64 // in place of the model's own
	Weighers  []string           // experiments whose variants set the weights
	InPlaceOf artefacts.Version  // which is condemned: the group's model ranks instead
	Plain     bool               // the model ranks by its own weights, though variants set others

	Distinct int // entities
	Want     topology.Set
	counts   [partition.Count]int32      // entities
	ends     [partition.Count + 1]uint32 // those of partition p are encoded[ends[p]:ends[p+1]],
	Encoded  []byte                      // as QueryRequest.entities has them
}

// Timelines returns how many timelines a partition was asked for. Where every
// type is asked for, an entity counts as one.
func (g *Group) Timelines(p millrace.Partition) int { return int(g.counts[p]) * g.Types }

// entities returns the entities of a partition as QueryRequest has them.
func (g *Group) entities(p millrace.Partition) []byte { return g.Encoded[g.ends[p]:g.ends[p+1]] }

// Model is the version that is asked for.
func (g *Group) Model() artefacts.Version {
	return artefacts.Version{Name: g.Query.GetModel(), Version: g.Query.GetModelVersion(), Sum: g.Query.GetModelSum()}
}

// Add adds an entity, as it is encoded behind those before it, of no later
// partition.
func (g *Group) Add(encoded []byte) {
	p := millrace.Partition(binary.LittleEndian.Uint16(encoded))
	g.Want.Add(p)
	g.Distinct++
	g.counts[p]++
	g.ends[p+1] += uint32(len(encoded))
	g.Encoded = append(g.Encoded, encoded...)
}

// Close makes ends of the sizes that they were while entities were added.
func (g *Group) Close() {
	for p := range partition.Count {
		g.ends[p+1] += g.ends[p]
	}
}

// encode writes the entities of each partition into one piece of memory. At
// first each of g.ends is the size of the partition before.
func (g *Group) encode(entities []hashed) {
	var next [partition.Count]uint32
	for p := range next {
		next[p] = g.ends[p]
		g.ends[p+1] += g.ends[p]
	}
	g.Encoded = make([]byte, g.ends[partition.Count])
	for _, e := range entities {
		p := e.partition
		next[p] = uint32(len(partition.AppendEntity(g.Encoded[:next[p]], p, millrace.Entity(e.entity))))
	}
}

// AnsweredBy refuses an answer by another model, version or weights than was
// asked for.
func (g *Group) AnsweredBy(resp *nodev1.QueryResponse) error {
	got := artefacts.Version{Name: resp.GetModel(), Version: resp.GetModelVersion(), Sum: resp.GetModelSum()}
	want := g.Model()
	if want.Version == "" { // every binary's own
		want.Version = got.Version
	}
	if got != want {
		return &millrace.Error{Reason: millrace.ReasonNotHere, Field: "model", Detail: fmt.Sprintf("asked for %s (%.12s), it answered by %s (%.12s)", want, want.Sum, got, got.Sum)}
	}
	if by := resp.GetWeightsSum(); by != g.Query.WeightsSum {
		return &millrace.Error{Reason: millrace.ReasonNotHere, Field: "model", Detail: fmt.Sprintf("asked for %s by weights %.12s, it answered by %.12s", want, g.Query.WeightsSum, by)}
	}
	return nil
}

// Weighted is a version with the checksum of weights in place of its own.
type Weighted struct {
	artefacts.Version
	Sum string
}
