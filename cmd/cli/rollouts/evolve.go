package rollouts

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/leans"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/schemafiles"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// review checks a new schema against the known schemas, and against the feeds, models and
// experiments that read their fields.
type review struct {
	cm    *clusters.Flags
	out   io.Writer
	force bool // the schema may lose fields that are read
	// accept is the command's flag that sets force; "" for a command that only looks.
	accept string
	found  reviewed // what the check has found
}

// Review returns a function that checks a schema before it is published. It prints to out
// what the schema would change and who reads that, and refuses a schema that loses a
// field which something reads, unless force is set. accept is the command's flag that
// sets force; refusals name it.
func Review(cm *clusters.Flags, out io.Writer, force bool, accept string) func(context.Context, *registry.Snapshot, *schemas.Schema) error {
	return (&review{cm: cm, out: out, force: force, accept: accept}).schema
}

// reviewed is what schema check shows, as JSON.
type reviewed struct {
	Schema      string          `json:"schema"`
	Fingerprint string          `json:"fingerprint"`
	Fits        bool            `json:"fits"` // the schema is not refused
	Changes     []reviewedField `json:"changes"`
	Unasked     string          `json:"readers_unknown,omitempty"` // why it is not known who reads the fields
}

// reviewedField is one change of a field.
type reviewedField struct {
	Field  string       `json:"field"`
	What   schemas.What `json:"what"`
	Detail string       `json:"detail,omitempty"`
	Loses  bool         `json:"loses"`   // records of the new schema lack the field
	ReadBy []string     `json:"read_by"` // feeds, models and experiments
}

// orAccept returns wayOut, a text that says what to do about a refusal. If the command has
// a flag that accepts the loss, the text names it too.
func (r *review) orAccept(wayOut string) string {
	if r.accept != "" {
		wayOut += ", or say " + r.accept + " if it is meant"
	}
	return wayOut
}

// schema prints what a schema would change and who reads that. Unless force is set, it
// refuses a schema that loses a field which is read by a feed or a model that serves, or
// by the outcomes of an experiment that runs or is paused. It then also refuses a retired
// schema, and one that loses a field while it is not known who reads it.
func (r *review) schema(ctx context.Context, known *registry.Snapshot, add *schemas.Schema) error {
	if known.Retired(add.Fingerprint()) && !r.force {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "schema", Detail: fmt.Sprintf("schema %s %s is retired: fields that it alone has are not read", add.Name(), add.Fingerprint()),
			WayOut: r.orAccept("use another schema of the name")}
	}
	changes, err := known.Changes(add)
	if err != nil {
		return err
	}
	loses := slices.ContainsFunc(changes, schemas.Change.Loses)
	var all []reader
	var unasked error
	if slices.ContainsFunc(changes, func(c schemas.Change) bool { return c.What != schemas.Added }) {
		if all, unasked = readers(ctx, r.cm, known); unasked != nil && !loses {
			fmt.Fprintf(r.out, "who reads these fields is not known: %v\n", unasked)
		}
		r.found.Unasked = display.FaultText(unasked)
	}
	var lost []string
	for _, c := range changes {
		by := readersOf(all, add, c)
		r.found.Changes = append(r.found.Changes, reviewedField{c.Path(), c.What, c.Detail, c.Loses(), display.List(by)})
		fmt.Fprintf(r.out, "schema %s %s\n", add.Name(), c)
		if len(by) > 0 {
			fmt.Fprintf(r.out, "  read by %s\n", strings.Join(by, ", "))
		}
		if c.Loses() && len(by) > 0 {
			lost = append(lost, fmt.Sprintf("%s (%s)", c.Field, strings.Join(by, ", ")))
		}
	}
	switch {
	case r.force:
	case loses && unasked != nil:
		return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: fmt.Sprintf("the schema loses fields, and which feeds, models and experiments read them cannot be asked: %v", unasked),
			WayOut: r.orAccept("start etcd, or name the cluster by --etcd and --cluster")}
	case len(lost) > 0:
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "schema", Detail: fmt.Sprintf("records of this %s would lack what is read: %s", add.Name(), strings.Join(lost, "; ")), WayOut: r.orAccept("keep the field, or rename it by an alias")}
	}
	return nil
}

// reader is a feed or a model that serves, or an experiment that runs or is paused, with
// the fields that it reads.
type reader struct {
	name   string
	fields []string // such as record.likes
	// of reports whether it reads fields of a schema below a root: record, entity or
	// object.
	of func(schema string, root string) bool
}

