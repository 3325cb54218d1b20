package modelpack

import (
	"math"
	"testing"

	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// scores are those of the last Score.
func (w *Workload) scores() (all []float64) {
	for _, p := range w.parts {
		all = append(all, p.out...)
	}
	return all
}

// A workload is of the records that the model is for: of a schema of one's own, with what
// the viewer has, and not what folds to a constant.
func TestWorkloadsAreWhatTheModelIsFor(t *testing.T) {
	const own = `{"type":"record","name":"team.Item","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"emb","type":{"type":"array","items":"double"},"default":[]}]}`
	const spec = "name: near\nversion: \"1\"\nschemas: [team.Item]\nviewer: {emb: list(double)}\nfeatures: {near: \"dot(record.emb, viewer.emb)\"}\nscorer: linear\nparameters: {weights: {near: 1}}\n"
	team, err := schemas.Parse([]byte(own))
	if err != nil {
		t.Fatal(err)
	}
	known := familyOf(t, team)
	m, err := relevance.Parse(SpecFile, []byte(spec), known)
	if err != nil {
		t.Fatal(err)
	}
	scored := func(rows []Golden, known relevance.Schemas) []float64 {
		t.Helper()
		w, err := NewWorkload(m, rows, known, 1024)
		if err != nil {
			t.Fatal(err)
		}
		w.Score()
		return w.scores()
	}
	for _, x := range scored(MadeUp(m, known)) {
		if math.IsNaN(x) || x == 0 {
			t.Fatalf("a made-up record scores %v", x)
		}
	}
	rows, err := ReadGolden("golden", []byte(`{"record":{"emb":[1,2]},"viewer":{"emb":[3,4]}}`+"\n"+`{"record":{"emb":[5]},"viewer":{"emb":[6]}}`+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if s := scored(rows, known); s[0] != 11 || s[len(s)-1] != 30 {
		t.Errorf("the rows score %v and %v", s[0], s[len(s)-1])
	}
}
