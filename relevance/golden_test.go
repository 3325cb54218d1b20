package relevance

import (
	"encoding/json"
	"fmt"
	"math"
	"path"
	"strings"
	"testing"

	"github.com/millrace/millrace/relevance/trees/trained"
)

// TestGoldenRowsOfLibraries: a pack whose golden rows are what the library
// predicted is sealed, and one with other predictions is not.
func TestGoldenRowsOfLibraries(t *testing.T) {
	models, err := trained.Models()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, m := range models {
		switch path.Base(m.Name) {
		case "binary", "softprob", "poisson", "tweedie", "rf", "logistic_ubj", "categories_40":
			tried++
			if _, err := Seal(writePack(t, goldenPack(t, m, 0), 0), ShippedSchemas(), nil); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
			if _, err := Seal(writePack(t, goldenPack(t, m, 1e-6), 0), ShippedSchemas(), nil); err == nil || !strings.Contains(err.Error(), "golden rows are off") {
				t.Errorf("%s, other scores: %v", m.Name, err)
			}
		}
	}
	if tried < 9 {
		t.Errorf("%d models", tried)
	}
}

// goldenPack is the files of a pack with the library's scores and more.
func goldenPack(t *testing.T, m *trained.Model, more float64) map[string]string {
	t.Helper()
	spec := "name: golden\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures:\n"
	var names []string
	for c := range trained.Columns {
		names = append(names, fmt.Sprintf("x%d", c))
		spec += fmt.Sprintf("  x%d: record.likes * %d.0\n", c, c+1)
	}
	class := len(m.Scores[0]) - 1
	spec += fmt.Sprintf("scorer: trees\ntrees: {model: model, class: %d, inputs: [%s]}\n", class, strings.Join(names, ", "))
	var golden strings.Builder
	for n := 0; n < minGoldenTrained; {
		for i, row := range m.Rows {
			features := map[string]any{}
			for c, x := range row {
				if !math.IsNaN(x) && !math.IsInf(x, 0) {
					features[names[c]] = x
				} else if math.IsInf(x, 0) {
					features = nil
					break
				}
			}
			score := m.Scores[i][class]
			score += more * max(1, math.Abs(score))
			if features == nil || math.IsInf(score, 0) {
				continue
			}
			line, err := json.Marshal(Golden{features, &score})
			if err != nil {
				t.Fatal(err)
			}
			golden.Write(append(line, '\n'))
			n++
		}
	}
	return map[string]string{SpecFile: spec, "model": string(m.File), GoldenFile: golden.String(), CardFile: "x"}
}
