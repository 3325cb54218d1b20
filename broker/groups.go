package broker

import (
	"cmp"
	"maps"
	"slices"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/weights"
)

// dividing returns the division by which the entities of a question get variants; nil if
// no experiment divides them. Later pages (c is not nil) deal as the first did.
func (q *question) dividing(set *experiment.Set, req *feedv1.GetFeedRequest, c *pagetoken.Cursor) (*experiment.Division, error) {
	if c == nil {
		d := set.Division(q.feed.Name)
		if d == nil {
			return nil, nil
		}
		return d.Without(func(name string, all []experiment.Parameter) bool {
			if q.feed.Private && slices.ContainsFunc(all, experiment.Parameter.Opens) {
				return true // such an experiment could show what a private feed drops; it was defined before the feed was private
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
	d, gone := set.Redivide(c.Divided, c.Issued)
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

// divide makes groups of a question's entities, by the variants that they have. The first
// group is the entities without a variant, or with one that sets nothing.
func (b *Broker) divide(q *question, c *pagetoken.Cursor) error {
	all := q.Groups[0]
	all.Query = q.Query
	d := q.variants.division
	if d == nil {
		return nil
	}
	q.Groups = []*questions.Group{{Query: q.Query, Types: all.Types}}
	met := [][]uint64{nil} // what the variants of each group set
	var dealt []experiment.Assigned
	var sums []uint64
	for rest := all.Encoded; len(rest) > 0; {
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
			met, q.Groups = append(met, slices.Clone(sums)), append(q.Groups, g)
		}
		q.Groups[at].Add(encoded)
		if at > 0 && len(q.Groups[at].Weights) > 0 {
			weighedBy(q.Groups[at], dealt)
		}
	}
	for _, g := range q.Groups {
		g.Close()
	}
	return q.Affordable(limits.MaxTimelines)
}

// weighedBy notes the experiments that set weights for an entity of the group.
func weighedBy(g *questions.Group, dealt []experiment.Assigned) {
	for i := range dealt {
		if x := &dealt[i]; len(x.Sets.Weights) > 0 && !slices.Contains(g.Weighers, x.Experiment) {
			g.Weighers = append(g.Weighers, x.Experiment)
		}
	}
}

// groupOf returns a new group, still without entities, for the entities that have the
// variants dealt.
func (b *Broker) groupOf(q *question, c *pagetoken.Cursor, dealt []experiment.Assigned) (*questions.Group, error) {
	own := q.Query
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
	g := &questions.Group{Query: r, Types: max(1, len(r.Types)), Weights: q.variants.weights}
	if sets.Model != "" || len(sets.Weights) > 0 {
		g.Weights = sets.Weights
	}
	if sets.Model != q.feed.Model {
		g.Names = sets.Model
	}
	return g, b.rank(q, g, c)
}

// rank chooses the version that ranks a group other than the first. If the group's
// variants set no model, that is the question's version. Else it is the serving version
// of the model that they set or, if that is condemned, the last good one. Later pages (c is
// not nil) keep the version of the first.
func (b *Broker) rank(q *question, g *questions.Group, c *pagetoken.Cursor) error {
	v := artefacts.Version{Name: g.Names}
	g.InPlaceOf = artefacts.Version{}
	switch {
	case c != nil:
		i := slices.IndexFunc(c.Models, func(r pagetoken.Ranked) bool { return r.Names == g.Names })
		if i < 0 {
			return pagetoken.Refuse("the first page has no entities that are ranked by %s", cmp.Or(g.Names, q.feed.Model))
		}
		// Groups of one model may differ in Plain. A group that is wrongly not plain is
		// mended by unweigh, once a node says that its version lacks the weights.
		v = c.Models[i].Version
		g.Plain = g.Names != "" && g.Names != v.Name || !slices.ContainsFunc(c.Models, func(r pagetoken.Ranked) bool { return r.Names == g.Names && !r.Plain })
		if g.Names != "" {
			if err := b.still(v); err != nil {
				return err
			}
		}
	case g.Names == "":
		v, g.InPlaceOf = q.Model(), q.inPlaceOf
	case b.models != nil:
		if served, ok := b.models.Served(v.Name); ok {
			v = served
		}
		if b.unfit(q, v) != "" {
			g.InPlaceOf, v = v, b.lastGood(q, v)
		}
	}
	r := g.Query
	r.Model, r.ModelVersion, r.ModelSum, r.Weights = v.Name, v.Version, v.Sum, ""
	r.WeightsSum = weights.Sum(weights.Form(g.Weights))
	if g.Plain = c != nil && g.Plain || !b.condemned.takes(g.InPlaceOf, v, r.WeightsSum); g.Plain {
		r.WeightsSum = ""
	} else {
		r.Weights = weights.Form(g.Weights)
	}
	return nil
}

// asks reports whether the question has a group of entities that v ranks.
func (q *question) asks(v artefacts.Version) bool {
	return slices.ContainsFunc(q.Groups, func(g *questions.Group) bool { return g.Model() == v })
}

// condemned returns the names of the versions that others replace, joined by commas.
func (q *question) condemned() string {
	var all []string
	for i, g := range q.Groups {
		of := g.InPlaceOf
		if i == 0 && g.Distinct > 0 {
			of = q.inPlaceOf
		}
		if of.Name != "" {
			all = append(all, of.String())
		}
	}
	return each(all)
}

// together joins the parts of all groups into one for each node, for the receipt. For each
// partition it has the offsets that the answers of all groups include, which are the
// least of them, and the longest lag.
func together(parts []fanout.Part) (all []fanout.Part) {
	least := map[millrace.NodeID]map[millrace.Partition]fanout.Answered{}
	for i := range parts {
		pt := &parts[i]
		if least[pt.Node] == nil {
			least[pt.Node] = map[millrace.Partition]fanout.Answered{}
		}
		of := least[pt.Node]
		for a := range pt.Answers() {
			if before, met := of[a.Partition]; met {
				a.Content, a.Features, a.Lag = min(a.Content, before.Content), min(a.Features, before.Features), max(a.Lag, before.Lag)
			}
			of[a.Partition] = a
		}
	}
	for _, id := range slices.Sorted(maps.Keys(least)) {
		pt, told := fanout.Part{Node: id}, &nodev1.Partitions{}
		for _, p := range slices.Sorted(maps.Keys(least[id])) {
			a := least[id][p]
			pt.Covered.Add(p)
			told.Answered, told.LagMs = append(told.Answered, int32(p)), append(told.LagMs, a.Lag.Milliseconds())
			told.AppliedContent, told.AppliedFeatures = append(told.AppliedContent, a.Content), append(told.AppliedFeatures, a.Features)
		}
		pt.Resp = &nodev1.QueryResponse{Partitions: told}
		all = append(all, pt)
	}
	return all
}

// dealtEntities is how many entities of a request have a variant.
type dealtEntities struct {
	experiment, variant string
	entities            int
}

// count counts one more entity that has the variant x.
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

// models returns the models that rank the groups other than the first, each once, as a page
// token keeps them.
func (q *question) models() (all []pagetoken.Ranked) {
	for _, g := range q.Groups[1:] {
		if r := (pagetoken.Ranked{Names: g.Names, Version: g.Model(), Plain: g.Plain}); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}
