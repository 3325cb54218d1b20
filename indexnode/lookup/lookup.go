// Package lookup finds the timelines of a question's entities, in the cache and
// in the store, and keeps the cache equal to the store: it alone fills it and
// writes it through. See "What a reader sees" in the DESIGN.md of the node.
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

// Config is what timelines are found by. All of it is required, but for the
// numbers.
type Config struct {
	Store     *store.Store
	Cache     *cache.Cache
	Schemas   *registry.Registry
	Retention map[millrace.ContentType]store.Retention // as the store has it
	Memory    *memory.Budget                           // of questions
	Panics    *panics.Teller
	// Cached is how many of a timeline's newest records the cache holds at
	// first. Ingest lets it grow to twice that before it is loaded anew. 0:
	// 1,000.
	Cached int
	// RunBytes is how many bytes of bodies are decoded together, into columns
	// that are packed before the next. 0: 8 MiB.
	RunBytes int
}

// Lookup finds timelines. It also is what replicas keep the cache by: see
// [replica.Host].
type Lookup struct {
	store     *store.Store
	cache     *cache.Cache
	schemas   *registry.Registry
	retention map[millrace.ContentType]store.Retention
	memory    *memory.Budget
	panics    *panics.Teller
	replicas  *replica.Replicas
	reads     singleflight.Group // of timelines that the cache misses
	readers   chan struct{}      // holds one for each partition that a request reads under its lock
	features  atomic.Bool        // whether any entity has features
	aged      bool               // some type is kept by age
	load      load
	maxCached int
	maxRun    int

	// Reads counts timelines read from the store. Nobody has registered it.
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

// Over says whose timelines are found. Replicas must have a look-up before they
// are made.
func (l *Lookup) Over(r *replica.Replicas) { l.replicas = r }
