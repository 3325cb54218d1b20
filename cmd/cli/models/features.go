package models

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/display"
	"github.com/millrace/millrace/cmd/cli/schemafiles"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

func featuresCommand(avsc *[]string) *cobra.Command {
	var output display.Form
	var file string
	var keep []string
	c := &cobra.Command{
		Use:   "features PACK|SPEC.yaml|NAME",
		Short: "The features that a spec makes of records, to train on",
		Long: `Prints the features that the spec's expressions make of records, by the code
that serves: what a model is trained on, and no copy of it in another language.

A line of --records is as a golden row, {"record": {...}, "viewer": {...},
"as_of": ...}, with entity and object for a spec that reads those, and schema
where it has several. Values are of the types of the record's schema, as load
takes them. What else a line has, such as a label, --keep carries
over. A feature that has no value is empty in CSV and null in NDJSON.`,
		Example: `  millrace model features likes --records seen.ndjson --keep label > train.csv`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			m, _, err := openModel(args[0], *avsc)
			if err != nil {
				return err
			}
			snapshot, err := schemafiles.Snapshot(*avsc)
			if err != nil {
				return err
			}
			known := relevance.SchemasOf(snapshot)
			in, name := c.InOrStdin(), "standard input"
			if file != "-" {
				f, err := os.Open(file)
				if err != nil {
					return err
				}
				defer f.Close()
				in, name = f, file
			}
			var names []string
			for _, t := range m.FeatureTypes() {
				names = append(names, t.Name)
			}
			if err := checkKept(keep, names, output.Word == "ndjson"); err != nil {
				return err
			}
			buffered := bufio.NewWriter(c.OutOrStdout())
			var out vectors = &csvVectors{w: csv.NewWriter(buffered), titles: append(slices.Clip(keep), names...)}
			if output.Word == "ndjson" {
				out = &jsonVectors{w: buffered, kept: keep, names: names}
			}
			unread := unreadRows{}
			told := display.StartTeller(c.Context(), c.ErrOrStderr())
			err = command.EachLine(c.Context(), in, name, maxVectorLine, func(n int, line []byte) error {
				if n%1000 == 0 {
					told.Say(fmt.Sprintf("%d lines of %s", n, name))
				}
				row, kept, err := readVector(line, keep)
				if err != nil {
					return err
				}
				unread.add(row.Unread(m))
				features, err := row.Vector(m, known)
				if err != nil {
					return err
				}
				return out.write(kept, features)
			})
			told.Close()
			unread.tell(c.ErrOrStderr(), name)
			return errors.Join(err, out.end(), buffered.Flush()) // the lines before a fault are good
		},
	}
	c.Flags().StringVar(&file, "records", "-", "NDJSON, a line for each record; - reads standard input")
	c.Flags().StringSliceVar(&keep, "keep", nil, "further fields of the lines to carry over, such as label,weight")
	display.Flag(c, &output, "csv", "ndjson")
	return c
}

// checkKept refuses fields to carry over whose name the output would have twice. In CSV each
// feature has a column of its own name; in NDJSON all are in one field named features.
func checkKept(keep, features []string, ndjson bool) error {
	taken := features
	if ndjson {
		taken = []string{"features"}
	}
	for i, name := range keep {
		twice := &millrace.Error{Reason: millrace.ReasonInvalid, Field: "keep", WayOut: "keep each field once, and what is called as a feature under another name in the lines"}
		switch {
		case slices.Contains(keep[:i], name):
			twice.Detail = fmt.Sprintf("%.100q is named twice", name)
			return twice
		case slices.Contains(taken, name):
			twice.Detail = fmt.Sprintf("%.100q is what the features have as a name", name)
			return twice
		}
	}
	return nil
}

// maxVectorLine is the largest line of --records, in bytes.
const maxVectorLine = 4 << 20

// readVector reads a line of --records: a row, and the values of the fields in keep, in
// their order. A field that neither belongs to a row nor is kept is an error: if the name
// viewer were mistyped, the features would be those of no viewer.
func readVector(line []byte, keep []string) (*modelpack.Golden, []json.RawMessage, error) {
	if err := schemas.CheckJSON(line); err != nil {
		return nil, nil, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(line, &all); err != nil {
		return nil, nil, err
	}
	kept := make([]json.RawMessage, len(keep))
	for i, name := range keep {
		v, ok := all[name]
		if !ok {
			return nil, nil, fmt.Errorf("there is no %s, which --keep names", name)
		}
		kept[i] = v
	}
	known := []string{"record", "schema", "entity", "object", "viewer", "as_of"}
	for name := range all {
		golden := name == "features" || name == "score" // a golden row may have these two, too
		if !golden && !slices.Contains(known, name) && !slices.Contains(keep, name) {
			return nil, nil, fmt.Errorf("%s is no field of a row; %s, or carry it over by --keep %s", name, hint.Nearest(name, known), name)
		}
	}
	var row modelpack.Golden
	if err := json.Unmarshal(line, &row); err != nil {
		return nil, nil, err
	}
	return &row, kept, row.CheckViewer()
}

// vectors writes the features of records. A feature is a string or a float64, which is NaN
// where the feature has no value.
type vectors interface {
	write(kept []json.RawMessage, features []any) error // one record
	end() error                                         // called once, after the last record
}

// csvVectors are vectors in CSV: first the fields that are kept, then the features.
type csvVectors struct {
	w      *csv.Writer
	titles []string // nil once they are written
}

func (c *csvVectors) write(kept []json.RawMessage, features []any) error {
	if err := c.begin(); err != nil {
		return err
	}
	var cells []string
	for _, v := range kept {
		var text string
		if json.Unmarshal(v, &text) != nil { // null becomes the empty text
			text = string(v)
		}
		cells = append(cells, text)
	}
	for _, v := range features {
		cells = append(cells, cellOf(v))
	}
	return c.w.Write(cells)
}

// cellOf returns a feature as CSV has it; "" for NaN.
func cellOf(feature any) string {
	x, number := feature.(float64)
	switch {
	case !number:
		return feature.(string)
	case math.IsNaN(x):
		return ""
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

// begin writes the titles, the first time that it is called.
func (c *csvVectors) begin() error {
	titles := c.titles
	if c.titles = nil; titles == nil {
		return nil
	}
	return c.w.Write(titles)
}

func (c *csvVectors) end() error {
	err := c.begin()
	c.w.Flush()
	return errors.Join(err, c.w.Error())
}

// jsonVectors are vectors in NDJSON: the fields that are kept, and an object of features.
type jsonVectors struct {
	w           io.Writer
	kept, names []string // the names of kept fields and of features
}

func (j *jsonVectors) write(kept []json.RawMessage, features []any) error {
	var line []byte
	for i, v := range kept {
		line = append(append(append(line, ','), quoted(j.kept[i])...), ':')
		line = append(line, v...)
	}
	line = append(line, `,"features":{`...)
	for i, v := range features {
		if x, ok := v.(float64); ok && math.IsNaN(x) {
			v = nil
		}
		value, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if i > 0 {
			line = append(line, ',')
		}
		line = append(append(append(line, quoted(j.names[i])...), ':'), value...)
	}
	line[0] = '{'
	_, err := j.w.Write(append(line, "}}\n"...))
	return err
}

// quoted returns a text as a JSON string.
func quoted(s string) []byte {
	text, _ := json.Marshal(s) // it cannot fail for a string
	return text
}

func (j *jsonVectors) end() error { return nil }
