// Package experiments keeps the definitions of experiments in the cluster: [Store]
// changes them, and [Live] is the set of those by which a process assigns variants now (gives
// them to viewers and entities). See DESIGN.md.
package experiments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance/experiment"
)

// Kind is the kind of the cluster's artefacts that are documents of
// experiments, in YAML.
const Kind = "experiments"

// Source gives documents as they are in the cluster now. An [artefacts.Kind] of [Kind]
// implements it.
type Source interface {
	Serving() map[string]artefacts.Version // by name, the version that should serve
	Body(ctx context.Context, v artefacts.Version) ([]byte, error)
	Changed() <-chan struct{} // closed at the next change
	// Gone returns when a name was dropped last; zero: never, as far as is known.
	Gone(name string) time.Time
	// Use keeps on disk the versions of documents that are in use, by name. LastUsed
	// returns what the process before this one kept in that way: versions with their bodies.
	Use(versions map[string]artefacts.Version)
	LastUsed() map[artefacts.Version][]byte
}

// Known is what definitions may refer to, such as feeds and models. Changed returns a channel
// that is closed when that changes; nil if no change is ever signalled.
type Known interface {
	experiment.Known
	Changed() <-chan struct{}
}

const (
	readTime   = 5 * time.Second        // how long one document may take to read
	retryAfter = 5 * time.Second        // how long after a fault all documents are looked at again
	lookAgain  = 10 * time.Second       // the same without a fault: what documents refer to may change without a signal
	takeEvery  = 100 * time.Millisecond // the least time between the beginnings of two looks

	// maxDocuments bounds the documents of a cluster. maxPasses bounds how often a broker
	// leaves out documents at fault and compiles the rest again. After so many passes it
	// keeps the set that it has.
	maxDocuments = 100
	maxPasses    = 10
)

// Live is the set of a cluster's definitions as it is now. It is safe for
// concurrent use.
type Live struct {
	src   Source
	known Known
	log   *slog.Logger

	set    atomic.Pointer[experiment.Set]
	faults atomic.Pointer[map[string]string] // see Faults
	stop   context.CancelFunc
	ended  sync.WaitGroup // the goroutine that follows changes

	taken map[string]versionedDocument // by name, the documents in the set; after Follow only that goroutine uses it
}

// versionedDocument is a document, and the version that it is.
type versionedDocument struct {
	version artefacts.Version
	doc     experiment.Document
}

// Follow takes over the documents that there are, and follows their changes until
// [Live.Close].
func Follow(src Source, known Known, log *slog.Logger) *Live {
	ctx, stop := context.WithCancel(context.Background())
	l := &Live{src: src, known: known, log: log, stop: stop, taken: map[string]versionedDocument{}}
	for v, body := range src.LastUsed() {
		if doc, err := experiment.Parse(v.Name, body); err == nil {
			l.taken[v.Name] = versionedDocument{v, doc}
		}
	}
	l.set.Store(&experiment.Set{})
	l.faults.Store(&map[string]string{})
	changed, refers := src.Changed(), known.Changed()
	l.take(ctx)
	l.ended.Go(func() { l.follow(ctx, changed, refers) })
	return l
}

// Close stops following changes; the set stays as it is.
func (l *Live) Close() {
	l.stop()
	l.ended.Wait()
}

// Current returns the definitions that assign now.
func (l *Live) Current() *experiment.Set { return l.set.Load() }

// Faults returns by document what is wrong. Either the serving version is not taken over:
// then the last good version is in the set, or none. Or some experiments of the document
// do not fit what is known, and give nobody a variant. The caller must not change the map.
func (l *Live) Faults() map[string]string { return *l.faults.Load() }

func (l *Live) follow(ctx context.Context, changed, refers <-chan struct{}) {
	for {
		again := time.After(lookAgain)
		if len(l.Faults()) > 0 {
			again = time.After(retryAfter)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-refers:
		case <-again:
		}
		began := time.Now()
		changed, refers = l.src.Changed(), l.known.Changed()
		l.take(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(began.Add(takeEvery))):
		}
	}
}

// take reads what serves and takes it over as far as it is good.
func (l *Live) take(ctx context.Context) {
	serving, faults := l.src.Serving(), map[string]string{}
	next := map[string]versionedDocument{}
	lost := time.Duration(0) // how long take has waited for documents that could not be read; after readTime it reads no more
	for i, name := range slices.Sorted(maps.Keys(serving)) {
		if i >= maxDocuments {
			faults[name] = fmt.Sprintf("there are %d documents, more than %d; drop some", len(serving), maxDocuments)
			continue
		}
		v := serving[name]
		g, have := l.taken[name]
		if !have || g.version != v {
			began := time.Now()
			fresh, err := experiment.Document{}, errUnread
			if lost < readTime {
				fresh, err = l.read(ctx, v)
			}
			if err == nil {
				g, have = versionedDocument{v, fresh}, true
			} else {
				faults[name] = err.Error()
				lost += time.Since(began)
			}
		}
		if have {
			if gone := l.src.Gone(name); !gone.IsZero() {
				g.doc.Gone = millrace.TimeOf(gone)
			}
			next[name] = g
		}
	}
	if ctx.Err() != nil {
		return
	}
	set := l.compile(next, faults)
	for name, fault := range faults {
		if l.Faults()[name] != fault {
			l.log.Error("a document of experiments has a fault", "document", name, "last_good", next[name].version.Version, "err", fault)
		}
	}
	l.taken = next
	l.set.Store(set)
	l.faults.Store(&faults)
	used := make(map[string]artefacts.Version, len(next))
	for name, g := range next {
		used[name] = g.version
	}
	l.src.Use(used)
}

// errUnread is the fault of a document that take did not try to read.
var errUnread = errors.New("experiments: it is read later; others could not be read for too long")

func (l *Live) read(ctx context.Context, v artefacts.Version) (experiment.Document, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	body, err := l.src.Body(ctx, v)
	if err != nil {
		return experiment.Document{}, err
	}
	return experiment.Parse(v.Name, body)
}

// compile makes a set of documents. In docs, it replaces a document at fault by its last good
// version, or removes it if there is none; faults says why. A document with experiments that
// do not fit what is known stays in docs, and its other experiments give variants; faults
// names it too.
func (l *Live) compile(docs map[string]versionedDocument, faults map[string]string) *experiment.Set {
	for range maxPasses {
		set, err := experiment.Serve(inOrder(docs), l.known)
		if err == nil {
			if unfit := set.Unfit(); unfit != nil {
				for _, d := range unfit.Documents {
					faults[d.Name] = d.Error.Error()
				}
			}
			return set
		}
		var at *experiment.Error
		if !errors.As(err, &at) {
			panic(fmt.Sprintf("experiments: %v", err)) // Serve returns no other error
		}
		for _, d := range at.Documents {
			faults[d.Name] = d.Error.Error()
			if old, had := l.taken[d.Name]; had && old.version != docs[d.Name].version {
				docs[d.Name] = old
			} else {
				delete(docs, d.Name)
			}
		}
	}
	return l.Current() // so many faults come only from documents that were not written by the commands
}

// inOrder returns documents in the order of their names.
func inOrder(docs map[string]versionedDocument) (all []experiment.Document) {
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		all = append(all, docs[name].doc)
	}
	return all
}
