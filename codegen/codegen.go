// Package codegen writes Go for model specs. A spec becomes a plan, which has the model's
// operations in an order, and the plan becomes text. The code has no maps, no interface
// calls and no allocation, and gives the same bits as the interpreter in package relevance.
// The package also writes the filters of feeds, and decoders of Avro records. Package schemas
// gives the steps of a decoder, one for each field in the order of the record's bytes.
//
// A slab is columns in memory. A column has a word of 64 bits for each row: a number, a short
// text, or where a longer text or a list stands in the slab's heap. A layout says which columns
// a slab has.
//
// A generated function for a model scores the selected rows of a slab. Its head runs once a
// call, and then a loop runs over the rows. What the request alone decides (weights, values of
// the viewer) is computed by the interpreter before the call: the function reads it from
// slots, which are fields of compute.ModelArgs. A fold is the part of a score that depends on
// the record alone. It is computed when the record enters a cache, and the function that
// scores later reads it.
package codegen

import (
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/plan"
)

// File is one generated file.
type File struct {
	Name string // its base name: "home.go"
	Text []byte // gofmt'ed Go
}

// Spec is the source of one model spec.
type Spec struct {
	Name string // for messages and the file's header: "home.yaml"
	Text []byte
	// Dir has the file Name and any file of trees that the spec names. The spec is then read
	// from there, and Text is not used. nil: Text is the spec.
	Dir fs.FS
}

// Generate writes the Go of specs into package pkg: one file for each spec, in their order,
// named for the model. Schemas are those that the specs may name. The error reports every
// fault of every spec.
func Generate(pkg string, schemas relevance.Schemas, specs ...Spec) ([]File, error) {
	var files []File
	var errs []error
	for _, s := range specs {
		f, err := generate(pkg, schemas, s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files = append(files, f)
	}
	return files, errors.Join(errs...)
}

func generate(pkg string, schemas relevance.Schemas, s Spec) (File, error) {
	var m *relevance.Model
	var err error
	if s.Dir != nil {
		m, err = relevance.ParseFile(s.Dir, path.Base(s.Name), schemas)
	} else {
		m, err = relevance.Parse(path.Base(s.Name), s.Text, schemas)
	}
	if err != nil {
		return File{}, err
	}
	spec := m.Spec()
	w := newWriter(pkg, path.Base(s.Name), spec.Name, spec)
	shapes := map[string]bool{}
	for _, t := range targets(spec, schemas) {
		p, err := plan.Build(spec.Source(), t.rows, t.entity)
		if err != nil {
			return File{}, err
		}
		w.functions(p, t, shapes)
	}
	text, err := w.finish()
	return File{fileName(m.Name()), text}, err
}

// fileName returns a name for a model's Go that does not end in _test or in
// what go build takes for a platform, as "feed_linux.go" would.
func fileName(model string) string {
	name := strings.ReplaceAll(model, "-", "_")
	if strings.Contains(name, "_") {
		name += "_model"
	}
	return name + ".go"
}

// target is a pair of layouts, of records and of the entity's features, that a function is
// written for.
type target struct {
	suffix       string         // what ends the function's name
	what         string         // what the function's comment says that it scores
	rows, entity *column.Layout // entity: nil without features
}

// targets returns what functions are written for: each record schema that a spec names, with
// the entity's features and without. A spec that names no schema reads only the roles that
// records of every schema have.
func targets(s *relevance.Spec, schemas relevance.Schemas) []target {
	var out []target
	if len(s.Schemas) == 0 {
		out = []target{{what: "records of any schema", rows: relevance.RoleLayout()}}
	}
	for _, name := range s.Schemas {
		t := target{what: name, rows: schemas[name].Layout}
		if len(s.Schemas) > 1 {
			t.suffix = camel(name[strings.LastIndex(name, ".")+1:], true)
		}
		out = append(out, t)
	}
	if s.Entity == "" {
		return out
	}
	for _, t := range out[:len(out):len(out)] {
		alone := t
		alone.suffix += "Alone"
		alone.what += " of entities without features"
		out = append(out, alone)
	}
	for i := range out[:len(out)/2] {
		out[i].entity = schemas[s.Entity].Layout
		out[i].what += " and features " + s.Entity
	}
	return out
}
