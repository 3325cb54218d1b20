package experiments

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/relevance/experiment"
)

// Store changes the documents of experiments in a cluster. A change that is
// refused changes nothing.
type Store struct {
	Documents *artefacts.Kind // of [Kind]
	Known     experiment.Known
	Who       string // as the history says it
	Why       string // what the history says beside it; empty: what it changes
	// With is a document that changes with each of them, in one transaction; nil:
	// none.
	With *artefacts.With

	met  met // what was read at last
	made made
}

// met are documents as they were read: a version never becomes another.
type met struct {
	sync.Mutex
	of map[string]read // by name
}

// read is a document of a version, and what is wrong with it by itself.
type read struct {
	good
	text  []byte
	fault error
}

// GoesOn has a store begin with what another has read of documents, so that those which
// are still the same are not read and parsed again.
func (s *Store) GoesOn(from *Store) {
	from.met.Lock()
	of := maps.Clone(from.met.of)
	from.met.Unlock()
	s.met.Lock()
	defer s.met.Unlock()
	s.met.of = of
}

// document returns a document of a version, and keeps it in place of another of its
// name. The error says that it cannot be had.
func (s *Store) document(ctx context.Context, v artefacts.Version) (read, error) {
	s.met.Lock()
	d, ok := s.met.of[v.Name]
	s.met.Unlock()
	if ok && d.version == v {
		return d, nil
	}
	text, err := s.Documents.Body(ctx, v)
	if err != nil {
		return read{}, err
	}
	d = read{good: good{version: v}, text: text}
	d.doc, d.fault = experiment.Parse(v.Name, text)
	s.met.Lock()
	defer s.met.Unlock()
	if s.met.of == nil {
		s.met.of = map[string]read{}
	}
	s.met.of[v.Name] = d
	return d, nil
}

// forget lets go of documents that are dropped.
func (s *Store) forget(serving map[string]artefacts.Version) {
	s.met.Lock()
	defer s.met.Unlock()
	maps.DeleteFunc(s.met.of, func(name string, _ read) bool { _, serves := serving[name]; return !serves })
}

// State is all documents as they were at one moment.
type State struct {
	Set      *experiment.Set
	Versions map[string]artefacts.Version
	Texts    map[string][]byte
	Faults   map[string]error // of documents: why all of one is left out of the set, or what of it gives nobody a variant

	docs     map[string]good                // that are in the set
	left     map[string]experiment.Document // that are left out, as far as they could be read
	whole    map[string]good                // of those, what is good but for what it contradicts
	earlier  map[string]earlier             // of documents whose bytes are not there, what they were before
	events   map[string][]ledger.Event      // of all documents, dropped ones too
	revision int64
}

// Changed is what became of a document, or would.
type Changed struct {
	Version   artefacts.Version
	Fresh     bool     // it was not there before
	Sentences []string // what changes, and who moves where; none: nothing does
}

// Read reads all documents. One that somebody takes away meanwhile has all of them
// looked at anew; one whose bytes are not there holds up none of the others.
func (s *Store) Read(ctx context.Context) (*State, error) {
	faults := map[artefacts.Version]error{}
	for range maxTries {
		if err := s.Documents.Settle(ctx); err != nil {
			return nil, err
		}
		st, of, err := s.read(ctx, faults)
		if err == nil || of == (artefacts.Version{}) || errors.Is(err, cluster.ErrAway) {
			return st, err
		}
		if ctx.Err() != nil {
			return nil, err
		}
		if err := s.Documents.Settle(ctx); err != nil {
			return nil, err
		}
		if v, serves := s.Documents.Served(of.Name); serves && v == of {
			faults[of] = unread{err} // it is there, and cannot be read
		}
	}
	return nil, fmt.Errorf("experiments: %w, all the time; try again", artefacts.ErrMoved)
}

