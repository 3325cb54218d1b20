package experiment

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// misfit is something in an experiment that does not fit what is known: it refers to what is not
// there, or may not be set.
type misfit struct {
	experiment string
	path       string // within the experiment, such as .variants[1].set.weights
	what       string // what does not fit; the beginning of a sentence
	err        error  // why it does not fit; a [millrace.Error], unless known could not be asked
}

// misfits returns what does not fit known in an experiment.
func (e *Experiment) misfits(known Known) (all []misfit) {
	add := func(path, what string, err error) {
		if err != nil {
			all = append(all, misfit{e.Name, path, what, err})
		}
	}
	refuse := func(wayOut, format string, args ...any) error {
		return &millrace.Error{Reason: millrace.ReasonUnknown, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}
	}
	private := map[string]error{} // the private feeds; the error, if any, says why it is not known whether one is
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
		for _, name := range e.weighed(&v.Set) { // a model or feed that is not there is a misfit already
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

// Opens reports whether a variant that sets the parameter could show what a private feed drops.
func (p Parameter) Opens() bool { return p == OfFilter || p == OfWindow || p == OfTypes }

// OwnModelGone returns the error for weights of a feed's own model that does not serve.
func OwnModelGone(feed, model string) error {
	return &millrace.Error{
		Reason: millrace.ReasonUnknown, Detail: fmt.Sprintf("no model %s serves, by which feed %s is ranked", model, feed),
		WayOut: "push it first, or let the feed name another",
	}
}

// weighed returns the feeds for which the weights of a variant are to be checked: all, or only
// the first if the variant names the model, which is then the same for all.
func (e *Experiment) weighed(s *Sets) []string {
	switch {
	case len(s.Weights) == 0:
		return nil
	case s.Model != "":
		return e.Feeds[:1]
	}
	return e.Feeds
}

// ComparesModels reports whether a variant names the model or models that rank its pages: then
// the experiment compares models.
func (e *Experiment) ComparesModels() bool {
	return slices.ContainsFunc(e.Variants, func(v Variant) bool { return len(v.Set.models()) > 0 })
}

// LeansOnVersions reports whether a new version of a model that ranks its pages would change how
// variants compare. It would if they rank by different models or weights; otherwise the version
// changes all variants alike.
func (e *Experiment) LeansOnVersions() bool {
	return e.ComparesModels() || slices.ContainsFunc(e.Variants, func(v Variant) bool { return len(v.Set.Weights) > 0 })
}

// Leaves reports whether a variant leaves a parameter as the feed has it. A variant that sets
// only weights leaves the model.
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

// models returns the models that a variant names: none, one, or two that interleave.
func (s *Sets) models() []string {
	if s.Model != "" {
		return []string{s.Model}
	}
	return s.Interleave
}

// unasked reports whether it is not known if the experiment fits, since known could not be
// asked.
func (m *misfit) unasked() bool {
	var why *millrace.Error
	return !errors.As(m.err, &why) || why.Reason == millrace.ReasonUnavailable
}

// was reports whether an earlier misfit is the same as this one. If known could not be asked,
// the error must be the same, too.
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

// Keeps is for a caller that is about to change a feed, a model or a schema: now is what is
// known before the change, and next what is known after it. Keeps returns an error if an
// experiment would have a misfit after the change that it does not have before. It leaves out
// stopped experiments, since only the others may still give variants.
func (s *Set) Keeps(now, next Known) error {
	const most = 3 // misfits that the error names: many say nearly the same
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
