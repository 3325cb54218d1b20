package rollouts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
)

func dropModel() *cobra.Command {
	var a command.Act
	c := &cobra.Command{
		Use: "drop NAME [VERSION]", Short: "Remove a version that does not serve, or the last one of a model that no feed names", Args: cobra.RangeArgs(1, 2),
		Long: `Removes a version. What a feed or an experiment names is refused, and so is a
version that ranked within the last day: later pages of who has begun by it are
ranked by it. --override drops it all the same, and such pages begin anew.

Without VERSION it removes what is no list of versions, as when somebody wrote
it past the commands: it goes whole. A version that begins with a dash, of before
such were refused, stands behind two: millrace model drop NAME -- -1.`,
	}
	a.Cluster = onRollout(c, func(ctx context.Context, r *rollout, args []string) error {
		over, err := a.Overrides()
		if err != nil {
			return err
		}
		if len(args) == 1 {
			done, err := leans.DropUnreadable(ctx, r.out, r.Models, "model", args[0], a.Of(c))
			if !done && err == nil {
				err = &millrace.Error{Reason: millrace.ReasonInvalid, Field: "version", Detail: "which version of " + args[0] + " is to be dropped is not said", WayOut: "name one of millrace model list"}
			}
			return err
		}
		r.overrideWay = a.OverrideWay()
		return r.drop(ctx, args[0], args[1], over, a.Of(c))
	})
	a.Flags(c)
	a.OverrideFlag(c, "to drop what pages that viewers have begun are ranked by")
	return c
}

// uses returns the feeds and the experiments that name a model, and the experiments on
// feeds whose model it is.
func (r *rollout) uses(ctx context.Context, name string) ([]string, error) {
	named, err := r.feedsThatName(ctx, name)
	if err != nil {
		return nil, err
	}
	defined, err := r.Feeds.Definitions(ctx)
	if err != nil {
		return nil, err
	}
	using, err := leans.ExperimentsUsing(ctx, r.Feeds.Cluster, func(s *experiment.Set) []string {
		all := s.UsesModel(name)
		for feed, d := range defined {
			if d.Model == name {
				all = append(all, s.UsesFeed(feed)...)
			}
		}
		slices.Sort(all)
		return slices.Compact(all)
	})
	return append(named, using...), err
}

func (r *rollout) showUses(ctx context.Context, name string) error {
	named, err := r.uses(ctx, name)
	if len(named) > 0 {
		fmt.Fprintf(r.out, "in use by %s\n", strings.Join(named, ", "))
	}
	return err
}

func (r *rollout) drop(ctx context.Context, name, version string, over bool, meant command.Meant) error {
	v, err := r.version(name, version)
	if err != nil {
		return err
	}
	var named []string // stays empty for the name of a built-in model: feeds that name it use the built-in one
	if relevance.CheckName(name) == nil {
		if named, err = r.uses(ctx, name); err != nil {
			return err
		}
	}
	uses := func(_ artefacts.Version, serves bool) []string {
		if serves {
			return named
		}
		return nil // feeds name a model, so they use the version that serves
	}
	if err := r.ranksNowhere(v); err != nil {
		return err
	}
	bytes, err := r.Models.MayDrop(ctx, v, uses)
	if err != nil {
		return err
	}
	if err := r.ranksNoPages(ctx, v); err != nil && !over && relevance.CheckName(name) == nil {
		return err
	}
	fmt.Fprintf(r.out, "%s would be dropped, %d bytes; nobody could go back to it\n", v, bytes)
	if ok, err := meant(); !ok {
		return err
	}
	if err := r.ranksNowhere(v); err != nil { // the version that serves may have been condemned meanwhile
		return err
	}
	if err := r.Models.Drop(ctx, v, uses, r.who); err != nil {
		return err
	}
	fmt.Fprintf(r.out, "%s is dropped\n", v)
	return r.Failed.Forget(ctx, v)
}

// ranksNowhere refuses to drop a version that ranks in the place of the serving one,
// which is condemned.
func (r *rollout) ranksNowhere(v artefacts.Version) error {
	serves, _ := r.Models.Served(v.Name)
	if in, ok := r.InPlaceOf(v); !ok || in != v || r.Failed.Why(serves) == "" {
		return nil
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "version", Detail: fmt.Sprintf("%s ranks in the place of %s, which serves and is condemned", v, serves),
		WayOut: fmt.Sprintf("push a version that is mended, or let %s be asked for again with millrace model release, first", serves),
	}
}

// ranksNoPages refuses to drop a version that a page token may name: some viewer may have
// got a first page while it ranked, and may still ask for later ones.
func (r *rollout) ranksNoPages(ctx context.Context, v artefacts.Version) error {
	events, err := r.Models.History(ctx, v.Name)
	if err != nil {
		return err
	}
	if until := pagesUntil(events, v); time.Now().Before(until) {
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "version", Detail: fmt.Sprintf("%s may be in use by pages: who began while it ranked may ask for more until %s, and whether anybody did is written down nowhere", v, until.UTC().Format("2006-01-02 15:04:05Z")),
			WayOut: fmt.Sprintf("wait until then, or %s: such pages, if there are any, are refused then, and begin anew", r.overrideWay),
		}
	}
	return nil
}

// pagesUntil returns until when a page token may name a version: [pagetoken.Life] after it
// ranked last. events are the history of its model.
func pagesUntil(events []ledger.Event, v artefacts.Version) time.Time {
	return lastRanked(events, v, time.Now()).Add(pagetoken.Life)
}

// lastRanked returns when a version ranked last, by a model's history. A version ranks
// while it serves, or while the version that serves is condemned and this one had served
// before. lastRanked returns now if the version ranks still, and the zero time if it never
// did.
func lastRanked(events []ledger.Event, v artefacts.Version, now time.Time) (last time.Time) {
	ranks, served, serves := false, false, "" // whether v ranks, whether v has served, and the checksum of the version that serves
	for _, e := range events {                // oldest first
		was := ranks
		switch {
		case e.What == ledger.Served || e.What == ledger.RolledBack:
			serves, ranks = e.Sum, e.Sum == v.Sum
			served = served || ranks
		case e.What == ledger.Dropped && e.Sum == v.Sum:
			ranks, served = false, false
		case e.What == ledger.Failed && e.Sum == serves:
			ranks = served && e.Sum != v.Sum
		case e.What == ledger.Released && e.Sum == serves:
			ranks = e.Sum == v.Sum
		}
		if was && !ranks {
			last = e.When
		}
	}
	if ranks {
		last = now
	}
	return last
}

// feedsThatName returns the feeds whose model is the one named, or that have it as a
// shadow.
func (r *rollout) feedsThatName(ctx context.Context, model string) (names []string, err error) {
	all, err := r.Feeds.Definitions(ctx)
	for name, f := range all {
		switch {
		case f.Fault != nil:
			names = append(names, "feed "+name+", perhaps: its definition has a fault")
		case f.Model == model || slices.Contains(f.Shadow, model):
			names = append(names, "feed "+name)
		}
	}
	slices.Sort(names)
	return names, err
}
