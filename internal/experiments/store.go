package experiments

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance/experiment"
)

// Store changes the documents of experiments in a cluster. A change that is
// refused changes nothing.
type Store struct {
	Documents *artefacts.Kind  // of [Kind]
	Known     experiment.Known // what definitions may refer to
	Who       string           // who makes changes, as the history names them
	Why       string           // why, for the history; empty: the history says what is changed
	// With is another document that is changed in the transaction of each change; nil:
	// none.
	With *artefacts.With

	parsed   parsed
	unplaced unplaced
}

// parsed keeps, for each document, the version that was read and parsed last. That need
// not be read again, since the bytes of a version never change.
type parsed struct {
	sync.Mutex
	of map[string]parsedDocument // by name
}

// parsedDocument is a version of a document, its YAML, and its fault, which is what is wrong
// with it whatever other documents there are; nil: nothing.
type parsedDocument struct {
	versionedDocument
	text  []byte
	fault error
}

// UseParsed gives a store the documents that another has read, so that those which are
// still the same are not read and parsed again.
func (s *Store) UseParsed(from *Store) {
	from.parsed.Lock()
	of := maps.Clone(from.parsed.of)
	from.parsed.Unlock()
	s.parsed.Lock()
	defer s.parsed.Unlock()
	s.parsed.of = of
}

// document returns a version of a document, and keeps it in s.parsed in place of another
// version. An error says why the bytes cannot be had. What is wrong in the bytes is not an
// error but the document's fault.
func (s *Store) document(ctx context.Context, v artefacts.Version) (parsedDocument, error) {
	s.parsed.Lock()
	d, ok := s.parsed.of[v.Name]
	s.parsed.Unlock()
	if ok && d.version == v {
		return d, nil
	}
	text, err := s.Documents.Body(ctx, v)
	if err != nil {
		return parsedDocument{}, err
	}
	d = parsedDocument{versionedDocument: versionedDocument{version: v}, text: text}
	d.doc, d.fault = experiment.Parse(v.Name, text)
	s.parsed.Lock()
	defer s.parsed.Unlock()
	if s.parsed.of == nil {
		s.parsed.of = map[string]parsedDocument{}
	}
	s.parsed.of[v.Name] = d
	return d, nil
}

// forget removes from s.parsed the documents that no longer serve.
func (s *Store) forget(serving map[string]artefacts.Version) {
	s.parsed.Lock()
	defer s.parsed.Unlock()
	maps.DeleteFunc(s.parsed.of, func(name string, _ parsedDocument) bool { _, serves := serving[name]; return !serves })
}

// Read reads all documents. If one cannot be read because it has just been dropped or
// replaced, it reads all of them anew, at most maxTries times. If the bytes of one cannot be
// had, that is among the State's faults, and the others are read all the same.
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
			faults[of] = unread{err} // it still serves, so its bytes cannot be had
		}
	}
	return nil, fmt.Errorf("experiments: %w, all the time; try again", artefacts.ErrMoved)
}

// read is one attempt of Read. faults are versions that are known to be unreadable, and why;
// read does not try to read these. If the error is about one version, read returns that
// version, else the zero value.
func (s *Store) read(ctx context.Context, faults map[artefacts.Version]error) (*State, artefacts.Version, error) {
	st := &State{revision: s.Documents.Revision(), Texts: map[string][]byte{}, Faults: map[string]error{}, docs: map[string]versionedDocument{}, left: map[string]experiment.Document{}, whole: map[string]versionedDocument{}, earlier: map[string]earlierDocument{}, events: s.Documents.Histories()}
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
			return nil, v, err // etcd is away; the document has no fault
		}
		if err != nil {
			return nil, v, fmt.Errorf("experiments: document %s: %w", name, err)
		}
		st.Texts[name] = d.text
		if d.fault != nil {
			st.Faults[name], st.left[name] = d.fault, d.doc
			continue
		}
		st.docs[name] = d.versionedDocument
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

// wholeBefore returns the last version before the present one that can be read; the zero
// value if there is none.
func (s *Store) wholeBefore(ctx context.Context, name string) earlierDocument {
	for _, v := range s.Documents.Before(name) {
		body, err := s.Documents.Body(ctx, v)
		if err != nil {
			continue
		}
		if d, err := experiment.Parse(name, body); err == nil {
			return earlierDocument{versionedDocument{v, d}, body}
		}
	}
	return earlierDocument{}
}

// settle makes a set of documents, as a broker that starts does. It removes from docs each
// document that contradicts others, and calls out with its name before it does.
func settle(docs map[string]versionedDocument, known experiment.Known, out func(name string, fault error)) (*experiment.Set, error) {
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

// maxTries is how often a change, or a read of all documents, is tried while others change
// documents.
const maxTries = 30
