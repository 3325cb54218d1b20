package leans

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/relevance/experiment"
)

// Experiments is the experiments of a cluster, and the feeds and models that they lean on.
type Experiments struct {
	*experiments.Store
	Cluster *cluster.Client
	Feeds   *Feeds
	serves  *Serving            // nil: not read yet
	bare    []artefacts.Version // see bareModels; nil: not read yet
}

// OpenExperiments opens the experiments of a cluster, until ctx ends.
func OpenExperiments(ctx context.Context, cl *cluster.Client) (*Experiments, error) {
	documents, err := artefacts.Watch(ctx, cl, experiments.Kind)
	if err != nil {
		return nil, err
	}
	feeds, err := artefacts.Watch(ctx, cl, feeds.Kind)
	if err != nil {
		return nil, err
	}
	store := &Feeds{cl, feeds}
	known, err := newReferred(ctx, store)
	return &Experiments{Store: &experiments.Store{Documents: documents, Known: known, Who: clusters.Who()}, Cluster: cl, Feeds: store}, err
}

// Steadily calls change, which changes an experiment. If something that experiments lean on
// has changed meanwhile, it calls change again. At its end it removes versions of documents
// that change published and that never served.
func (t *Experiments) Steadily(ctx context.Context, change func(ctx context.Context) error) error {
	defer t.TakeBack()
	return artefacts.Steady(ctx, t.Cluster, leaning, func(ctx context.Context) error {
		err := t.Feeds.Versions.Settle(ctx)
		if err == nil {
			t.Known, err = newReferred(ctx, t.Feeds)
		}
		if err != nil {
			return err
		}
		return change(ctx)
	})
}

// ExperimentsUsing returns the names that uses returns, each as "experiment NAME". They are
// experiments that need something which is about to be dropped. Experiments of documents that
// brokers leave out are not in the set that uses gets.
func ExperimentsUsing(ctx context.Context, cl *cluster.Client, uses func(*experiment.Set) []string) ([]string, error) {
	set, err := ExperimentSet(ctx, cl)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, name := range uses(set) {
		all = append(all, "experiment "+name)
	}
	return all, nil
}

// Serving returns which feeds and models serve. The first call opens it, and the others
// return the same.
func (t *Experiments) Serving(ctx context.Context) (r *Serving, err error) {
	if t.serves == nil {
		t.serves, err = OpenServing(ctx, t.Cluster)
	}
	return t.serves, err
}

// Unapplied returns why the variants of an experiment are not applied now; "" if they are, or
// the experiment has stopped.
func (t *Experiments) Unapplied(ctx context.Context, e *experiment.Experiment) (string, error) {
	if e.State == experiment.Stopped {
		return "", nil
	}
	r, err := t.Serving(ctx)
	if err != nil {
		return "", err
	}
	return r.unapplied(ctx, e)
}

// Notes returns a line for each document with a fault (see [faultLines]), for each experiment
// that is not applied, for each feed or model of one that cannot be read, and for each variant
// that sets types which no record has.
func (t *Experiments) Notes(ctx context.Context, st *experiments.State) ([]string, error) {
	lines := faultLines(st)
	for _, d := range st.Set.Experiments() {
		why, err := t.Unapplied(ctx, &d.Experiment)
		if err != nil {
			return nil, err
		}
		if why != "" {
			lines = append(lines, UnappliedLine(&d.Experiment, why))
		}
		unread, err := t.Unread(ctx, &d.Experiment)
		if err != nil {
			return nil, err
		}
		lines = append(lines, unread...)
	}
	strange, err := t.strange(ctx, st)
	return append(lines, strange...), err
}

// Unread returns a line for each feed of an experiment that cannot be read, and for each model
// that ranks pages of the experiment and whose bytes etcd lacks. It returns none for a stopped
// experiment.
func (t *Experiments) Unread(ctx context.Context, e *experiment.Experiment) (lines []string, err error) {
	if e.State == experiment.Stopped {
		return nil, nil
	}
	for _, feed := range e.Feeds {
		v, defined := t.Feeds.Versions.Served(feed)
		if !defined {
			continue
		}
		d, err := t.Feeds.Read(ctx, v)
		if err != nil {
			return nil, err
		}
		if d.Fault != nil {
			lines = append(lines, fmt.Sprintf("experiment %s, %s: whether its variants fit is not known; brokers that keep the feed as it last was good go on by that: %v", e.Name, e.State, d.Fault))
		}
	}
	r, err := t.Serving(ctx)
	if err != nil {
		return nil, err
	}
	models, err := r.ranking(ctx, e)
	if err != nil {
		return nil, err
	}
	bare, err := t.bareModels(ctx)
	for _, name := range models {
		if v, pushed := r.Models.Served(name); pushed && slices.Contains(bare, v) {
			lines = append(lines, fmt.Sprintf("experiment %s, %s, is ranked by %s: %s", e.Name, e.State, v, BareLine("model", v, true)))
		}
	}
	return lines, err
}

// bareModels returns the versions of models whose bytes etcd lacks. They are read once.
func (t *Experiments) bareModels(ctx context.Context) (all []artefacts.Version, err error) {
	if t.bare != nil {
		return t.bare, nil
	}
	r, err := t.Serving(ctx)
	if err != nil {
		return nil, err
	}
	if all, err = r.Models.Bare(ctx); err == nil {
		t.bare = append([]artefacts.Version{}, all...) // never nil, which says "not read yet"
	}
	return all, err
}

