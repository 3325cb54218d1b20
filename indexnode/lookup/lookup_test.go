package lookup

import (
	"context"
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/memory"
)

// open opens a look-up of replicas that are all ready.
func open(t testing.TB) (*Lookup, *replica.Replicas) {
	t.Helper()
	return openStored(t, store.Options{FS: vfs.NewMem(), MaxBlobBytes: 600, FlushEvery: -1})
}

func openStored(t testing.TB, o store.Options) (*Lookup, *replica.Replicas) {
	t.Helper()
	s, known := nodetest.OpenStore(t, o)
	l := New(Config{Store: s, Cache: cache.New(cache.Config{}), Schemas: known, Memory: memory.New(256<<20, "questions"), Panics: panics.NewTeller(slog.Default())})
	t.Cleanup(l.cache.Close)
	h := nodetest.Replicas(s, known, l, false)
	l.Over(h)
	return l, h
}

// members applies some records of members, of which the cache knows nothing.
func members(t testing.TB, l *Lookup, h *replica.Replicas, count, records int) []string {
	names := nodetest.Members(t, h, count, records)
	l.cache.Purge()
	return names
}

// find returns how many posts of some there are from a time on.
func find(ctx context.Context, l *Lookup, from millrace.Time, names ...string) (found int, err error) {
	r := l.Resolve()
	defer r.Release()
	if err := r.Decode(nodetest.Pack(names...)); err != nil {
		return 0, err
	}
	if err := r.Run(ctx, Asked{Types: []millrace.ContentType{"post"}, From: from, To: millrace.MaxTime}); err != nil {
		return 0, err
	}
	for i := range r.views {
		found += r.records(&r.views[i])
	}
	return found, nil
}
