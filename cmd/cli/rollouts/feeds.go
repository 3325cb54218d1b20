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
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
)

// Feeds are the commands that look at and change what feeds there
// are.
func Feeds() []*cobra.Command {
	var serve bool // --serve
	serves := func(c *cobra.Command) *cobra.Command {
		c.Flags().BoolVar(&serve, "serve", false, "let it serve even if it changes what a running experiment compares, whose evidence begins anew then")
		return c
	}
	acts := func(c *cobra.Command, run func(context.Context, io.Writer, *feedStore, string, command.Meant) error) *cobra.Command {
		var a command.Act
		clusters.On(c, func(ctx context.Context, cm *clusters.Flags, cl *cluster.Client, args []string) error {
			versions, err := cl.Artefacts(ctx, feeds.Kind)
			if err != nil {
				return err
			}
			clusters.TellFaults(c, versions)
			return command.WithWay(run(ctx, c.OutOrStdout(), &feedStore{cm, cl, versions}, args[0], a.Of(c)), feedWays)
		})
		a.Flags(c)
		return c
	}
	with := func(c *cobra.Command, run func(context.Context, io.Writer, *feedStore, []string) error) *cobra.Command {
		clusters.On(c, func(ctx context.Context, cm *clusters.Flags, cl *cluster.Client, args []string) error {
			versions, err := cl.Artefacts(ctx, feeds.Kind)
			if err != nil {
				return err
			}
			clusters.TellFaults(c, versions)
			return command.WithWay(run(ctx, c.OutOrStdout(), &feedStore{cm, cl, versions}, args), feedWays)
		})
		return c
	}
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
		feedShadows(),
	}
}

// feedStore is a cluster's definitions, and what they are checked against.
type feedStore struct {
	cm       *clusters.Flags
	cluster  *cluster.Client
	versions *cluster.Artefacts
}

// models are the names of those that serve.
func (s *feedStore) models(ctx context.Context) ([]string, error) {
	pushed, err := s.cluster.Artefacts(ctx, indexnode.ModelsKind)
	if err != nil {
		return nil, err
	}
	return append(relevance.Builtin().Names(), slices.Sorted(maps.Keys(pushed.Serving()))...), nil
}

// checks is what a definition is held against, and closes the ways to the
// nodes.
func (s *feedStore) checks(ctx context.Context) (c feeds.Checks, done func(), err error) {
	done = func() {}
	if c.Models, err = s.models(ctx); err != nil {
		return c, done, err
	}
	maps, err := s.cluster.Watch(ctx)
	if err != nil {
		return c, done, err
	}
	credentials, err := reach.Of(ctx).Dial()
	if err != nil {
		return c, done, err
	}
	dial, m := fanout.DialGRPC(credentials), maps.Current()
	assigned := m.Assignment()
	c.Absent = slices.ContainsFunc(assigned.Nodes(), func(id millrace.NodeID) bool { return !m.Alive(id) })
	c.Nodes = map[millrace.NodeID]fanout.Node{}
	for _, n := range m.Nodes() {
		if !m.Alive(n.ID) {
			continue
		}
		if c.Nodes[n.ID], err = dial(n); err != nil {
			return c, done, err
		}
	}
	return c, func() {
		for _, n := range c.Nodes {
			if way, ok := n.(io.Closer); ok {
				_ = way.Close() // the command is over
			}
		}
	}, nil
}

