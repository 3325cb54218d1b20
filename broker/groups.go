package broker

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/weights"
)

// group is entities of a question that are asked alike. Where no layer divides
// entities, a question has one.
type group struct {
	// query has what is asked of the group alone: the model with its version and
	// weights, the filter, the beginning of the window, types and cap. That of the
	// first group is the question's.
	query *nodev1.QueryRequest
	types int // timelines an entity counts for

	names     string             // the model that variants set; empty: the question's
	weights   map[string]float64 // in place of the model's own
	weighers  []string           // experiments whose variants set the weights
	inPlaceOf cluster.Version    // which is condemned: the group's model ranks instead
	plain     bool               // as on the page before: the model ranks by its own weights

	distinct int // entities
	want     cluster.Set
	counts   [partition.Count]int32      // entities
	ends     [partition.Count + 1]uint32 // those of partition p are encoded[ends[p]:ends[p+1]],
	encoded  []byte                      // as QueryRequest.entities has them
}

// timelines returns how many timelines a partition was asked for. Where every
// type is asked for, an entity counts as one.
func (g *group) timelines(p millrace.Partition) int { return int(g.counts[p]) * g.types }

// entities returns the entities of a partition as QueryRequest has them.
func (g *group) entities(p millrace.Partition) []byte { return g.encoded[g.ends[p]:g.ends[p+1]] }

// model is the version that is asked for.
func (g *group) model() cluster.Version {
	return cluster.Version{Name: g.query.GetModel(), Version: g.query.GetModelVersion(), Sum: g.query.GetModelSum()}
}

// add adds an entity, as it is encoded behind those before it, of no later
// partition.
func (g *group) add(encoded []byte) {
	p := millrace.Partition(binary.LittleEndian.Uint16(encoded))
	g.want.Add(p)
	g.distinct++
	g.counts[p]++
	g.ends[p+1] += uint32(len(encoded))
	g.encoded = append(g.encoded, encoded...)
}

// close makes ends of the sizes that they were while entities were added.
func (g *group) close() {
	for p := range partition.Count {
		g.ends[p+1] += g.ends[p]
	}
}

// timelines returns how many timelines of a partition are asked for.
func (q *question) timelines(p millrace.Partition) (n int) {
	for _, g := range q.groups {
		n += g.timelines(p)
	}
	return n
}

// asked returns how many timelines are asked for.
func (q *question) asked() (n int) {
	for _, g := range q.groups {
		n += g.distinct * g.types
	}
	return n
}

// among returns how many entities a set of partitions is asked for.
func (q *question) among(parts cluster.Set) (n int) {
	for p := range parts.All() {
		n += q.work(p)
	}
	return n
}

// bytes returns what the entities take as they are encoded.
func (q *question) bytes() (n int) {
	for _, g := range q.groups {
		n += len(g.encoded)
	}
	return n
}

// work returns how many entities a partition is asked for.
func (q *question) work(p millrace.Partition) (n int) {
	for _, g := range q.groups {
		n += int(g.counts[p])
	}
	return n
}

// groupsIn returns the groups with entities in a set of partitions.
func (q *question) groupsIn(parts cluster.Set) []*group {
	if len(q.groups) == 1 {
		return q.groups
	}
	in := make([]*group, 0, len(q.groups))
	for _, g := range q.groups {
		if both := g.want.And(parts); both.Len() > 0 {
			in = append(in, g)
		}
	}
	return in
}

// dividing returns what deals the entities of a question; nil for nothing.
// Later pages deal as the first did.
func (q *question) dividing(set *experiment.Set, req *feedv1.GetFeedRequest, c *pagetoken.Cursor) (*experiment.Division, error) {
	if c == nil {
		d := set.Division(q.feed.Name)
		if d == nil {
			return nil, nil
		}
		return d.Without(func(name string, all []experiment.Parameter) bool {
			if q.feed.Private && slices.ContainsFunc(all, experiment.Parameter.Opens) {
				return true // it was defined before the feed was private
			}
			overridden := slices.ContainsFunc(all, func(p experiment.Parameter) bool { return sets(req, p) })
			if overridden {
				q.variants.overridden = append(q.variants.overridden, name)
			}
			return overridden
		}), nil
	}
	if len(c.Divided) == 0 {
		return nil, nil
	}
	d, gone := set.Redivide(c.Divided)
	if gone == "" && q.feed.Private {
		d.Without(func(name string, all []experiment.Parameter) bool {
			if slices.ContainsFunc(all, experiment.Parameter.Opens) {
				gone = name
			}
			return false
		})
	}
	if gone != "" {
		return nil, pagetoken.Refuse("experiment %s, which divided the entities of the first page, no longer divides them so", gone)
	}
	return d, nil
}

