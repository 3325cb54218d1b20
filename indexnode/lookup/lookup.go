// Package lookup finds the timelines of a question's entities, in the cache and in the store.
// It also keeps the cache equal to the store: no other package fills the cache, or changes it
// after a write to the store. See "What a reader sees" in the DESIGN.md of the node.
//
// A question is what a request asks a node for: entities, types and a window of time. A
// timeline is all records of one entity and type. Features are values about a subject, an
// entity or an object. An entity routes features of itself and of objects: they are stored
// under its name, in its partition. In the cache they stand beside timelines, under the types
// cache.Features (those of the entity itself) and cache.Objects.
package lookup

import (
	"cmp"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/schemas/registry"
)

// Config is what timelines are found by. All of it is required, except for the numbers.
type Config struct {
	Store     *store.Store
	Cache     *cache.Cache
	Schemas   *registry.Registry
	Retention map[millrace.ContentType]store.Retention // as the store has it
	Memory    *memory.Budget                           // what all questions together may take
	Panics    *panics.Teller
	// Cached is how many of a timeline's newest records are read into the cache. New records
	// let a cached timeline grow to twice that; then it is removed, and read again when it is
	// next asked for. 0: 1,000.
	Cached int
	// RunBytes is how many bytes of record bodies are decoded into columns at a time. The
	// columns are packed before the next run is decoded. 0: 8 MiB.
	RunBytes int
}

// Lookup finds timelines. Replicas also tell it what they write, so that it keeps the cache
// equal to the store: see [replica.Host].
type Lookup struct {
	store     *store.Store
	cache     *cache.Cache
	schemas   *registry.Registry
	retention map[millrace.ContentType]store.Retention
	memory    *memory.Budget
	panics    *panics.Teller
	replicas  *replica.Replicas
	reads     singleflight.Group // of timelines that the cache misses
	readers   chan struct{}      // has an element for each partition that is read under its lock
	features  atomic.Bool        // whether any entity has features
	aged      bool               // retention bounds some type by age
	load      load
	maxCached int
	maxRun    int

	// Reads counts timelines read from the store. The caller of New registers it.
	Reads prometheus.Counter
}

// New returns a look-up, which needs [Lookup.Over] before the first question.
func New(c Config) *Lookup {
	return &Lookup{
		store: c.Store, cache: c.Cache, schemas: c.Schemas, retention: c.Retention, memory: c.Memory, panics: c.Panics,
		readers: make(chan struct{}, maxNodeReads), aged: Ages(c.Retention), maxCached: cmp.Or(c.Cached, maxCached), maxRun: cmp.Or(c.RunBytes, maxRunBytes),
		Reads: prometheus.NewCounter(prometheus.CounterOpts{Name: "millrace_indexnode_reads_total", Help: "Timelines and features of entities read from the store, each for all that missed it at the same time."}),
	}
}

// Over sets the replicas whose timelines are found. It is not part of [Config], since
// replicas are made after the look-up, which they need.
func (l *Lookup) Over(r *replica.Replicas) { l.replicas = r }
