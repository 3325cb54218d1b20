package indexnode

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
)

// openNode opens a node without a log or a cluster, on which every partition
// is ready: tests apply to it what the log would bring.
func openNode(t testing.TB, c cache.Config) (*Node, *replica.Replicas) {
	t.Helper()
	return openStored(t, c, store.Options{FS: vfs.NewMem(), MaxBlobBytes: 600, FlushEvery: -1})
}

func openStored(t testing.TB, c cache.Config, o store.Options) (*Node, *replica.Replicas) {
	t.Helper()
	return openIn(t, t.TempDir(), c, o)
}

// openIn opens a node with a data directory.
func openIn(t testing.TB, dir string, c cache.Config, o store.Options) (*Node, *replica.Replicas) {
	t.Helper()
	n, err := Open(Config{ID: "test", Dir: dir, Brokers: kafka.At("127.0.0.1:1"), Cluster: new(cluster.Client), Cache: c, Store: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	nodetest.Admit(t, n.schemas)
	nodetest.Serve(n.replicas)
	return n, n.replicas
}

// entities applies some records of members, of which the cache knows nothing.
func entities(t testing.TB, n *Node, h *replica.Replicas, count, records int) []string {
	names := nodetest.Members(t, h, count, records)
	n.cache.Purge()
	return names
}

// What a witness has left that a crash broke off is gone when the node opens:
// nobody would remove it later.
func TestWitnessesThatBrokeOffAreRemoved(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "witness", "017")
	if err := errors.Join(os.MkdirAll(left, 0o700), os.WriteFile(filepath.Join(left, "000004.sst"), []byte("rows"), 0o600)); err != nil {
		t.Fatal(err)
	}
	openIn(t, dir, cache.Config{}, store.Options{FS: vfs.NewMem(), FlushEvery: -1})
	if there, err := os.ReadDir(filepath.Join(dir, "witness")); len(there) > 0 {
		t.Errorf("%v is left: %v", there, err)
	}
}
