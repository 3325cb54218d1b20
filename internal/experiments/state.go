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
	Versions map[string]artefacts.Version
	Texts    map[string][]byte
	Faults   map[string]error // of documents: why all of one is left out of the set, or what of it gives nobody a variant

	docs     map[string]versionedDocument   // that are in the set
	left     map[string]experiment.Document // that are left out, as far as they could be read
	whole    map[string]versionedDocument   // of those, what is good but for what it contradicts
	earlier  map[string]earlierDocument     // of documents whose bytes are not there, what they were before
	events   map[string][]ledger.Event      // of all documents, dropped ones too
	revision int64
}

// earlierDocument is a version of a document that served before the present one.
type earlierDocument struct {
	versionedDocument
	text []byte
}

// LeftOut returns the experiments of a document that is left out of the set, as far
// as it could be read, and whether it is.
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

// DocumentOf returns the document that an experiment stands in; "" for none.
func (st *State) DocumentOf(name string) string {
	for _, document := range slices.Sorted(maps.Keys(st.Texts)) {
		if slices.ContainsFunc(st.Of(document), func(e experiment.Experiment) bool { return e.Name == name }) {
			return document
		}
	}
	return ""
}

// Had returns the document whose history last has an experiment that is there no more,
// since it was taken out of the document or dropped with it; "" for none that is known.
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

// Find returns an experiment of the set.
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
	blank := false // some document cannot be read, in which it may stand
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

// unread is why the bytes of a document cannot be had. The way out is told beside it, by
// [State.WayBack].
type unread struct{ error }

func (u unread) Error() string {
	if e := (*millrace.Error)(nil); errors.As(u.error, &e) {
		return e.Detail
	}
	return u.error.Error()
}

func (u unread) Unwrap() error { return u.error }

// Bare reports whether the bytes of a document cannot be had: brokers that keep them go
// on by those.
func (st *State) Bare(document string) bool {
	_, is := st.earlier[document]
	return is
}

// WayBack says how to get a document back that is left out.
func (st *State) WayBack(document string) string {
	if errors.Is(st.Faults[document], artefacts.ErrNoBytes) {
		return fmt.Sprintf("%s; else put document %s in place again with millrace experiment define, or take it out with millrace experiment drop %s", artefacts.BytesWayOut, document, document)
	}
	return fmt.Sprintf("mend document %s, or give its experiments state: stopped, and let millrace experiment define put it in place; or take it out with millrace experiment drop %s", document, document)
}

// but returns all documents of the set but one, in order.
func (st *State) but(name string) []experiment.Document {
	docs := maps.Clone(st.docs)
	delete(docs, name)
	return inOrder(docs)
}
