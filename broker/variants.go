package broker

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/relevance/experiment"
)

// variants say which variants of experiments have a part in an answer, and what they set
// that the feed's definition does not have.
type variants struct {
	dealt []experiment.Assigned // the viewer's variants that change the answer
	// overridden are the names of experiments that have no part in the answer, since
	// the request itself sets what they vary.
	overridden []string
	// heldOut are layers (sets of experiments) in whose holdout the viewer is, so that none
	// of their experiments gives the viewer a variant.
	heldOut   []string
	weights   map[string]float64 // the weights that variants set for the model; nil: none
	own       string             // the feed's model, as it is defined
	unapplied []string           // on a later page: experiments for which the first page did not count

	division *experiment.Division // deals variants to entities; nil: no experiment does
	entities []dealtEntities      // how many entities have each variant
}

// noExperiments are the experiments of a broker that is configured without any.
var noExperiments experiment.Set

// deal gives a viewer the variants of the feed that experiments deal, and lets
// them change its definition. Later pages keep those of the first.
func (b *Broker) deal(q *question, req *feedv1.GetFeedRequest, c *pagetoken.Cursor) error {
	set := &noExperiments
	if b.experiments != nil {
		set = b.experiments.Current()
	}
	var err error
	q.variants.own = q.feed.Model
	if c != nil {
		q.variants.dealt, err = dealtBefore(set, c, q.feed.Private)
		q.variants.heldOut, q.variants.unapplied = c.HeldOut, c.Unapplied
	} else {
		err = q.dealAnew(set, req)
	}
	if err == nil {
		q.variants.division, err = q.dividing(set, req, c)
	}
	if err != nil || len(q.variants.dealt) == 0 {
		return err
	}
	all := experiment.Assignment{Experiments: q.variants.dealt}
	sets := all.Sets()
	q.feed.Set(sets)
	q.variants.weights = sets.Weights
	return nil
}

// dealAnew gives the viewer of a first page the variants that experiments deal now.
func (q *question) dealAnew(set *experiment.Set, req *feedv1.GetFeedRequest) error {
	if !set.Has(q.feed.Name) {
		return nil
	}
	viewer, err := nodewire.Viewer(req.GetViewer())
	if err != nil {
		return err
	}
	a := set.Assign(q.feed.Name, viewer)
	q.variants.heldOut = a.HeldOut
	for _, x := range a.Experiments {
		if q.feed.Private && slices.ContainsFunc(x.Parameters, experiment.Parameter.Opens) {
			continue // such an experiment could show what a private feed drops; it was defined before the feed was private
		}
		if slices.ContainsFunc(x.Parameters, func(p experiment.Parameter) bool { return sets(req, p) }) {
			q.variants.overridden = append(q.variants.overridden, x.Experiment)
			continue
		}
		q.variants.dealt = append(q.variants.dealt, x)
	}
	return nil
}

// sets reports whether a request itself sets a parameter of its feed. For that request
// the viewer then is in no variant of an experiment on p, not in its control either.
func sets(req *feedv1.GetFeedRequest, p experiment.Parameter) bool {
	switch p {
	case experiment.OfModel:
		return req.GetModel() != ""
	case experiment.OfLimit:
		return req.Limit != nil
	case experiment.OfTypes:
		return len(req.GetTypes()) > 0
	case experiment.OfWindow:
		return req.GetFrom() != nil
	}
	return false // a filter is joined with the feed's
}

// set reports whether an experiment of which the viewer has a variant varies one of some
// parameters, be it in this variant or in another.
func (v *variants) set(some ...experiment.Parameter) bool {
	return slices.ContainsFunc(v.dealt, func(x experiment.Assigned) bool {
		return slices.ContainsFunc(some, func(p experiment.Parameter) bool { return slices.Contains(x.Parameters, p) })
	})
}

// receipt names in r the variants that the viewer and the entities have.
func (v *variants) receipt(r *feedv1.Receipt) {
	r.Overridden = v.overridden
	for _, e := range v.entities {
		r.EntityVariants = append(r.EntityVariants, &feedv1.EntityVariant{Experiment: e.experiment, Variant: e.variant, Entities: int32(e.entities)})
	}
	if len(v.dealt) == 0 {
		return
	}
	r.Variants = make(map[string]string, len(v.dealt))
	for _, x := range v.dealt {
		r.Variants[x.Experiment] = x.Variant
	}
}

// dealtBefore returns the variants of the first page. It refuses the page if one of them
// is gone, or if its name now is that of another experiment or a changed one.
func dealtBefore(set *experiment.Set, c *pagetoken.Cursor, private bool) ([]experiment.Assigned, error) {
	if len(c.Variants) == 0 {
		return nil, nil
	}
	dealt := slices.Clone(c.Variants)
	for i := range dealt {
		x := &dealt[i]
		now, there := set.Again(x.Experiment, x.Variant, c.Issued)
		if !there || now.LifeSum != x.LifeSum || private && slices.ContainsFunc(now.Parameters, experiment.Parameter.Opens) {
			return nil, pagetoken.Refuse("variant %s of experiment %s, which the first page is of, is no longer there as it was", x.Variant, x.Experiment)
		}
		x.Layer, x.Sets, x.Parameters, x.Features = now.Layer, now.Sets, now.Parameters, now.Features
	}
	return dealt, nil
}

// experimentFaults is a metric: which documents of experiments have a fault.
type experimentFaults struct{ live *experiments.Live }

// descExperimentFault describes the metric of experimentFaults.
var descExperimentFault = prometheus.NewDesc("millrace_broker_experiment_fault",
	"1 for a document of experiments that is not taken over, so that it is as it last was good, or left out, or of which an experiment gives nobody a variant.", []string{"document"}, nil)

// Describe implements [prometheus.Collector].
func (f experimentFaults) Describe(out chan<- *prometheus.Desc) { out <- descExperimentFault }

// Collect implements [prometheus.Collector].
func (f experimentFaults) Collect(out chan<- prometheus.Metric) {
	if f.live == nil {
		return
	}
	for document := range f.live.Faults() {
		out <- prometheus.MustNewConstMetric(descExperimentFault, prometheus.GaugeValue, 1, document)
	}
}
