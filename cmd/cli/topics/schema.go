package topics

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/rollouts"
	"github.com/millrace/millrace/cmd/cli/schemafiles"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/schemas/registry"
)

// Schema returns the command schema, which lists, checks, defines, retires and gives up
// schemas.
func Schema() *cobra.Command {
	c := &cobra.Command{Use: "schema", Short: "List, check and define the schemas of the log, and give up one that will never come"}
	l := reach.LogFlagsOf(c.PersistentFlags())
	c.AddCommand(schemaList(l), rollouts.SchemaCheck(l), schemaDefine(l), schemaRetire(l), schemaRefuse(l))
	return c
}

func schemaList(l *reach.LogFlags) *cobra.Command {
	return display.Looking(&cobra.Command{
		Use:   "list",
		Short: "List every schema in the schemas topic, and every fingerprint that was given up",
		Args:  cobra.NoArgs,
	}, func(c *cobra.Command, output *display.Form, _ []string) error {
		ctx, cancel := l.Bound(c.Context())
		defer cancel()
		return l.WithSchemas(ctx, func(log *schemalog.Log, known *registry.Snapshot) error {
			shown := schemasShownOf(log, known)
			return output.Write(c.OutOrStdout(), shown, shown.write)
		})
	})
}

// schemasShown is what schema list shows.
type schemasShown struct {
	Schemas []schemaShown `json:"schemas"`
	Notes   []string      `json:"notes"` // on fields that different schemas give different types
}

// schemaShown is a schema, or a fingerprint that was given up, in schema list.
type schemaShown struct {
	Fingerprint string `json:"fingerprint"`
	Name        string `json:"name,omitempty"`
	State       string `json:"state"`        // known, retired or refused
	By          string `json:"by,omitempty"` // who retired or refused it
	At          string `json:"at,omitempty"` // and when
}

func schemasShownOf(log *schemalog.Log, known *registry.Snapshot) *schemasShown {
	shown := &schemasShown{Schemas: []schemaShown{}, Notes: []string{}}
	add := func(fp millrace.Fingerprint, name, state string) {
		word, at := log.Word(fp), ""
		if !word.At.IsZero() {
			at = display.ShortTime(word.At)
		}
		shown.Schemas = append(shown.Schemas, schemaShown{fp.String(), name, state, display.Printable(word.By), at})
	}
	for _, s := range known.All() {
		state := "known"
		if known.Retired(s.Fingerprint()) {
			state = "retired"
		}
		add(s.Fingerprint(), s.Name(), state)
	}
	for _, fp := range log.AllRefused() {
		add(fp, "", "refused")
	}
	for _, f := range known.Families() {
		for _, c := range f.Clashes() {
			shown.Notes = append(shown.Notes, fmt.Sprint(c))
		}
	}
	for _, c := range known.Disagreements() {
		shown.Notes = append(shown.Notes, c.String())
	}
	return shown
}

