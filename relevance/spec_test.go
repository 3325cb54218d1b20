package relevance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzParse: whatever a spec holds, it is refused with places or accepted, and
// an accepted one binds.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("../codegen/testdata/*/spec.yaml")
	if len(files) == 0 {
		f.Fatal("no seeds")
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	schemas := ShippedSchemas()
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := Parse("spec.yaml", text, schemas)
		var faults *SpecError
		switch {
		case err == nil:
			if m.Name() == "" {
				t.Error("accepted without a name")
			}
			if _, err := m.Bind(schemas["millrace.Activity"].Layout, nil, nil, 0); err != nil && len(m.Spec().Schemas) == 1 && m.Spec().Schemas[0] == "millrace.Activity" {
				t.Error(err)
			}
		case !errors.As(err, &faults) || len(faults.Problems) == 0:
			t.Errorf("refused with %v", err)
		default:
			_ = err.Error()
		}
	})
}

// TestNumbers: every way that YAML and people write numbers.
func TestNumbers(t *testing.T) {
	const spec = "name: a\nversion: 1\nfeatures: {t: record.time}\nscorer: linear\nparameters:\n  weights: {t: %}\n"
	for text, want := range map[string]float64{"1": 1, "-1": -1, "1e-3": 1e-3, "1.5e+3": 1500, "-0.0": 0, ".5": 0.5, "1_000": 1000, "0x10": 16, "12345678901234567890": 12345678901234567890} {
		m, err := Parse("a.yaml", []byte(strings.Replace(spec, "%", text, 1)), nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got := m.Parameters().Weights["t"].Scalar; got != want {
			t.Errorf("%s is %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"nope", `"1"`, "true", "~", "1e999", ".inf", ".nan"} {
		if _, err := Parse("a.yaml", []byte(strings.Replace(spec, "%", text, 1)), nil); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
