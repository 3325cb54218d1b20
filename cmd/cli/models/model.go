// Package models has the commands for models in files: to check, seal, show, compare and
// replay them. The commands for the models of a cluster are in package rollouts. A pack is
// a directory with a model that was sealed: it has a manifest with checksums. A spec is the
// file of a model that names its features and how they make a score. Golden rows are examples
// of records with the features and the score that the model has to give them.
//
// To replay a model, the replayed model, is to rank pages again by it that viewers were shown,
// from a file of exposures, the records of answers. The measures (such as NDCG) say how well
// the items that viewers acted on rank. The estimates say on how many items of a page viewers
// would act if the model ranked; they need an experiment, whose variants showed pages by
// chance, and count the first page of each viewer.
package models

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/schemafiles"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas/registry"
)

// Command returns the command model. Beside the commands of this package it has those that
// rollouts returns, for the models of a cluster.
func Command(rollouts func(avsc *[]string) []*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   "model",
		Short: "Check, seal and roll out relevance models",
		Long: `A model is a directory with spec.yaml, what it names (a LightGBM or XGBoost
file), golden.ndjson (rows of features and the score they should give) and
card.md. "seal" checks it and writes its manifest: a pack. "push" hands the
pack to every index node and lets it serve once all have admitted it, without a
build or restart. Versions never change and stand beside each other; "rollback"
lets the one serve that served before.`,
	}
	var avsc []string
	c.PersistentFlags().StringSliceVar(&avsc, "schema", nil, ".avsc files that specs name, beside those that ship; of one name in the order in which they come into use")
	c.AddCommand(
		display.Looking(&cobra.Command{
			Use: "validate PACK|SPEC.yaml", Short: "Check a pack, a directory to be sealed, or a spec, and report every fault", Args: cobra.ExactArgs(1),
		}, func(c *cobra.Command, output *display.Form, args []string) error {
			return validateModel(c.OutOrStdout(), output, args[0], avsc)
		}),
		&cobra.Command{
			Use: "seal DIR", Short: "Make a pack of a directory: check everything and write its manifest", Args: cobra.ExactArgs(1),
			RunE: func(c *cobra.Command, args []string) error { return Seal(c.OutOrStdout(), args[0], avsc) },
		},
		goldenCommand(&avsc), featuresCommand(&avsc), replayCommand(&avsc),
		display.Looking(&cobra.Command{
			Use: "show PACK|SPEC.yaml|NAME", Short: "Features, weights and card of a pack, a spec, or a built-in model", Args: cobra.ExactArgs(1),
		}, func(c *cobra.Command, output *display.Form, args []string) error {
			return showModel(c.OutOrStdout(), output, args[0], avsc)
		}),
		display.Looking(&cobra.Command{
			Use: "diff OLD NEW", Short: "What a new model changes, and how far the scores move", Args: cobra.ExactArgs(2),
		}, func(c *cobra.Command, output *display.Form, args []string) error {
			return diffModels(c.OutOrStdout(), output, args[0], args[1], avsc)
		}),
		&cobra.Command{
			Use: "bench PACK|SPEC.yaml|NAME", Short: "What scoring a record costs, as it serves here and interpreted", Args: cobra.ExactArgs(1),
			Long: `Scores the golden rows of a pack, or those beside a spec, over and over: their
records, for their viewers and entities. Where none has a record it makes up
records of the spec's schemas and a viewer who has all that the spec reads; so
lists have 32 items, whatever yours have. It says which of the two it scored.`,
			RunE: func(c *cobra.Command, args []string) error { return benchModel(c.OutOrStdout(), args[0], avsc) },
		},
	)
	c.AddCommand(rollouts(&avsc)...)
	return c
}

// openModel returns the model that name means: that of a pack, of a directory that is not
// sealed yet, of a spec, or a built-in one. avsc are files of further schemas. The pack is
// nil if the model is not of a pack.
func openModel(name string, avsc []string) (*relevance.Model, *modelpack.Pack, error) {
	snapshot, err := schemafiles.Snapshot(avsc)
	if err != nil {
		return nil, nil, err
	}
	return modelAmong(name, snapshot)
}

