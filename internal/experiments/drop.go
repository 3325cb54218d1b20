package experiments

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance/experiment"
)

// MayDrop reads all documents, and returns an error that says why the document name may
// not be dropped; nil if it may. With an error the State may be nil.
func (s *Store) MayDrop(ctx context.Context, name string) (*State, error) {
	st, err := s.Read(ctx)
	if err != nil {
		return nil, err
	}
	if len(s.Documents.All()[name]) == 0 {
		e := &millrace.Error{Reason: millrace.ReasonUnknown, Field: "name", Detail: fmt.Sprintf("there is no document %.100q", name), WayOut: "see millrace experiment list"}
		if in := st.DocumentOf(name); in != "" {
			e.Detail += fmt.Sprintf(": experiment %s stands in document %s", name, in)
			e.WayOut = "name that, to drop all of it"
		}
		return nil, e
	}
	if using := st.usesLayersOf(name); using != nil {
		return st, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "document", Detail: fmt.Sprintf("experiments of other documents are of its layers: %s", strings.Join(using, "; ")), WayOut: "stop these and drop their documents first"}
	}
	if alive := st.alive(name); alive != nil {
		return st, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "document", Detail: strings.Join(alive, ", "), WayOut: "stop it first, with millrace experiment stop, and drop the document then"}
	}
	next, err := experiment.Serve(st.but(name), s.Known)
	if err != nil {
		return nil, err
	}
	if err := st.Set.Change(next); err != nil {
		return st, err
	}
	docs := maps.Clone(st.docs)
	delete(docs, name)
	return st, s.wakesNone(st, name, docs)
}

// alive says which experiments of a document run, or are paused and may run again.
func (st *State) alive(document string) (all []string) {
	for _, d := range st.Set.Experiments() {
		if e := &d.Experiment; d.Document == document && (e.State == experiment.Running || e.State == experiment.Paused) {
			all = append(all, fmt.Sprintf("experiment %s is %s", e.Name, e.State))
		}
	}
	return all
}

// usesLayersOf says which experiments of other documents are in layers that document name
// defines.
func (st *State) usesLayersOf(name string) (all []string) {
	for _, l := range st.docs[name].doc.Layers {
		var of []string
		for _, d := range st.Set.Experiments() {
			if d.Document != name && d.Experiment.Layer == l.Name {
				of = append(of, fmt.Sprintf("%s in document %s, %s", d.Experiment.Name, d.Document, d.Experiment.State))
			}
		}
		if of != nil {
			all = append(all, fmt.Sprintf("layer %s has experiment %s", l.Name, strings.Join(of, ", ")))
		}
	}
	return all
}

// Drop removes a document and its versions from the cluster; the version that serves comes
// last. It refuses what MayDrop refuses.
func (s *Store) Drop(ctx context.Context, name string) error {
	st, err := s.MayDrop(ctx, name)
	if err != nil {
		return err
	}
	versions, serving := s.Documents.All()[name], st.Versions[name]
	versions = append(slices.DeleteFunc(slices.Clone(versions), func(v artefacts.Version) bool { return v == serving }), serving)
	for _, v := range versions {
		if v == (artefacts.Version{}) {
			continue // none serves
		}
		if err := s.Documents.Drop(ctx, v, nil, s.Who); err != nil && !errors.Is(err, artefacts.ErrNoVersion) {
			return err
		}
	}
	return nil
}
