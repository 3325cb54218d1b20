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

// Group is entities of a question that are asked alike. A question has several groups only
// if an experiment gives entities different variants, with settings of their own.
type Group struct {
	// Query has what is asked of this group alone: the model with its version and
	// weights, the filter, the beginning of the window, types and cap. The first group's
	// Query is that of the question.
	Query *nodev1.QueryRequest
	Types int // how many timelines an entity counts for

	Names     string             // the model that variants set; empty: the question's
	Weights   map[string]float64 // by feature, in place of the model's own
	Weighers  []string           // experiments whose variants set the weights
	InPlaceOf artefacts.Version  // the condemned version that the group's model replaces; zero: none
	Plain     bool               // the model ranks by its own weights, though variants set others

	Distinct int                         // how many entities
	Want     topology.Set                // their partitions
	counts   [partition.Count]int32      // entities of each partition
	ends     [partition.Count + 1]uint32 // the entities of partition p are Encoded[ends[p]:ends[p+1]]
	Encoded  []byte                      // all entities, as QueryRequest.entities has them
}

// Timelines returns how many timelines of partition p the group asks for. If it asks for
// every type, an entity counts as one.
func (g *Group) Timelines(p millrace.Partition) int { return int(g.counts[p]) * g.Types }

// entities returns the entities of a partition, encoded as in QueryRequest.entities.
func (g *Group) entities(p millrace.Partition) []byte { return g.Encoded[g.ends[p]:g.ends[p+1]] }

// Model returns the model version that the group asks for.
func (g *Group) Model() artefacts.Version {
	return artefacts.Version{Name: g.Query.GetModel(), Version: g.Query.GetModelVersion(), Sum: g.Query.GetModelSum()}
}

// Add adds an entity, encoded as in QueryRequest.entities. Entities must be added in the
// order of their partitions, and Close called after the last.
func (g *Group) Add(encoded []byte) {
	p := millrace.Partition(binary.LittleEndian.Uint16(encoded))
	g.Want.Add(p)
	g.Distinct++
	g.counts[p]++
	g.ends[p+1] += uint32(len(encoded))
	g.Encoded = append(g.Encoded, encoded...)
}

// Close completes the group after the last Add. Until then ends[p+1] is the size of
// partition p; Close sums the sizes up.
func (g *Group) Close() {
	for p := range partition.Count {
		g.ends[p+1] += g.ends[p]
	}
}

// encode writes the entities, partition by partition, into Encoded. When it is called,
// ends[p+1] is the size of partition p; it sums the sizes up, as Close does.
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

// AnsweredBy returns an error of reason NOT_HERE if the answer is by another model,
// version or weights than asked for. If no version was asked for, any will do.
func (g *Group) AnsweredBy(resp *nodev1.QueryResponse) error {
	got := artefacts.Version{Name: resp.GetModel(), Version: resp.GetModelVersion(), Sum: resp.GetModelSum()}
	want := g.Model()
	if want.Version == "" { // a model that is built into every binary
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

// Weighted is a model version, and the checksum of the weights that replace its own.
type Weighted struct {
	artefacts.Version
	Sum string // of the weights; "": the version's own
}
