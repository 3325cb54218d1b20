package modelpack

import (
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/relevance"
)

// Validate checks a pack and returns its model, which can serve then. The spec must
// parse against schemas, its features must be those of the manifest, the model must
// give what each golden row says, and a record may cost no more than is allowed. The
// pack and the schemas alone decide. The error reports every fault.
//
// A golden row may be read in two ways: its record as index nodes read it, or its
// values as they are written. It is enough that one of them gives what the row says:
// earlier versions sealed packs by the second, and a node must still take these.
// [Seal] allows the first alone.
func Validate(p *Pack, schemas relevance.Schemas) (m *relevance.Model, err error) {
	return p.validate(schemas, typed, asWritten)
}

// Admit validates the pack and adds its model to a registry; sum is the checksum of the
// pack's bytes, as Sum returns it. The pack and the schemas alone decide the result, so
// that every node decides the same.
func (p *Pack) Admit(r *relevance.Registry, sum string, schemas relevance.Schemas) (relevance.ID, error) {
	id := relevance.ID{Name: p.Manifest.Name, Version: p.Manifest.Version, Sum: sum}
	return id, r.Admit(id, func() (*relevance.Model, error) { return Validate(p, schemas) })
}

// CheckWeights returns an error for names in set that are no parameters of the pack's
// model, as [relevance.Model.Weighted] does. The schemas of its records need not be known.
func (p *Pack) CheckWeights(set map[string]float64) error {
	return p.spec().CheckWeights(relevance.ID{Name: p.Manifest.Name, Version: p.Manifest.Version}, set)
}

// ViewerValues returns the type of each value of the viewer that the pack's model reads,
// by name. The schemas of its records need not be known.
func (p *Pack) ViewerValues() (map[string]string, error) { return p.spec().ViewerValues() }

// validate is Validate with the ways in which golden rows may be read. A panic of the model
// is an error.
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
	rows, wrong := p.golden(m, schemas, as)
	if err := errors.Join(p.identity(m), wrong, affordable(m)); err != nil {
		return nil, fmt.Errorf("relevance: validate %s: %w", p.Manifest.Name, err)
	}
	return m.WithViewers(viewersOf(rows)), nil
}

// model parses the pack's spec.
func (p *Pack) model(schemas relevance.Schemas) (*relevance.Model, error) {
	return p.spec().Parse(schemas)
}

// spec returns the text of the pack's spec, with a way to read the files that it names.
func (p *Pack) spec() relevance.SpecText {
	return relevance.SpecText{Name: SpecFile, Text: p.files[SpecFile], Open: p.open}
}

func (p *Pack) open(name string) ([]byte, error) {
	if b, ok := p.files[name]; ok {
		return b, nil
	}
	return nil, fmt.Errorf("no file %s in the pack", name)
}

// identity reports where the spec differs from the manifest: in name, version or features.
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
	// maxCost is how many operations a record may cost. An operation takes half a
	// nanosecond or less, so that a question of 20,000 candidates keeps a core busy for
	// a second at most. A hundred trees of 255 leaves cost about 2,000.
	maxCost = 100_000
	// maxGoldenCost is how many operations all golden rows together may cost: a few
	// tenths of a second. At each start each node tries the rows of all versions.
	maxGoldenCost = 200_000_000
	// featureCost is what comparing a feature with a golden row costs, in operations.
	featureCost = 50
)

// affordable returns an error if a record costs the model too much.
func affordable(m *relevance.Model) error {
	if c := m.Cost(); c > maxCost {
		return fmt.Errorf("a record costs %d operations; at most %d are allowed", c, maxCost)
	}
	return nil
}

// affordableRows returns an error if golden rows cost too much to try; bytes is how many
// bytes all rows have together. A function that reads texts or lists of a record is taken
// to read all bytes of each row.
func affordableRows(m *relevance.Model, rows, bytes int) error {
	each, read := m.Cost()+featureCost*len(m.Spec().Features), m.Readings()*bytes
	if c := rows*each + read; c > maxGoldenCost {
		return fmt.Errorf("%s: to try the rows costs %d operations: %d for each of %d rows, and %d for %d functions that read texts or lists of records from end to end, in %d bytes; at most %d are allowed: keep fewer rows, or shorter texts in them",
			GoldenFile, c, each, rows, read, m.Readings(), bytes, maxGoldenCost)
	}
	return nil
}
