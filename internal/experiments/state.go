package experiments

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/relevance/experiment"
)

// State is all documents as they were at one moment.
type State struct {
	Set      *experiment.Set
	Versions map[string]artefacts.Version // by document, the version that should serve
	Texts    map[string][]byte            // by document, its YAML; a document whose bytes cannot be had is not there
	Faults   map[string]error             // by document, why it is left out of the set, or which of its experiments give nobody a variant

	docs     map[string]versionedDocument   // the documents in the set
	left     map[string]experiment.Document // the documents that are left out, as far as they could be read
	whole    map[string]versionedDocument   // those of left whose only fault is that they contradict others
	earlier  map[string]earlierDocument     // the documents whose bytes cannot be had, as they last could be read
	events   map[string][]ledger.Event      // by document, its history; of dropped documents too
	revision int64                          // the revision of etcd of all this
}

// earlierDocument is a version of a document that served before the present one, and its
// YAML.
type earlierDocument struct {
	versionedDocument
	text []byte
}

// LeftOut reports whether a document is left out of the set, and if so, returns its
// experiments, as far as it could be read.
func (st *State) LeftOut(document string) (all []experiment.Experiment, is bool) {
	d, is := st.left[document]
	return d.Experiments, is
}

// Of returns the experiments of a document, as far as it could be read.
func (st *State) Of(document string) (all []experiment.Experiment) {
	all = slices.Clone(st.left[document].Experiments)
	for _, d := range st.Set.Experiments() {
		if d.Document == document {
			all = append(all, d.Experiment)
		}
	}
	return all
}

// DocumentOf returns the document that has an experiment; "" if none has.
func (st *State) DocumentOf(name string) string {
	for _, document := range slices.Sorted(maps.Keys(st.Texts)) {
		if slices.ContainsFunc(st.Of(document), func(e experiment.Experiment) bool { return e.Name == name }) {
			return document
		}
	}
	return ""
}

// Had returns the document whose history names an experiment; "" if none does. If several
// do, it returns the one that named it last. It finds experiments that were taken out of a
// document or dropped with it.
func (st *State) Had(name string) (document string) {
	var last time.Time
	for of, events := range st.events {
		for _, e := range events {
			if e.When.After(last) && strings.Contains(e.Who, "experiment "+name+": ") {
				document, last = of, e.When
			}
		}
	}
	return document
}

// Find returns an experiment of the set. Its error says as well as it can what became of an
// experiment that is not in it.
func (st *State) Find(name string) (experiment.Defined, error) {
	var names []string
	for _, d := range st.Set.Experiments() {
		if d.Experiment.Name == name {
			return d, nil
		}
		names = append(names, d.Experiment.Name)
	}
	e := &millrace.Error{Reason: millrace.ReasonUnknown, Field: "experiment", Detail: fmt.Sprintf("there is no experiment %.100q", name), WayOut: "name one of " + strings.Join(names, ", ")}
	if len(names) == 0 {
		e.WayOut = "define one first"
	}
	if has := namesOf(st.Of(name)); len(has) > 0 {
		e.Detail += ", and a document of this name"
		e.WayOut = "name what stands in it: " + strings.Join(has, ", ")
	}
	if had := st.Had(name); had != "" {
		e.Detail, e.WayOut = fmt.Sprintf("there is no experiment %s any more: it stood in document %s", name, had), fmt.Sprintf("millrace experiment history %s tells what became of it, and millrace export exposures --experiment %s has what it showed, as long as the topic does", had, name)
	}
	blank := false // some document cannot be read, and may have the experiment
	for _, document := range slices.Sorted(maps.Keys(st.left)) {
		stands := hasExperiment(st.left[document], name)
		stood := st.Bare(document) && (hasExperiment(st.earlier[document].doc, name) || st.Had(name) == document)
		switch {
		case stands:
			e.Detail, e.WayOut = fmt.Sprintf("experiment %s stands in document %s, which is left out: %v", name, document, st.Faults[document]), st.WayBack(document)
			return experiment.Defined{}, e
		case stood:
			e.Reason, e.Detail, e.WayOut = millrace.ReasonUnavailable, fmt.Sprintf("experiment %s stood in document %s, and whether it still does is not known: %v", name, document, st.Faults[document]), st.WayBack(document)
			return experiment.Defined{}, e
		case len(st.left[document].Experiments) == 0:
			blank = true
			e.WayOut += "; " + st.WayBack(document)
		}
	}
	if blank && st.Had(name) == "" {
		e.Detail += " in the documents that can be read"
	}
	return experiment.Defined{}, e
}

func namesOf(all []experiment.Experiment) (names []string) {
	for i := range all {
		names = append(names, all[i].Name)
	}
	return names
}

func hasExperiment(d experiment.Document, name string) bool {
	return slices.ContainsFunc(d.Experiments, func(x experiment.Experiment) bool { return x.Name == name })
}

// unread is the error that says why the bytes of a document cannot be had. It leaves out the
// way out, since [State.WayBack] tells that.
type unread struct{ error }

func (u unread) Error() string {
	if e := (*millrace.Error)(nil); errors.As(u.error, &e) {
		return e.Detail
	}
	return u.error.Error()
}

func (u unread) Unwrap() error { return u.error }

// Bare reports whether the bytes of a document cannot be had. Brokers that have them on disk
// still use them.
func (st *State) Bare(document string) bool {
	_, is := st.earlier[document]
	return is
}

// WayBack says in words what a user can do about a document that is left out.
func (st *State) WayBack(document string) string {
	if errors.Is(st.Faults[document], artefacts.ErrNoBytes) {
		return fmt.Sprintf("%s; else put document %s in place again with millrace experiment define, or take it out with millrace experiment drop %s", artefacts.BytesWayOut, document, document)
	}
	return fmt.Sprintf("mend document %s, or give its experiments state: stopped, and let millrace experiment define put it in place; or take it out with millrace experiment drop %s", document, document)
}

// but returns all documents of the set except name, in the order of their names.
func (st *State) but(name string) []experiment.Document {
	docs := maps.Clone(st.docs)
	delete(docs, name)
	return inOrder(docs)
}
