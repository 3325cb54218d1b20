// Package experiments keeps the definitions of experiments in the cluster: [Store]
// changes them, and [Live] is the set of them that assigns now. See DESIGN.md.
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

// Source gives documents as they are now; [artefacts.Kind] of [Kind] does.
type Source interface {
	Serving() map[string]artefacts.Version
	Body(ctx context.Context, v artefacts.Version) ([]byte, error)
	Changed() <-chan struct{}
	// Gone returns when a name was dropped last; zero: never, as far as is known.
	Gone(name string) time.Time
	// Use is told what is gone by, which the next process finds in LastUsed.
	Use(versions map[string]artefacts.Version)
	LastUsed() map[artefacts.Version][]byte
}

// Known is what definitions may refer to, and when that changes.
type Known interface {
	experiment.Known
	Changed() <-chan struct{}
}

const (
	readTime   = 5 * time.Second  // for one document
	retryAfter = 5 * time.Second  // what could not be read, or was at fault
	lookAgain  = 10 * time.Second // at what documents refer to, which may change unheard
	takeEvery  = 100 * time.Millisecond

	// maxDocuments bounds those of a cluster, and maxPasses how often what is at
	// fault is left out before brokers keep what they have.
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
	faults atomic.Pointer[map[string]string]
	stop   context.CancelFunc
	ended  sync.WaitGroup

	taken map[string]versionedDocument // by name; only take touches it
}

// versionedDocument is a document, and the version that it is.
type versionedDocument struct {
	version artefacts.Version
	doc     experiment.Document
}

// Follow takes over the documents that there are, and follows them until
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

// Close ends the following; the set stays as it is.
func (l *Live) Close() {
	l.stop()
	l.ended.Wait()
}

// Current returns the definitions that assign now.
func (l *Live) Current() *experiment.Set { return l.set.Load() }

// Faults says of each document why it is not taken over, so that it is as it last
// was good, or left out; or which of its experiments give nobody a variant.
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
	lost := time.Duration(0) // on documents that could not be read: what is away is waited for once
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

// compile makes a set of documents. One at fault is replaced by what it last
// was, or else taken out of docs and told among the faults. Of one with experiments
// that do not fit what is known, the others go on; it is told, too.
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
			panic(fmt.Sprintf("experiments: %v", err)) // Compile gives no other
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
	return l.Current() // who writes so many past the commands gets none of them
}

// inOrder returns documents in the order of their names.
func inOrder(docs map[string]versionedDocument) (all []experiment.Document) {
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		all = append(all, docs[name].doc)
	}
	return all
}
