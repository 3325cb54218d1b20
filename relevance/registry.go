package relevance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace"
)

// Registry is the models that serve, by name. It is safe for concurrent use.
type Registry struct {
	mu struct {
		sync.RWMutex
		models map[string]*Model
	}
}

// Builtin returns a new registry of the models that every binary has:
// "recency" and "home".
func Builtin() *Registry {
	r := &Registry{}
	r.mu.models = maps.Clone(builtinModels())
	return r
}

// Get returns a model by name. Of an unknown one the error, a
// [millrace.Error] with the field "model", names those that are known.
func (r *Registry) Get(name string) (*Model, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if m, ok := r.mu.models[name]; ok {
		return m, nil
	}
	known := slices.Sorted(maps.Keys(r.mu.models))
	return nil, &millrace.Error{
		Reason: millrace.ReasonUnknown,
		Field:  "model",
		Detail: fmt.Sprintf("no model %q", name),
		WayOut: "use one of " + strings.Join(known, ", "),
	}
}
