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

// ID names one version of a model: equal IDs always mean the same bytes. The ID of a
// built-in model has only the name.
type ID struct {
	Name    string
	Version string
	Sum     string // SHA-256 of the bytes of the pack that was admitted, in hex
}

// String returns the name and the version, such as "likes 2".
func (id ID) String() string { return strings.TrimSpace(id.Name + " " + id.Version) }

// Registry holds the models that a process can score by: the built-in ones, and every
// version that was admitted. It does not know which version serves. It is safe for
// concurrent use.
type Registry struct {
	mu struct {
		sync.RWMutex
		models  map[ID]*Model
		joints  []*Joint           // the joints that were asked for, at most maxJoints
		derived map[derived]*Model // models with other weights, at most maxDerived
	}
}

// maxJoints bounds how many joints are kept. When there are so many, the next new one makes
// the registry drop all of them: requests that need one make it again.
const maxJoints = 64

// Join returns the joint of a model and others, which it finds by their ids. Equal calls
// return the same joint as long as the registry keeps it.
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

// Joined is Join for models that the caller has.
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

// Find returns the model with exactly this id. The error is a [millrace.Error] of the
// field "model". For a version that is not in the registry its reason is
// [millrace.ReasonNotHere]. For a name alone that is not built in it is
// [millrace.ReasonUnknown].
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

// Admit adds a version: the model that validate returns. It returns the error of validate.
// It refuses the name of a built-in model, and an id without a version or a checksum,
// without a call of validate.
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

// Names returns the names of all models, sorted, each once.
func (r *Registry) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.namesLocked()
}

// namesLocked is Names for a caller that holds the lock.
func (r *Registry) namesLocked() []string {
	names := map[string]bool{}
	for id := range r.mu.models {
		names[id.Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// CompareVersions returns below 0 if version a is older than b, above 0 if it is newer,
// and 0 if neither is. Runs of digits are compared as numbers, and all else by its bytes.
// As in semantic versions, a version that goes on with a hyphen and a letter is older
// than the one without: 1.10-rc1 comes before 1.10.
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

// preRelease reports whether the rest of a version begins with a hyphen and a letter.
func preRelease(rest string) bool {
	return len(rest) > 1 && rest[0] == '-' && (rest[1] >= 'a' && rest[1] <= 'z' || rest[1] >= 'A' && rest[1] <= 'Z')
}

// digits returns how many digits s begins with.
func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

//go:embed builtin/*.yaml
var builtin embed.FS

// shipped returns the schemas of ShippedSchemas, which it makes once.
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

// ShippedSchemas returns the schemas that every binary has, for [Parse].
func ShippedSchemas() Schemas { return maps.Clone(shipped()) }

// SchemasOf returns the schemas that every binary has and those of a registry of schemas,
// for [Parse].
func SchemasOf(known *registry.Snapshot) Schemas {
	all := ShippedSchemas()
	all.add(known)
	return all
}

// add adds all schemas of a registry.
func (s Schemas) add(known *registry.Snapshot) {
	for _, f := range known.Families() {
		s[f.Name()] = Records{f.Layout(), f}
	}
}

// BuiltinSpec returns the text of the spec of a built-in model.
func BuiltinSpec(name string) ([]byte, error) { return builtin.ReadFile("builtin/" + name + ".yaml") }

// builtinModels returns the built-in models by name, which it makes once.
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

// CheckName refuses the name of a built-in model. No pack can take the place of a built-in
// model, since that must rank even if all others fail.
func CheckName(name string) error {
	if _, builtin := builtinModels()[name]; !builtin {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: fmt.Sprintf("%s is built in", name), WayOut: "give the model another name, in its spec"}
}
