package rollouts

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// unapplied says of the first variant that answers are not by now why they are not:
// the experiment compares models, and another version ranks in the place of one that
// is condemned; or it sets weights of such a version, and what ranks in its place lacks
// them. Answers count for no variant then. "" if all are applied.
func (r *rollout) unapplied(ctx context.Context, e *experiment.Experiment) (string, error) {
	compares := e.ComparesModels()
	for i := range e.Variants {
		v := &e.Variants[i]
		if !compares && len(v.Set.Weights) == 0 {
			continue
		}
		models, err := r.rankings(ctx, e, v)
		if err != nil {
			return "", err
		}
		for at, model := range models {
			serves, _ := r.models.Served(model)
			if r.failed.Why(serves) == "" {
				continue
			}
			ranks, in, ok := "recency", cluster.Version{}, false
			if in, ok = r.inPlaceOf(serves); ok {
				ranks = in.String()
			}
			says := fmt.Sprintf("variant %s is not applied: %s, ", v.Name, serves)
			switch {
			case at > 0 && v.Set.Interleave != nil:
				return says + "which drafts its pages as the second, is condemned, and nothing drafts in its place", nil
			case compares:
				return says + fmt.Sprintf("which it is ranked by, is condemned, and %s ranks in its place", ranks), nil
			case !ok || weighs(ctx, r.models, in, v.Set.Weights) != nil:
				return says + fmt.Sprintf("whose weights it sets, is condemned, and %s, which ranks in its place, lacks them", ranks), nil
			}
		}
	}
	return "", nil
}

// rankings returns the models that a variant is ranked by: its own, or those of the
// experiment's feeds.
func (r *rollout) rankings(ctx context.Context, e *experiment.Experiment, v *experiment.Variant) (models []string, err error) {
	for _, name := range v.Set.Rankings() {
		if name != "" {
			models = append(models, name)
			continue
		}
		feeds, err := r.feeds.definitions(ctx)
		if err != nil {
			return nil, err
		}
		for _, feed := range e.Feeds {
			if own := feeds[feed].Model; own != "" && !slices.Contains(models, own) {
				models = append(models, own)
			}
		}
	}
	return models, nil
}

// leans is what a cluster has of what experiments lean on, for coordinators.
type leans struct{ *rollout }

// LeansOf returns what experiments lean on, for coordinators.
func LeansOf(ctx context.Context, cl *cluster.Client) (coordinator.Leans, error) {
	r, err := openRollout(ctx, cl, io.Discard)
	return leans{r}, err
}

// Waits implements [coordinator.Leans]. What cannot be read is waited for too.
func (l leans) Waits(ctx context.Context, e *experiment.Experiment) string {
	why, err := l.unapplied(ctx, e)
	if err == nil && why == "" {
		why, err = l.fails(ctx, e)
	}
	if err != nil {
		return fmt.Sprintf("whether its variants are applied is not known: %v", err)
	}
	return why
}

// fails says that a model by which pages of an experiment are ranked is condemned,
// though its variants are applied.
func (r *rollout) fails(ctx context.Context, e *experiment.Experiment) (string, error) {
	models, err := r.ranking(ctx, e)
	for _, name := range models {
		if serves, _ := r.models.Served(name); r.failed.Why(serves) != "" {
			return fmt.Sprintf("%s, by which its pages are ranked, is condemned", serves), err
		}
	}
	return "", err
}

// Basis implements [coordinator.Leans].
func (l leans) Basis(ctx context.Context, e *experiment.Experiment) (compare.Basis, error) {
	return l.basis(ctx, e)
}

// Revision implements [coordinator.Leans].
func (l leans) Revision() int64 { return l.models.Revision() + l.feeds.versions.Revision() }

// rollout is what the cluster has of models, read once.
func (t *trial) rollout(ctx context.Context) (r *rollout, err error) {
	if t.rolled == nil {
		t.rolled, err = openRollout(ctx, t.cluster, io.Discard)
	}
	return t.rolled, err
}

// unapplied is that of an experiment that runs, is tried or may run again.
func (t *trial) unapplied(ctx context.Context, e *experiment.Experiment) (string, error) {
	if e.State == experiment.Stopped {
		return "", nil
	}
	r, err := t.rollout(ctx)
	if err != nil {
		return "", err
	}
	return r.unapplied(ctx, e)
}

// notes are [faultLines], and a line for each experiment that is not applied, for each
// that is on a feed which cannot be read, and for each variant whose types no record has.
func (t *trial) notes(ctx context.Context, st *experiments.State) ([]string, error) {
	lines := faultLines(st)
	for _, d := range st.Set.Experiments() {
		why, err := t.unapplied(ctx, &d.Experiment)
		if err != nil {
			return nil, err
		}
		if why != "" {
			lines = append(lines, unappliedLine(&d.Experiment, why))
		}
		lines = append(lines, t.unknown(ctx, &d.Experiment)...)
	}
	strange, err := t.strange(ctx, st)
	return append(lines, strange...), err
}

// unknown tells of the feeds of an experiment that cannot be read: brokers go on by what
// they keep of them.
func (t *trial) unknown(ctx context.Context, e *experiment.Experiment) (lines []string) {
	for _, feed := range e.Feeds {
		v, defined := t.feeds.versions.Served(feed)
		if !defined || e.State == experiment.Stopped {
			continue
		}
		if d := t.feeds.read(ctx, v); d.fault != nil {
			lines = append(lines, fmt.Sprintf("experiment %s, %s: whether its variants fit is not known, and brokers go on by what they keep: %v", e.Name, e.State, d.fault))
		}
	}
	return lines
}

