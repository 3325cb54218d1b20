package relevance

import (
	"cmp"
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
		models    map[string]*Model
		checksums map[string]string // of the packs that models came from
		joints    map[string]*Joint // by the names of their models
	}
}

// maxJoints bounds how many sets of models are kept; then they start over.
const maxJoints = 64

// Join joins models by name. While none of them changes, it returns the same.
func (r *Registry) Join(names ...string) (*Joint, error) {
	models := make([]*Model, len(names))
	for i, name := range names {
		m, err := r.Get(name)
		if err != nil {
			return nil, err
		}
		models[i] = m
	}
	key := strings.Join(names, " ")
	r.mu.Lock()
	defer r.mu.Unlock()
	if j := r.mu.joints[key]; j != nil && slices.Equal(j.models, models) {
		return j, nil
	}
	if r.mu.joints == nil || len(r.mu.joints) >= maxJoints {
		r.mu.joints = map[string]*Joint{}
	}
	r.mu.joints[key] = Join(models...)
	return r.mu.joints[key], nil
}

// Builtin returns a new registry of the models that every binary has:
// "recency" and "home".
func Builtin() *Registry {
	r := &Registry{}
	r.mu.models = maps.Clone(builtinModels())
	r.mu.checksums = map[string]string{}
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

// Admit validates a pack and lets it serve in place of the version before. A
// pack that is refused changes nothing: the last good one stays. Versions only
// rise, and none takes far longer than the one before; the same pack again is
// no change. The built-in models stay what they
// are.
func (r *Registry) Admit(p *Pack, schemas Schemas) error {
	name := p.Manifest.Name
	if _, ok := builtinModels()[name]; ok {
		return fmt.Errorf("relevance: admit %s: the name is that of a built-in model", name)
	}
	m, err := Validate(p, schemas)
	if err != nil {
		return err
	}
	if now, err := r.Get(name); err == nil {
		if err := m.slower(now, schemas); err != nil {
			return fmt.Errorf("relevance: admit %s: %w", name, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, ok := r.mu.models[name]; ok {
		if r.mu.checksums[name] == p.Checksum {
			return nil
		}
		if compareVersions(m.Version(), now.Version()) <= 0 {
			return fmt.Errorf("relevance: admit %s: version %s is not above %s, which serves; raise version in the spec", name, m.Version(), now.Version())
		}
	}
	r.mu.models[name], r.mu.checksums[name] = m, p.Checksum
	return nil
}

// Names returns the models that serve, sorted.
func (r *Registry) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.mu.models))
}

// compareVersions compares versions as people read them: runs of digits by
// their number, anything else by its bytes.
func compareVersions(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x > 0 && y > 0 {
			n, m := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
			if c := cmp.Or(cmp.Compare(len(n), len(m)), strings.Compare(n, m)); c != 0 {
				return c
			}
			a, b = a[x:], b[y:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
