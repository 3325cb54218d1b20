package warm

import (
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"context"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/answers"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/relevance"
)

// node is a server beside what answers questions, from one cache.
type node struct {
	nodev1.UnimplementedNodeServiceServer
	*Server
	answers  *answers.Server
	replicas *replica.Replicas
}

// Hot implements nodev1.NodeServiceServer.
func (n *node) Hot(ctx context.Context, req *nodev1.HotRequest) (*nodev1.HotResponse, error) {
	return n.Server.Hot(ctx, req)
}

// Query implements nodev1.NodeServiceServer.
func (n *node) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	return n.answers.Query(ctx, req)
}

// CacheStats returns what the caches did and hold.
func (n *node) CacheStats() cache.Stats { return n.cfg.Cache.Stats() }

// openNode opens a node without a log or a cluster, on which every partition is
// ready.
func openNode(t testing.TB, c cache.Config) (*node, *replica.Replicas) {
	t.Helper()
	s, known := nodetest.OpenStore(t, store.Options{FS: vfs.NewMem(), MaxBlobBytes: 600, FlushEvery: -1})
	all, room, told := cache.New(c), memory.New(256<<20, "questions"), panics.NewTeller(slog.Default())
	t.Cleanup(all.Close)
	l := lookup.New(lookup.Config{Store: s, Cache: all, Schemas: known, Memory: room, Panics: told})
	h := nodetest.Replicas(s, known, l, false)
	l.Over(h)
	a := answers.New(answers.Config{Node: "test", Store: s, Cache: all, Schemas: known, Models: relevance.Builtin(), Lookup: l, Panics: told, Log: slog.Default()})
	return &node{replicas: h, answers: a, Server: New(Config{
		Node: "test", Cache: all, Replicas: h, Lookup: l, Memory: room, Newest: a.Newest, Panics: told, Log: slog.Default(),
		Peers: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
	})}, h
}

// members applies some records of members, of which the cache knows nothing.
func members(t testing.TB, n *node, h *replica.Replicas, count, records int) []string {
	names := nodetest.Members(t, h, count, records)
	n.cfg.Cache.Purge()
	return names
}
