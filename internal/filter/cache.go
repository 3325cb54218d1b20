package filter

import (
	"sync"

	"github.com/millrace/millrace/internal/expr"
)

// Cache keeps compiled filters by their source, since callers send the same
// few over and over. It is for one Env: who learns of a new schema makes a new
// cache. Faults are not kept. It is safe for concurrent use.
type Cache struct {
	env  expr.Env
	size int
	mu   struct {
		sync.Mutex
		young, old map[string]*Filter // a filter lives until it misses a whole generation
	}
}

// NewCache returns a cache that keeps at least the size filters used last, and
// at most twice as many.
func NewCache(env expr.Env, size int) *Cache {
	c := &Cache{env: env, size: max(size, 1)}
	c.mu.young = map[string]*Filter{}
	return c
}

// Compile is [Compile] for the cache's Env.
func (c *Cache) Compile(src string) (*Filter, error) {
	if f := c.get(src); f != nil {
		return f, nil
	}
	f, err := Compile(src, c.env)
	if err != nil {
		return nil, err
	}
	c.put(src, f)
	return f, nil
}

func (c *Cache) get(src string) *Filter {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f, ok := c.mu.young[src]; ok {
		return f
	}
	f := c.mu.old[src]
	if f != nil {
		c.putLocked(src, f)
	}
	return f
}

func (c *Cache) put(src string, f *Filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(src, f)
}

func (c *Cache) putLocked(src string, f *Filter) {
	if len(c.mu.young) >= c.size {
		c.mu.old, c.mu.young = c.mu.young, make(map[string]*Filter, c.size)
	}
	c.mu.young[src] = f
}
