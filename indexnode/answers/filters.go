package answers

import (
	"errors"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/schemas/registry"
)

// filterCache keeps compiled filters: a feed sends the same few again and
// again.
type filterCache struct {
	mu       sync.Mutex // never held while one is compiled
	known    *registry.Snapshot
	compiled map[sources]*compiled
}

// sources are a caller's filter and a feed's, of which either may be empty.
type sources struct{ request, feed string }

// compiled is a filter, by whoever asks for it first. The others wait for it,
// and nobody else does.
type compiled struct {
	once sync.Once
	f    *filter.Filter
	err  error
}

// maxFilters bounds the cache; when it is full it starts over.
const maxFilters = 1024

// join returns the filter that holds where a caller's and a feed's do, nil
// where neither says anything. Each is parsed by itself: brackets, comments and
// strings of one mean nothing to the other.
func (f *filterCache) join(from sources, known *registry.Snapshot) (*filter.Filter, error) {
	switch {
	case from == sources{}:
		return nil, nil
	case from.request == "" || from.feed == "":
		return f.get(from, func() (*filter.Filter, error) { return compile(from.request+from.feed, known) }, known)
	}
	return f.get(from, func() (*filter.Filter, error) {
		request, err := f.join(sources{request: from.request}, known)
		if err != nil {
			return nil, err
		}
		feed, err := f.join(sources{feed: from.feed}, known)
		return filter.Join(request, feed), err
	}, known)
}

// get returns a filter, which make makes if nobody has asked for it yet.
func (f *filterCache) get(from sources, make func() (*filter.Filter, error), known *registry.Snapshot) (*filter.Filter, error) {
	one := f.of(from, known)
	one.once.Do(func() {
		defer panics.Contain(&one.err) // or the next to ask would have no filter, and no error
		one.f, one.err = make()
	})
	if one.err != nil {
		f.forget(from, one)
	}
	return one.f, one.err
}

// of returns what is to become of a filter, or has.
func (f *filterCache) of(from sources, known *registry.Snapshot) *compiled {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.compiled[from]
	if one != nil && f.known == known {
		return one
	}
	if f.known != known || len(f.compiled) >= maxFilters {
		f.known, f.compiled = known, make(map[sources]*compiled)
	}
	one = new(compiled)
	f.compiled[from] = one
	return one
}

// forget lets go of a filter that is none: it would take the room of one that
// is.
func (f *filterCache) forget(from sources, one *compiled) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.compiled[from] == one {
		delete(f.compiled, from)
	}
}

// compile compiles a filter for the records and features of every family.
func compile(src string, known *registry.Snapshot) (*filter.Filter, error) {
	f, err := filter.Compile(src, filter.EnvOf(known))
	var bad *expr.Error
	if errors.As(err, &bad) {
		return nil, &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: err.Error(), WayOut: "see the filter language in docs/filters.md"}
	}
	return f, err
}
