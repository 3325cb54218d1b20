package leans

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// alteration says what a change of a feed's definition changes in the variants of an
// experiment: each parameter that differs and that a variant does not set itself. It is ""
// if no variant changes.
func alteration(e *experiment.Experiment, from, to *feeds.Feed) string {
	var all []string
	for _, x := range []struct {
		of    experiment.Parameter
		other bool
	}{
		{experiment.OfModel, from.Model != to.Model}, {experiment.OfFilter, from.Filter != to.Filter}, {experiment.OfWindow, from.Window != to.Window},
		{experiment.OfTypes, !slices.Equal(slices.Sorted(slices.Values(from.Types)), slices.Sorted(slices.Values(to.Types)))},
		{experiment.OfCap, from.CapPerEntity != to.CapPerEntity}, {experiment.OfSpacing, from.Spacing != to.Spacing},
		{experiment.OfLimit, cmp.Or(from.Limit, feeds.DefaultLimit) != cmp.Or(to.Limit, feeds.DefaultLimit)}, {experiment.OfDistinct, from.DistinctObjects != to.DistinctObjects},
	} {
		var variants []string
		for i := range e.Variants {
			if x.other && e.Variants[i].Set.Leaves(x.of) {
				variants = append(variants, e.Variants[i].Name)
			}
		}
		if len(variants) > 0 {
			all = append(all, fmt.Sprintf("%s of %s", x.of, strings.Join(variants, " and ")))
		}
	}
	return strings.Join(all, ", ")
}

// Alters says how running experiments would change if the definition to came to serve as the
// feed; "" if none would change. meant says that the caller wants that change. If meant is
// false, Alters returns the text as an error.
func (s *Feeds) Alters(ctx context.Context, feed string, to *feeds.Feed, meant bool) (says string, err error) {
	now, err := s.Definitions(ctx)
	from, there := now[feed]
	if err != nil || !there {
		return "", err
	}
	set, err := ExperimentSet(ctx, s.Cluster)
	if err != nil {
		return "", err
	}
	var names []string
	for _, d := range set.Experiments() {
		e := &d.Experiment
		if e.State != experiment.Running || !slices.Contains(e.Feeds, feed) {
			continue
		}
		what := alteration(e, &from.Feed, to)
		switch {
		case from.Fault != nil:
			names = append(names, e.Name)
			says = display.Joined(says, fmt.Sprintf("what it changes in experiment %s, which runs, is not known: %s", e.Name, detailOf(from.Fault)))
		case what != "":
			names = append(names, e.Name)
			says = display.Joined(says, fmt.Sprintf("it changes %s in experiment %s, which runs", what, e.Name))
		}
	}
	if says == "" || meant {
		return says, nil
	}
	all := strings.Join(names, " and ")
	return "", &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "experiment", Detail: says,
		WayOut: fmt.Sprintf("pause or stop %s first, or add --serve: the evidence on %s begins anew then", all, all),
	}
}

// TellAltered prints altered, what [Feeds.Alters] says; nothing if that is "".
func TellAltered(w io.Writer, altered string) {
	if altered != "" {
		fmt.Fprintf(w, "note: %s; its evidence begins anew then\n", altered)
	}
}

// servedDefinition is a definition of a feed, and since when it served.
type servedDefinition struct {
	event   ledger.Event // by which it came to serve; zero: a built-in one that served first
	feed    *feeds.Feed  // nil: it is not known, or there was none
	version int64        // its number, also in records of what answers showed; 0: it is built in
}

// servedDefinitions returns the definitions of a feed that served, as far as its history tells,
// oldest first. It leaves out a version that cannot be read as a definition: such a version
// never served, since brokers keep the one before it.
func (s *Feeds) servedDefinitions(ctx context.Context, name string) (all []servedDefinition, err error) {
	built := servedDefinition{}
	if i := slices.IndexFunc(feeds.BuiltIn(), func(f feeds.Feed) bool { return f.Name == name }); i >= 0 {
		built.feed = &feeds.BuiltIn()[i]
	}
	if len(s.Versions.All()[name]) == 0 && built.feed != nil {
		return []servedDefinition{built}, nil
	}
	events, err := s.Versions.History(ctx, name)
	if errors.Is(err, artefacts.ErrNoVersion) {
		return nil, nil // the feed is gone
	}
	if err == nil {
		err = s.Versions.Settle(ctx) // so that the watched versions are as new as the history
	}
	if err != nil {
		return nil, err
	}
	if built.feed != nil && ledger.Whole(events) { // else the oldest changes are forgotten
		all = append(all, built)
	}
	sum := "" // of the version that serves after the events so far; "": none
	for _, e := range events {
		switch {
		case e.What == ledger.Dropped && e.Sum == sum:
			gone := built
			gone.event, sum = e, ""
			all = append(all, gone)
		case e.What == ledger.Served || e.What == ledger.RolledBack:
			sum = e.Sum
			t := servedDefinition{event: e}
			if t.version, err = strconv.ParseInt(e.Version, 10, 64); err != nil {
				continue
			}
			if v := (artefacts.Version{Name: name, Version: e.Version, Sum: e.Sum}); s.Versions.Has(v) {
				d, err := s.Read(ctx, v)
				if err != nil {
					return nil, err
				}
				if d.Fault != nil {
					continue
				}
				t.feed = &d.Feed
			}
			all = append(all, t)
		}
	}
	return all, nil
}

