package answers

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
	"github.com/millrace/millrace/relevance"
)

// node is a server with what it answers from: without a log or a cluster, and
// every partition is ready. Tests apply to it what the log would bring.
type node struct {
	*Server
	replicas *replica.Replicas
	memory   *memory.Budget
}

// questionMemory is the least that a node has.
const questionMemory = 256 << 20

func openNode(t testing.TB, c cache.Config) (*node, *replica.Replicas) {
	t.Helper()
	return openStored(t, c, store.Options{FS: vfs.NewMem(), MaxBlobBytes: 600, FlushEvery: -1})
}

func openStored(t testing.TB, c cache.Config, o store.Options) (*node, *replica.Replicas) {
	t.Helper()
	return openCaching(t, c, o, lookup.Config{})
}

// openCaching opens a node of which the look-up is small.
func openCaching(t testing.TB, c cache.Config, o store.Options, small lookup.Config) (*node, *replica.Replicas) {
	t.Helper()
	s, known := nodetest.OpenStore(t, o)
	n := &node{memory: memory.New(questionMemory, "questions")}
	small.Store, small.Cache, small.Schemas, small.Retention, small.Memory, small.Panics = s, cache.New(c), known, o.Retention, n.memory, panics.NewTeller(slog.Default())
	t.Cleanup(small.Cache.Close)
	l := lookup.New(small)
	n.replicas = nodetest.Replicas(s, known, l, lookup.Ages(o.Retention))
	l.Over(n.replicas)
	n.Server = New(Config{Node: "test", Store: s, Cache: small.Cache, Schemas: known, Models: relevance.Builtin(), Lookup: l, Panics: small.Panics, Log: slog.Default()})
	return n, n.replicas
}

// CacheStats returns what the caches did and hold.
func (n *node) CacheStats() cache.Stats { return n.cache.Stats() }

// Applied returns the next offsets of a partition that answers do not include yet.
func (n *node) Applied(p millrace.Partition) [2]millrace.Offset { return n.replicas.Of(p).Applied() }
