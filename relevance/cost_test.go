package relevance

import (
	"fmt"
	"strings"
	"testing"
)

// dots is a spec of n products of lists, whose estimate is far below what they
// take.
func dots(t *testing.T, n int) *Model {
	t.Helper()
	var viewer, features, weights []string
	for i := range n {
		viewer = append(viewer, fmt.Sprintf("v%d: list(double)", i))
		features = append(features, fmt.Sprintf("f%d: \"dot(record.features, viewer.v%d)\"", i, i))
		weights = append(weights, fmt.Sprintf("f%d: 1", i))
	}
	spec := fmt.Sprintf("name: team\nversion: \"2\"\nschemas: [millrace.Activity]\nviewer: {%s}\nfeatures: {%s}\nscorer: linear\nparameters: {weights: {%s}}\n",
		strings.Join(viewer, ", "), strings.Join(features, ", "), strings.Join(weights, ", "))
	m, err := Parse("spec.yaml", []byte(spec), ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMeasuredCost(t *testing.T) {
	for _, name := range Builtin().Names() {
		if err := builtinModel(t, name).affordable(ShippedSchemas()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := dots(t, 4000).affordable(ShippedSchemas()); err == nil || !strings.Contains(err.Error(), "a record takes") {
		t.Errorf("4000 products of lists: %v", err)
	}
}

// TestFiftyTimesSlower: a version that takes so much longer than the one
// before does not replace it.
func TestFiftyTimesSlower(t *testing.T) {
	quick, slow := builtinModel(t, "recency"), dots(t, 800)
	if err := slow.slower(quick, ShippedSchemas()); err == nil || !strings.Contains(err.Error(), "another name") {
		t.Errorf("800 products after none: %v", err)
	}
	if err := slow.slower(dots(t, 400), ShippedSchemas()); err != nil {
		t.Errorf("800 products after 400: %v", err)
	}
	if err := quick.slower(slow, ShippedSchemas()); err != nil {
		t.Error(err)
	}
}

// TestMeasuresEveryRole: a model of record, entity, object and viewer can be
// measured.
func TestMeasuresEveryRole(t *testing.T) {
	m, err := Parse("spec.yaml", []byte(`name: roles
version: "1"
schemas: [millrace.Activity]
entity: millrace.Features
object: millrace.Features
viewer: {taste: list(double), calm: bool}
features:
  a: dot(record.features, viewer.taste)
  b: entity.followers
  c: object.followers
  d: viewer.calm
  e: record.verb == viewer.id
scorer: linear
parameters: {weights: {a: 1, b: 1, c: 1, d: 1, e: 1}}
`), ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	if took, err := m.measure(ShippedSchemas()); err != nil || took <= 0 {
		t.Errorf("%v, %v", took, err)
	}
}
