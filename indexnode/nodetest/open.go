package nodetest

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// OpenStore opens a new store until the test ends, with a registry of the schemas that it
// keeps. The registry knows the schemas of [World].
func OpenStore(t testing.TB, o store.Options) (*store.Store, *registry.Registry) {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "store"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	known, err := registry.New(replica.StoredSchemas(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	Admit(t, known)
	return s, known
}

// Admit admits the schemas of [World] to a registry.
func Admit(t testing.TB, known *registry.Registry) {
	t.Helper()
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Features()} {
		if _, err := known.Admit(s); err != nil {
			t.Fatal(err)
		}
	}
}

// Replicas returns replicas without a log or a cluster, all ready to answer. Aged says that
// retention bounds some type by age.
func Replicas(s *store.Store, known *registry.Registry, c Cache, aged bool) *replica.Replicas {
	h := replica.New(replica.Config{Store: s, Schemas: known, Topics: kafka.Topics{}.WithDefaults(), Host: host{c}, Aged: aged, Limit: 8 * time.Second, Log: slog.Default()})
	Serve(h)
	return h
}

// Serve makes all replicas ready, and fresh for an hour: what they have counts as up to date.
func Serve(h *replica.Replicas) {
	for p := range partition.All() {
		h.Serve(p, time.Now().Add(time.Hour))
	}
}

// Cache is what replicas keep equal to the store: the methods of [replica.Host], except for
// those that only count.
type Cache interface {
	Written(s kafka.Stream, changes []store.Change, routes []millrace.Entity)
	Forget()
	ForgetPartition(millrace.Partition) error
	HasFeatures()
}

type host struct{ Cache }

// Applied implements [replica.Host].
func (host) Applied(kafka.Stream, []store.Change, int) {}

// Refused implements [replica.Host].
func (host) Refused(schemas.Reason) {}
