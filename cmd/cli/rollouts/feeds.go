package rollouts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/cmd/cli/shadows"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/relevance/experiment"
)

// Feeds returns the commands that show and change the feed definitions of a cluster.
func Feeds() []*cobra.Command {
	var serve bool // the value of the flag --serve, of the one command that runs
	// serves adds the flag --serve to a command.
	serves := func(c *cobra.Command) *cobra.Command {
		c.Flags().BoolVar(&serve, "serve", false, "let it serve even if it changes what a running experiment compares, whose evidence begins anew then")
		return c
	}
	// acts makes run the action of a command that only shows what it would do, unless it
	// gets --apply.
	acts := func(c *cobra.Command, run func(context.Context, io.Writer, *feedStore, string, command.Meant) error) *cobra.Command {
		var a command.Act
		clusters.On(c, func(ctx context.Context, _ *clusters.Flags, cl *cluster.Client, args []string) error {
			versions, err := artefacts.Watch(ctx, cl, feeds.Kind)
			if err != nil {
				return err
			}
			clusters.TellFaults(c, versions)
			return command.WithWay(run(ctx, c.OutOrStdout(), &feedStore{&leans.Feeds{Cluster: cl, Versions: versions}}, args[0], a.Of(c)), feedWays)
		})
		a.Flags(c)
		return c
	}
	// with makes run the action of a command.
	with := func(c *cobra.Command, run func(context.Context, io.Writer, *feedStore, []string) error) *cobra.Command {
		clusters.On(c, func(ctx context.Context, _ *clusters.Flags, cl *cluster.Client, args []string) error {
			versions, err := artefacts.Watch(ctx, cl, feeds.Kind)
			if err != nil {
				return err
			}
			clusters.TellFaults(c, versions)
			return command.WithWay(run(ctx, c.OutOrStdout(), &feedStore{&leans.Feeds{Cluster: cl, Versions: versions}}, args), feedWays)
		})
		return c
	}
	// looks makes look the action of a command that only shows something: a value for
	// JSON, and a function that writes it as text.
	looks := func(c *cobra.Command, look func(context.Context, *feedStore, []string) (any, func(io.Writer) error, error)) *cobra.Command {
		var output display.Form
		display.Flag(c, &output)
		return with(c, func(ctx context.Context, w io.Writer, s *feedStore, args []string) error {
			shown, text, err := look(ctx, s, args)
			if err != nil {
				return err
			}
			return output.Write(w, shown, text)
		})
	}
	return []*cobra.Command{
		serves(with(&cobra.Command{
			Use:   "define FILE.yaml",
			Short: "Check a definition and put it in place, and say which brokers have heard of it",
			Long: `Checks a feed definition and stores it in the cluster under its name, as its
next version. Every index node is asked whether it takes the filter, and the
models have to serve. A definition with a fault changes nothing. One that changes
what a variant of a running experiment leaves to the feed, its model say, is
refused without --serve: what was shown before would be compared with what is
shown after. A type that no record has yet is noted.

  name: news
  types: [post, share]
  filter: record.language in viewer.languages
  window: 168h               # how far back from as_of
  model: home
  distinct_objects: true     # the best record of each object
  cap_per_entity: 3
  limit: 20`,
			Args: cobra.ExactArgs(1),
		}, func(ctx context.Context, w io.Writer, s *feedStore, args []string) error {
			return defineFeed(ctx, w, s, args[0], serve)
		})),
		looks(&cobra.Command{Use: "list", Short: "The feeds there are, and what is wrong with them", Args: cobra.NoArgs}, listFeeds),
		looks(&cobra.Command{Use: "show NAME [VERSION]", Short: "A feed's definition", Args: cobra.RangeArgs(1, 2)}, showFeed),
		looks(&cobra.Command{Use: "diff FILE.yaml", Short: "What `define` would change", Args: cobra.ExactArgs(1)}, diffFeed),
		looks(&cobra.Command{Use: "history NAME", Short: "Who changed a feed's definition, and when", Args: cobra.ExactArgs(1)}, feedHistory),
		serves(acts(&cobra.Command{Use: "rollback NAME", Short: "Let the version serve that served before", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, w io.Writer, s *feedStore, name string, meant command.Meant) error {
				return rollbackFeed(ctx, w, s, name, serve, meant)
			})),
		serves(acts(&cobra.Command{Use: "drop NAME", Short: "Take a definition and its versions out of the cluster", Args: cobra.ExactArgs(1)},
			func(ctx context.Context, w io.Writer, s *feedStore, name string, meant command.Meant) error {
				return dropFeed(ctx, w, s, name, serve, meant)
			})),
		shadows.Command(),
	}
}

