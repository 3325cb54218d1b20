package relevance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
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

// A feature without an expression is refused, however it is written.
func TestAFeatureNeedsAnExpression(t *testing.T) {
	const spec = "name: a\nversion: 1\nfeatures: {t: %}\nscorer: linear\nparameters: {weights: {t: 1}}\n"
	for text, want := range map[string]string{
		"''": "a.yaml:3:16: the expression ends too early", `""`: "a.yaml:3:16: the expression ends too early", `" "`: "the expression ends too early",
		"~": "a.yaml:3:15: a feature is a text, and this is nothing", "[]": "a.yaml:3:15: a feature is a text, and this is a list",
	} {
		if _, err := Parse("a.yaml", []byte(strings.Replace(spec, "%", text, 1)), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A version is what is written, with quotes and without: 1.10 is not 1.1.
func TestVersionsAreAsTheyAreWritten(t *testing.T) {
	for _, version := range []string{"1", "1.0", "1.10", "010", "1e3", "0x10", "2026-01-02", "1.2.3", "1.10-rc1"} {
		for _, quote := range []string{"", `"`} {
			m, err := Parse("a.yaml", []byte("name: a\nversion: "+quote+version+quote+"\nfeatures: {t: record.time}\nscorer: linear\nparameters:\n  weights: {t: 1}\n"), nil)
			if err != nil || m.Version() != version {
				t.Errorf("%s%s: %+v, %v", quote, version, m, err)
			}
		}
	}
}

// TestFaultsSayWhatIsSo: of a schema that nobody gave one fault is told and none
// of its fields; a map is there, though nothing reads it; and the operators that
// are offered are those that models have.
func TestFaultsSayWhatIsSo(t *testing.T) {
	const visit = `{"type":"record","name":"Visit","namespace":"shop","fields":[
	 {"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},
	 {"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},%s]}`
	var all []*schemas.Schema
	for _, fields := range []string{`{"name":"extra","type":{"type":"map","values":"string"},"default":{}}`, `{"name":"extra","type":["null",{"type":"map","values":"string"}],"default":null},{"name":"stars","type":"int","default":0}`, `{"name":"likes","type":"int","default":0}`} {
		s, err := schemas.Parse([]byte(strings.Replace(visit, "%s", fields, 1)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	family, err := schemas.FamilyOf(all...) // whose columns are no schema's own
	if err != nil {
		t.Fatal(err)
	}
	known := familyOf(t, all[0])
	both := ShippedSchemas()
	both["shop.Visit"] = Records{family.Layout(), family}
	const spec = `name: a
version: "1"
schemas: [shop.Visit]
features: {extra: record.extra, deep: record.extra.x, likes: record.likes, op: record.time record.time}
scorer: linear
parameters: {weights: {extra: 1, deep: 1, likes: 1, op: 1}}
`
	for name, c := range map[string]struct {
		known  Schemas
		faults int
		want   []string
	}{
		"no schema":   {ShippedSchemas(), 1, []string{"no schema shop.Visit\n", "give the .avsc files of others by --schema, to a cluster by millrace schema define"}},
		"a map":       {known, 4, []string{"record.extra is of the type map of string, which no expression reads\n", "no field likes in record", "the operators are && || ! == != < <= > >= + - * / in ?:"}},
		"of a family": {both, 3, []string{"record.extra is of the type map of string, which no expression reads\n"}},
	} {
		_, err := Parse("a.yaml", []byte(spec), c.known)
		var faults *SpecError
		if !errors.As(err, &faults) || len(faults.Problems) != c.faults {
			t.Errorf("%s: %v, want %d faults", name, err, c.faults)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: no %q in\n%v", name, want, err)
			}
		}
	}
}

// familyOf is the schemas that ship and one more, each a family of its own.
func familyOf(t *testing.T, all ...*schemas.Schema) Schemas {
	t.Helper()
	known := ShippedSchemas()
	for _, s := range all {
		f, err := schemas.FamilyOf(s)
		if err != nil {
			t.Fatal(err)
		}
		known[s.Name()] = Records{f.Layout(), f}
	}
	return known
}