// Alike returns a line for each variant that sets only what all its feeds say already, of the
// experiments of a document that have not stopped. A variant that sets nothing gets no line:
// it is a control.
func (t *Experiments) Alike(ctx context.Context, st *experiments.State, document string) (lines []string) {
	for _, d := range st.Set.Experiments() {
		e := &d.Experiment
		if e.State == experiment.Stopped || d.Document != document {
			continue
		}
		for i := range e.Variants {
			v := &e.Variants[i]
			if !v.Set.Nothing() && !slices.ContainsFunc(e.Feeds, func(feed string) bool {
				f, err := t.Feeds.Find(ctx, []string{feed})
				return err != nil || f.Fault != nil || f.Changes(v.Set)
			}) {
				lines = append(lines, fmt.Sprintf("experiment %s, %s: variant %s sets what its feeds (%s) say already, and shows what the control does", e.Name, e.State, v.Name, strings.Join(e.Feeds, ", ")))
			}
		}
	}
	return lines
}

// Wanting returns a line for each variant whose model reads values of the viewer that the
// model of a feed does not read, or reads as another type. It looks at the experiments of a
// document that have not stopped. A caller who sends a value of another type would be refused
// in that variant alone, or the variant would draft nothing by its second model.
func (t *Experiments) Wanting(ctx context.Context, st *experiments.State, document string) (lines []string, err error) {
	r, err := t.Serving(ctx)
	if err != nil {
		return nil, err
	}
	defined, err := r.Feeds.Definitions(ctx)
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
					if err = cmp.Or(fault, defined[feed].Fault, err); ctx.Err() != nil {
						return nil, err
					} else if err != nil { // the document is defined already, so this is no reason to fail
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

// unlike returns the entries of wants, types by name, that are not in has or have another type
// there, each as text.
func unlike(wants, has map[string]string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		if has[name] != wants[name] {
			all = append(all, fmt.Sprintf("viewer.%s (%s)", name, wants[name]))
		}
	}
	return all
}

// strange returns a line for each variant, of experiments that have not stopped, that sets
// types which no record has.
func (t *Experiments) strange(ctx context.Context, st *experiments.State) (lines []string, err error) {
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
	says, err := t.Feeds.UnseenIn(ctx, types)
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

// UnappliedLine returns a line that says why the variants of an experiment are not applied.
func UnappliedLine(e *experiment.Experiment, why string) string {
	return fmt.Sprintf("experiment %s, %s: %s; its answers count for no variant until another version serves, or that one is asked for again", e.Name, e.State, why)
}

// LeftOut is a document with a fault, which brokers leave out. If the fault is that etcd
// lacks its bytes, brokers that still have them go on with those.
type LeftOut struct {
	Document string `json:"document"`
	Fault    string `json:"fault"`
	WayOut   string `json:"way_out"`
	Bare     bool   `json:"bytes_missing,omitempty"`
}

func (l *LeftOut) String() string {
	is := "is left out"
	if l.Bare {
		is = "cannot be read, brokers that keep its bytes go on by them, and others leave it out"
	}
	return fmt.Sprintf("document %s %s: %s; %s", l.Document, is, l.Fault, l.WayOut)
}

// LeftOuts returns the documents with a fault.
func LeftOuts(st *experiments.State) []LeftOut {
	all := []LeftOut{}
	for _, name := range slices.Sorted(maps.Keys(st.Faults)) {
		if _, is := st.LeftOut(name); is {
			all = append(all, LeftOut{name, st.Faults[name].Error(), st.WayBack(name), st.Bare(name)})
		}
	}
	return all
}

// faultLines returns a line for each document and each experiment with a fault: what brokers
// make of it, and the way out.
func faultLines(st *experiments.State) (lines []string) {
	for _, l := range LeftOuts(st) {
		lines = append(lines, l.String())
	}
	for _, d := range st.Set.Experiments() {
		if d.Unfit != "" {
			lines = append(lines, UnfitLine(&d))
		}
	}
	return lines
}

// UnfitLine says which fault an experiment has.
func UnfitLine(d *experiment.Defined) string {
	return fmt.Sprintf("experiment %s, %s, has a fault, and brokers give nobody a variant of it: %s; mend that, or stop it: millrace experiment stop %s", d.Experiment.Name, d.Experiment.State, d.Unfit, d.Experiment.Name)
}

// TellFaults writes what [Experiments.Notes] returns, after something was changed. The
// change itself does not rule these faults out: schemas and condemned versions are not part
// of its transaction, and may have changed meanwhile. read has documents that were parsed
// before, so that they are not parsed again; nil: there are none.
func TellFaults(ctx context.Context, w io.Writer, cl *cluster.Client, read *experiments.Store) error {
	t, err := OpenExperiments(ctx, cl)
	if err != nil {
		return err
	}
	if read != nil {
		t.UseParsed(read)
	}
	st, err := t.Read(ctx)
	if err != nil {
		return err
	}
	lines, err := t.Notes(ctx, st)
	for _, line := range lines {
		fmt.Fprintf(w, "note: %s\n", line)
	}
	return err
}
