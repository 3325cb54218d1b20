package relevance

import (
	"fmt"
	"strings"
	"testing"
)

// dots is a spec of n products of lists, which cost their lists.
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

// TestCostIsOfTheSpecAlone: what is admitted does not depend on the machine.
func TestCostIsOfTheSpecAlone(t *testing.T) {
	for _, name := range Builtin().Names() {
		if err := builtinModel(t, name).affordable(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for products, fits := range map[int]bool{400: true, 1200: false} {
		err := dots(t, products).affordable()
		if (err == nil) != fits || !fits && !strings.Contains(err.Error(), "operations") {
			t.Errorf("%d products of lists: %v", products, err)
		}
	}
}

// TestFiftyTimesSlower: it is told of a version that costs so much more than
// the one before.
func TestFiftyTimesSlower(t *testing.T) {
	quick, slow := builtinModel(t, "recency"), dots(t, 600)
	if err := slow.MuchSlower(quick); err == nil || !strings.Contains(err.Error(), "more than 50 times") {
		t.Errorf("600 products after none: %v", err)
	}
	if err := slow.MuchSlower(dots(t, 400)); err != nil {
		t.Errorf("600 products after 400: %v", err)
	}
	if err := quick.MuchSlower(slow); err != nil {
		t.Error(err)
	}
}