// divide makes groups of a question's entities, by the variants that they have.
// Those that have none, or one that sets nothing, are the first.
func (b *Broker) divide(q *question, c *pagetoken.Cursor) error {
	all := q.groups[0]
	all.query = q.query
	d := q.variants.division
	if d == nil {
		return nil
	}
	q.groups = []*group{{query: q.query, types: all.types}}
	met := [][]uint64{nil} // what the variants of each group set
	var dealt []experiment.Assigned
	var sums []uint64
	for rest := all.encoded; len(rest) > 0; {
		entity, next := partition.CutEntity(rest)
		encoded := rest[:len(rest)-len(next)]
		rest = next
		dealt, sums = d.Deal(dealt[:0], millrace.Entity(entity)), sums[:0]
		for i := range dealt {
			q.variants.count(&dealt[i])
			if x := &dealt[i]; !x.Sets.Nothing() {
				sums = append(sums, x.SetsSum)
			}
		}
		at := slices.IndexFunc(met, func(m []uint64) bool { return slices.Equal(m, sums) })
		if at < 0 {
			g, err := b.groupOf(q, c, dealt)
			if err != nil {
				return err
			}
			at = len(met)
			met, q.groups = append(met, slices.Clone(sums)), append(q.groups, g)
		}
		q.groups[at].add(encoded)
		if at > 0 && len(q.groups[at].weights) > 0 {
			q.groups[at].weighedBy(dealt)
		}
	}
	for _, g := range q.groups {
		g.close()
	}
	return q.affordable(limits.MaxTimelines)
}

// weighedBy notes the experiments that set weights for an entity of the group.
func (g *group) weighedBy(dealt []experiment.Assigned) {
	for i := range dealt {
		if x := &dealt[i]; len(x.Sets.Weights) > 0 && !slices.Contains(g.weighers, x.Experiment) {
			g.weighers = append(g.weighers, x.Experiment)
		}
	}
}

// groupOf returns a group without entities, of those who have some variants.
func (b *Broker) groupOf(q *question, c *pagetoken.Cursor, dealt []experiment.Assigned) (*group, error) {
	own := q.query
	r := &nodev1.QueryRequest{
		Filter: own.Filter, FromMs: own.FromMs, Types: own.Types, CapPerEntity: own.CapPerEntity,
	}
	sets := (&experiment.Assignment{Experiments: dealt}).Sets()
	if sets.Filter != nil {
		r.Filter = *sets.Filter
	}
	if sets.Window != nil {
		r.FromMs = int64(earliest(q.asOf, *sets.Window))
	}
	if sets.Types != nil {
		r.Types = sortedTypes(sets.Types)
	}
	if sets.CapPerEntity != nil {
		r.CapPerEntity = int32(*sets.CapPerEntity)
	}
	g := &group{query: r, types: max(1, len(r.Types)), weights: q.variants.weights}
	if sets.Model != "" || len(sets.Weights) > 0 {
		g.weights = sets.Weights
	}
	if sets.Model != q.feed.Model {
		g.names = sets.Model
	}
	return g, b.rank(q, g, c)
}

// rank chooses the version that ranks for a group which a layer made: the
// question's, the one that serves of the model that variants set, or in its place
// the last good one. Later pages keep that of the first.
func (b *Broker) rank(q *question, g *group, c *pagetoken.Cursor) error {
	v := cluster.Version{Name: g.names}
	g.inPlaceOf = cluster.Version{}
	switch {
	case c != nil:
		i := slices.IndexFunc(c.Models, func(r pagetoken.Ranked) bool { return r.Names == g.names })
		if i < 0 {
			return pagetoken.Refuse("the first page has no entities that are ranked by %s", cmp.Or(g.names, q.feed.Model))
		}
		// Groups of one model may differ in it: what still lacks weights, nodes tell.
		v = c.Models[i].Version
		g.plain = g.names != "" && g.names != v.Name || !slices.ContainsFunc(c.Models, func(r pagetoken.Ranked) bool { return r.Names == g.names && !r.Plain })
		if g.names != "" {
			if err := b.still(v); err != nil {
				return err
			}
		}
	case g.names == "":
		v, g.inPlaceOf = q.model(), q.inPlaceOf
	case b.models != nil:
		if served, ok := b.models.Served(v.Name); ok {
			v = served
		}
		if b.unfit(q, v) != "" {
			g.inPlaceOf, v = v, b.lastGood(q, v)
		}
	}
	r := g.query
	r.Model, r.ModelVersion, r.ModelSum, r.Weights = v.Name, v.Version, v.Sum, ""
	r.WeightsSum = weights.Sum(weights.Form(g.weights))
	if g.plain = c != nil && g.plain || !b.condemned.takes(g.inPlaceOf, v, r.WeightsSum); g.plain {
		r.WeightsSum = ""
	} else {
		r.Weights = weights.Form(g.weights)
	}
	return nil
}

