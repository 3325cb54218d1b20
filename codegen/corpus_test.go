package codegen

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/reference"
)

var columns, counters = columnsLayout(), countersLayout()

// known are the schemas that the specs of the corpus may name.
func known() relevance.Schemas {
	s := relevance.ShippedSchemas()
	maps.Copy(s, reference.Schemas)
	s["test.Columns"], s["test.Counters"] = relevance.Records{Layout: columns}, relevance.Records{Layout: counters}
	return s
}

// cases are the names of the directories of testdata: each has a spec.yaml or
// a feed.yaml, and what comes of it, a want.go or a stderr.txt.
func cases(t *testing.T) []string {
	dirs, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range dirs {
		if d.IsDir() {
			names = append(names, d.Name())
		}
	}
	return names
}

// TestCorpus generates every case and compares with what it should give.
func TestCorpus(t *testing.T) {
	imports := bytes.NewBufferString("package codegen\n\n// The generated code of the corpus: go test ./codegen -rewrite.\nimport (\n")
	names := cases(t)
	if len(names) < 60 {
		t.Errorf("the corpus has %d cases", len(names))
	}
	for _, name := range names {
		dir := filepath.Join("testdata", name)
		good, bad := filepath.Join(dir, "want.go"), filepath.Join(dir, "stderr.txt")
		text, err := generateCase(t, name)
		if err != nil {
			checkFile(t, bad, []byte(err.Error()+"\n"))
			checkAbsent(t, good)
			continue
		}
		fmt.Fprintf(imports, "\t_ \"github.com/millrace/millrace/codegen/testdata/%s\"\n", name)
		checkFile(t, good, text)
		checkAbsent(t, bad)
	}
	imports.WriteString(")\n")
	checkFile(t, "cases_test.go", imports.Bytes())
}

func generateCase(t *testing.T, name string) ([]byte, error) {
	dir := filepath.Join("testdata", name)
	if feed, ok := readFeed(t, name); ok {
		f, err := GenerateFeed(name, known(), feed)
		return f.Text, err
	}
	files, err := Generate(name, known(), Spec{Name: "spec.yaml", Dir: os.DirFS(dir)})
	if err != nil {
		return nil, err
	}
	return files[0].Text, nil
}

func checkAbsent(t *testing.T, path string) {
	t.Helper()
	if *rewrite {
		os.Remove(path)
	} else if _, err := os.Stat(path); err == nil {
		t.Errorf("%s is left over", path)
	}
}

// TestCorpusBits scores random records by the compiled code of each good case,
// by the interpreter and by the reference.
func TestCorpusBits(t *testing.T) {
	for _, name := range cases(t) {
		m, err := relevance.ParseFile(os.DirFS(filepath.Join("testdata", name)), "spec.yaml", known())
		if err != nil {
			continue
		}
		t.Run(name, func(t *testing.T) { bits(t, m) })
	}
}

func bits(t *testing.T, m *relevance.Model) {
	for _, target := range targets(m.Spec(), known()) {
		s, err := m.Bind(target.rows, target.entity, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Execution(); got != "generated" {
			t.Fatalf("%s: %s", target.what, got)
		}
		for seed := range uint64(8) {
			if err := reference.Compare(rand.New(rand.NewPCG(seed, 2)), m, target.rows, target.entity); err != nil {
				t.Fatalf("%s, seed %d: %v", target.what, seed, err)
			}
		}
	}
}

// TestRegisterRefusesNothing: a shape without a function is a mistake of the
// generator.
func TestRegisterRefusesNothing(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("registered")
		}
	}()
	compute.RegisterModel(compute.Model{Shape: "none"})
}