// modelAmong is openModel with the schemas of snapshot.
func modelAmong(name string, snapshot *registry.Snapshot) (*relevance.Model, *modelpack.Pack, error) {
	known := relevance.SchemasOf(snapshot)
	info, err := os.Stat(name)
	switch {
	case isName(name):
		m, err := relevance.Builtin().Get(name)
		if err != nil {
			err = fmt.Errorf("%w; a NAME is of a built-in model, and anything else a file or directory: what serves in a cluster is written to one by millrace model pull %s", err, name)
		}
		return m, nil, err
	case err != nil:
		return nil, nil, err
	case strings.HasSuffix(name, ".yaml"):
		m, err := relevance.ParseFile(os.DirFS(filepath.Dir(name)), filepath.Base(name), known)
		return m, nil, err
	case info.IsDir() && !isThere(filepath.Join(name, modelpack.ManifestFile)):
		m, err := relevance.ParseFile(os.DirFS(name), modelpack.SpecFile, known)
		if _, unknown := relevance.Builtin().Get(name); err != nil && unknown == nil {
			err = fmt.Errorf("%w; that is of the directory %s here, which goes before a model of that name", err, name)
		}
		return m, nil, err
	}
	p, err := modelpack.Open(name)
	if err != nil {
		return nil, nil, err
	}
	m, err := modelpack.Validate(p, known)
	return m, p, err
}

// isName reports whether name can only be the name of a model, and not a file or directory
// with one.
func isName(name string) bool {
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return plainName(name) && !isThere(filepath.Join(name, modelpack.ManifestFile)) && !isThere(filepath.Join(name, modelpack.SpecFile))
	}
	return plainName(name) && !isThere(name)
}

// plainName reports whether name has the form of a model's name. A file may have such a name
// as well.
func plainName(name string) bool { return !strings.ContainsAny(name, "./") }

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkGenerated returns what is wrong with the generated code that this binary has for the
// model of a pack; nil for a spec that is not sealed.
func checkGenerated(m *relevance.Model, p *modelpack.Pack, avsc []string) error {
	if p == nil {
		return nil
	}
	known, err := schemafiles.Snapshot(avsc)
	if err != nil {
		return err
	}
	return p.CheckGenerated(m, relevance.SchemasOf(known))
}

func validateModel(w io.Writer, output *display.Form, name string, avsc []string) error {
	m, p, err := openModel(name, avsc)
	if err != nil {
		return err
	}
	if why := checkGenerated(m, p, avsc); why != nil {
		return &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "model", Detail: fmt.Sprintf("the generated code that this binary has for %s %s is not that of its spec: %v", m.Name(), m.Version(), why),
			WayOut: "run millrace generate, and build again; the spec and its golden rows agree",
		}
	}
	execution, err := executionOf(m, avsc)
	if err != nil {
		return err
	}
	shown := struct {
		Name       string `json:"name"`
		Version    string `json:"version"`
		Scorer     string `json:"scorer"`
		Features   int    `json:"features"`
		Operations int    `json:"operations"` // how many it takes to score a record
		Execution  string `json:"execution"`  // how this binary scores by it: generated or interpreted
		Sealed     bool   `json:"sealed"`     // the model is of a pack, whose golden rows (examples with their scores) were checked
	}{m.Name(), m.Version(), m.Spec().Scorer(), len(m.Spec().Features), m.Cost(), execution, p != nil}
	return output.Write(w, shown, func(w io.Writer) error {
		fmt.Fprintf(w, "%s %s: %s of %d features, %d operations a record, %s here: fit to serve", shown.Name, shown.Version, shown.Scorer, shown.Features, shown.Operations, shown.Execution)
		if !shown.Sealed {
			fmt.Fprint(w, "; not sealed, golden rows not checked")
		}
		_, err := fmt.Fprintln(w)
		return err
	})
}

// executionOf returns how this binary scores by a model: "generated" if it has the generated
// code for every schema that the spec names, and otherwise "interpreted".
func executionOf(m *relevance.Model, avsc []string) (string, error) {
	snapshot, err := schemafiles.Snapshot(avsc)
	if err != nil {
		return "", err
	}
	known := relevance.SchemasOf(snapshot)
	rows := []*column.Layout{relevance.RoleLayout()}
	if of := m.Spec().Schemas; len(of) > 0 {
		rows = nil
		for _, name := range of {
			rows = append(rows, known[name].Layout)
		}
	}
	execution := ""
	for _, l := range rows {
		s, err := m.Bind(l, known[m.Spec().Entity].Layout, nil, 0)
		if err != nil {
			return "", err
		}
		if execution = s.Execution(); execution != "generated" {
			break
		}
	}
	return execution, nil
}

// Seal makes a pack of the directory dir: it checks everything, writes the manifest, and
// prints a line to w. avsc are files of further schemas.
func Seal(w io.Writer, dir string, avsc []string) error {
	known, err := schemafiles.Snapshot(avsc)
	if err != nil {
		return err
	}
	p, err := modelpack.Seal(dir, relevance.SchemasOf(known))
	if err != nil {
		return err
	}
	sum, err := p.Sum()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s %s is sealed: %d files, checksum %.12s\n", p.Manifest.Name, p.Manifest.Version, len(p.Manifest.Files)+1, sum)
	return nil
}

