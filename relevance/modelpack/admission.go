package modelpack

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/relevance"
)

// Validate admits a pack: its spec is read against schemas, its features are
// those of the manifest, its golden rows come out, and a record costs no more
// than is allowed. The pack and the schemas alone decide. The error reports
// every fault. A model that Validate returns can serve.
//
// A golden row comes out if it does so for the record as what serves reads it,
// or for the values as the row writes them, by which packs were sealed before:
// a node takes what it took. [Seal] takes the first alone.
func Validate(p *Pack, schemas relevance.Schemas) (m *relevance.Model, err error) {
	return p.validate(schemas, typed, asWritten)
}

// Admit validates the pack, the bytes of which have the checksum sum, and adds it to
// a registry. What comes of it is decided by the pack and the schemas alone, so that
// every node decides the same.
func (p *Pack) Admit(r *relevance.Registry, sum string, schemas relevance.Schemas) (relevance.ID, error) {
	id := relevance.ID{Name: p.Manifest.Name, Version: p.Manifest.Version, Sum: sum}
	return id, r.Admit(id, func() (*relevance.Model, error) { return Validate(p, schemas) })
}

// CheckWeights reports what are no parameters of the pack's model, as
// [relevance.Model.Weighted] does. The schemas of its records need not be known.
func (p *Pack) CheckWeights(set map[string]float64) error {
	return p.spec().CheckWeights(relevance.ID{Name: p.Manifest.Name, Version: p.Manifest.Version}, set)
}

// ViewerValues returns the values of the viewer that the pack's model reads, and the
// type of each, without a look at schemas.
func (p *Pack) ViewerValues() (map[string]string, error) { return p.spec().ViewerValues() }

func (p *Pack) validate(schemas relevance.Schemas, as ...reading) (m *relevance.Model, err error) {
	defer func() {
		if r := recover(); r != nil {
			m, err = nil, fmt.Errorf("relevance: validate: the model breaks: %v", r)
		}
	}()
	m, err = p.model(schemas)
	if err != nil {
		return nil, err
	}
	viewers, wrong := p.golden(m, schemas, as)
	if err := errors.Join(p.identity(m), wrong, affordable(m)); err != nil {
		return nil, fmt.Errorf("relevance: validate %s: %w", p.Manifest.Name, err)
	}
	return m.WithViewers(viewers), nil
}

// model parses the pack's spec.
func (p *Pack) model(schemas relevance.Schemas) (*relevance.Model, error) {
	return p.spec().Parse(schemas)
}

// spec is the pack's spec, with the files that it names.
func (p *Pack) spec() relevance.SpecText {
	return relevance.SpecText{Name: SpecFile, Text: p.files[SpecFile], Open: p.open}
}

func (p *Pack) open(name string) ([]byte, error) {
	if b, ok := p.files[name]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("no file %s in the pack", name)
}

// identity holds the spec against the manifest.
func (p *Pack) identity(m *relevance.Model) error {
	var errs []error
	if p.Manifest.Name != m.Name() || p.Manifest.Version != m.Version() {
		errs = append(errs, fmt.Errorf("%s says %s version %q, and the spec %s version %q", ManifestFile, p.Manifest.Name, p.Manifest.Version, m.Name(), m.Version()))
	}
	if want := m.FeatureTypes(); !slices.Equal(p.Manifest.Features, want) {
		errs = append(errs, fmt.Errorf("%s has %d features that are not the %d of the spec, by name, type and order", ManifestFile, len(p.Manifest.Features), len(want)))
	}
	return errors.Join(errs...)
}

// What a pack may cost, as [relevance.Model.Cost] estimates it.
const (
	// maxCost is what a record may cost. An operation takes half a nanosecond
	// or less, so that a question of 20,000 candidates keeps a core busy for a
	// second at most. A hundred trees of 255 leaves cost about 2,000.
	maxCost = 100_000
	// maxGoldenCost is what all golden rows together may cost: a few tenths of a second.
	// Each node tries them at each start, those of all versions that there are.
	maxGoldenCost = 200_000_000
	featureCost   = 50 // of a golden row, for each feature that it is held against
)

// affordable reports a model that costs too much.
func affordable(m *relevance.Model) error {
	if c := m.Cost(); c > maxCost {
		return fmt.Errorf("a record costs %d operations; at most %d are allowed", c, maxCost)
	}
	return nil
}

// affordableRows reports golden rows, and the bytes that these have together, that
// cost too much to try. What reads texts and lists of a record is taken to read all
// bytes of a row.
func affordableRows(m *relevance.Model, rows, bytes int) error {
	each, read := m.Cost()+featureCost*len(m.Spec().Features), m.Readings()*bytes
	if c := rows*each + read; c > maxGoldenCost {
		return fmt.Errorf("%s: to try the rows costs %d operations: %d for each of %d rows, and %d for %d functions that read texts or lists of records from end to end, in %d bytes; at most %d are allowed: keep fewer rows, or shorter texts in them",
			GoldenFile, c, each, rows, read, m.Readings(), bytes, maxGoldenCost)
	}
	return nil
}
