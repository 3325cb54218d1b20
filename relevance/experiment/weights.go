package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// Weighing returns why a model could not score by weights, or nil. The model is
// that of the feed where none is named; a [millrace.Error] of the field weights
// says which of them it lacks.
type Weighing func(feed, model string, set map[string]float64) error

// CheckWeights reports which weights that variants set would be refused, by
// experiment and variant: for who is about to change what they lean on, which is
// the model of a feed or a model's version. Only stopped experiments are left
// out, for the others may yet give their variants to somebody.
func (s *Set) CheckWeights(why Weighing) error {
	var lacking, names []string
	for _, e := range s.experiments {
		if e.State == Stopped {
			continue
		}
		for i := range e.Variants {
			v := &e.Variants[i]
			for _, feed := range e.weighed(&v.Set) {
				err := why(feed, v.Set.Model, v.Set.Weights)
				var lacks *millrace.Error
				switch {
				case err == nil:
					continue
				case !errors.As(err, &lacks) || lacks.Field != "weights":
					return fmt.Errorf("experiment %s, variant %s: %w", e.Name, v.Name, err)
				}
				if names = append(names, e.Name); len(lacking) < maxFaults {
					lacking = append(lacking, fmt.Sprintf("variant %s of experiment %s sets weights on feed %s, and %s", v.Name, e.Name, feed, lacks.Detail))
				}
			}
		}
	}
	if len(lacking) == 0 {
		return nil
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "weights", Detail: strings.Join(lacking, "; "),
		WayOut: "stop or change " + strings.Join(slices.Compact(names), ", ") + " first, or push a version that has these parameters",
	}
}

// weighed returns the feeds for which a variant sets weights: the first one for
// all where it names their model itself.
func (e *Experiment) weighed(s *Sets) []string {
	switch {
	case len(s.Weights) == 0:
		return nil
	case s.Model != "":
		return e.Feeds[:1]
	}
	return e.Feeds
}

// checkWeights refuses what are no parameters of the model that they are set of.
// A model or a feed that is not there is told already.
func (c *compiler) checkWeights(e *compiled, s *Sets, at string) {
	for _, name := range e.weighed(s) {
		if s.Model != "" && !c.known.HasModel(s.Model) || !c.known.HasFeed(name) {
			continue
		}
		err := c.known.CheckWeights(name, s.Model, s.Weights)
		var why *millrace.Error
		switch {
		case errors.As(err, &why):
			c.faultf(e.at, at+".weights", why.WayOut, "%s", why.Detail)
		case err != nil:
			c.faultf(e.at, at+".weights", "", "%v", err)
		}
	}
}