// changed says what this definition changes in an experiment against the one that served
// before it; "" if nothing. A definition whose text is not known counts as another one.
func (s *servedDefinition) changed(e *experiment.Experiment, before *servedDefinition) string {
	if s.feed == nil || before.feed == nil {
		return "the definition"
	}
	return alteration(e, before.feed, s.feed)
}

// says returns, as a clause, that this definition came to serve and what that changed.
func (s *servedDefinition) says(feed, changed string) string {
	now := "its version " + s.event.Version
	if s.version == 0 {
		now = "the built-in one"
	}
	return fmt.Sprintf("feed %s came to %s, which changed %s", feed, now, changed)
}

// Basis says which answers of an experiment were made with its feeds and models as they are
// now. b.Feeds has, by feed, the versions that are to the experiment as the one that serves
// now; b.Models has, by model, the version that ranks now. b.Since is when the last of these
// came to be so; zero if all were so from the beginning.
func (s *Serving) Basis(ctx context.Context, e *experiment.Experiment) (b compare.Basis, err error) {
	b.Feeds, b.Models = map[string][]int64{}, map[string]string{}
	since := func(when time.Time, why string) {
		if when.After(b.Since) {
			b.Since, b.Why = when, why
		}
	}
	for _, feed := range e.Feeds {
		all, err := s.Feeds.servedDefinitions(ctx, feed)
		if err != nil {
			return b, err
		}
		if len(all) == 0 {
			continue
		}
		now := &all[len(all)-1]
		b.Feeds[feed] = []int64{now.version}
		for i, t := range slices.Backward(all[:len(all)-1]) {
			if what := now.changed(e, &t); what != "" {
				since(all[i+1].event.When, all[i+1].says(feed, what))
				break
			}
			b.Feeds[feed] = append(b.Feeds[feed], t.version)
		}
	}
	models, err := s.compared(ctx, e)
	if err != nil {
		return b, err
	}
	for _, name := range models {
		serves, pushed := s.Models.Served(name)
		if !pushed {
			continue // it is built in, so it has no versions
		}
		events, err := s.Models.History(ctx, name)
		if err != nil {
			return b, err
		}
		ranks := serves
		if s.Failed.Why(serves) != "" {
			ranks, _ = s.InPlaceOf(serves) // the zero value: recency ranks, which has no versions
		}
		b.Models[name] = ranks.Version
		if t := lastBecame(events); !t.IsZero() {
			since(t, fmt.Sprintf("model %s came to version %s", name, cmp.Or(ranks.Version, "none")))
		}
	}
	return b, nil
}

// compared returns the models that an experiment ranks by, if its variants differ in models
// or in weights, so that another version of a model changes what it compares. Else none.
func (s *Serving) compared(ctx context.Context, e *experiment.Experiment) (models []string, err error) {
	if !e.LeansOnVersions() {
		return nil, nil
	}
	return s.ranking(ctx, e)
}

// ranking returns the models by which pages of an experiment are ranked.
func (s *Serving) ranking(ctx context.Context, e *experiment.Experiment) (models []string, err error) {
	for i := range e.Variants {
		ranked, err := s.rankings(ctx, e, &e.Variants[i])
		if err != nil {
			return nil, err
		}
		models = append(models, ranked...)
	}
	slices.Sort(models)
	return slices.Compact(models), nil
}

// lastBecame returns when, according to a model's history, another version last came to rank:
// another one served, or the one that serves failed or was released (is condemned no more). It
// is zero if only the first version ever ranked.
func lastBecame(events []ledger.Event) (last time.Time) {
	serves := ""
	for _, e := range events {
		switch {
		case e.What == ledger.Served || e.What == ledger.RolledBack:
			if serves != "" && e.Sum != serves {
				last = e.When
			}
			serves = e.Sum
		case (e.What == ledger.Failed || e.What == ledger.Released) && e.Sum == serves:
			last = e.When
		}
	}
	return last
}

// BecameOthers returns the changes of feeds and models, later than since, that changed what
// the experiments show or rank by. They are for the history of the experiments' document.
func (s *Serving) BecameOthers(ctx context.Context, of []experiment.Experiment, since time.Time) (all []ledger.Event, err error) {
	models := map[string]bool{}
	feeds := map[string][]*experiment.Experiment{} // by feed, the experiments on it
	for i := range of {
		names, err := s.compared(ctx, &of[i])
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			models[name] = true
		}
		for _, name := range of[i].Feeds {
			feeds[name] = append(feeds[name], &of[i])
		}
	}
	add := func(of string, e ledger.Event, more string) {
		if e.When.After(since) {
			e.What, e.Who = ledger.Change(fmt.Sprintf("%s: %s", of, e.What)), e.Who+more
			all = append(all, e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		if len(s.Models.All()[name]) == 0 {
			continue // it is built in, so it has no versions
		}
		events, err := s.Models.History(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if slices.Contains([]ledger.Change{ledger.Served, ledger.RolledBack, ledger.Failed, ledger.Released}, e.What) {
				add("model "+name, e, "")
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(feeds)) {
		servedDefinitions, err := s.Feeds.servedDefinitions(ctx, name)
		if err != nil {
			return nil, err
		}
		for i := 1; i < len(servedDefinitions); i++ {
			for _, e := range feeds[name] {
				if what := servedDefinitions[i].changed(e, &servedDefinitions[i-1]); what != "" {
					add("feed "+name, servedDefinitions[i].event, fmt.Sprintf(": it changed %s in %s", what, e.Name))
				}
			}
		}
	}
	return all, nil
}