func defineFeed(ctx context.Context, w io.Writer, s *feedStore, path string, serve bool) error {
	file, err := document.ReadFile(path)
	if err != nil {
		return err
	}
	checks, done, err := s.checks(ctx)
	if err != nil {
		return err
	}
	defer done()
	var d feeds.Defined
	altered := ""
	err = s.keeping(ctx, func(ctx context.Context) error {
		f, err := feeds.Parse(file)
		if err != nil {
			return err
		}
		if err := s.keeps(ctx, change{feed: f.Name, to: &f}); err != nil {
			return err
		}
		altered, err = s.alters(ctx, f.Name, &f, serve)
		return err
	}, func(ctx context.Context) (err error) {
		if checks.Models, err = s.models(ctx); err != nil {
			return err
		}
		d, err = feeds.Define(ctx, s.versions, checks, file, clusters.Who())
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	fmt.Fprintf(w, "feed %s is defined, version %s\n", d.Feed.Name, d.Version.Version)
	tellAltered(w, altered)
	if !d.Fresh {
		fmt.Fprintf(w, "version %s was there already, with these bytes; it serves\n", d.Version.Version)
	}
	if d.Covers {
		fmt.Fprintf(w, "it serves in place of the built-in feed %s, for every caller that names it\n", d.Feed.Name)
	}
	if len(d.Closes) > 0 {
		fmt.Fprintf(w, "while it is defined, requests for the built-in %s are refused as FORBIDDEN, whoever asks: they would show what it drops\n", strings.Join(d.Closes, " and "))
	}
	for _, id := range d.Unheard {
		fmt.Fprintf(w, "index node %s could not be asked whether it takes the filter\n", id)
	}
	if says := unseen(checks.Unseen(ctx, d.Feed.Types)); says != "" {
		fmt.Fprintf(w, "note: %s\n", says)
	}
	return s.showExperiments(ctx, w, d.Feed.Name)
}

// unseen says that no record has some types, of those that records have; "" of none.
func unseen(types []string, known string) string {
	if len(types) == 0 {
		return ""
	}
	return fmt.Sprintf("no record has the type %s; there are %s", strings.Join(types, ", nor "), known)
}

// unseenIn tells of each list of types which of them no record has, by [unseen].
func (s *feedStore) unseenIn(ctx context.Context, lists [][]millrace.ContentType) (says []string, err error) {
	says = make([]string, len(lists))
	all := slices.Concat(lists...)
	if len(all) == 0 {
		return says, nil
	}
	checks, done, err := s.checks(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	none, known := checks.Unseen(ctx, all)
	for i, list := range lists {
		says[i] = unseen(slices.DeleteFunc(slices.Clone(none), func(t string) bool { return !slices.Contains(list, millrace.ContentType(t)) }), known)
	}
	return says, nil
}

// definition is a feed and where it is from.
type definition struct {
	feeds.Feed
	version string // "": it is built in
	covers  bool   // it is in place of the built-in one
	text    []byte
	fault   error // why brokers don't take it over
}

// definitions are the feeds that brokers are told to serve: the cluster's over
// the built-in ones.
func (s *feedStore) definitions(ctx context.Context) (map[string]definition, error) {
	all := map[string]definition{}
	for _, f := range feeds.BuiltIn() {
		text, err := document.Encode(f)
		if err != nil {
			return nil, err
		}
		all[f.Name] = definition{Feed: f, text: text}
	}
	for name, v := range s.versions.Serving() {
		d := s.read(ctx, v)
		_, d.covers = all[name]
		all[name] = d
	}
	return all, nil
}

// read reads a version as far as it can be read.
func (s *feedStore) read(ctx context.Context, v cluster.Version) (d definition) {
	d.version = v.Version
	if d.text, d.fault = s.versions.Body(ctx, v); d.fault == nil {
		d.Feed, d.fault = feeds.Parse(d.text)
	}
	d.fault = s.unreadable(v, d.fault)
	return d
}

// unreadable is why a version cannot be read, with the way out that all commands tell.
func (s *feedStore) unreadable(v cluster.Version, why error) error {
	if why == nil || errors.Is(why, cluster.ErrAway) {
		return why
	}
	what, way := "version "+v.Version+" of feed "+v.Name, "define it again if it is needed"
	if serving, _ := s.versions.Served(v.Name); serving == v {
		what, way = "feed "+v.Name, fmt.Sprintf("put feed %s in place anew with millrace feed define, or go back with millrace feed rollback %s --apply", v.Name, v.Name)
	}
	detail := why.Error()
	if errors.Is(why, cluster.ErrNoBytes) {
		detail, way = detailOf(why), cluster.BytesWayOut+"; else "+way
	}
	return command.Refused(&millrace.Error{Reason: millrace.ReasonUnavailable, Detail: what + " cannot be read: " + detail, WayOut: way}, why)
}

// detailOf is what an error says without a way out.
func detailOf(err error) string {
	if e := (*millrace.Error)(nil); errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}

// meaning is a version by what it means, a field a line; its text, if it cannot be
// read.
func (s *feedStore) meaning(ctx context.Context, v cluster.Version) string {
	d := s.read(ctx, v)
	if d.fault == nil {
		if text, err := document.Encode(d.Feed); err == nil {
			return string(text)
		}
	}
	return string(d.text)
}

// feedShown is a feed as list and show tell of it.
type feedShown struct {
	Name       string                 `json:"name"`
	Model      string                 `json:"model"`
	Types      []millrace.ContentType `json:"types"` // none: all
	BuiltIn    bool                   `json:"built_in"`
	Version    string                 `json:"version,omitempty"`              // of the cluster's
	Covers     bool                   `json:"in_place_of_built_in,omitempty"` // it has the name of a built-in one
	Fault      string                 `json:"fault,omitempty"`
	Definition any                    `json:"definition,omitempty"`
}

func (d *definition) shown(name string) feedShown {
	return feedShown{Name: name, Model: d.Model, Types: display.List(d.Types), BuiltIn: d.version == "", Version: d.version, Covers: d.covers, Fault: display.FaultText(d.fault)}
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
	all, err := s.definitions(ctx)
	if err != nil {
		return nil, nil, err
	}
	checks, done, err := s.checks(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	shown := []feedShown{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		if f.fault == nil {
			_, f.fault = feeds.Check(ctx, f.Feed, checks)
		}
		shown = append(shown, f.shown(name))
	}
	return shown, func(w io.Writer) error { return writeFeeds(w, shown) }, nil
}

func writeFeeds(w io.Writer, all []feedShown) error {
	t := display.NewTable(w)
	t.Printf("NAME\tMODEL\tTYPES\tORIGIN\tFAULT\n")
	for _, f := range all {
		types := "all"
		if len(f.Types) > 0 {
			types = strings.Trim(fmt.Sprint(f.Types), "[]")
		}
		fault, _, _ := strings.Cut(f.Fault, "\n")
		t.Printf("%s\t%s\t%s\t%s\t%s\n", f.Name, f.Model, types, f.origin(), fault)
	}
	return t.Flush()
}

func showFeed(ctx context.Context, s *feedStore, args []string) (any, func(io.Writer) error, error) {
	f, err := s.find(ctx, args)
	if err != nil {
		return nil, nil, err
	}
	if f.fault == nil {
		checks, done, err := s.checks(ctx)
		if err != nil {
			return nil, nil, err
		}
		defer done()
		_, f.fault = feeds.Check(ctx, f.Feed, checks)
	}
	shown := f.shown(args[0])
	shown.Definition = display.Object(f.text)
	return shown, func(w io.Writer) error {
		fmt.Fprintf(w, "# %s\n", shown.origin())
		if shown.Fault != "" {
			fmt.Fprintf(w, "# %s\n", strings.ReplaceAll(shown.Fault, "\n", "\n# "))
		}
		_, err := w.Write(f.text)
		return err
	}, nil
}

// find returns the serving definition of a name, or one of its versions.
func (s *feedStore) find(ctx context.Context, args []string) (definition, error) {
	if len(args) == 2 {
		for _, v := range s.versions.All()[args[0]] {
			if v.Version == args[1] {
				return s.read(ctx, v), nil
			}
		}
		return definition{}, fmt.Errorf("feed %q has no version %q; see millrace feed history", args[0], args[1])
	}
	all, err := s.definitions(ctx)
	if err != nil {
		return definition{}, err
	}
	f, ok := all[args[0]]
	if !ok {
		return definition{}, fmt.Errorf("no feed %q; see millrace feed list", args[0])
	}
	return f, nil
}

// diffFeed compares definitions by what they mean, a field a line.
func diffFeed(ctx context.Context, s *feedStore, args []string) (any, func(io.Writer) error, error) {
	file, err := document.ReadFile(args[0])
	if err != nil {
		return nil, nil, err
	}
	next, err := feeds.Parse(file)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", args[0], err)
	}
	all, err := s.definitions(ctx)
	if err != nil {
		return nil, nil, err
	}
	before := ""
	if f, ok := all[next.Name]; ok {
		if f.fault != nil {
			return nil, nil, fmt.Errorf("what would change is not known: %w", f.fault)
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

// diffLines returns the lines that one definition has and the other does not.
func diffLines(before, after string) (gone, come []string) {
	old, changed := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range old {
		if !slices.Contains(changed, line) {
			gone = append(gone, line)
		}
	}
	for _, line := range changed {
		if !slices.Contains(old, line) {
			come = append(come, line)
		}
	}
	return gone, come
}

// writeDiff prints the lines that two definitions differ in.
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
	events, err := s.versions.History(ctx, args[0])
	if err != nil {
		return nil, nil, err
	}
	shown := struct {
		Serving string       `json:"serving"` // version; empty: none
		Events  []eventShown `json:"events"`
	}{s.versions.Serving()[args[0]].Version, eventsShown(events)}
	return shown, func(w io.Writer) error {
		if err := writeEvents(w, events); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "serving: version %s\n", cmp.Or(shown.Serving, "none"))
		return err
	}, nil
}

// writeEvents prints the changes of a document.
func writeEvents(w io.Writer, events []cluster.Event) error {
	t := display.NewTable(w)
	t.Printf("WHEN\tWHAT\tVERSION\tWHO\n")
	for _, e := range events {
		t.Printf("%s\t%s\t%s\t%s\n", e.When.Format(time.RFC3339), e.What, e.Version, e.Who)
	}
	return t.Flush()
}

func rollbackFeed(ctx context.Context, w io.Writer, s *feedStore, name string, serve bool, meant command.Meant) error {
	v, err := s.showRollback(ctx, w, name, serve)
	if err != nil {
		return err
	}
	if ok, err := meant(); !ok {
		return err
	}
	err = s.keeping(ctx, func(ctx context.Context) error {
		_, err := s.keepsVersion(ctx, v, serve)
		return err
	}, func(ctx context.Context) error { return goBack(ctx, s.versions, v) })
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "feed %s is as it was before, version %s\n", v.Name, v.Version)
	return nil
}

// showRollback shows what a rollback of a feed would change, and for which
// experiments. It refuses one to what could not be defined now.
func (s *feedStore) showRollback(ctx context.Context, w io.Writer, name string, serve bool) (v cluster.Version, err error) {
	if v, err = s.versions.RollsBackTo(ctx, name); err != nil {
		return v, err
	}
	now, _ := s.versions.Served(name)
	fmt.Fprintf(w, "feed %s: from version %s back to %s\n", name, now.Version, v.Version)
	writeDiff(w, s.meaning(ctx, now), s.meaning(ctx, v))
	if err := s.showExperiments(ctx, w, name); err != nil {
		return v, err
	}
	d := s.read(ctx, v)
	if d.fault == nil {
		checks, done, err := s.checks(ctx)
		if err != nil {
			return v, err
		}
		defer done()
		_, d.fault = feeds.Check(ctx, d.Feed, checks)
	}
	if d.fault != nil {
		return v, fmt.Errorf("version %s of feed %s has a fault by now, and version %s serves on: %w", v.Version, name, now.Version, d.fault)
	}
	altered, err := s.keepsVersion(ctx, v, serve)
	tellAltered(w, altered)
	return v, err
}

// keepsVersion is keeps and alters of a version of a feed that would serve.
func (s *feedStore) keepsVersion(ctx context.Context, v cluster.Version, serve bool) (altered string, err error) {
	d := s.read(ctx, v)
	if d.fault != nil {
		return "", d.fault
	}
	if err := s.keeps(ctx, change{feed: v.Name, to: &d.Feed}); err != nil {
		return "", err
	}
	return s.alters(ctx, v.Name, &d.Feed, serve)
}

// showExperiments tells which experiments lean on a feed.
func (s *feedStore) showExperiments(ctx context.Context, w io.Writer, feed string) error {
	using, err := experimentsUsing(ctx, s.cluster, func(s *experiment.Set) []string { return s.UsesFeed(feed) })
	if len(using) > 0 {
		fmt.Fprintf(w, "in use by %s\n", strings.Join(using, ", "))
	}
	return err
}

// goBack rolls back to a version that somebody was shown.
func goBack(ctx context.Context, versions *cluster.Artefacts, v cluster.Version) error {
	if to, err := versions.RollsBackTo(ctx, v.Name); err != nil || to != v {
		return cmp.Or(err, fmt.Errorf("%w: it would be back at %s by now", cluster.ErrMoved, to))
	}
	_, err := versions.Rollback(ctx, v.Name, clusters.Who())
	return err
}

// dropFeed drops the version that serves last: until then the feed is there.
func dropFeed(ctx context.Context, w io.Writer, s *feedStore, name string, serve bool, meant command.Meant) error {
	if done, err := dropUnreadable(ctx, w, s.versions, "feed", name, meant); done || err != nil {
		return err
	}
	versions, serving := s.versions.All()[name], s.versions.Serving()[name]
	if len(versions) == 0 {
		return fmt.Errorf("the cluster has no definition of %q; see millrace feed list", name)
	}
	covers := slices.IndexFunc(feeds.BuiltIn(), func(f feeds.Feed) bool { return f.Name == name })
	keeps := func(ctx context.Context) (altered string, err error) {
		if err = s.keepsWithout(ctx, name); err == nil && covers >= 0 {
			altered, err = s.alters(ctx, name, &feeds.BuiltIn()[covers], serve)
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
	tellAltered(w, altered)
	if ok, err := meant(); !ok {
		return err
	}
	versions = append(slices.DeleteFunc(slices.Clone(versions), func(v cluster.Version) bool { return v == serving }), serving)
	err = s.keeping(ctx, func(ctx context.Context) error {
		_, err := keeps(ctx)
		return err
	}, func(ctx context.Context) error {
		for _, v := range versions {
			if err := s.versions.Drop(ctx, v, nil, clusters.Who()); err != nil && !errors.Is(err, cluster.ErrNoVersion) {
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

// showDrop shows what would go with a feed, and what would serve in its place:
// covers is of the built-in feeds, below 0 for none.
func (s *feedStore) showDrop(ctx context.Context, w io.Writer, name string, covers int) error {
	var versions []string
	for _, v := range s.versions.All()[name] {
		versions = append(versions, v.Version)
	}
	serving := s.versions.Serving()[name]
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
		writeDiff(w, s.meaning(ctx, serving), after)
	}
	if covers < 0 {
		return nil // experiments that use it refuse it
	}
	return s.showExperiments(ctx, w, name)
}
