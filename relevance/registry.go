package relevance

import (
	"cmp"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace"
	_ "github.com/millrace/millrace/relevance/models" // the generated code
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// ID names one version of a model: the same three always mean the same bytes.
// Of a built-in model only the name is set.
type ID struct {
	Name    string
	Version string
	Sum     string // SHA-256 of the pack, as it was handed over, in hex
}

// String returns the id as people read it: likes 2.
func (id ID) String() string { return strings.TrimSpace(id.Name + " " + id.Version) }

// Registry is the models that a process can score by: those built in, and
// every version that was admitted. Which of them serves is not its to say. It
// is safe for concurrent use.
type Registry struct {
	mu struct {
		sync.RWMutex
		models  map[ID]*Model
		joints  []*Joint // of models that were asked for together
		derived map[derived]*Model
	}
}

// maxJoints bounds how many sets of models are kept; then they start over.
const maxJoints = 64

// Join joins a model and others. While they are there, it returns the same.
func (r *Registry) Join(m *Model, ids ...ID) (*Joint, error) {
	models := []*Model{m}
	for _, id := range ids {
		other, err := r.Find(id)
		if err != nil {
			return nil, err
		}
		models = append(models, other)
	}
	return r.Joined(models...), nil
}

// Joined is Join of models that were found.
func (r *Registry) Joined(models ...*Model) *Joint {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range r.mu.joints {
		if slices.Equal(j.models, models) {
			return j
		}
	}
	if len(r.mu.joints) >= maxJoints {
		r.mu.joints = nil
	}
	j := Join(models...)
	r.mu.joints = append(r.mu.joints, j)
	return j
}

// Builtin returns a new registry of the models that every binary has:
// "recency" and "home".
func Builtin() *Registry {
	r := &Registry{}
	r.mu.models = map[ID]*Model{}
	for name, m := range builtinModels() {
		r.mu.models[ID{Name: name}] = m
	}
	return r
}

// Get returns a built-in model by its name.
func (r *Registry) Get(name string) (*Model, error) { return r.Find(ID{Name: name}) }

// Find returns exactly the model that is named. Where no version is named and
// no such model is built in, the error, a [millrace.Error] with the field
// "model", refuses the request and names the models that are known; a version
// that is not here is [millrace.ReasonNotHere].
func (r *Registry) Find(id ID) (*Model, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if m, ok := r.mu.models[id]; ok {
		return m, nil
	}
	if id.Version != "" || id.Sum != "" {
		return nil, &millrace.Error{
			Reason: millrace.ReasonNotHere, Field: "model", Detail: fmt.Sprintf("no model %s (%.12s) here", id, id.Sum),
			WayOut: "ask another replica, or wait until it is admitted here",
		}
	}
	if slices.Contains(r.namesLocked(), id.Name) {
		return nil, &millrace.Error{
			Reason: millrace.ReasonUnknown, Field: "model", Detail: fmt.Sprintf("no version of model %q serves", id.Name),
			WayOut: "let one serve: see millrace model list",
		}
	}
	return nil, &millrace.Error{
		Reason: millrace.ReasonUnknown,
		Field:  "model",
		Detail: fmt.Sprintf("no model %q", id.Name),
		WayOut: "use one of " + strings.Join(r.namesLocked(), ", "),
	}
}

// Admit adds a version beside the others: the model that validate returns, which is
// called if the id is one that a version may have.
func (r *Registry) Admit(id ID, validate func() (*Model, error)) error {
	if err := CheckName(id.Name); err != nil {
		return fmt.Errorf("relevance: admit %s: %w", id, err)
	}
	if id.Version == "" || id.Sum == "" {
		return fmt.Errorf("relevance: admit %s: a model needs a version and a checksum", id)
	}
	m, err := validate()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.models[id] = m
	return nil
}

// Drop removes a version. A built-in model stays.
func (r *Registry) Drop(id ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id.Version != "" {
		delete(r.mu.models, id)
		maps.DeleteFunc(r.mu.derived, func(d derived, _ *Model) bool { return d.of == id })
		r.mu.joints = nil
	}
}

// Names returns the names of the models, sorted.
func (r *Registry) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.namesLocked()
}

func (r *Registry) namesLocked() []string {
	names := map[string]bool{}
	for id := range r.mu.models {
		names[id.Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// CompareVersions compares versions as people read them: runs of digits by
// their number, anything else by its bytes; 1.10-rc1, and whatever else goes on with
// a hyphen and a letter, comes before 1.10, as in semantic versions.
func CompareVersions(a, b string) int {
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
	if preRelease(a) || preRelease(b) {
		return cmp.Compare(len(b), len(a))
	}
	return cmp.Compare(len(a), len(b))
}

// preRelease reports whether the rest of a version makes it one before that without.
func preRelease(rest string) bool {
	return len(rest) > 1 && rest[0] == '-' && (rest[1] >= 'a' && rest[1] <= 'z' || rest[1] >= 'A' && rest[1] <= 'Z')
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

//go:embed builtin/*.yaml
var builtin embed.FS

var shipped = sync.OnceValue(func() Schemas {
	known, err := registry.New(nil, nil)
	if err != nil {
		panic(err)
	}
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Note(), schemas.Features()} {
		if _, err := known.Admit(s); err != nil {
			panic(err)
		}
	}
	all := Schemas{}
	all.add(known.Snapshot())
	return all
})

// ShippedSchemas are the schemas of every binary, for [Parse].
func ShippedSchemas() Schemas { return maps.Clone(shipped()) }

// SchemasOf returns the schemas that ship and those of a registry: what specs may
// name where these are known.
func SchemasOf(known *registry.Snapshot) Schemas {
	all := ShippedSchemas()
	all.add(known)
	return all
}

func (s Schemas) add(known *registry.Snapshot) {
	for _, f := range known.Families() {
		s[f.Name()] = Records{f.Layout(), f}
	}
}

// BuiltinSpec returns the source of a model that every binary has.
func BuiltinSpec(name string) ([]byte, error) { return builtin.ReadFile("builtin/" + name + ".yaml") }

var builtinModels = sync.OnceValue(func() map[string]*Model {
	models := map[string]*Model{}
	for _, name := range []string{"home", "recency"} {
		src, err := BuiltinSpec(name)
		if err != nil {
			panic(err)
		}
		m, err := Parse(name+".yaml", src, ShippedSchemas())
		if err != nil {
			panic(err)
		}
		models[name] = m
	}
	return models
})

// CheckName refuses the name of a model that every binary has: no pack takes its
// place, since it ranks where all others fail.
func CheckName(name string) error {
	if _, builtin := builtinModels()[name]; !builtin {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: fmt.Sprintf("%s is built in", name), WayOut: "give the model another name, in its spec"}
}
