package codegen

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/reference"
)

// models are those of the corpus, by name.
var models = sync.OnceValue(func() map[string]*relevance.Model {
	all := map[string]*relevance.Model{}
	dirs, _ := os.ReadDir("testdata")
	for _, d := range dirs {
		if m, err := relevance.ParseFile(os.DirFS(filepath.Join("testdata", d.Name())), "spec.yaml", known()); err == nil {
			all[m.Name()] = m
		}
	}
	return all
})

// readFeed reads the definition of a case that is a feed, whose models are
// those of other cases.
func readFeed(t *testing.T, name string) (Feed, bool) {
	text, err := os.ReadFile(filepath.Join("testdata", name, "feed.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return Feed{}, false
	}
	var def struct {
		Name, Model, Filter string
		Shadow              []string
	}
	if err == nil {
		err = document.Decode(text, &def)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	f := Feed{Name: def.Name, File: "feed.yaml"}
	if def.Filter != "" {
		f.Records = filterLayouts
		if f.Filter, err = filter.Compile(def.Filter, filterEnv); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		filterSources[name] = def.Filter
	}
	if def.Model == "" {
		return f, true
	}
	for _, m := range append([]string{def.Model}, def.Shadow...) {
		if models()[m] == nil {
			t.Fatalf("%s: no model %s", name, m)
		}
		f.Models = append(f.Models, models()[m])
	}
	return f, true
}

// TestFeedBits scores random records by all models of each feed of the corpus
// at once, generated and interpreted, and by each of them alone.
func TestFeedBits(t *testing.T) {
	for _, name := range cases(t) {
		f, ok := readFeed(t, name)
		if !ok || len(f.Models) < 2 {
			continue
		}
		t.Run(name, func(t *testing.T) { jointBits(t, f) })
	}
}

func jointBits(t *testing.T, f Feed) {
	joint := relevance.Join(f.Models...)
	var specs []*relevance.Spec
	for _, m := range f.Models {
		specs = append(specs, m.Spec())
	}
	for _, target := range jointTargets(specs, known()) {
		s, err := joint.Bind(target.rows, target.entity, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Execution(); got != "generated" {
			t.Fatalf("%s: %s", target.what, got)
		}
		for seed := range uint64(8) {
			if err := reference.CompareJoint(rand.New(rand.NewPCG(seed, 3)), f.Models, target.rows, target.entity); err != nil {
				t.Fatalf("%s, seed %d: %v", target.what, seed, err)
			}
		}
	}
}