// modelShown is what the command model show prints.
type modelShown struct {
	Name     string         `json:"name"`
	Version  string         `json:"version"`
	Scorer   string         `json:"scorer"`
	About    string         `json:"about"`
	Features []featureShown `json:"features"`
	Card     string         `json:"card,omitempty"` // the text card.md of a pack; "" without a pack
}

type featureShown struct {
	Name       string `json:"name"`
	Weight     any    `json:"weight,omitempty"` // a number, or a table of them
	Expression string `json:"expression"`
	weight     string // Weight as text; "" without one
}

func showModel(w io.Writer, output *display.Form, name string, avsc []string) error {
	m, p, err := openModel(name, avsc)
	if err != nil {
		return err
	}
	shown := modelShown{Name: m.Name(), Version: m.Version(), Scorer: m.Spec().Scorer(), About: m.Spec().About, Features: []featureShown{}}
	for _, f := range m.Spec().Features {
		of := featureShown{Name: f.Name, Expression: strings.Join(strings.Fields(f.Source), " ")}
		if x, ok := m.Parameters().Weights[f.Name]; ok {
			of.Weight, of.weight = x.Number(), x.String()
		}
		shown.Features = append(shown.Features, of)
	}
	if p != nil {
		shown.Card = p.Card
	}
	return output.Write(w, shown, shown.write)
}

func (m *modelShown) write(w io.Writer) error {
	fmt.Fprintf(w, "%s %s, %s\n%s\n\n", m.Name, m.Version, m.Scorer, m.About)
	t := display.NewTable(w)
	t.Printf("FEATURE\tWEIGHT\tEXPRESSION\n")
	for _, f := range m.Features {
		t.Printf("%s\t%s\t%s\n", f.Name, f.weight, f.Expression)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if m.Card != "" {
		fmt.Fprintf(w, "\n%s\n", m.Card)
	}
	return nil
}

func diffModels(w io.Writer, output *display.Form, before, after string, avsc []string) error {
	a, pack, err := openModel(before, avsc)
	if err != nil {
		return err
	}
	b, _, err := openModel(after, avsc)
	if err != nil {
		return err
	}
	var golden []modelpack.Golden
	if pack != nil {
		if golden, err = pack.GoldenRows(); err != nil {
			return err
		}
	}
	changes := modelpack.Diff(a, b, golden)
	return output.Write(w, display.List(changes), func(w io.Writer) error {
		for _, c := range changes {
			fmt.Fprintln(w, c)
		}
		if len(changes) == 0 {
			fmt.Fprintln(w, "no change: they compute the same")
		}
		return nil
	})
}

// benchRows is how many records a benchmark scores at a time, about as many as a few timelines
// have.
const benchRows = 1024

func benchModel(w io.Writer, name string, avsc []string) error {
	snapshot, err := schemafiles.Snapshot(avsc)
	if err != nil {
		return err
	}
	m, pack, err := modelAmong(name, snapshot)
	if err != nil {
		return err
	}
	known := relevance.SchemasOf(snapshot)
	rows, err := goldenBeside(name, pack)
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(g modelpack.Golden) bool { return g.Record == nil })
	told := fmt.Sprintf("records of %d golden rows, for their viewers", len(rows))
	if len(rows) == 0 {
		rows, known = modelpack.MadeUp(m, known)
		told = "made-up records, with every field filled, for a viewer who has all that the spec reads"
	}
	for _, as := range []*relevance.Model{m, m.Interpreted()} {
		load, err := modelpack.NewWorkload(as, rows, known, benchRows)
		if err != nil {
			return err
		}
		if as == m {
			fmt.Fprintf(w, "%d at a time, %s\n", load.Records, told)
		}
		load.Score() // the first call takes memory that later calls use again
		r := testing.Benchmark(func(b *testing.B) {
			for b.Loop() {
				load.Score()
			}
		})
		fmt.Fprintf(w, "%-12s %8.1f ns a record, %d allocations\n", load.Execution(), float64(r.NsPerOp())/float64(load.Records), r.AllocsPerOp())
		if load.Execution() == "interpreted" {
			break
		}
	}
	return nil
}

// goldenBeside returns the golden rows of a pack, or those in the directory of a spec,
// if there are any.
func goldenBeside(name string, pack *modelpack.Pack) ([]modelpack.Golden, error) {
	if pack != nil {
		return pack.GoldenRows()
	}
	if isName(name) {
		return nil, nil
	}
	dir := name
	if strings.HasSuffix(name, ".yaml") {
		dir = filepath.Dir(name)
	}
	file := filepath.Join(dir, modelpack.GoldenFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return modelpack.ReadGolden(file, text)
}
