package broker

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/internal/cluster"
)

// FeedsKind is the kind of the cluster's documents that are feed definitions,
// in YAML, each under its feed's name.
const FeedsKind = "feeds"

// Definitions gives feed definitions as they are now; [cluster.Documents] of
// [FeedsKind] does.
type Definitions interface {
	Current() map[string]cluster.Document
	Changed() <-chan struct{}
}

// DefineFeed checks a definition in YAML and stores it under its name, in
// place of the one before. Brokers answer by it within a second.
func DefineFeed(ctx context.Context, docs *cluster.Documents, file []byte) (Feed, error) {
	f, err := ParseFeed(file)
	if err != nil {
		return Feed{}, err
	}
	return f, docs.Put(ctx, f.Name, file)
}

// feedSet is feed definitions by name.
type feedSet map[string]Feed

func (s feedSet) names() string { return strings.Join(sortedKeys(s), ", ") }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// feedBook is the feeds that are served: those that came with the broker, and
// over them those of the cluster.
type feedBook struct {
	fixed feedSet
	defs  Definitions // nil: only the fixed ones
	log   *slog.Logger

	mu struct {
		sync.Mutex
		changed <-chan struct{} // of defs, taken before defined was made
		defined feedSet         // last good ones of the cluster
		all     feedSet         // never changed once made
	}
}

func newFeedBook(fixed []Feed, defs Definitions, log *slog.Logger) *feedBook {
	b := &feedBook{fixed: feedSet{}, defs: defs, log: log}
	for _, f := range fixed {
		f.Limit = cmp.Or(f.Limit, defaultLimit)
		b.fixed[f.Name] = f
	}
	b.mu.all = b.fixed
	return b
}

// current returns the feeds as they are now. The caller must not change them.
func (b *feedBook) current() feedSet {
	if b.defs == nil {
		return b.fixed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.changed != nil {
		select {
		case <-b.mu.changed:
		default:
			return b.mu.all
		}
	}
	b.mu.changed = b.defs.Changed()
	b.reload(b.defs.Current())
	return b.mu.all
}

// reload takes the cluster's definitions over. A bad one changes nothing: the
// last good one of its name stays.
func (b *feedBook) reload(docs map[string]cluster.Document) {
	defined := feedSet{}
	for name, doc := range docs {
		old, had := b.mu.defined[name]
		if had && old.Version == doc.Version {
			defined[name] = old
			continue
		}
		f, err := ParseFeed([]byte(doc.Body))
		if err == nil && f.Name != name {
			err = fmt.Errorf("feed: the definition under %q is named %q", name, f.Name)
		}
		if err != nil {
			b.log.Error("a feed definition is not taken over", "feed", name, "version", doc.Version, "last_good", old.Version, "err", err)
			if had {
				defined[name] = old
			}
			continue
		}
		f.Limit, f.Version = cmp.Or(f.Limit, defaultLimit), doc.Version
		defined[name] = f
		b.log.Info("feed defined", "feed", name, "version", doc.Version)
	}
	b.mu.defined = defined
	b.mu.all = maps.Clone(b.fixed)
	maps.Copy(b.mu.all, defined)
}
