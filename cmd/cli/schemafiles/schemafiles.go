// Package schemafiles reads the schemas that commands are given: those that ship, by
// their names, and others by their .avsc files.
package schemafiles

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Read returns a schema that ships, or one from a file.
func Read(name string) (*schemas.Schema, error) {
	switch name {
	case "activity":
		return schemas.Activity(), nil
	case "note":
		return schemas.Note(), nil
	case "features":
		return schemas.Features(), nil
	}
	text, err := document.ReadFile(name) // which is more than a schema may have
	if err != nil {
		return nil, fmt.Errorf("schema: %w (schemas that ship: activity, note, features)", err)
	}
	s, err := schemas.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("schema %s: %w", name, err)
	}
	return s, nil
}

// Snapshot returns the schemas that ship and those of avsc files as a cluster
// knows them that admitted the files in their order. Those of a shipped name
// stand in its place.
func Snapshot(avsc []string) (*registry.Snapshot, error) {
	files, err := readSchemas(avsc)
	if err != nil {
		return nil, err
	}
	return admitted(append(shippedBeside(files), files...))
}

// Beside returns the schemas that a cluster knows and has not retired, those of avsc
// files as if they came next, and of those that ship the ones whose name nobody else
// has.
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

// shippedBeside are the schemas that ship under names that no other has.
func shippedBeside(others []*schemas.Schema) (all []*schemas.Schema) {
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Note(), schemas.Features()} {
		if !slices.ContainsFunc(others, func(f *schemas.Schema) bool { return f.Name() == s.Name() }) {
			all = append(all, s)
		}
	}
	return all
}

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

// admitted is what a cluster knows that admitted schemas in their order.
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
