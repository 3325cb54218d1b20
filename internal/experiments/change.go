package experiments

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance/experiment"
)

// Changed is what became of a document, or would.
type Changed struct {
	Version   artefacts.Version
	Fresh     bool     // it was not there before
	Sentences []string // what changes, and who moves where; none: nothing does
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

// compiler makes the set that is to serve out of all documents: [State.admit] for a
// definition; [experiment.Steer] for a change of state or share; and for one that gives
// nobody a variant who had none, such as a pause, [experiment.Serve], which also takes what
// no longer fits the feeds and models that there are, so that it can be ended.
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
	docs[name] = versionedDocument{doc: doc}
	if err := s.wakesNone(st, name, docs); err != nil {
		return Changed{}, err
	}
	if st.Bare(name) {
		return Changed{Sentences: inPlaceAnew(&doc)}, nil
	}
	return Changed{Sentences: st.Set.Diff(next)}, nil
}

// inPlaceAnew says what a document has whose version before could not be read, so that what
// it changes is not known.
func inPlaceAnew(d *experiment.Document) (all []string) {
	for _, e := range d.Experiments {
		all = append(all, fmt.Sprintf("experiment %s: %s, at %g%% of its slots; what it was before cannot be read", e.Name, e.State, float64(e.Share)/100))
	}
	return all
}

// wakesNone refuses a change by which another document, which is left out of the set
// because of a fault, would fit again and begin to assign: nobody has started it. docs are
// those of the set after the change, and name is the document that is changed, which may
// begin: its author means it.
func (s *Store) wakesNone(st *State, name string, docs map[string]versionedDocument) error {
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

// change puts in place what propose makes of all documents. It serves only if
// what serves is still what it was made of; else propose is asked again.
func (s *Store) change(ctx context.Context, propose func(*State) (name string, src []byte, compile compiler, err error)) (c Changed, err error) {
	defer func() {
		if err == nil {
			s.unplaced.without(c.Version)
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
			s.unplaced.add(c.Version)
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

// unplaced are versions that were published to be put in place, and are not yet.
type unplaced struct {
	sync.Mutex
	versions []artefacts.Version
}

func (u *unplaced) add(v artefacts.Version) {
	u.Lock()
	defer u.Unlock()
	u.versions = append(u.versions, v)
}

// without forgets a version.
func (u *unplaced) without(v artefacts.Version) {
	u.Lock()
	defer u.Unlock()
	u.versions = slices.DeleteFunc(u.versions, func(o artefacts.Version) bool { return o == v })
}

// take returns all of them, and forgets them.
func (u *unplaced) take() (all []artefacts.Version) {
	u.Lock()
	defer u.Unlock()
	all, u.versions = u.versions, nil
	return all
}

// takeBackWithin bounds what a change that was not made still does.
const takeBackWithin = 5 * time.Second

// TakeBack removes versions that were published for a change and never put in place: it was
// refused after that, or made anew because others had changed something. Each change calls
// this at its end, but for one that its caller repeats ([artefacts.Unsteady]): the caller
// calls it after the last attempt. It has a context of its own, for the caller's may be over.
func (s *Store) TakeBack() {
	ctx, cancel := context.WithTimeout(context.Background(), takeBackWithin)
	defer cancel()
	for _, v := range s.unplaced.take() {
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
