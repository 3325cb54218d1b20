package relevance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/relevance/plan"
)

// Admission rules.
const (
	goldenTolerance  = 1e-9   // of a score, or of its share of a large one
	singleTolerance  = 2.5e-7 // of one that was computed in float32: two units in its last place
	minGoldenRows    = 1      // of a model
	minGoldenTrained = 100    // of a model with trees
	maxGoldenLine    = 1 << 20
)

// Validate admits a pack: its spec is read against schemas, its features are
// those of the manifest, its golden rows come out, and a record costs no more
// than is allowed. The pack and the schemas alone decide. The error reports
// every fault. A model that Validate returns can serve.
func Validate(p *Pack, schemas Schemas) (m *Model, err error) {
	defer func() {
		if r := recover(); r != nil {
			m, err = nil, fmt.Errorf("relevance: validate: the model breaks: %v", r)
		}
	}()
	m, err = p.model(schemas)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(p.identity(m), p.golden(m), m.affordable()); err != nil {
		return nil, fmt.Errorf("relevance: validate %s: %w", p.Manifest.Name, err)
	}
	return m, nil
}

// model parses the pack's spec.
func (p *Pack) model(schemas Schemas) (*Model, error) {
	return parse(SpecFile, p.files[SpecFile], schemas, func(name string) ([]byte, error) {
		if b, ok := p.files[name]; ok {
			return b, nil
		}
		return nil, fmt.Errorf("no file %s in the pack", name)
	})
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

// FeatureTypes returns the features of the spec.
func (m *Model) FeatureTypes() []FeatureType {
	var out []FeatureType
	for _, f := range m.spec.Features {
		kind, err := featureKind(f.Tree.Type)
		if err != nil {
			continue // refused when the spec was read
		}
		out = append(out, FeatureType{f.Name, kind.String()})
	}
	return out
}

// Golden is a row of golden.ndjson: features and the score that they should
// give. A missing number is null or left out.
type Golden struct {
	Features map[string]any `json:"features"`
	Score    *float64       `json:"score"`
}

// golden scores the golden rows and reports the first of each kind of fault.
func (p *Pack) golden(m *Model) error {
	rows, err := p.GoldenRows()
	if err != nil {
		return err
	}
	least := minGoldenRows
	if m.params.Forest != nil {
		least = minGoldenTrained
	}
	if len(rows) < least {
		return fmt.Errorf("%s has %d rows; %d are needed", GoldenFile, len(rows), least)
	}
	tolerance := goldenTolerance
	if f := m.params.Forest; f != nil && f.Single() {
		tolerance = singleTolerance
	}
	wrong, worst, at := 0, 0.0, 0
	for i, row := range rows {
		values, err := m.featureValues(row.Features)
		if err != nil {
			return fmt.Errorf("%s:%d: %w", GoldenFile, i+1, err)
		}
		got := m.ScoreFeatures(values)
		if math.IsNaN(got) || math.IsInf(got, 0) {
			return fmt.Errorf("%s:%d: the score is %v", GoldenFile, i+1, got)
		}
		off := math.Abs(got-*row.Score) / max(1, math.Abs(*row.Score))
		if off > tolerance {
			wrong++
		}
		if off > worst {
			worst, at = off, i+1
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d golden rows are off; the worst, %s:%d, by %.3g, and %.3g is allowed", wrong, len(rows), GoldenFile, at, worst, tolerance)
	}
	return nil
}

// GoldenRows reads golden.ndjson.
func (p *Pack) GoldenRows() ([]Golden, error) {
	var rows []Golden
	lines := bufio.NewScanner(bytes.NewReader(p.files[GoldenFile]))
	lines.Buffer(nil, maxGoldenLine)
	for n := 1; lines.Scan(); n++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		var row Golden
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&row); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", GoldenFile, n, err)
		}
		if row.Score == nil {
			return nil, fmt.Errorf("%s:%d: no score", GoldenFile, n)
		}
		rows = append(rows, row)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", GoldenFile, err)
	}
	return rows, nil
}

// featureValues puts named features into the order of the spec.
func (m *Model) featureValues(named map[string]any) ([]any, error) {
	var names []string
	values := make([]any, len(m.spec.Features))
	found := 0
	for i, t := range m.FeatureTypes() {
		names = append(names, t.Name)
		v, ok := named[t.Name]
		if ok {
			found++
		}
		switch v := asNumber(v).(type) {
		case nil:
			values[i] = math.NaN()
			if t.Type == plan.String.String() {
				values[i] = ""
			}
		case float64, string:
			values[i] = v
		}
		if _, text := values[i].(string); values[i] == nil || text != (t.Type == plan.String.String()) {
			return nil, fmt.Errorf("feature %s is a %s, and here is %v", t.Name, t.Type, v)
		}
	}
	if found != len(named) {
		for name := range named {
			if !slices.Contains(names, name) {
				return nil, fmt.Errorf("the spec has no feature %s; %s", name, nearest(name, names))
			}
		}
	}
	return values, nil
}