// readersOf returns the names of the readers of the field of the schema add that c changes.
func readersOf(all []reader, add *schemas.Schema, c schemas.Change) (names []string) {
	roots := []string{"record"}
	if c.Features {
		roots = []string{"entity", "object"}
	}
	for _, r := range all {
		for _, root := range roots {
			if slices.Contains(r.fields, root+"."+c.Field) && r.of(add.Name(), root) && !slices.Contains(names, r.name) {
				names = append(names, r.name)
			}
		}
	}
	return names
}

// readers returns the feeds and models that serve, built-in models included, and the
// experiments that run or are paused and have outcomes; by name. What cannot be read is
// logged and left out.
func readers(ctx context.Context, cm *clusters.Flags, known *registry.Snapshot) (all []reader, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cl, err := cm.OpenReadOnly(ctx)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	all = builtInReaders()
	for _, kind := range []struct {
		kind string
		read func(v artefacts.Version, body []byte, known *registry.Snapshot) (reader, error)
	}{{feeds.Kind, feedReader}, {indexnode.ModelsKind, modelReader}} {
		a, err := artefacts.Watch(ctx, cl, kind.kind)
		if err != nil {
			return nil, err
		}
		for _, v := range a.Serving() {
			body, err := a.Body(ctx, v)
			if errors.Is(err, cluster.ErrAway) {
				return nil, err
			}
			var one reader
			if err == nil {
				one, err = kind.read(v, body, known)
			}
			if err != nil {
				slog.Warn("what this reads is not known", "kind", kind.kind, "version", v.String(), "err", err)
				continue
			}
			all = append(all, one)
		}
	}
	set, err := leans.ExperimentSet(ctx, cl)
	if err != nil {
		return nil, err
	}
	for _, d := range set.Experiments() {
		e := &d.Experiment
		if e.Outcomes != nil && (e.State == experiment.Running || e.State == experiment.Paused) {
			all = append(all, outcomesReader(e, known))
		}
	}
	slices.SortFunc(all, func(a, b reader) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// outcomesReader returns an experiment as a reader. An outcome is a record of what a
// viewer did with an item; the experiment reads from a field of the outcome which answer it
// belongs to. No configuration says which schemas the topic of outcomes has. So every
// schema counts that gives a field the role object (the thing that a record is about).
func outcomesReader(e *experiment.Experiment, known *registry.Snapshot) reader {
	return reader{name: "outcomes of experiment " + e.Name, fields: []string{"record." + e.Outcomes.Field()}, of: func(schema, _ string) bool {
		f := known.Family(schema)
		return f != nil && slices.ContainsFunc(f.Schemas(), func(s *schemas.Schema) bool { return s.Roles().Object.Name != "" })
	}}
}

// builtIn begins the name of a reader that is part of every binary, a built-in model.
const builtIn = "built-in model "

func anySchema(string, string) bool { return true }

func feedReader(v artefacts.Version, body []byte, known *registry.Snapshot) (reader, error) {
	f, err := feeds.Parse(body)
	r := reader{name: "feed " + v.Name, of: anySchema}
	if err != nil || f.Filter == "" {
		return r, err
	}
	compiled, err := filter.Compile(f.Filter, filter.EnvOf(known))
	if err == nil {
		r.fields = compiled.Fields()
	}
	return r, err
}

func modelReader(v artefacts.Version, body []byte, known *registry.Snapshot) (reader, error) {
	pack, err := modelpack.Read(bytes.NewReader(body))
	if err != nil {
		return reader{}, err
	}
	m, err := modelpack.Validate(pack, relevance.SchemasOf(known))
	if err != nil {
		return reader{}, err
	}
	return readerOf("model "+v.Name, m), nil
}

// KeepsReaders refuses a change of the known schemas, such as retiring one, after which no
// schema would have a field that a feed, a serving model or an experiment reads.
func KeepsReaders(ctx context.Context, cm *clusters.Flags, known, after *registry.Snapshot) error {
	cl, err := cm.OpenReadOnly(ctx)
	var lost []string
	if err == nil {
		defer cl.Close()
		lost, err = lostReaders(ctx, cm, cl, known, after)
	}
	if err != nil {
		return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: fmt.Sprintf("which feeds, models and experiments read the schema cannot be asked: %v", err), WayOut: "start etcd, or name the cluster by --etcd and --cluster"}
	}
	if len(lost) == 0 {
		return nil
	}
	way := "change, stop or drop these first"
	if slices.ContainsFunc(lost, func(s string) bool { return strings.HasPrefix(s, builtIn) }) {
		way = "keep the schema, or have one with these fields first: built-in models stay"
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "schema", Detail: "what no schema would have then is read by " + strings.Join(lost, "; "), WayOut: way}
}

// lostReaders returns a line for each feed, model and experiment that finds all its
// fields in the known schemas but would not after the change, and why.
func lostReaders(ctx context.Context, cm *clusters.Flags, cl *cluster.Client, known, after *registry.Snapshot) (lost []string, err error) {
	seen, err := cl.Watch(ctx)
	if err == nil && seen.Current().Epoch() == 0 { // the name may be mistyped
		err = fmt.Errorf("no cluster %s has ever been assigned there", cm.Name())
	}
	if err != nil {
		return nil, err
	}
	serves, err := leans.OpenServing(ctx, cl)
	if err != nil {
		return nil, err
	}
	r := &rollout{Serving: serves}
	all, err := r.Feeds.Definitions(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if f := all[name]; f.Filter != "" && leans.FilterFits(f.Filter, known) == nil {
			if err := leans.FilterFits(f.Filter, after); err != nil {
				lost = append(lost, fmt.Sprintf("feed %s: %v", name, err))
			}
		}
	}
	now, then := relevance.SchemasOf(known), relevance.SchemasOf(after)
	for _, name := range r.Models.Names() {
		v, serves := r.Models.Served(name)
		if !serves {
			continue
		}
		pack, err := r.pack(ctx, v)
		if err != nil {
			slog.Warn("what this reads is not known", "version", v.String(), "err", err)
			continue
		}
		if _, err := modelpack.Validate(pack, now); err != nil {
			continue
		}
		if _, err := modelpack.Validate(pack, then); err != nil {
			uses, unread := r.uses(ctx, name)
			if unread != nil {
				return nil, unread
			}
			why, _, _ := strings.Cut(err.Error(), "\n")
			lost = append(lost, fmt.Sprintf("model %s, of %s: %s", v, cmp.Or(strings.Join(uses, ", "), "no feed"), why))
		}
	}
	for _, model := range builtInReaders() {
		for _, f := range known.Families() {
			for _, field := range model.fields {
				root, name, _ := strings.Cut(field, ".")
				if model.of(f.Name(), root) && f.Layout().Index(name) >= 0 && after.Family(f.Name()).Layout().Index(name) < 0 {
					lost = append(lost, fmt.Sprintf("%s: %s", model.name, field))
				}
			}
		}
	}
	err = r.Feeds.KeepsFilters(ctx, known, after)
	if kept := (*millrace.Error)(nil); errors.As(err, &kept) && kept.Field == "experiment" {
		return append(lost, kept.Detail), nil
	}
	return lost, err
}

// builtInReaders returns the built-in models as readers.
func builtInReaders() (all []reader) {
	builtin := relevance.Builtin()
	for _, name := range builtin.Names() {
		if m, err := builtin.Get(name); err == nil {
			all = append(all, readerOf(builtIn+name, m))
		}
	}
	return all
}

func readerOf(name string, m *relevance.Model) reader {
	s := m.Spec()
	r := reader{name: name, of: func(schema, root string) bool {
		switch root {
		case "entity":
			return s.Entity == schema
		case "object":
			return s.Object == schema
		}
		return slices.Contains(s.Schemas, schema)
	}}
	for _, f := range s.Features {
		r.fields = f.Tree.Fields(r.fields)
	}
	return r
}

// SchemaCheck returns the command schema check, which says what a schema would change,
// and who reads that.
func SchemaCheck(l *reach.LogFlags) *cobra.Command {
	c := &cobra.Command{
		Use:   "check FILE.avsc",
		Short: "Say what a schema would change, and which feeds, models and experiments read it",
		Long: `Compares a schema with those of the log: what it adds, renames, widens, drops and
retypes, what else of a type is another, and which of the feeds and models that
serve, and of the experiments that run (the answer_field of their outcomes), read
these fields. It fails where the schema is refused, and where records of it would
lack what one of them reads; "millrace load" refuses it then. It changes nothing.`,
		Args: cobra.ExactArgs(1),
	}
	var output display.Form
	display.Flag(c, &output)
	cm := clusters.FlagsOf(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		s, err := schemafiles.Read(args[0])
		if err != nil {
			return err
		}
		ctx, cancel := l.Bound(c.Context())
		defer cancel()
		return l.WithSchemas(ctx, func(_ *schemalog.Log, known *registry.Snapshot) error {
			w := c.OutOrStdout()
			r := review{cm: cm, out: w, found: reviewed{Schema: s.Name(), Fingerprint: s.Fingerprint().String(), Changes: []reviewedField{}}}
			if output.JSON() {
				r.out = io.Discard
			}
			err := r.schema(ctx, known, s)
			r.found.Fits = err == nil
			return errors.Join(err, output.Write(w, &r.found, func(w io.Writer) error {
				if err == nil {
					fmt.Fprintf(w, "schema %s %s takes nothing from what serves\n", s.Name(), s.Fingerprint())
				}
				return nil
			}))
		})
	}
	return c
}