func (all *schemasShown) write(w io.Writer) error {
	table := display.NewTable(w)
	table.Printf("FINGERPRINT\tNAME\tSTATE\tBY\tAT\n")
	for _, s := range all.Schemas {
		table.Printf("%s\t%s\t%s", s.Fingerprint, s.Name, s.State)
		if s.By+s.At != "" {
			table.Printf("\t%s", s.By)
		}
		if s.At != "" {
			table.Printf("\t%s", s.At)
		}
		table.Printf("\n")
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, n := range all.Notes {
		display.Printf(w, "NOTE: %s\n", n)
	}
	return nil
}

func schemaDefine(l *reach.LogFlags) *cobra.Command {
	var loss bool
	c := &cobra.Command{
		Use:   "define FILE.avsc",
		Short: "Make a schema known to the cluster before there is a record of it",
		Long: `Writes a schema into the topic of schemas, for good, as "load" does with the first
record of it: so that a model, a feed or an experiment that reads its fields can be
brought in first. It is held against what is known and what serves as by "load":
what it changes is printed, and it is refused if it does not go with earlier ones of
its name, or if records of it would lack a field that a feed or a model which serves
reads. One that is known already changes nothing.`,
		Args: cobra.ExactArgs(1),
	}
	cm := clusters.FlagsOf(c.Flags())
	c.Flags().BoolVar(&loss, "accept-loss", false, "define it even if it takes a field from what serves")
	c.RunE = func(c *cobra.Command, args []string) error {
		s, err := schemafiles.Read(args[0])
		if err != nil {
			return err
		}
		ctx, cancel := l.Bound(c.Context())
		defer cancel()
		w := c.OutOrStdout()
		return l.WithSchemas(ctx, func(log *schemalog.Log, known *registry.Snapshot) error {
			state := "defined"
			if log.Has(s.Fingerprint()) {
				state = "known already"
			}
			if err := rollouts.Review(cm, w, loss, "--accept-loss")(ctx, known, s); err != nil {
				return err
			}
			if err := log.Publish(ctx, s); err != nil {
				return err
			}
			fmt.Fprintf(w, "schema %s %s is %s\n", s.Name(), s.Fingerprint(), state)
			return nil
		})
	}
	return c
}

func schemaRetire(l *reach.LogFlags) *cobra.Command {
	c := &cobra.Command{
		Use:   "retire FINGERPRINT",
		Short: "Take a schema out of what shapes the records of its name",
		Long: `A schema that was a mistake leaves columns, aliases and defaults, and schemas to
come must read its records. This takes all that back, on every node, from one
moment to the next, and for good. Its records stay readable, in the fields that
other schemas of the name have. The last schema of a name stays.

It is refused while a feed, a model that serves or an experiment that has not
stopped reads what no schema would have then: it names them.`,
	}
	cm := clusters.FlagsOf(c.Flags())
	show := func(ctx context.Context, w io.Writer, log *schemalog.Log, known *registry.Snapshot, fp millrace.Fingerprint) error {
		return showRetirement(ctx, w, cm, log, known, fp)
	}
	return schemaWord(l, word{show: show, give: schemalog.Retire, done: "retired: it shapes nothing any more"}, c)
}

func schemaRefuse(l *reach.LogFlags) *cobra.Command {
	return schemaWord(l, word{show: showRefusal, give: schemalog.Refuse, done: "given up: its records are passed over"}, &cobra.Command{
		Use:   "refuse FINGERPRINT",
		Short: "Give up a schema that will never come, so that index nodes get past its records",
		Long: `Index nodes wait for the schema of a record that they cannot read yet. Where it
will never come, this lets every index node pass over the records of that
fingerprint, now and later, and for good. A schema of it is refused from then on.`,
	})
}

// word is what an operator says about a fingerprint to the whole cluster, for good: that its
// schema is retired, or that no schema of it will come.
type word struct {
	// show writes what the word would do. Its error says why it must not be said.
	show func(ctx context.Context, w io.Writer, log *schemalog.Log, known *registry.Snapshot, fp millrace.Fingerprint) error
	// give writes the word into the topic of schemas.
	give func(ctx context.Context, at kafka.Brokers, topic string, fp millrace.Fingerprint, by string) error
	done string // what has become of the schema then, for the user
}

// schemaWord makes c a command that gives a word on the fingerprint that is its argument.
func schemaWord(l *reach.LogFlags, say word, c *cobra.Command) *cobra.Command {
	var a command.Act
	c.Args = cobra.ExactArgs(1)
	c.RunE = func(c *cobra.Command, args []string) error {
		fp, err := schemalog.ParseFingerprint(args[0])
		if err != nil {
			return err
		}
		ctx, cancel := l.Bound(c.Context())
		defer cancel()
		err = l.WithSchemas(ctx, func(log *schemalog.Log, known *registry.Snapshot) error {
			return say.show(ctx, c.OutOrStdout(), log, known, fp)
		})
		if err != nil {
			return err
		}
		if ok, err := a.Meant(c); !ok {
			return err
		}
		ctx, again := l.Bound(c.Context()) // a new one, since the user may have taken long to agree
		defer again()
		if err := say.give(ctx, l.At(ctx), l.Topics().Schemas, fp, clusters.Who()); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "schema %s is %s\n", fp, say.done)
		return nil
	}
	a.Flags(c)
	return c
}

// showRetirement is word.show for retiring a schema.
func showRetirement(ctx context.Context, w io.Writer, cm *clusters.Flags, log *schemalog.Log, known *registry.Snapshot, fp millrace.Fingerprint) error {
	if err := log.MayRetire(fp); err != nil {
		return err
	}
	name := known.ByFingerprint(fp).Name()
	if known.Retired(fp) {
		fmt.Fprintf(w, "schema %s %s is retired already\n", name, fp)
		return nil
	}
	after, err := known.Without(fp)
	if err != nil {
		return err
	}
	var gone []string
	for _, f := range known.Family(name).Layout().Fields() {
		if after.Family(name).Layout().Index(f.Name) < 0 {
			gone = append(gone, f.Name)
		}
	}
	fmt.Fprintf(w, "schema %s %s would shape nothing any more; %d others of the name do\n", name, fp, len(after.Family(name).Schemas()))
	if len(gone) > 0 {
		fmt.Fprintf(w, "fields that no schema has then: %s\n", strings.Join(gone, ", "))
	}
	return rollouts.KeepsReaders(ctx, cm, known, after)
}

// showRefusal is word.show for giving up a fingerprint.
func showRefusal(_ context.Context, w io.Writer, log *schemalog.Log, _ *registry.Snapshot, fp millrace.Fingerprint) error {
	if err := log.MayRefuse(fp); err != nil {
		return err
	}
	if log.Refused(fp) {
		fmt.Fprintf(w, "schema %s is given up already\n", fp)
		return nil
	}
	fmt.Fprintf(w, "every index node would pass over the records of schema %s, now and later, and no schema of it would be taken\n", fp)
	return nil
}
