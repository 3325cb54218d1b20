package codegen

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/relevance"
)

var rewrite = flag.Bool("rewrite", false, "write the files that the tests compare with")

// builtins are the specs whose Go is checked in under relevance/models.
func builtins(t *testing.T) []Spec {
	var specs []Spec
	for _, name := range []string{"home", "recency"} {
		text, err := relevance.BuiltinSpec(name)
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, Spec{Name: name + ".yaml", Text: text})
	}
	return specs
}

// TestModelsAreFresh generates the built-in models again and compares.
func TestModelsAreFresh(t *testing.T) {
	files, err := Generate("models", relevance.ShippedSchemas(), builtins(t)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		checkFile(t, filepath.Join("../relevance/models", f.Name), f.Text)
	}
}

// checkFile compares a file with what it should hold, or writes it.
func checkFile(t *testing.T, path string, want []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: run go test ./codegen -rewrite, or millrace generate; it should be\n%s", path, want)
	}
}
