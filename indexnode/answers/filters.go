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

// filterCache keeps compiled filters, since the requests of a feed have the same few.
type filterCache struct {
	mu       sync.Mutex         // not held while a filter is compiled
	known    *registry.Snapshot // the schemas that all of compiled are for
	compiled map[sources]*compiled
}

// sources are the texts of a caller's filter and of a feed's; "" for none.
type sources struct{ request, feed string }

// compiled is a filter that the first question which needs it compiles. Further questions
// with the same filter wait for that; others do not.
type compiled struct {
	once sync.Once
	f    *filter.Filter
	err  error
}

// maxFilters is how many filters the cache keeps. When it is full it drops all of them.
const maxFilters = 1024

// join returns the filter that is true for what both the caller's filter and the feed's are
// true for; nil if both are empty. Each is parsed by itself, so that an open bracket, comment
// or string in one cannot change the other.
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

// get returns the filter of from. It calls make to compile the filter when it is first asked
// for.
func (f *filterCache) get(from sources, make func() (*filter.Filter, error), known *registry.Snapshot) (*filter.Filter, error) {
	one := f.of(from, known)
	one.once.Do(func() {
		defer panics.Contain(&one.err) // without this, questions after a panic would get no filter and no error
		one.f, one.err = make()
	})
	if one.err != nil {
		f.forget(from, one)
	}
	return one.f, one.err
}

// of returns the entry of the cache for from, and makes one if there is none. If known is
// another snapshot than before, it first drops all filters.
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

// forget removes a filter that did not compile, since it would take the room of one that does.
func (f *filterCache) forget(from sources, one *compiled) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.compiled[from] == one {
		delete(f.compiled, from)
	}
}

// compile compiles a filter for the records and features of every schema that is known. The
// error of a wrong filter is a [millrace.Error].
func compile(src string, known *registry.Snapshot) (*filter.Filter, error) {
	f, err := filter.Compile(src, filter.EnvOf(known))
	var bad *expr.Error
	if errors.As(err, &bad) {
		return nil, &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: err.Error(), WayOut: "see the filter language in docs/filters.md"}
	}
	return f, err
}
