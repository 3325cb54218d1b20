package broker

import (
	"cmp"
	"slices"
	"strings"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/weights"
)

// Models says which version of each model serves. [artefacts.Kind] implements it.
type Models interface {
	// Served returns the version of a name that serves, and false if none does.
	Served(name string) (artefacts.Version, bool)
	// Has reports whether the cluster has a version, serving or not.
	Has(v artefacts.Version) bool
	// Before returns the versions of a name that served before the present one,
	// the last one first.
	Before(name string) []artefacts.Version
	// Changed returns a channel that is closed at the next change of any of this.
	Changed() <-chan struct{}
}

// pushed are the models of the cluster without those under built-in names. The commands push
// none under such a name, and nodes load none that was written into etcd in another way.
type pushed struct{ Models }

// unshadowed returns m as pushed; nil for nil. It has nothing to do with shadow models.
func unshadowed(m Models) Models {
	if m == nil {
		return nil
	}
	return pushed{m}
}

// Served implements Models.
func (p pushed) Served(name string) (artefacts.Version, bool) {
	if relevance.CheckName(name) != nil {
		return artefacts.Version{}, false
	}
	return p.Models.Served(name)
}

// chooseModel chooses the version of the model that ranks, once for all nodes and pages, so
// that a version that begins to serve meanwhile changes nothing. first says that the request
// asks for a first page. A model that the cluster has no version of is in every binary.
func (b *Broker) chooseModel(q *question, first bool) error {
	if b.models == nil {
		return nil
	}
	for _, s := range q.Query.Shadow {
		v, _ := b.models.Served(s.Name)
		s.Version, s.Sum = v.Version, v.Sum
	}
	q.Query.Shadow = b.leaveOut(q.Query.Shadow)
	if !first {
		return nil // a later page keeps the version of the first one
	}
	return b.choose(q)
}

// namesOf returns models as nodes are asked for them, without versions.
func namesOf(models []string) (all []*nodev1.Model) {
	for _, name := range models {
		all = append(all, &nodev1.Model{Name: name})
	}
	return all
}

// keepModel makes a later page rank by the version that ranked the first one, if that is
// still there.
func (b *Broker) keepModel(q *question, c *pagetoken.Cursor) error {
	sum, weighted, _ := strings.Cut(c.Sum, "+")
	v := artefacts.Version{Name: c.Model, Version: c.Version, Sum: sum}
	if err := b.still(v); err != nil {
		return err
	}
	q.Query.Model, q.Query.ModelVersion, q.Query.ModelSum, q.later = v.Name, v.Version, v.Sum, true
	switch weighted {
	case q.Query.WeightsSum:
	case "": // a model ranked the first page in the place of a condemned one
		q.Query.Weights, q.Query.WeightsSum, q.plain = "", "", true
	default:
		return pagetoken.Refuse("model %s ranked the first page with weights %.12s, which no variant sets any more", v, weighted)
	}
	return nil
}

// weigh makes the model score by the weights that variants set. A version that ranks in place
// of a condemned one and lacks some of these weights scores by its own.
func (b *Broker) weigh(q *question) {
	q.Query.Weights = weights.Form(q.variants.weights)
	q.Query.WeightsSum = weights.Sum(q.Query.Weights)
	if q.plain = !b.condemned.takes(q.inPlaceOf, q.Model(), q.Query.WeightsSum); q.plain {
		q.Query.Weights, q.Query.WeightsSum = "", ""
	}
}

// unapplied returns the names of the experiments that the viewer or the entities are in, but
// for which the answer does not count. Either the experiment compares models and one of them
// is condemned, so that another version ranks in its place; or that version lacks the weights
// that the experiment sets. Then the answers of none of its variants count: if some did, the
// split between the variants would shift. A later page counts if the first one did, whatever
// ranks by then.
func (b *Broker) unapplied(q *question) (names []string) {
	none := func(of string) bool { return slices.Contains(q.variants.unapplied, of) || b.replaced(q, of) }
	for _, x := range q.variants.dealt {
		if none(x.Experiment) || len(x.Sets.Weights) > 0 && q.plain || len(x.Sets.Weights) == 0 && b.lacksOthers(q, x.Experiment) {
			names = append(names, x.Experiment)
		}
	}
	for _, x := range q.variants.entities {
		if !slices.Contains(names, x.experiment) && (none(x.experiment) || q.plainly(x.experiment) || b.lacksOthers(q, x.experiment)) {
			names = append(names, x.experiment)
		}
	}
	return names
}

// replaced reports whether another version ranks in place of one that an experiment compares,
// in this answer or in those that its other variants get now.
func (b *Broker) replaced(q *question, of string) bool {
	if b.models == nil || b.experiments == nil {
		return false
	}
	return slices.ContainsFunc(b.experiments.Current().Compared(of), func(name string) bool {
		name = cmp.Or(name, q.variants.own)
		if q.inPlaceOf.Name == name || slices.ContainsFunc(q.Groups, func(g *questions.Group) bool { return g.InPlaceOf.Name == name }) {
			return true
		}
		v, serves := b.models.Served(name)
		return serves && b.unfit(q, v) != ""
	})
}

// plainly reports whether the entities of some group are ranked without the weights that an
// experiment sets for them.
func (q *question) plainly(experiment string) bool {
	return slices.ContainsFunc(q.Groups[1:], func(g *questions.Group) bool { return g.Plain && slices.Contains(g.Weighers, experiment) })
}

// lacksOthers reports whether the weights that some variant of an experiment sets, which need
// not be the viewer's variant, cannot be used: the version that ranks is of another model, or
// lacks some of them. If the variant ranks by the feed's model, that version is the one that
// ranks this page, so that later pages say the same as the first. Else it is the version that
// would rank for the variant now.
func (b *Broker) lacksOthers(q *question, of string) bool {
	if b.models == nil || b.experiments == nil {
		return false
	}
	return slices.ContainsFunc(b.experiments.Current().Weighted(of), func(s experiment.Sets) bool {
		named := artefacts.Version{Name: cmp.Or(s.Model, q.feed.Model)}
		ranks := q.Model()
		if named.Name != q.feed.Model {
			if ranks, _ = b.models.Served(named.Name); b.unfit(q, ranks) != "" {
				ranks = b.lastGood(q, ranks)
			}
		}
		return !b.condemned.takes(named, ranks, weights.Sum(weights.Form(s.Weights)))
	})
}

// sumOf is the checksum of what ranks: that of the model's pack, and behind a + that of the
// weights that a variant sets, if it sets any.
func sumOf(sum, weights string) string {
	if weights == "" {
		return sum
	}
	return sum + "+" + weights
}

// still refuses a later page if the version that ranked the first is no longer there, or is
// condemned since.
func (b *Broker) still(v artefacts.Version) error {
	if v.Version != "" && (b.models == nil || !b.models.Has(v)) {
		return pagetoken.Refuse("model %s, which ranked the first page, has been dropped", v)
	}
	if why := b.condemned.why(v); why != "" {
		return lapsed(v, why)
	}
	return nil
}
