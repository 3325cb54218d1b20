package relevance

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/relevance/weights"
)

// The names of parameters that are not of features; see [Model.Weighted].
const (
	biasName   = "bias"
	tablesName = "tables"
)

// Weighted returns the model with other values of some parameters, by their names. It
// scores bit for bit as the model of a pack with these parameters does. The name of a
// parameter is that of its feature; feature.value, if the feature has a table of weights;
// bias; or tables.name.key, for a key of a named table. If a feature is called bias or
// tables, the name means that feature. The error is a [millrace.Error] of the field weights,
// and says which name is no parameter.
func (m *Model) Weighted(set map[string]float64) (*Model, error) {
	p := m.params
	p.Weights, p.Tables = maps.Clone(p.Weights), maps.Clone(p.Tables)
	if err := p.setAll(ID{Name: m.Name(), Version: m.Version()}, m.spec.source.Scorer, set); err != nil {
		return nil, err
	}
	next := &Model{spec: m.spec, params: p, slow: m.slow, plans: m.plans, own: m.Own(), readings: m.readings}
	next.weights, next.tables = m.spec.compile(&p)
	next.share(m)
	return next, nil
}

// CheckWeights returns the error that [Model.Weighted] would return for set; nil if all
// names are parameters. id is the model's, for messages. The schemas of the spec need not
// be known.
func (t SpecText) CheckWeights(id ID, set map[string]float64) error {
	r := t.reader(nil)
	params := r.untilFull(r.readParametersAlone)
	if err := r.err(); err != nil {
		return err
	}
	return params.setAll(id, r.spec.source.Scorer, set)
}

// setAll gives parameters other values, by their names. of is the model's id, for messages.
func (p *Parameters) setAll(of ID, scorer plan.Scorer, set map[string]float64) error {
	if scorer == plan.Trees {
		return noParameter(fmt.Sprintf("model %s is of trees, which have no weights", of), "set another model instead")
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if !p.set(name, set[name]) {
			return noParameter(fmt.Sprintf("model %s has no parameter %.100q", of, name), hint.Nearest(name, p.near(name)))
		}
	}
	return nil
}

func noParameter(detail, wayOut string) error {
	return &millrace.Error{Reason: millrace.ReasonUnknown, Field: "weights", Detail: detail, WayOut: wayOut}
}

// Own returns the model with its own weights: itself, unless it is one that
// [Model.Weighted] made.
func (m *Model) Own() *Model {
	if m.own != nil {
		return m.own
	}
	return m
}

// share takes over the compiled tables of another model, for features whose table is the
// same.
func (m *Model) share(other *Model) {
	for i, f := range m.spec.Features {
		w := m.spec.source.Weights[i]
		if w.Table && m.params.Weights[f.Name].Table == other.params.Weights[f.Name].Table {
			m.tables[w.Index] = other.tables[w.Index]
		}
	}
}

// set gives a parameter another value, and reports whether there is one of that name. It
// copies a table before it changes it. The maps Weights and Tables must be p's own.
func (p *Parameters) set(name string, x float64) bool {
	if w, ok := p.Weights[name]; ok && w.Table == nil {
		p.Weights[name] = Weight{Scalar: x}
		return true
	}
	feature, key, dotted := strings.Cut(name, ".")
	if w, ok := p.Weights[feature]; ok && dotted && w.Table != nil {
		t, ok := w.Table.with(key, x)
		p.Weights[feature] = Weight{Table: &t}
		return ok
	}
	if table, key, ok := strings.Cut(key, "."); ok && feature == tablesName {
		if t, there := p.Tables[table]; there {
			p.Tables[table], ok = t.with(key, x)
			return ok
		}
	}
	if name == biasName {
		p.Bias = x
	}
	return name == biasName
}

// with returns the table with another value for a key; false if it does not have the key.
func (t Table) with(key string, x float64) (Table, bool) {
	if t.Strings != nil {
		_, ok := t.Strings[key]
		if ok {
			t.Strings = maps.Clone(t.Strings)
			t.Strings[key] = x
		}
		return t, ok
	}
	k, numeric := number(key)
	i, ok := slices.BinarySearch(t.Numbers, k)
	if ok = ok && numeric; ok {
		t.Values = slices.Clone(t.Values)
		t.Values[i] = x
	}
	return t, ok
}

// keys returns the names of a table's parameters: prefix.key for each key.
func (t Table) keys(prefix string) (names []string) {
	for _, k := range slices.Sorted(maps.Keys(t.Strings)) {
		names = append(names, prefix+"."+k)
	}
	for _, k := range t.Numbers {
		names = append(names, fmt.Sprint(prefix, ".", k))
	}
	return names
}

// near returns the names of the parameters that a wrong name may stand for: those of the
// table that it begins with, or else all.
func (p *Parameters) near(name string) (names []string) {
	feature, _, _ := strings.Cut(name, ".")
	if w, ok := p.Weights[feature]; ok && w.Table != nil {
		return w.Table.keys(feature)
	}
	for _, f := range slices.Sorted(maps.Keys(p.Weights)) {
		if t := p.Weights[f].Table; t != nil {
			names = append(names, t.keys(f)...)
		} else {
			names = append(names, f)
		}
	}
	names = append(names, biasName)
	for _, t := range slices.Sorted(maps.Keys(p.Tables)) {
		names = append(names, p.Tables[t].keys(tablesName+"."+t)...)
	}
	return names
}

// maxDerived bounds how many models with other weights are kept. Each further one takes the
// place of any of them.
const maxDerived = 64

// derived names a model with other weights.
type derived struct {
	of  ID
	sum string // the checksum of the weights, as [weights.Sum] gives it
}

// Weighted returns the model of an id with other weights, as [Model.Weighted] does. form
// and sum are as package weights writes them; if both are empty, it returns the model
// itself. Equal calls return the same model as long as the registry keeps it.
func (r *Registry) Weighted(id ID, form, sum string) (*Model, error) {
	m, err := r.Find(id)
	if err != nil || form == "" && sum == "" {
		return m, err
	}
	key := derived{id, sum}
	r.mu.RLock()
	kept := r.mu.derived[key]
	r.mu.RUnlock()
	if kept != nil {
		return kept, nil
	}
	set, err := weights.Read(form, sum)
	if err != nil {
		return nil, err
	}
	if m, err = m.Weighted(set); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if kept := r.mu.derived[key]; kept != nil {
		return kept, nil
	}
	if r.mu.derived == nil {
		r.mu.derived = map[derived]*Model{}
	}
	for old := range r.mu.derived {
		if len(r.mu.derived) < maxDerived {
			break
		}
		delete(r.mu.derived, old)
	}
	r.mu.derived[key] = m
	return m, nil
}
