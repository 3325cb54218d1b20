package models

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/schemafiles"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
)

func goldenCommand(avsc *[]string) *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "golden DIR|SPEC.yaml ROWS.ndjson",
		Short: "Complete rows that have a record with the features and the score that the spec gives them, to be checked",
		Long: `Writes the rows with the features and the score that the spec gives each, where
it has none. What a row has of them stays as it is, for "seal" to hold against
the spec: so rows that the training wrote may stand beside records alone. The
rows are written once all are complete, to standard output or to --out, which
may be the file that they were read from. Check what they say before "seal"
does: it can only tell that the spec gives what they have.`,
		Example: `  millrace model golden likes records.ndjson --out likes/golden.ndjson`,
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if file == "-" {
				return CompleteGolden(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), args[0], args[1], *avsc)
			}
			var rows bytes.Buffer
			if err := CompleteGolden(c.Context(), &rows, c.ErrOrStderr(), args[0], args[1], *avsc); err != nil {
				return err
			}
			if err := command.WriteFile(file, rows.Bytes()); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%d rows are in %s, to be checked\n", bytes.Count(rows.Bytes(), []byte("\n")), file)
			return nil
		},
	}
	c.Flags().StringVar(&file, "out", "-", "the file, such as DIR/golden.ndjson; - is standard output")
	return c
}

// CompleteGolden reads the rows in file, adds to each the features and the score that the
// spec gives it where it has none, and writes them to w in the form of golden.ndjson. It
// writes nothing before all rows are complete. name is a spec or a directory with one, avsc
// are files of further schemas, and told gets hints. The values are what the spec gives now:
// only a person can say whether they are right.
func CompleteGolden(ctx context.Context, w, told io.Writer, name, file string, avsc []string) error {
	snapshot, err := schemafiles.Snapshot(avsc)
	if err != nil {
		return err
	}
	known := relevance.SchemasOf(snapshot)
	spec := name
	if !strings.HasSuffix(name, ".yaml") {
		spec = filepath.Join(name, modelpack.SpecFile) // only the spec is read, even if the directory is a pack
	}
	m, err := relevance.ParseFile(os.DirFS(filepath.Dir(spec)), filepath.Base(spec), known)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	rows, err := modelpack.ReadGolden(file, text)
	if err != nil {
		return err
	}
	var all bytes.Buffer
	out := json.NewEncoder(&all)
	out.SetEscapeHTML(false)
	unread := unreadRows{}
	for i := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		unread.add(rows[i].Unread(m))
		if err := rows[i].Complete(m, known); err != nil {
			return fmt.Errorf("%s:%d: %w", file, i+1, err)
		}
		if err := out.Encode(rows[i]); err != nil {
			return err
		}
	}
	unread.tell(told, file)
	_, err = w.Write(all.Bytes())
	return err
}

// unreadRows counts the rows that give features which the spec does not read, by the field
// that they are given under.
type unreadRows map[string]int

func (u unreadRows) add(names []string) {
	for _, name := range names {
		u[name]++
	}
}

func (u unreadRows) tell(w io.Writer, file string) {
	for _, name := range slices.Sorted(maps.Keys(u)) {
		fmt.Fprintf(w, "%s: %d rows give features under %s, where the spec reads none: they are left out\n", file, u[name], name)
	}
}
