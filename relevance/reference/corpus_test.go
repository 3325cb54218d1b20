package reference

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	_ "github.com/millrace/millrace/codegen/testdata/entity" // code that is scored by here
	_ "github.com/millrace/millrace/codegen/testdata/joint_entity"
	_ "github.com/millrace/millrace/codegen/testdata/joint_object"
	_ "github.com/millrace/millrace/codegen/testdata/joint_trees"
	_ "github.com/millrace/millrace/codegen/testdata/joint_trees_behind"
	_ "github.com/millrace/millrace/codegen/testdata/joint_vectors"
	_ "github.com/millrace/millrace/codegen/testdata/object_folded"
	_ "github.com/millrace/millrace/codegen/testdata/object_trees"
	_ "github.com/millrace/millrace/codegen/testdata/trees_inputs"
	_ "github.com/millrace/millrace/codegen/testdata/vectors"
	_ "github.com/millrace/millrace/codegen/testdata/vectors_trees"
	_ "github.com/millrace/millrace/codegen/testdata/vectors_whole"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

const corpus = "../../codegen/testdata"

// layoutsOf returns layouts of records and of the entity for which models may be bound.
func layoutsOf(known relevance.Schemas, models ...*relevance.Model) (rows, entity *column.Layout) {
	rows = relevance.RoleLayout()
	for _, m := range models {
		for _, name := range m.Spec().Schemas {
			rows = known[name].Layout
		}
		if l := known[m.Spec().Entity].Layout; l != nil {
			entity = l
		}
	}
	return rows, entity
}

// TestCorpusEqualsReference reads the specs that code is generated from. Those that have a
// fault are refused in the same words, and the others score as the reference does, alone and
// with others.
func TestCorpusEqualsReference(t *testing.T) {
	known := relevance.ShippedSchemas()
	maps.Copy(known, Schemas)
	dirs, err := filepath.Glob(corpus + "/*/spec.yaml")
	if err != nil || len(dirs) < 60 {
		t.Fatalf("%d specs: %v", len(dirs), err)
	}
	models := map[string]*relevance.Model{}
	refused, generated := 0, 0
	for _, spec := range dirs {
		dir := filepath.Dir(spec)
		m, err := relevance.ParseFile(os.DirFS(dir), "spec.yaml", known)
		if err != nil && strings.Contains(err.Error(), "no schema test.") {
			continue // of the benchmarks of code
		}
		if err != nil {
			refused++
			want, _ := os.ReadFile(filepath.Join(dir, "stderr.txt"))
			if got := err.Error() + "\n"; got != string(want) {
				t.Errorf("%s is refused with\n%s, want\n%s", dir, got, want)
			}
			continue
		}
		if models[m.Name()] = m; strings.Contains(dir, "random") {
			continue // TestInterpreterEqualsReference has more
		}
		rows, entity := layoutsOf(known, m)
		s, err := m.Bind(rows, entity, nil, 0)
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		if s.Execution() == "generated" {
			generated++
		}
		if err := Compare(rand.New(rand.NewPCG(1, 2)), m, rows, entity); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if refused < 20 || generated < 5 {
		t.Errorf("%d are refused, and %d have generated code", refused, generated)
	}
	feeds, err := filepath.Glob(corpus + "/joint_*/feed.yaml")
	if err != nil || len(feeds) < 10 {
		t.Fatalf("%d feeds: %v", len(feeds), err)
	}
	generated = 0
	for _, feed := range feeds {
		text, err := os.ReadFile(feed)
		if err != nil {
			t.Fatal(err)
		}
		var joined []*relevance.Model
		for _, name := range regexp.MustCompile(`[a-z0-9_-]+`).FindAllString(string(text[strings.Index(string(text), "model:"):]), -1) {
			if m := models[name]; m != nil {
				joined = append(joined, m)
			}
		}
		if len(joined) < 2 {
			continue
		}
		rows, entity := layoutsOf(known, joined...)
		s, err := relevance.Join(joined...).Bind(rows, entity, nil, 0)
		if err != nil {
			t.Fatalf("%s: %v", feed, err)
		}
		if s.Execution() == "generated" {
			generated++
		}
		if err := CompareJoint(rand.New(rand.NewPCG(1, 3)), joined, rows, entity); err != nil {
			t.Errorf("%s: %v", feed, err)
		}
	}
	if generated < 4 {
		t.Errorf("%d feeds have generated code", generated)
	}
}
