package compute_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	_ "github.com/millrace/millrace/compute/testdata/version1" // compiles, which is most of the promise
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/reference"
)

// Code of version 1, as it was written then, scores as the interpreter does.
func TestVersion1Scores(t *testing.T) {
	schemas := relevance.ShippedSchemas()
	maps.Copy(schemas, reference.Schemas)
	for _, name := range []string{"items", "object", "strings", "tables", "vectors", "vectors_whole"} {
		m, err := relevance.ParseFile(os.DirFS("../codegen/testdata/"+name), "spec.yaml", schemas)
		if err != nil {
			t.Fatal(err)
		}
		rows, entity := schemas[m.Spec().Schemas[0]].Layout, schemas[m.Spec().Entity].Layout
		s, err := m.Bind(rows, entity, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Execution(); got != "generated" {
			t.Errorf("%s is %s: either its plan is another now, which costs every team a millrace generate, or its code is gone", name, got)
		}
		for seed := range uint64(8) {
			if err := reference.Compare(rand.New(rand.NewPCG(seed, 7)), m, rows, entity); err != nil {
				t.Errorf("%s, seed %d: %v", name, seed, err)
			}
		}
	}
}

// Code that is written today calls nothing that code of version 1 did not: an
// older release that runs version 1 would not compile it.
func TestGeneratedCodeIsOfItsVersion(t *testing.T) {
	promised := called(t, "testdata/version1/*.go")
	for name, file := range called(t, "../codegen/testdata/*/want.go", "../relevance/models/*.go", "../schemas/decoders/*.go", "../schemas/testdata/every/*.go") {
		if promised[name] == "" {
			t.Errorf("%s calls compute.%s, which code of version 1 does not: count up compute.Version, and keep such code as testdata/version2", file, name)
		}
	}
}

// called are the names of package compute in files, and a file each.
func called(t *testing.T, patterns ...string) map[string]string {
	t.Helper()
	names := map[string]string{}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "compute" {
						names[s.Sel.Name] = file
					}
				}
				return true
			})
		}
	}
	return names
}