// alike tells of variants, of a document's experiments that have not stopped, that set
// what all their feeds say already. Who compares a feed with itself means it.
func (t *trial) alike(ctx context.Context, st *experiments.State, document string) (lines []string) {
	for _, d := range st.Set.Experiments() {
		e := &d.Experiment
		if e.State == experiment.Stopped || d.Document != document {
			continue
		}
		for i := range e.Variants {
			v := &e.Variants[i]
			if !v.Set.Nothing() && !slices.ContainsFunc(e.Feeds, func(feed string) bool {
				f, err := t.feeds.find(ctx, []string{feed})
				return err != nil || f.fault != nil || f.Changes(v.Set)
			}) {
				lines = append(lines, fmt.Sprintf("experiment %s, %s: variant %s sets what its feeds (%s) say already, and shows what the control does", e.Name, e.State, v.Name, strings.Join(e.Feeds, ", ")))
			}
		}
	}
	return lines
}

// wanting tells of variants, of a document's experiments that have not stopped, whose
// model reads values of the viewer that a feed's own does not, or as another type:
// callers who send something else are refused by the variant alone.
func (t *trial) wanting(ctx context.Context, st *experiments.State, document string) (lines []string, err error) {
	r, err := t.rollout(ctx)
	if err != nil {
		return nil, err
	}
	defined, err := r.feeds.definitions(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range st.Set.Experiments() {
		e := &d.Experiment
		if e.State == experiment.Stopped || d.Document != document {
			continue
		}
		for i := range e.Variants {
			v := &e.Variants[i]
			for at, model := range v.Set.Rankings() {
				if model == "" {
					continue
				}
				then := "refuses callers who send another type"
				if at > 0 {
					then = "drafts nothing where callers send another type"
				}
				wants, fault := r.viewerValues(ctx, model)
				for _, feed := range e.Feeds {
					has, err := r.viewerValues(ctx, defined[feed].Model)
					if err = cmp.Or(fault, defined[feed].fault, err); ctx.Err() != nil {
						return nil, err
					} else if err != nil { // the document is defined: no reason to fail
						lines = append(lines, fmt.Sprintf("experiment %s, %s: what variant %s reads of viewers on feed %s is not known: %v", e.Name, e.State, v.Name, feed, err))
						continue
					}
					if news := unlike(wants, has); len(news) > 0 {
						lines = append(lines, fmt.Sprintf("experiment %s, %s: variant %s ranks feed %s by %s, which reads %s, as %s does not: it %s", e.Name, e.State, v.Name, feed, model, strings.Join(news, ", "), defined[feed].Model, then))
					}
				}
			}
		}
	}
	return lines, nil
}

// unlike returns what is among the first and not, as it is there, among the second.
func unlike(wants, has map[string]string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		if has[name] != wants[name] {
			all = append(all, fmt.Sprintf("viewer.%s (%s)", name, wants[name]))
		}
	}
	return all
}

// viewerValues returns the values of the viewer that a model reads, by the version
// that serves. One that is not there reads none.
func (r *rollout) viewerValues(ctx context.Context, model string) (map[string]string, error) {
	v, pushed := r.models.Served(model)
	if !pushed || relevance.CheckName(model) != nil {
		m, err := relevance.Builtin().Get(model)
		if err != nil {
			return nil, nil
		}
		return m.ViewerValues(), nil
	}
	pack, err := packOf(ctx, r.models, v)
	if err != nil {
		return nil, err
	}
	return pack.ViewerValues()
}

// strange tells of variants that set types which no record has, of experiments that
// have not stopped.
func (t *trial) strange(ctx context.Context, st *experiments.State) (lines []string, err error) {
	var who []string
	var types [][]millrace.ContentType
	for _, d := range st.Set.Experiments() {
		e := &d.Experiment
		for _, v := range e.Variants {
			if e.State != experiment.Stopped && v.Set.Types != nil {
				who, types = append(who, fmt.Sprintf("experiment %s, %s: variant %s sets types", e.Name, e.State, v.Name)), append(types, v.Set.Types)
			}
		}
	}
	says, err := t.feeds.unseenIn(ctx, types)
	if err != nil {
		return nil, err
	}
	for i := range who {
		if says[i] != "" {
			lines = append(lines, fmt.Sprintf("%s, and %s", who[i], says[i]))
		}
	}
	return lines, nil
}

func unappliedLine(e *experiment.Experiment, why string) string {
	return fmt.Sprintf("experiment %s, %s: %s; its answers count for no variant until another version serves, or that one is asked for again", e.Name, e.State, why)
}

// changes says of a version that would serve in the place of another which variants
// of running experiments it would be from then on: those that lean on versions, as long
// as what serves is not condemned. "" for none.
func (r *rollout) changes(ctx context.Context, serving, next cluster.Version) (string, error) {
	if serving.Version == "" || serving == next || r.failed.Why(serving) != "" {
		return "", nil
	}
	set, err := experimentSet(ctx, r.feeds.cluster)
	if err != nil {
		return "", err
	}
	says := ""
	for _, d := range set.Experiments() {
		e := &d.Experiment
		if e.State != experiment.Running || !e.LeansOnVersions() {
			continue
		}
		for i := range e.Variants {
			models, err := r.rankings(ctx, e, &e.Variants[i])
			if err != nil {
				return "", err
			}
			if slices.Contains(models, next.Name) {
				says = display.Joined(says, fmt.Sprintf("it changes what variant %s of experiment %s, which runs, is ranked by", e.Variants[i].Name, e.Name))
			}
		}
	}
	return says, nil
}
