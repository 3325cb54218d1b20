package admin

import (
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/memory"
)

// openNode opens the service of a node without a log or a cluster, on which
// every partition is ready: tests apply to it what the log would bring.
func openNode(t *testing.T) (*Server, *replica.Replicas) {
	t.Helper()
	s, known := nodetest.OpenStore(t, store.Options{FS: vfs.NewMem(), FlushEvery: -1})
	c := cache.New(cache.Config{})
	t.Cleanup(c.Close)
	l := lookup.New(lookup.Config{Store: s, Cache: c, Schemas: known, Memory: memory.New(256<<20, "questions"), Panics: panics.NewTeller(slog.Default())})
	all := nodetest.Replicas(s, known, l, false)
	l.Over(all)
	rates := func(millrace.Partition, millrace.ContentType) (in, out float64) { return 0, 0 }
	return New(Config{Node: "test", Store: s, Cache: c, Schemas: known, Replicas: all, Forget: l.ForgetPartition, Rates: rates, Log: slog.Default()}), all
}
