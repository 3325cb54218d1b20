// Package schemafiles reads the schemas that commands are given: by name those that ship
// with Millrace, and others by their .avsc files.
package schemafiles

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Read returns the schema that ships under a name; for any other name, that of the file.
func Read(name string) (*schemas.Schema, error) {
	switch name {
	case "activity":
		return schemas.Activity(), nil
	case "note":
		return schemas.Note(), nil
	case "features":
		return schemas.Features(), nil
	}
	text, err := document.ReadFile(name) // bounds what it reads; that bound is above a schema's
	if err != nil {
		return nil, fmt.Errorf("schema: %w (schemas that ship: activity, note, features)", err)
	}
	s, err := schemas.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", name, err)
	}
	return s, nil
}

// Snapshot returns the schemas that a cluster knows after it admitted (took into its registry)
// those that ship, and then those of the avsc files in their order. If a file's schema has the
// name of a shipped one, the shipped one is left out.
func Snapshot(avsc []string) (*registry.Snapshot, error) {
	files, err := readSchemas(avsc)
	if err != nil {
		return nil, err
	}
	return admitted(append(shippedBeside(files), files...))
}

// Beside returns three kinds of schemas in one snapshot: those that a cluster knows and has
// not retired, those of the avsc files as if the cluster admitted them next, and the shipped
// ones whose name none of these has.
func Beside(known *registry.Snapshot, avsc []string) (*registry.Snapshot, error) {
	files, err := readSchemas(avsc)
	if err != nil {
		return nil, err
	}
	var all []*schemas.Schema
	for _, s := range known.All() {
		if !known.Retired(s.Fingerprint()) {
			all = append(all, s)
		}
	}
	all = append(all, files...)
	return admitted(append(all, shippedBeside(all)...))
}

// shippedBeside returns the schemas that ship whose names none of the others has.
func shippedBeside(others []*schemas.Schema) (all []*schemas.Schema) {
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Note(), schemas.Features()} {
		if !slices.ContainsFunc(others, func(f *schemas.Schema) bool { return f.Name() == s.Name() }) {
			all = append(all, s)
		}
	}
	return all
}

// readSchemas reads each schema as [Read] does.
func readSchemas(avsc []string) (all []*schemas.Schema, err error) {
	for _, file := range avsc {
		s, err := Read(file)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// admitted returns what a cluster knows after it admitted the schemas in their order.
func admitted(all []*schemas.Schema) (*registry.Snapshot, error) {
	known, err := registry.New(nil, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if _, err := known.Admit(s); err != nil {
			return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "schema", Detail: err.Error(), WayOut: "name the files of a name in the order in which they come into use, the oldest first"}
		}
	}
	return known.Snapshot(), nil
}
