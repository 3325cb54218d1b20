package reference

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/relevance"
)

// TestInterpreterEqualsReference holds the plan and its interpreter against
// walking the expressions, for random specs over random records.
func TestInterpreterEqualsReference(t *testing.T) {
	seeds, checked := 1500, 0
	if testing.Short() {
		seeds = 150
	}
	for seed := range uint64(seeds) {
		if compareRandom(t, seed) {
			checked++
		}
	}
	if checked < seeds*2/3 {
		t.Errorf("only %d of the specs were accepted", checked)
	}
}

// compareRandom reports whether the seed's spec was accepted: a constant
// expression out of range or above the cost limit is not.
func compareRandom(t *testing.T, seed uint64) bool {
	r := rand.New(rand.NewPCG(seed, 1))
	text := Spec(r, "random")
	m, err := relevance.Parse("random.yaml", []byte(text), Schemas)
	if err != nil {
		t.Logf("seed %d: %v", seed, err)
		return false
	}
	entity := Schemas["test.Member"].Layout
	if m.Spec().Entity == "" || r.IntN(4) == 0 {
		entity = nil
	}
	rows := Schemas["test.Every"].Layout
	if r.IntN(8) == 0 {
		rows = relevance.ShippedSchemas()["millrace.Note"].Layout // which lacks nearly everything
	}
	if err := Compare(r, m, rows, entity); err != nil {
		t.Fatalf("seed %d: %v\n%s", seed, err, text)
	}
	return true
}

// FuzzInterpreter does the same from any seed.
func FuzzInterpreter(f *testing.F) {
	f.Add(uint64(0))
	f.Fuzz(func(t *testing.T, seed uint64) { compareRandom(t, seed) })
}

// TestJointEqualsReference joins random specs, each of which must score as it
// does alone.
func TestJointEqualsReference(t *testing.T) {
	seeds := 200
	if testing.Short() {
		seeds = 40
	}
	for seed := range uint64(seeds) {
		compareJoint(t, seed)
	}
}

func compareJoint(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 4))
	var models []*relevance.Model
	for tries := 0; len(models) < 2+int(seed%3) && tries < 20; tries++ {
		if m, err := relevance.Parse("random.yaml", []byte(Spec(r, "random")), Schemas); err == nil {
			models = append(models, m)
		}
	}
	if len(models) == 0 {
		return
	}
	entity := Schemas["test.Member"].Layout
	if r.IntN(4) == 0 {
		entity = nil
	}
	if err := CompareJoint(r, models, Schemas["test.Every"].Layout, entity); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
}

// FuzzJoint does the same from any seed.
func FuzzJoint(f *testing.F) {
	f.Add(uint64(0))
	f.Fuzz(func(t *testing.T, seed uint64) { compareJoint(t, seed) })
}

// TestWeightedEqualsReference gives random specs other weights.
func TestWeightedEqualsReference(t *testing.T) {
	checked := 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		m, err := relevance.Parse("random.yaml", []byte(Spec(r, "random")), Schemas)
		if err != nil {
			continue
		}
		set := map[string]float64{"bias": r.NormFloat64()}
		for name, w := range m.Parameters().Weights {
			if w.Table == nil {
				set[name] = r.NormFloat64()
				continue
			}
			for key := range w.Table.Strings {
				set[name+"."+key] = r.NormFloat64()
			}
		}
		weighted, err := m.Weighted(set)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, m := range []*relevance.Model{m, weighted} {
			if err := Compare(r, m, Schemas["test.Every"].Layout, nil); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		checked++
	}
	if checked < 100 {
		t.Errorf("only %d of the specs were accepted", checked)
	}
}
