package codegen

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
)

// Feed is the part of a feed definition that Go is written for.
type Feed struct {
	Name    string
	File    string             // for messages and the file's header: "jobs.yaml"
	Models  []*relevance.Model // the feed's model and those that score the same records beside it, in the feed's order
	Filter  *filter.Filter     // the feed's own; nil: none
	Records []*column.Layout   // of the records that the filter is for
}

// ErrNothing says that no Go can be written for a feed: the interpreter does everything.
var ErrNothing = errors.New("nothing to write: no filter that compares columns with constants, and no second model")

// GenerateFeed writes, into package pkg, the Go of a feed: the terms of its filter that are
// loops over columns, and, if it has several models, one function that scores by all of
// them and computes what they have in common once. It returns [ErrNothing] if there is
// neither.
func GenerateFeed(pkg string, schemas relevance.Schemas, f Feed) (File, error) {
	w := newWriter(pkg, f.File, f.Name)
	w.listName = "Feed"
	if f.Filter != nil {
		w.filter(f.Filter, f.Records)
	}
	if len(f.Models) > 1 {
		if err := w.joint(schemas, f.Models); err != nil {
			return File{}, err
		}
	}
	if w.body.Len() == 0 {
		return File{}, fmt.Errorf("codegen: %s: %w", f.File, ErrNothing)
	}
	text, err := w.finish()
	return File{strings.NewReplacer("-", "_", ".", "_").Replace(f.Name) + "_feed.go", text}, err
}

// joint writes the functions that score by all models, for each layout that
// one of them names.
func (w *writer) joint(schemas relevance.Schemas, models []*relevance.Model) error {
	joint, shapes := relevance.Join(models...), map[string]bool{}
	var names []string
	w.specs = nil
	for _, m := range models {
		w.specs = append(w.specs, m.Spec())
		names = append(names, m.Name())
	}
	for _, t := range jointTargets(w.specs, schemas) {
		p, err := joint.Plan(t.rows, t.entity)
		if err != nil {
			return err
		}
		w.function(p, shapes, "joint"+camel(w.name, true)+t.suffix, "scores "+t.what+" by "+strings.Join(names, " and ")+".")
	}
	return nil
}

// jointTargets returns the layouts that any of several specs names, those of records with
// those of each spec's entity. Targets may repeat a pair; the caller writes functions of
// equal shape once.
func jointTargets(specs []*relevance.Spec, schemas relevance.Schemas) (out []target) {
	var all relevance.Spec
	var entities []string
	for _, s := range specs {
		all.Schemas = appendNew(all.Schemas, s.Schemas...)
		if s.Entity != "" {
			entities = appendNew(entities, s.Entity)
		}
	}
	for i := range max(1, len(entities)) {
		suffix := ""
		if len(entities) > 0 {
			all.Entity = entities[i]
		}
		if i > 0 {
			suffix = camel(all.Entity[strings.LastIndex(all.Entity, ".")+1:], true)
		}
		for _, t := range targets(&all, schemas) {
			t.suffix += suffix
			out = append(out, t)
		}
	}
	return out
}

func appendNew(list []string, more ...string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}