// read is Read of what is known here, but for versions that cannot be read. The version
// is the one that an error is of, if it is of one.
func (s *Store) read(ctx context.Context, faults map[artefacts.Version]error) (*State, artefacts.Version, error) {
	st := &State{revision: s.Documents.Revision(), Texts: map[string][]byte{}, Faults: map[string]error{}, docs: map[string]good{}, left: map[string]experiment.Document{}, whole: map[string]good{}, earlier: map[string]earlier{}, events: s.Documents.Histories()}
	st.Versions = s.Documents.Serving()
	s.forget(st.Versions)
	for name, v := range st.Versions {
		if fault := faults[v]; fault != nil {
			st.Faults[name], st.left[name] = fault, experiment.Document{}
			st.earlier[name] = s.wholeBefore(ctx, name)
			continue
		}
		d, err := s.document(ctx, v)
		if errors.Is(err, cluster.ErrAway) {
			return nil, v, err // the document is not to blame
		}
		if err != nil {
			return nil, v, fmt.Errorf("experiments: document %s: %w", name, err)
		}
		st.Texts[name] = d.text
		if d.fault != nil {
			st.Faults[name], st.left[name] = d.fault, d.doc
			continue
		}
		st.docs[name] = d.good
	}
	var err error
	st.Set, err = settle(st.docs, s.Known, func(name string, fault error) {
		st.Faults[name], st.left[name], st.whole[name] = fault, st.docs[name].doc, st.docs[name]
	})
	if err != nil {
		return nil, artefacts.Version{}, err
	}
	if unfit := st.Set.Unfit(); unfit != nil {
		for _, d := range unfit.Documents {
			st.Faults[d.Name] = d.Error
		}
	}
	return st, artefacts.Version{}, nil
}

// earlier is a version of a document that served before the present one.
type earlier struct {
	good
	text []byte
}

// wholeBefore returns the last version before the present one that can be read; the zero
// value if there is none.
func (s *Store) wholeBefore(ctx context.Context, name string) earlier {
	for _, v := range s.Documents.Before(name) {
		body, err := s.Documents.Body(ctx, v)
		if err != nil {
			continue
		}
		if d, err := experiment.Parse(name, body); err == nil {
			return earlier{good{v, d}, body}
		}
	}
	return earlier{}
}

// halted returns the document of an experiment whose bytes are not there, as it was
// before, but for the experiment, which is as to says, and for the others that ran, which
// pause: nobody knows whether they still should. It is for what ends the experiment.
func (st *State) halted(name string, to func(experiment.Experiment) (experiment.State, int, error)) (document string, text []byte, err error) {
	for _, document := range slices.Sorted(maps.Keys(st.earlier)) {
		was := st.earlier[document]
		at := slices.IndexFunc(was.doc.Experiments, func(x experiment.Experiment) bool { return x.Name == name })
		if at < 0 {
			continue
		}
		state, share, err := to(was.doc.Experiments[at])
		if err != nil || state != experiment.Paused && state != experiment.Stopped {
			return "", nil, err
		}
		text, doc := was.text, was.doc
		for _, x := range was.doc.Experiments {
			next := x
			if x.State == experiment.Running {
				next.State = experiment.Paused
			}
			if x.Name == name {
				next.State, next.Share = state, share
			}
			if text, err = experiment.Rewrite(doc, text, x.Name, next.State, next.Share); err != nil {
				return "", nil, err
			}
			if doc, err = experiment.Parse(document, text); err != nil {
				return "", nil, err
			}
		}
		return document, text, nil
	}
	return "", nil, nil
}

// settle takes out of documents what contradicts others, and makes the set of what
// remains, as brokers that start do.
func settle(docs map[string]good, known experiment.Known, out func(name string, fault error)) (*experiment.Set, error) {
	for {
		set, err := experiment.Serve(inOrder(docs), known)
		if err == nil {
			return set, nil
		}
		var at *experiment.Error
		if !errors.As(err, &at) {
			return nil, err
		}
		for _, d := range at.Documents {
			out(d.Name, d.Error)
			delete(docs, d.Name)
		}
	}
}

