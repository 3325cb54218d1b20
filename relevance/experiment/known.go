package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// misfit is what is wrong with an experiment by what it refers to.
type misfit struct {
	experiment string
	path       string // within the experiment, such as .variants[1].set.weights
	what       string // that does not fit, as a sentence begins
	err        error  // why; a [millrace.Error], unless what is known could not be asked
}

// misfits holds an experiment against what is known.
func (e *Experiment) misfits(known Known) (all []misfit) {
	add := func(path, what string, err error) {
		if err != nil {
			all = append(all, misfit{e.Name, path, what, err})
		}
	}
	refuse := func(wayOut, format string, args ...any) error {
		return &millrace.Error{Reason: millrace.ReasonUnknown, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}
	}
	private := map[string]error{} // by feed, of those that must not be opened; why that is not known
	for _, name := range e.Feeds {
		if is, err := known.IsPrivate(name); is || err != nil {
			private[name] = err
		}
	}
	for i, name := range e.Feeds {
		if !known.HasFeed(name) {
			add(fmt.Sprintf(".feeds[%d]", i), "experiment "+e.Name+" is on feed "+name, refuse("define it first", "there is no feed %s", name))
		}
	}
	if t, _ := readTargeting(e.Targeting); t != nil && t.never != "" {
		add(".targeting", "experiment "+e.Name+" has targeting that is true of nobody", refuse("write a text in quotes and a number without, as callers send it", "%s", t.never))
	}
	for i := range e.Variants {
		v := &e.Variants[i]
		at, sets := fmt.Sprintf(".variants[%d].set", i), fmt.Sprintf("variant %s of experiment %s sets ", v.Name, e.Name)
		for _, p := range v.Set.parameters() {
			for _, name := range e.Feeds {
				why, closed := private[name]
				if !closed || !p.Opens() {
					continue
				}
				if why == nil {
					why = refuse("leave it out, or the feed", "feed %s is private, and this could show what it drops", name)
				}
				add(fmt.Sprintf("%s.%s", at, p), fmt.Sprintf("%s%s on feed %s", sets, p, name), why)
			}
		}
		for _, m := range v.Set.models() {
			if !known.HasModel(m) {
				add(at, sets+"model "+m, refuse("push it first", "no model %s serves", m))
			}
		}
		for _, name := range e.weighed(&v.Set) { // a model or a feed that is not there is told already
			if (v.Set.Model == "" || known.HasModel(v.Set.Model)) && known.HasFeed(name) {
				add(at+".weights", sets+"weights on feed "+name, known.CheckWeights(name, v.Set.Model, v.Set.Weights))
			}
		}
		if f := v.Set.Filter; f != nil && *f != "" {
			add(at+".filter", sets+"a filter", known.CheckFilter(*f))
		}
	}
	return all
}

// Opens reports whether what sets a parameter could show what a private feed
// drops.
func (p Parameter) Opens() bool { return p == OfFilter || p == OfWindow || p == OfTypes }

// OwnModelGone returns why weights of a feed's own model do not fit: it does not serve.
func OwnModelGone(feed, model string) error {
	return &millrace.Error{
		Reason: millrace.ReasonUnknown, Detail: fmt.Sprintf("no model %s serves, by which feed %s is ranked", model, feed),
		WayOut: "push it first, or let the feed name another",
	}
}

// weighed returns the feeds for which a variant sets weights: of a variant that names
// their model itself, the first one stands for all.
func (e *Experiment) weighed(s *Sets) []string {
	switch {
	case len(s.Weights) == 0:
		return nil
	case s.Model != "":
		return e.Feeds[:1]
	}
	return e.Feeds
}

// ComparesModels reports whether a variant ranks by another model than the feed's
// own: what the experiment compares is what ranks, then.
func (e *Experiment) ComparesModels() bool {
	return slices.ContainsFunc(e.Variants, func(v Variant) bool { return len(v.Set.models()) > 0 })
}

// LeansOnVersions reports whether another version of a model that ranks its pages makes
// something else of its variants: they rank by other models, or by other weights. Else
// all of them are ranked by it alike.
func (e *Experiment) LeansOnVersions() bool {
	return e.ComparesModels() || slices.ContainsFunc(e.Variants, func(v Variant) bool { return len(v.Set.Weights) > 0 })
}

// Leaves reports whether a variant leaves a parameter as the feed has it. Weights do
// not set the model that they are of.
func (s *Sets) Leaves(p Parameter) bool {
	if p == OfModel {
		return len(s.models()) == 0
	}
	return !slices.Contains(s.parameters(), p)
}

// Rankings returns the models that a variant ranks by; "" is the feed's own.
func (s *Sets) Rankings() []string {
	if models := s.models(); len(models) > 0 {
		return models
	}
	return []string{""}
}

// models returns the models that rank instead of the feed's.
func (s *Sets) models() []string {
	if s.Model != "" {
		return []string{s.Model}
	}
	return s.Interleave
}

// unasked reports whether nothing is known against an experiment: what there is to
// know could not be asked.
func (m *misfit) unasked() bool {
	var why *millrace.Error
	return !errors.As(m.err, &why) || why.Reason == millrace.ReasonUnavailable
}

// was reports whether a misfit of before is this one: of one that could not be asked,
// for the same reason.
func (m *misfit) was(before misfit) bool {
	if before.path != m.path || before.what != m.what || before.unasked() != m.unasked() {
		return false
	}
	return !m.unasked() || before.err.Error() == m.err.Error()
}

// String says what does not fit and why, without a way out.
func (m *misfit) String() string {
	var why *millrace.Error
	if errors.As(m.err, &why) {
		return m.what + ", and " + why.Detail
	}
	return fmt.Sprintf("%s, and %v", m.what, m.err)
}

// misfit adds a misfit to the faults of a document.
func (c *compiler) misfit(f *faults, e *compiled, m misfit) {
	detail, wayOut := m.err.Error(), ""
	var why *millrace.Error
	if errors.As(m.err, &why) && (why.Field == "" || why.Field == "weights") {
		detail, wayOut = why.Detail, why.WayOut
	}
	f.addf(e.at.path+m.path, wayOut, "%s", detail)
}

// Keeps refuses what is known to become next instead of now, if it would leave an
// experiment with a fault that it does not have: for who is about to change a
// feed, a model or a schema. Only stopped experiments are left out, for the others
// may yet give their variants to somebody.
func (s *Set) Keeps(now, next Known) error {
	const most = 3 // that are told: many say nearly the same
	var broken, names []string
	weights, more := false, 0
	for _, e := range s.experiments {
		if e.State == Stopped {
			continue
		}
		var before []misfit
		for i, m := range e.misfits(next) {
			if i == 0 {
				before = e.misfits(now)
			}
			if slices.ContainsFunc(before, m.was) {
				continue
			}
			if m.unasked() {
				return fmt.Errorf("%s: %w", m.what, m.err)
			}
			weights = weights || strings.HasSuffix(m.path, ".weights")
			if names = append(names, e.Name); len(broken) == most {
				more++
				continue
			}
			broken = append(broken, m.String())
		}
	}
	if len(broken) == 0 {
		return nil
	}
	if more > 0 {
		broken = append(broken, fmt.Sprintf("and %d more like these", more))
	}
	wayOut := "stop or change " + strings.Join(slices.Compact(names), ", ") + " first"
	if weights {
		wayOut += ", or push a version that has these parameters"
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: strings.Join(broken, "; "), WayOut: wayOut}
}
