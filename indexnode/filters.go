package indexnode

import (
	"errors"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/schemas"
)

// filterCache keeps compiled filters: a feed sends the same few again and
// again.
type filterCache struct {
	mu       sync.Mutex // never held while one is compiled
	known    *schemas.Snapshot
	compiled map[string]*compiled
}

// compiled is a filter, by whoever asks for it first. The others wait for it,
// and nobody else does.
type compiled struct {
	once sync.Once
	f    *filter.Filter
	err  error
}

// maxFilters bounds the cache; when it is full it starts over.
const maxFilters = 1024

func (c *filterCache) get(src string, known *schemas.Snapshot) (*filter.Filter, error) {
	one := c.of(src, known)
	one.once.Do(func() {
		defer contain(&one.err) // or the next to ask would have no filter, and no error
		one.f, one.err = compile(src, known)
	})
	if one.err != nil {
		c.forget(src, one)
	}
	return one.f, one.err
}

// of returns what is to become of a filter, or has.
func (c *filterCache) of(src string, known *schemas.Snapshot) *compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.compiled[src]
	if one != nil && c.known == known {
		return one
	}
	if c.known != known || len(c.compiled) >= maxFilters {
		c.known, c.compiled = known, make(map[string]*compiled)
	}
	one = new(compiled)
	c.compiled[src] = one
	return one
}

// forget lets go of a filter that is none: it would take the room of one that
// is.
func (c *filterCache) forget(src string, one *compiled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.compiled[src] == one {
		delete(c.compiled, src)
	}
}

// compile compiles a filter for the latest version of every schema.
func compile(src string, known *schemas.Snapshot) (*filter.Filter, error) {
	env := expr.Env{Mode: expr.Filter}
	for _, s := range known.All() {
		switch {
		case known.Latest(s.Name()) != s:
		case s.Features():
			env.Entity = append(env.Entity, s.Layout())
		default:
			env.Record = append(env.Record, s.Layout())
		}
	}
	f, err := filter.Compile(src, env)
	var bad *expr.Error
	if errors.As(err, &bad) {
		return nil, &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: err.Error(), WayOut: "see the filter language in docs/filters.md"}
	}
	return f, err
}