// feedStore holds the feed definitions of a cluster, for the commands that show and
// change them.
type feedStore struct{ *leans.Feeds }

// defineFeed checks the definition in a file and stores it as the next version of its feed.
func defineFeed(ctx context.Context, w io.Writer, s *feedStore, path string, serve bool) error {
	file, err := document.ReadFile(path)
	if err != nil {
		return err
	}
	checks, done, err := s.Checks(ctx)
	if err != nil {
		return err
	}
	defer done()
	var d feeds.Defined
	var opens []string
	altered := ""
	err = s.Keeping(ctx, func(ctx context.Context) error {
		f, err := feeds.Parse(file)
		if err != nil {
			return err
		}
		if err := s.Keeps(ctx, leans.Change{Feed: f.Name, To: &f}); err != nil {
			return err
		}
		if opens, err = s.opens(ctx, f.Name, &f); err != nil {
			return err
		}
		altered, err = s.Alters(ctx, f.Name, &f, serve)
		return err
	}, func(ctx context.Context) (err error) {
		if checks.Models, err = s.Models(ctx); err != nil {
			return err
		}
		d, err = feeds.Define(ctx, s.Versions, checks, file, clusters.Who())
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	fmt.Fprintf(w, "feed %s is defined, version %s\n", d.Feed.Name, d.Version.Version)
	leans.TellAltered(w, altered)
	if !d.Fresh {
		fmt.Fprintf(w, "version %s was there already, with these bytes; it serves\n", d.Version.Version)
	}
	if d.Covers {
		fmt.Fprintf(w, "it serves in place of the built-in feed %s, for every caller that names it\n", d.Feed.Name)
	}
	if len(d.Closes) > 0 {
		fmt.Fprintf(w, "while it is defined, requests for the built-in %s are refused as FORBIDDEN, whoever asks: they would show what it drops\n", strings.Join(d.Closes, " and "))
	}
	tellOpens(w, opens, "are")
	for _, id := range d.Unheard {
		fmt.Fprintf(w, "index node %s could not be asked whether it takes the filter\n", id)
	}
	if says := leans.Unseen(checks.Unseen(ctx, d.Feed.Types)); says != "" {
		fmt.Fprintf(w, "note: %s\n", says)
	}
	return s.showExperiments(ctx, w, d.Feed.Name)
}

// meaning returns a version's definition in its normal form, a field a line, so that two
// versions can be compared. A version that cannot be parsed comes back as its text. It
// returns an error if the version cannot be read from etcd.
func (f *feedStore) meaning(ctx context.Context, v artefacts.Version) (string, error) {
	d, err := f.Read(ctx, v)
	if err == nil && d.Fault == nil {
		if text, err := document.Encode(d.Feed); err == nil {
			return string(text), nil
		}
	}
	return string(d.Text), err
}

// feedShown is a feed as the commands list and show print it.
type feedShown struct {
	Name       string                 `json:"name"`
	Model      string                 `json:"model"`
	Types      []millrace.ContentType `json:"types"` // the content types that it shows; none: all
	BuiltIn    bool                   `json:"built_in"`
	Version    string                 `json:"version,omitempty"`              // empty of a built-in feed
	Covers     bool                   `json:"in_place_of_built_in,omitempty"` // it has the name of a built-in feed, and serves in its place
	Fault      string                 `json:"fault,omitempty"`                // what is wrong with the definition; "": nothing is known against it
	Unread     bool                   `json:"unreadable,omitempty"`           // its definition cannot be read, so Model and Types are not known
	Definition any                    `json:"definition,omitempty"`           // only of the command show
}

func feedShownOf(d *leans.Definition, name string, j leans.Judgement) feedShown {
	return feedShown{Name: name, Model: d.Model, Types: display.List(d.Types), BuiltIn: d.Edition == "", Version: d.Edition, Covers: d.Covers, Fault: display.FaultText(j.Fault), Unread: d.Fault != nil && d.Name == ""}
}

func (f *feedShown) origin() string {
	switch {
	case f.BuiltIn:
		return "built in"
	case f.Covers:
		return "cluster, version " + f.Version + ", in place of the built-in one"
	}
	return "cluster, version " + f.Version
}

func listFeeds(ctx context.Context, s *feedStore, _ []string) (any, func(io.Writer) error, error) {
	all, err := s.Definitions(ctx)
	if err != nil {
		return nil, nil, err
	}
	checks, done, err := s.Checks(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	shown := []feedShown{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		shown = append(shown, feedShownOf(&f, name, f.Judge(ctx, checks)))
	}
	for _, name := range slices.Sorted(slices.Values(s.Versions.Unread())) {
		if _, listed := all[name]; !listed {
			shown = append(shown, feedShown{Name: name, Types: []millrace.ContentType{}, Version: "?", Unread: true, Fault: "what etcd has of it cannot be read: brokers go by what they kept, and one that kept nothing takes it for private; drop it, and define it anew"})
		}
	}
	return shown, func(w io.Writer) error { return writeFeeds(w, shown) }, nil
}

func writeFeeds(w io.Writer, all []feedShown) error {
	t := display.NewTable(w)
	t.Printf("NAME\tMODEL\tTYPES\tORIGIN\tFAULT\n")
	for _, f := range all {
		types := "all"
		switch {
		case len(f.Types) > 0:
			types = strings.Trim(fmt.Sprint(f.Types), "[]")
		case f.Unread:
			types = "?"
		}
		model := f.Model
		if model == "" {
			model = "?"
		}
		fault, _, _ := strings.Cut(f.Fault, "\n")
		t.Printf("%s\t%s\t%s\t%s\t%s\n", f.Name, model, types, f.origin(), fault)
	}
	return t.Flush()
}

func showFeed(ctx context.Context, s *feedStore, args []string) (any, func(io.Writer) error, error) {
	f, err := s.Find(ctx, args)
	if err != nil {
		return nil, nil, err
	}
	checks, done, err := s.Checks(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	shown := feedShownOf(&f, args[0], f.Judge(ctx, checks))
	shown.Definition = display.Object(f.Text)
	return shown, func(w io.Writer) error {
		fmt.Fprintf(w, "# %s\n", shown.origin())
		if shown.Fault != "" {
			fmt.Fprintf(w, "# %s\n", strings.ReplaceAll(shown.Fault, "\n", "\n# "))
		}
		_, err := w.Write(f.Text)
		return err
	}, nil
}

// diffFeed compares the definition in a file with the one that serves, each in its normal
// form, a field a line.
func diffFeed(ctx context.Context, s *feedStore, args []string) (any, func(io.Writer) error, error) {
	file, err := document.ReadFile(args[0])
	if err != nil {
		return nil, nil, err
	}
	next, err := feeds.Parse(file)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", args[0], err)
	}
	all, err := s.Definitions(ctx)
	if err != nil {
		return nil, nil, err
	}
	before := ""
	if f, ok := all[next.Name]; ok {
		if f.Fault != nil {
			return nil, nil, fmt.Errorf("what would change is not known: %w", f.Fault)
		}
		text, err := document.Encode(f.Feed)
		if err != nil {
			return nil, nil, err
		}
		before = string(text)
	}
	after, err := document.Encode(next)
	if err != nil {
		return nil, nil, err
	}
	gone, come := diffLines(before, string(after))
	shown := struct {
		Name    string   `json:"name"`
		Removed []string `json:"removed"` // lines
		Added   []string `json:"added"`
	}{next.Name, display.List(gone), display.List(come)}
	return shown, func(w io.Writer) error { writeDiff(w, before, string(after)); return nil }, nil
}

// diffLines returns the lines that are gone and those that have come, where both have the
// longest common subsequence of lines in common.
func diffLines(before, after string) (gone, come []string) {
	old, changed := strings.Split(before, "\n"), strings.Split(after, "\n")
	common := make([][]int, len(old)+1) // how long the subsequence of old[i:] and changed[j:] is
	for i := range common {
		common[i] = make([]int, len(changed)+1)
	}
	for i := len(old) - 1; i >= 0; i-- {
		for j := len(changed) - 1; j >= 0; j-- {
			if common[i][j] = max(common[i+1][j], common[i][j+1]); old[i] == changed[j] {
				common[i][j] = 1 + common[i+1][j+1]
			}
		}
	}
	i, j := 0, 0
	for i < len(old) && j < len(changed) {
		switch {
		case old[i] == changed[j]:
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			gone, i = append(gone, old[i]), i+1
		default:
			come, j = append(come, changed[j]), j+1
		}
	}
	return append(gone, old[i:]...), append(come, changed[j:]...)
}

// writeDiff prints the lines of diffLines, or "no change" if there are none.
func writeDiff(w io.Writer, before, after string) {
	gone, come := diffLines(before, after)
	for _, line := range gone {
		fmt.Fprintln(w, "-", line)
	}
	for _, line := range come {
		fmt.Fprintln(w, "+", line)
	}
	if len(gone)+len(come) == 0 {
		fmt.Fprintln(w, "no change")
	}
}

func feedHistory(ctx context.Context, s *feedStore, args []string) (any, func(io.Writer) error, error) {
	events, err := s.Versions.History(ctx, args[0])
	if err != nil {
		return nil, nil, err
	}
	shown := struct {
		Serving string             `json:"serving"` // version; empty: none
		Events  []leans.EventShown `json:"events"`
	}{s.Versions.Serving()[args[0]].Version, leans.EventsShown(events)}
	return shown, func(w io.Writer) error {
		if err := leans.WriteEvents(w, events); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "serving: version %s\n", cmp.Or(shown.Serving, "none"))
		return err
	}, nil
}

func rollbackFeed(ctx context.Context, w io.Writer, s *feedStore, name string, serve bool, meant command.Meant) error {
	v, err := s.showRollback(ctx, w, name, serve)
	if err != nil {
		return err
	}
	if ok, err := meant(); !ok {
		return err
	}
	err = s.Keeping(ctx, func(ctx context.Context) error {
		_, err := s.keepsVersion(ctx, v, serve)
		return err
	}, func(ctx context.Context) error { return goBack(ctx, s.Versions, v) })
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "feed %s is as it was before, version %s\n", v.Name, v.Version)
	return nil
}

// showRollback prints what a rollback of a feed would change, and which experiments use the
// feed. It refuses a rollback to a version that could not be defined now. It returns the
// version to go back to.
func (f *feedStore) showRollback(ctx context.Context, w io.Writer, name string, serve bool) (v artefacts.Version, err error) {
	if v, err = f.Versions.RollsBackTo(ctx, name); err != nil {
		return v, err
	}
	now, _ := f.Versions.Served(name)
	fmt.Fprintf(w, "feed %s: from version %s back to %s\n", name, now.Version, v.Version)
	before, err := f.meaning(ctx, now)
	if err != nil {
		return v, err
	}
	after, err := f.meaning(ctx, v)
	if err != nil {
		return v, err
	}
	writeDiff(w, before, after)
	if err := f.showExperiments(ctx, w, name); err != nil {
		return v, err
	}
	d, err := f.Read(ctx, v)
	if err != nil {
		return v, err
	}
	opens, err := f.opens(ctx, name, &d.Feed)
	if err != nil {
		return v, err
	}
	tellOpens(w, opens, "would be")
	checks, done, err := f.Checks(ctx)
	if err != nil {
		return v, err
	}
	defer done()
	if fault := d.Judge(ctx, checks).Fault; fault != nil {
		return v, fmt.Errorf("version %s of feed %s has a fault by now, and version %s serves on: %w", v.Version, name, now.Version, fault)
	}
	altered, err := f.keepsVersion(ctx, v, serve)
	leans.TellAltered(w, altered)
	return v, err
}

// keepsVersion refuses a version of a feed that would give an experiment a fault if it
// served, or, unless serve is set, that would change what a running experiment compares.
// It returns what the version would change of running experiments; "" for nothing.
func (f *feedStore) keepsVersion(ctx context.Context, v artefacts.Version, serve bool) (altered string, err error) {
	d, err := f.Read(ctx, v)
	if err = cmp.Or(err, d.Fault); err != nil {
		return "", err
	}
	if err := f.Keeps(ctx, leans.Change{Feed: v.Name, To: &d.Feed}); err != nil {
		return "", err
	}
	return f.Alters(ctx, v.Name, &d.Feed, serve)
}

// showExperiments prints which experiments use a feed.
func (f *feedStore) showExperiments(ctx context.Context, w io.Writer, feed string) error {
	using, err := leans.ExperimentsUsing(ctx, f.Cluster, func(s *experiment.Set) []string { return s.UsesFeed(feed) })
	if len(using) > 0 {
		fmt.Fprintf(w, "in use by %s\n", strings.Join(using, ", "))
	}
	return err
}

// goBack rolls back to v, which the user was shown. It fails with [artefacts.ErrMoved] if a
// rollback would lead to another version by now.
func goBack(ctx context.Context, versions *artefacts.Kind, v artefacts.Version) error {
	if to, err := versions.RollsBackTo(ctx, v.Name); err != nil || to != v {
		return cmp.Or(err, fmt.Errorf("%w: it would be back at %s by now", artefacts.ErrMoved, to))
	}
	_, err := versions.Rollback(ctx, v.Name, clusters.Who())
	return err
}

// dropFeed drops all versions of a feed. The one that serves goes last, so that the feed is
// there until then.
func dropFeed(ctx context.Context, w io.Writer, s *feedStore, name string, serve bool, meant command.Meant) error {
	if done, err := leans.DropUnreadable(ctx, w, s.Versions, "feed", name, meant); done || err != nil {
		return err
	}
	versions, serving := s.Versions.All()[name], s.Versions.Serving()[name]
	if len(versions) == 0 {
		return fmt.Errorf("the cluster has no definition of %q; see millrace feed list", name)
	}
	covers := slices.IndexFunc(feeds.BuiltIn(), func(f feeds.Feed) bool { return f.Name == name })
	keeps := func(ctx context.Context) (altered string, err error) {
		if err = s.KeepsWithout(ctx, name); err == nil && covers >= 0 {
			altered, err = s.Alters(ctx, name, &feeds.BuiltIn()[covers], serve)
		}
		return altered, err
	}
	altered, err := keeps(ctx)
	if err != nil {
		return err
	}
	if err := s.showDrop(ctx, w, name, covers); err != nil {
		return err
	}
	opens, err := s.opens(ctx, name, nil)
	if err != nil {
		return err
	}
	tellOpens(w, opens, "would be")
	leans.TellAltered(w, altered)
	if ok, err := meant(); !ok {
		return err
	}
	versions = append(slices.DeleteFunc(slices.Clone(versions), func(v artefacts.Version) bool { return v == serving }), serving)
	err = s.Keeping(ctx, func(ctx context.Context) error {
		_, err := keeps(ctx)
		return err
	}, func(ctx context.Context) error {
		for _, v := range versions {
			if err := s.Versions.Drop(ctx, v, nil, clusters.Who()); err != nil && !errors.Is(err, artefacts.ErrNoVersion) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "feed %s is dropped\n", name)
	if covers >= 0 {
		fmt.Fprintf(w, "the built-in feed %s serves again\n", name)
	}
	return nil
}

// showDrop prints what would go with a feed, and what would serve in its place. covers is
// the index of the built-in feed of the same name, below 0 if there is none.
func (f *feedStore) showDrop(ctx context.Context, w io.Writer, name string, covers int) error {
	var versions []string
	for _, v := range f.Versions.All()[name] {
		versions = append(versions, v.Version)
	}
	serving := f.Versions.Serving()[name]
	fmt.Fprintf(w, "feed %s would be dropped, with the versions %s; nobody could go back to them\n", name, strings.Join(versions, ", "))
	after := ""
	if covers >= 0 {
		fmt.Fprintf(w, "the built-in feed %s would serve again\n", name)
		text, err := document.Encode(feeds.BuiltIn()[covers])
		if err != nil {
			return err
		}
		after = string(text)
	}
	if serving.Version != "" {
		before, err := f.meaning(ctx, serving)
		if err != nil {
			return err
		}
		writeDiff(w, before, after)
	}
	if covers < 0 {
		return nil // no experiment uses it: the drop would be refused
	}
	return f.showExperiments(ctx, w, name)
}
