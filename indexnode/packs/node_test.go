package packs

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/relevance"
)

// open opens an admission of a node that answers nobody.
func open(t testing.TB) (*Admission, *replica.Replicas) {
	t.Helper()
	s, known := nodetest.OpenStore(t, store.Options{FS: vfs.NewMem(), FlushEvery: -1})
	c := cache.New(cache.Config{})
	t.Cleanup(c.Close)
	a := New(Config{
		Node: "test", Dir: filepath.Join(t.TempDir(), "admitting"), Store: s, Schemas: known, Models: relevance.Builtin(),
		Admitted: func(context.Context, relevance.ID) {}, Dropped: func(relevance.ID) {}, Log: slog.Default(),
	})
	return a, nodetest.Replicas(s, known, lookup.New(lookup.Config{Store: s, Cache: c, Schemas: known}), false)
}