// wakesNone refuses a change after which a document would begin to assign that is left
// out: nobody has started it. Docs are those of the set as they would be, and name is
// of the one that is changed, whose author means it.
func (s *Store) wakesNone(st *State, name string, docs map[string]good) error {
	for _, left := range slices.Sorted(maps.Keys(st.whole)) {
		running := slices.ContainsFunc(st.whole[left].doc.Experiments, func(x experiment.Experiment) bool { return x.State == experiment.Running })
		if left == name || !running {
			continue
		}
		with := maps.Clone(docs)
		with[left] = st.whole[left]
		if _, err := settle(with, s.Known, func(string, error) {}); err != nil {
			return err
		}
		if _, wakes := with[left]; wakes {
			return &millrace.Error{
				Reason: millrace.ReasonInvalid, Field: "document", Detail: fmt.Sprintf("document %s, which is left out, would begin to assign, and nobody has started it: %v", left, st.Faults[left]),
				WayOut: fmt.Sprintf("first take it out with millrace experiment drop %s, or define it with its experiments stopped; millrace experiment pause ends what assigns at once", left),
			}
		}
	}
	return nil
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

// Begun returns since when the name of an experiment is that of this one, and not
// of another that was dropped, or taken out of its document; zero: for as long as
// the history tells.
func (s *Store) Begun(ctx context.Context, of *experiment.Defined) (begun time.Time, err error) {
	events, err := s.Documents.History(ctx, of.Document)
	if err != nil {
		return begun, err
	}
	var gone []string // sums of versions that were dropped since another served
	for _, e := range slices.Backward(events) {
		switch e.What {
		case ledger.Dropped: // the one that served, or an older one, to make room
			gone = append(gone, e.Sum)
		case ledger.Served, ledger.RolledBack:
			if slices.Contains(gone, e.Sum) {
				return begun, nil
			}
			gone = nil
			if !s.has(ctx, artefacts.Version{Name: of.Document, Version: e.Version, Sum: e.Sum}, of.Experiment.Name) {
				return begun, nil
			}
			begun = e.When
		}
	}
	if !ledger.Whole(events) { // what came before is forgotten
		return time.Time{}, nil
	}
	return begun, nil
}

// Runs returns since when an experiment runs that runs now, as far as the history and
// the versions that are kept tell; zero: they do not. Before some time it is not asked
// about: any since then is as good.
func (s *Store) Runs(ctx context.Context, of *experiment.Defined, before time.Time) (since time.Time, err error) {
	events, err := s.Documents.History(ctx, of.Document)
	if err != nil {
		return since, err
	}
	for _, e := range slices.Backward(events) {
		if e.What != ledger.Served && e.What != ledger.RolledBack {
			continue
		}
		v := artefacts.Version{Name: of.Document, Version: e.Version, Sum: e.Sum}
		if !s.Documents.Has(v) {
			return since, nil
		}
		body, err := s.Documents.Body(ctx, v)
		if errors.Is(err, cluster.ErrAway) {
			return since, err
		}
		d, _ := experiment.Parse(v.Name, body) // of one that cannot be read, as far as it can
		if !slices.ContainsFunc(d.Experiments, func(x experiment.Experiment) bool {
			return x.Name == of.Experiment.Name && x.State == experiment.Running
		}) {
			return since, nil
		}
		if since = e.When; since.Before(before) {
			return since, nil
		}
	}
	return since, nil
}

// has reports whether a version of a document may have had an experiment: of one
// that is not kept, or could not be read, it may.
func (s *Store) has(ctx context.Context, v artefacts.Version, name string) bool {
	if !s.Documents.Has(v) {
		return true
	}
	body, err := s.Documents.Body(ctx, v)
	if err != nil {
		return true
	}
	d, err := experiment.Parse(v.Name, body)
	return err != nil || slices.ContainsFunc(d.Experiments, func(e experiment.Experiment) bool { return e.Name == name })
}

// Same reports whether two versions of a document have an experiment alike. Of one
// that is not kept, or cannot be read, that is not known: they do not.
func (s *Store) Same(ctx context.Context, a, b artefacts.Version, name string) (bool, error) {
	var was *experiment.Experiment
	for i, v := range []artefacts.Version{a, b} {
		if v != (artefacts.Version{}) && !s.Documents.Has(v) { // it may be new
			if err := s.Documents.Settle(ctx); err != nil {
				return false, err
			}
		}
		body, err := s.Documents.Body(ctx, v)
		if errors.Is(err, cluster.ErrAway) {
			return false, err
		}
		d, fault := experiment.Parse(v.Name, body)
		at := slices.IndexFunc(d.Experiments, func(e experiment.Experiment) bool { return e.Name == name })
		if err != nil || fault != nil || at < 0 {
			return false, nil
		}
		if i == 0 {
			was = &d.Experiments[at]
		} else {
			return reflect.DeepEqual(*was, d.Experiments[at]), nil
		}
	}
	return false, nil
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

var documentName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`)

// Check returns what [Store.Define] would do.
func (s *Store) Check(ctx context.Context, name string, src []byte) (Changed, error) {
	st, err := s.Read(ctx)
	if err != nil {
		return Changed{}, err
	}
	return s.check(st, name, src, st.admit)
}

// admit is [experiment.Admit] of a definition, which starts nothing that is paused: who
// paused it, a guard or a person, had a reason that its author's file does not know.
func (st *State) admit(docs []experiment.Document, known experiment.Known) (*experiment.Set, error) {
	next, err := experiment.Admit(docs, known)
	if err != nil {
		return nil, err
	}
	return next, st.Set.StartsNone(next)
}

// compiler is [State.admit]; [experiment.Steer] of a change of state or share; or
// [experiment.Serve] where that gives nobody a variant who had none, so that what does
// not fit can be ended.
type compiler func([]experiment.Document, experiment.Known) (*experiment.Set, error)

// check holds a document against all others as they were read.
func (s *Store) check(st *State, name string, src []byte, compile compiler) (Changed, error) {
	if !documentName.MatchString(name) {
		return Changed{}, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: fmt.Sprintf("%.100q is no name of a document", name), WayOut: "choose one of a letter, then up to 62 letters, digits, '_', '.' and '-'"}
	}
	doc, err := experiment.Parse(name, src)
	if err != nil {
		return Changed{}, err
	}
	if _, there := st.Versions[name]; !there && len(st.Versions) >= maxDocuments {
		return Changed{}, &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "name", Detail: fmt.Sprintf("there are %d documents already", len(st.Versions)), WayOut: "put it into one of them, or drop those whose experiments have stopped"}
	}
	next, err := compile(append(st.but(name), doc), s.Known) // the new one last: what it contradicts is not at fault
	if err != nil {
		return Changed{}, err
	}
	if err := st.Set.Change(next); err != nil {
		return Changed{}, err
	}
	docs := maps.Clone(st.docs)
	docs[name] = good{doc: doc}
	if err := s.wakesNone(st, name, docs); err != nil {
		return Changed{}, err
	}
	if st.Bare(name) {
		return Changed{Sentences: inPlaceAnew(&doc)}, nil
	}
	return Changed{Sentences: st.Set.Diff(next)}, nil
}

// inPlaceAnew says what comes to be by a document whose bytes could not be had, so that
// what it changes is not known.
func inPlaceAnew(d *experiment.Document) (all []string) {
	for _, e := range d.Experiments {
		all = append(all, fmt.Sprintf("experiment %s: %s, at %g%% of its slots; what it was before cannot be read", e.Name, e.State, float64(e.Share)/100))
	}
	return all
}

// but returns all documents of the set but one, in order.
func (st *State) but(name string) []experiment.Document {
	docs := maps.Clone(st.docs)
	delete(docs, name)
	return inOrder(docs)
}

// maxTries is how often a change is tried while others change documents.
const maxTries = 30

// Define checks a document against all others and puts it in place. Brokers
// assign by it within a second.
func (s *Store) Define(ctx context.Context, name string, src []byte) (c Changed, err error) {
	return s.change(ctx, func(st *State) (string, []byte, compiler, error) { return name, src, st.admit, nil })
}

// Steer gives an experiment another state and share, which to says by what it
// has now; it is asked again after others have changed something. An error of
// to changes nothing. What stands in a document whose bytes are not there can be
// paused and stopped as it was before.
func (s *Store) Steer(ctx context.Context, name string, to func(now experiment.Experiment) (experiment.State, int, error)) (Changed, error) {
	return s.change(ctx, func(st *State) (string, []byte, compiler, error) {
		d, err := st.Find(name)
		if err != nil {
			if document, text, not := st.halted(name, to); document != "" || not != nil {
				return document, text, experiment.Serve, not
			}
			return "", nil, nil, err
		}
		state, share, err := to(d.Experiment)
		if err != nil {
			return "", nil, nil, err
		}
		if d.Experiment.State == experiment.Stopped && state == experiment.Stopped && share != d.Experiment.Share {
			return "", nil, nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "experiment", Detail: name + " is stopped, and never runs again: it has no share", WayOut: "define an experiment with a new name"}
		}
		compile := experiment.Steer
		if state == experiment.Paused || state == experiment.Stopped {
			compile = experiment.Serve
		}
		text, err := experiment.Rewrite(st.docs[d.Document].doc, st.Texts[d.Document], name, state, share)
		return d.Document, text, compile, err
	})
}

// change puts in place what propose makes of all documents. It serves only if
// what serves is still what it was made of; else propose is asked again.
func (s *Store) change(ctx context.Context, propose func(*State) (name string, src []byte, compile compiler, err error)) (c Changed, err error) {
	defer func() {
		if err == nil {
			s.made.without(c.Version)
		}
		if !artefacts.Unsteady(err) {
			s.TakeBack()
		}
	}()
	for i := range maxTries {
		if i > 0 { // not again at the same time as the others
			time.Sleep(rand.N(50 * time.Millisecond))
		}
		st, err := s.Read(ctx)
		if err != nil {
			return c, err
		}
		name, src, compile, err := propose(st)
		if err != nil {
			return c, err
		}
		if c, err = s.check(st, name, src, compile); err != nil {
			return c, err
		}
		src = bytes.TrimLeft(src, "\n") // where a file has what was shown above its document
		if c.Version, c.Fresh, err = s.Documents.Publish(ctx, name, "", src, s.Who); err != nil {
			return c, err
		}
		if c.Fresh {
			s.made.add(c.Version)
		}
		if st.Versions[name] == c.Version {
			return c, nil
		}
		if err := s.Documents.Settle(ctx); err != nil {
			return c, err
		}
		at := s.Documents.Revision()
		if !maps.Equal(s.Documents.Serving(), st.Versions) {
			continue
		}
		if err := s.Documents.ServeAt(ctx, c.Version, at, s.With, s.note(c)); !errors.Is(err, artefacts.ErrMoved) && !errors.Is(err, artefacts.ErrNoVersion) {
			return c, err
		}
	}
	return c, fmt.Errorf("experiments: %w, all the time; try again", artefacts.ErrMoved)
}

// made are versions that were published to be put in place, and are not yet.
type made struct {
	sync.Mutex
	versions []artefacts.Version
}

func (m *made) add(v artefacts.Version) {
	m.Lock()
	defer m.Unlock()
	m.versions = append(m.versions, v)
}

// without forgets a version.
func (m *made) without(v artefacts.Version) {
	m.Lock()
	defer m.Unlock()
	m.versions = slices.DeleteFunc(m.versions, func(o artefacts.Version) bool { return o == v })
}

// take returns all of them, and forgets them.
func (m *made) take() (all []artefacts.Version) {
	m.Lock()
	defer m.Unlock()
	all, m.versions = m.versions, nil
	return all
}

// takeBackWithin bounds what a change that was not made still does.
const takeBackWithin = 5 * time.Second

// TakeBack removes what was published for changes that were refused after that, or made
// otherwise, since others changed something meanwhile. Each change does so itself, but one that
// is called again ([artefacts.Unsteady]): then who calls does, once it is over. Whoever asks may be gone.
func (s *Store) TakeBack() {
	ctx, cancel := context.WithTimeout(context.Background(), takeBackWithin)
	defer cancel()
	for _, v := range s.made.take() {
		_ = s.Documents.Retract(ctx, v, s.Who+": it was not put in place, since others changed something at the same time") // or it stays, and serves nobody
	}
}

// note is what the history says of a change.
func (s *Store) note(c Changed) string {
	if why := cmp.Or(s.Why, strings.Join(c.Sentences, "; ")); why != "" {
		return s.Who + ": " + why
	}
	return s.Who
}

// PausedBy returns the change that paused an experiment which is paused, as the history
// of its document tells it; ok is false where it no longer does.
func (s *Store) PausedBy(ctx context.Context, of *experiment.Defined) (by ledger.Event, ok bool, err error) {
	events, err := s.Documents.History(ctx, of.Document)
	name := of.Experiment.Name
	for _, e := range slices.Backward(events) {
		switch {
		case e.What != ledger.Served:
		case strings.Contains(e.Who, ": paused "+name+": "), strings.Contains(e.Who, "experiment "+name+": state running → paused"):
			return e, true, err
		case strings.Contains(e.Who, "experiment "+name+": state paused → running"):
			return by, false, err // it was paused since by a change of more than a note holds
		}
	}
	return by, false, err
}

// MayDrop returns what is there, and why a document is not dropped.
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

// alive says which experiments of a document run, or are paused and may again.
func (st *State) alive(document string) (all []string) {
	for _, d := range st.Set.Experiments() {
		if e := &d.Experiment; d.Document == document && (e.State == experiment.Running || e.State == experiment.Paused) {
			all = append(all, fmt.Sprintf("experiment %s is %s", e.Name, e.State))
		}
	}
	return all
}

// usesLayersOf says which experiments of other documents are of the layers of one.
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

// Drop takes a document and its versions out of the cluster. None of its
// experiments may live.
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
