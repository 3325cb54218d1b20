package relevance

import (
	"errors"
	"fmt"
	"slices"
)

// Validate admits a pack: its spec is read against schemas, its features are
// those of the manifest, its golden rows come out, and a record costs no more
// than is allowed. The pack and the schemas alone decide. The error reports
// every fault. A model that Validate returns can serve.
//
// A golden row comes out if it does so for the record as what serves reads it,
// or for the values as the row writes them, by which packs were sealed before:
// a node takes what it took. [Seal] takes the first alone.
func Validate(p *Pack, schemas Schemas) (m *Model, err error) {
	return p.validate(schemas, typed, asWritten)
}

func (p *Pack) validate(schemas Schemas, as ...reading) (m *Model, err error) {
	defer func() {
		if r := recover(); r != nil {
			m, err = nil, fmt.Errorf("relevance: validate: the model breaks: %v", r)
		}
	}()
	m, err = p.model(schemas)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(p.identity(m), p.golden(m, schemas, as), m.affordable()); err != nil {
		return nil, fmt.Errorf("relevance: validate %s: %w", p.Manifest.Name, err)
	}
	return m, nil
}

// model parses the pack's spec.
func (p *Pack) model(schemas Schemas) (*Model, error) {
	return parse(SpecFile, p.files[SpecFile], schemas, p.open)
}

func (p *Pack) open(name string) ([]byte, error) {
	if b, ok := p.files[name]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("no file %s in the pack", name)
}

// identity holds the spec against the manifest.
func (p *Pack) identity(m *Model) error {
	var errs []error
	if p.Manifest.Name != m.Name() || p.Manifest.Version != m.Version() {
		errs = append(errs, fmt.Errorf("%s says %s version %q, and the spec %s version %q", ManifestFile, p.Manifest.Name, p.Manifest.Version, m.Name(), m.Version()))
	}
	if want := m.FeatureTypes(); !slices.Equal(p.Manifest.Features, want) {
		errs = append(errs, fmt.Errorf("%s has %d features that are not the %d of the spec, by name, type and order", ManifestFile, len(p.Manifest.Features), len(want)))
	}
	return errors.Join(errs...)
}

// FeatureTypes returns the features of the spec. The caller must not change them.
func (m *Model) FeatureTypes() []FeatureType { return m.spec.types }

func featureTypes(features []Feature) (all []FeatureType) {
	for _, f := range features {
		kind, err := featureKind(f.Tree.Type)
		if err != nil {
			continue // refused when the spec was read
		}
		all = append(all, FeatureType{f.Name, kind.String()})
	}
	return all
}