// asks reports whether some entities are ranked by a version.
func (q *question) asks(v cluster.Version) bool {
	return slices.ContainsFunc(q.groups, func(g *group) bool { return g.model() == v })
}

// condemned names the versions in whose place others rank.
func (q *question) condemned() string {
	var all []string
	for i, g := range q.groups {
		of := g.inPlaceOf
		if i == 0 && g.distinct > 0 {
			of = q.inPlaceOf
		}
		if of.Name != "" {
			all = append(all, of.String())
		}
	}
	return each(all)
}

// together returns a part for each node that answered of groups. It says of each
// partition what the answers of all groups include: the least, and the longest
// lag.
func together(parts []part) (all []part) {
	least := map[millrace.NodeID]map[millrace.Partition]answered{}
	for i := range parts {
		pt := &parts[i]
		if least[pt.node] == nil {
			least[pt.node] = map[millrace.Partition]answered{}
		}
		of := least[pt.node]
		for a := range pt.answers() {
			if before, met := of[a.partition]; met {
				a.content, a.features, a.lag = min(a.content, before.content), min(a.features, before.features), max(a.lag, before.lag)
			}
			of[a.partition] = a
		}
	}
	for _, id := range slices.Sorted(maps.Keys(least)) {
		pt, told := part{node: id}, &nodev1.Partitions{}
		for _, p := range slices.Sorted(maps.Keys(least[id])) {
			a := least[id][p]
			pt.covered.Add(p)
			told.Answered, told.LagMs = append(told.Answered, int32(p)), append(told.LagMs, a.lag.Milliseconds())
			told.AppliedContent, told.AppliedFeatures = append(told.AppliedContent, a.content), append(told.AppliedFeatures, a.features)
		}
		pt.resp = &nodev1.QueryResponse{Partitions: told}
		all = append(all, pt)
	}
	return all
}

// dealtEntities is how many entities of a request have a variant.
type dealtEntities struct {
	experiment, variant string
	entities            int
}

// count counts an entity that has a variant.
func (v *variants) count(x *experiment.Assigned) {
	at := slices.IndexFunc(v.entities, func(e dealtEntities) bool { return e.experiment == x.Experiment && e.variant == x.Variant })
	if at < 0 {
		at = len(v.entities)
		v.entities = append(v.entities, dealtEntities{experiment: x.Experiment, variant: x.Variant})
	}
	v.entities[at].entities++
}

// variantsOf returns the variant of each experiment that an entity has; nil for
// none.
func (q *question) variantsOf(e millrace.Entity) (of map[string]string) {
	if q.variants.division == nil {
		return nil
	}
	for _, x := range q.variants.division.Deal(nil, e) {
		if of == nil {
			of = map[string]string{}
		}
		of[x.Experiment] = x.Variant
	}
	return of
}

// models are those of the groups that layers made.
func (q *question) models() (all []pagetoken.Ranked) {
	for _, g := range q.groups[1:] {
		if r := (pagetoken.Ranked{Names: g.names, Version: g.model(), Plain: g.plain}); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// answeredBy refuses an answer by another model, version or weights than was
// asked for.
func (g *group) answeredBy(resp *nodev1.QueryResponse) error {
	got := cluster.Version{Name: resp.GetModel(), Version: resp.GetModelVersion(), Sum: resp.GetModelSum()}
	want := g.model()
	if want.Version == "" { // every binary's own
		want.Version = got.Version
	}
	if got != want {
		return &millrace.Error{Reason: millrace.ReasonNotHere, Field: "model", Detail: fmt.Sprintf("asked for %s (%.12s), it answered by %s (%.12s)", want, want.Sum, got, got.Sum)}
	}
	if by := resp.GetWeightsSum(); by != g.query.WeightsSum {
		return &millrace.Error{Reason: millrace.ReasonNotHere, Field: "model", Detail: fmt.Sprintf("asked for %s by weights %.12s, it answered by %.12s", want, g.query.WeightsSum, by)}
	}
	return nil
}
