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

// Models says which version of each model serves; [artefacts.Kind] does.
type Models interface {
	Served(name string) (artefacts.Version, bool)
	Has(v artefacts.Version) bool
	// Before returns the versions of a name that served before the present one,
	// the last one first.
	Before(name string) []artefacts.Version
	// Changed is closed when any of it has changed.
	Changed() <-chan struct{}
}

// pushed are the models of the cluster but for built-in names, under which nothing is
// pushed: what somebody wrote there past the commands no node has.
type pushed struct{ Models }

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

// chooseModel names the version that answers, once for all nodes and pages: a
// pointer that moves meanwhile changes nothing. A name that no pointer knows is
// that of a model that every binary has.
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
		return nil // which keeps the version of the first page
	}
	return b.choose(q)
}

func namesOf(models []string) (all []*nodev1.Model) {
	for _, name := range models {
		all = append(all, &nodev1.Model{Name: name})
	}
	return all
}

// keepModel holds a page to the version of the first one, as long as it is
// there.
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

// weigh has the model score by the weights that variants set. One that ranks in
// the place of a condemned one and lacks some of them scores by its own.
func (b *Broker) weigh(q *question) {
	q.Query.Weights = weights.Form(q.variants.weights)
	q.Query.WeightsSum = weights.Sum(q.Query.Weights)
	if q.plain = !b.condemned.takes(q.inPlaceOf, q.Model(), q.Query.WeightsSum); q.plain {
		q.Query.Weights, q.Query.WeightsSum = "", ""
	}
}

// unapplied returns the experiments, by name, that the viewer or the entities are in
// and that the answer counts for no variant of: they compare models, and another
// version ranks in the place of one of these that is condemned; or their weights do
// not rank, since what ranks in such a place lacks them. So it is for all variants, or
// the split would tilt; and on later pages as on the first, whatever ranks by then.
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

// replaced reports whether another version ranks in the place of one that an
// experiment compares: in this answer, or else in those of its other variants now.
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

// plainly reports whether entities with a variant whose weights an experiment sets
// are ranked without them.
func (q *question) plainly(experiment string) bool {
	return slices.ContainsFunc(q.Groups[1:], func(g *questions.Group) bool { return g.Plain && slices.Contains(g.Weighers, experiment) })
}

// lacksOthers reports whether weights of another variant of an experiment would not
// rank: by what ranks the page if it is that variant's model too, and so on later
// pages as on the first; or else by what ranks now.
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

// sumOf is the checksum of what ranks: that of a model's pack, and behind a +
// that of the weights which a variant set in place of its own.
func sumOf(sum, weights string) string {
	if weights == "" {
		return sum
	}
	return sum + "+" + weights
}

// still refuses a page by a version that is no longer there, or condemned since.
func (b *Broker) still(v artefacts.Version) error {
	if v.Version != "" && (b.models == nil || !b.models.Has(v)) {
		return pagetoken.Refuse("model %s, which ranked the first page, has been dropped", v)
	}
	if why := b.condemned.why(v); why != "" {
		return lapsed(v, why)
	}
	return nil
}
