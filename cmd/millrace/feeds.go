package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/document"
)

// feedDefinitions are the commands that look at and change what feeds there
// are.
func feedDefinitions() []*cobra.Command {
	with := func(c *cobra.Command, run func(context.Context, io.Writer, *cluster.Documents, []string) error) *cobra.Command {
		cm := clusterFlagsOf(c.Flags())
		c.RunE = func(c *cobra.Command, args []string) error {
			return cm.documents(c.Context(), broker.FeedsKind, func(ctx context.Context, docs *cluster.Documents) error {
				return run(ctx, c.OutOrStdout(), docs, args)
			})
		}
		return c
	}
	return []*cobra.Command{
		with(&cobra.Command{
			Use:   "define FILE.yaml",
			Short: "Check a definition and put it in place on every broker, within a second",
			Long: `Checks a feed definition and stores it in the cluster under its name, in place
of the one before. A definition with a fault changes nothing.

  name: news
  types: [post, share]
  filter: record.language in viewer.languages
  window: 168h               # how far back from as_of
  model: home
  distinct_objects: true     # the best record of each object
  cap_per_entity: 3
  limit: 20`,
			Args: cobra.ExactArgs(1),
		}, defineFeed),
		with(&cobra.Command{Use: "list", Short: "The feeds there are", Args: cobra.NoArgs}, listFeeds),
		with(&cobra.Command{Use: "show NAME", Short: "A feed's definition", Args: cobra.ExactArgs(1)}, showFeed),
		with(&cobra.Command{Use: "diff FILE.yaml", Short: "What `define` would change", Args: cobra.ExactArgs(1)}, diffFeed),
		with(&cobra.Command{Use: "drop NAME", Short: "Take a definition out of the cluster", Args: cobra.ExactArgs(1)}, dropFeed),
	}
}

func defineFeed(ctx context.Context, w io.Writer, docs *cluster.Documents, args []string) error {
	file, err := document.ReadFile(args[0])
	if err != nil {
		return err
	}
	f, err := broker.DefineFeed(ctx, docs, file)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	fmt.Fprintf(w, "feed %s is defined\n", f.Name)
	return nil
}

// definition is a feed and where it is from.
type definition struct {
	broker.Feed
	origin string
	text   []byte
}

// definitions are the feeds that brokers serve: the cluster's over the built-in
// ones.
func definitions(docs *cluster.Documents) (map[string]definition, error) {
	all := map[string]definition{}
	for _, f := range broker.BuiltIn() {
		text, err := document.Encode(f)
		if err != nil {
			return nil, err
		}
		all[f.Name] = definition{f, "built in", text}
	}
	for name, doc := range docs.Current() {
		f, err := broker.ParseFeed([]byte(doc.Body))
		if err != nil {
			return nil, fmt.Errorf("feed %s: %w", name, err)
		}
		all[name] = definition{f, fmt.Sprintf("cluster, version %d", doc.Version), []byte(doc.Body)}
	}
	return all, nil
}

func listFeeds(_ context.Context, w io.Writer, docs *cluster.Documents, _ []string) error {
	all, err := definitions(docs)
	if err != nil {
		return err
	}
	var names []string
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tMODEL\tTYPES\tORIGIN")
	for _, name := range names {
		f := all[name]
		types := "all"
		if len(f.Types) > 0 {
			types = strings.Trim(fmt.Sprint(f.Types), "[]")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, f.Model, types, f.origin)
	}
	return t.Flush()
}

func showFeed(_ context.Context, w io.Writer, docs *cluster.Documents, args []string) error {
	all, err := definitions(docs)
	if err != nil {
		return err
	}
	f, ok := all[args[0]]
	if !ok {
		return fmt.Errorf("no feed %q; see millrace feed list", args[0])
	}
	fmt.Fprintf(w, "# %s\n%s", f.origin, f.text)
	return nil
}

// diffFeed compares definitions by what they mean, a field a line.
func diffFeed(_ context.Context, w io.Writer, docs *cluster.Documents, args []string) error {
	file, err := document.ReadFile(args[0])
	if err != nil {
		return err
	}
	next, err := broker.ParseFeed(file)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	all, err := definitions(docs)
	if err != nil {
		return err
	}
	before, after := "", ""
	if f, ok := all[next.Name]; ok {
		text, err := document.Encode(f.Feed)
		if err != nil {
			return err
		}
		before = string(text)
	}
	text, err := document.Encode(next)
	if err != nil {
		return err
	}
	after = string(text)
	old, changed := strings.Split(before, "\n"), strings.Split(after, "\n")
	same := true
	for _, line := range old {
		if !slices.Contains(changed, line) {
			same = false
			fmt.Fprintln(w, "-", line)
		}
	}
	for _, line := range changed {
		if !slices.Contains(old, line) {
			same = false
			fmt.Fprintln(w, "+", line)
		}
	}
	if same {
		fmt.Fprintln(w, "no change")
	}
	return nil
}

func dropFeed(ctx context.Context, w io.Writer, docs *cluster.Documents, args []string) error {
	if _, ok := docs.Current()[args[0]]; !ok {
		return fmt.Errorf("the cluster has no definition of %q; see millrace feed list", args[0])
	}
	if err := docs.Delete(ctx, args[0]); err != nil {
		return err
	}
	fmt.Fprintf(w, "feed %s is dropped\n", args[0])
	return nil
}
