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

// Changed is what a change did to a document, or would do.
type Changed struct {
	Version   artefacts.Version
	Fresh     bool     // this version of the document was published now, and was not there before
	Sentences []string // in words, what changes, and how many slots move from which variant to which; empty: nothing changes
}

// documentName matches the names that a document may have.
var documentName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`)

// Check returns what [Store.Define] would do, or the error with which it would refuse.
func (s *Store) Check(ctx context.Context, name string, src []byte) (Changed, error) {
	st, err := s.Read(ctx)
	if err != nil {
		return Changed{}, err
	}
	return s.check(st, name, src, st.admit)
}

// admit is [experiment.Admit] for a definition. It refuses a definition that starts a paused
// experiment: the guard or person that paused it had a reason that the author of the file
// may not know.
func (st *State) admit(docs []experiment.Document, known experiment.Known) (*experiment.Set, error) {
	next, err := experiment.Admit(docs, known)
	if err != nil {
		return nil, err
	}
	return next, st.Set.StartsNone(next)
}

// compiler makes the set of experiments that is to serve out of all documents; the last one
// is the document that is changed. It is [State.admit] for a definition, and
// [experiment.Steer] for another state or share. For a pause or stop it is
// [experiment.Serve]. That accepts experiments that no longer fit the feeds and models that
// there are, so that these can be ended too.
type compiler func([]experiment.Document, experiment.Known) (*experiment.Set, error)

// check checks a document against all others as st has them, and returns what it would
// change. The error is the refusal.
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
	next, err := compile(append(st.but(name), doc), s.Known) // the new one last: of two that contradict each other the later is at fault
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

// inPlaceAnew says what is in a document that replaces one which cannot be read. What such a
// document changes is not known.
func inPlaceAnew(d *experiment.Document) (all []string) {
	for _, e := range d.Experiments {
		all = append(all, fmt.Sprintf("experiment %s: %s, at %g%% of its slots; what it was before cannot be read", e.Name, e.State, float64(e.Share)/100))
	}
	return all
}

// wakesNone refuses a change after which another document, which is left out of the set
// because of a fault, would fit again and its running experiments would give variants:
// nobody has decided that now. docs are the documents of the set after the change. name is
// the document that is changed; its experiments may begin, since its author wants that.
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
// give variants by it within a second.
func (s *Store) Define(ctx context.Context, name string, src []byte) (c Changed, err error) {
	return s.change(ctx, func(st *State) (string, []byte, compiler, error) { return name, src, st.admit, nil })
}

// Steer gives an experiment another state and share. The function to returns both for the
// experiment as it is now. It is called again if others have changed something meanwhile.
// If it returns an error, nothing changes. An experiment whose document cannot be read can
// still be paused and stopped: the last version that can be read takes the document's
// place (see halted).
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

// halted is for a pause or stop of an experiment whose document cannot be read. It returns
// the document as it last could be read, with two changes: the experiment is as to says, and
// the others that ran are paused, since nobody knows whether they still should run. It
// returns "" if no such document has the experiment, or if to does not pause or stop it.
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

// change publishes the document that propose makes out of all documents. It makes the
// document serve if no other one has changed meanwhile. Else it calls propose again, at
// most maxTries times in all.
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
		if i > 0 { // wait for a random time, so as not to collide with the same others again
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
		src = bytes.TrimLeft(src, "\n") // callers put empty lines above it so that faults name the lines of the file
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

// unplaced are versions that were published for a change and do not serve yet.
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

// take returns all versions, and forgets them.
func (u *unplaced) take() (all []artefacts.Version) {
	u.Lock()
	defer u.Unlock()
	all, u.versions = u.versions, nil
	return all
}

// takeBackWithin bounds how long TakeBack takes.
const takeBackWithin = 5 * time.Second

// TakeBack removes the versions that were published for a change and never served. That is
// so if the change was refused afterwards, or was made again because others had changed
// something. Each change calls TakeBack at its end, unless it failed with an error after
// which its caller repeats it ([artefacts.Unsteady]). Such a caller calls TakeBack after
// the last attempt. TakeBack has a context of its own, since the caller's may be over.
func (s *Store) TakeBack() {
	ctx, cancel := context.WithTimeout(context.Background(), takeBackWithin)
	defer cancel()
	for _, v := range s.unplaced.take() {
		_ = s.Documents.Retract(ctx, v, s.Who+": it was not put in place, since others changed something at the same time") // if this fails, the version stays and does not serve
	}
}

// note returns what the history says of a change: who made it, and why or what it changes.
func (s *Store) note(c Changed) string {
	if why := cmp.Or(s.Why, strings.Join(c.Sentences, "; ")); why != "" {
		return s.Who + ": " + why
	}
	return s.Who
}
