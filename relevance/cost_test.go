package relevance

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/schemas"
)

// dots is a spec of n products of lists, which cost their lists.
func dots(t *testing.T, n int) *Model {
	t.Helper()
	var viewer, features, weights []string
	for i := range n {
		viewer = append(viewer, fmt.Sprintf("v%d: list(double)", i))
		features = append(features, fmt.Sprintf("f%d: \"dot(record.features, viewer.v%d)\"", i, i))
		weights = append(weights, fmt.Sprintf("f%d: 1", i))
	}
	spec := fmt.Sprintf("name: team\nversion: \"2\"\nschemas: [millrace.Activity]\nviewer: {%s}\nfeatures: {%s}\nscorer: linear\nparameters: {weights: {%s}}\n",
		strings.Join(viewer, ", "), strings.Join(features, ", "), strings.Join(weights, ", "))
	m, err := Parse("spec.yaml", []byte(spec), ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// What a model reads of a record from end to end is counted, and nothing else.
func TestReadings(t *testing.T) {
	for feature, want := range map[string]int{
		`record.likes + record.comments`:                             0,
		`record.verb == "post" && record.verb in ["like", "post"]`:   0,
		`record.verb in viewer.verbs`:                                0,
		`record.text.contains("a") && !record.text.startsWith("b")`:  2,
		`"a" in record.about`:                                        1,
		`size(record.text) + size(record.about) + size(record.verb)`: 3,
	} {
		m, err := Parse("spec.yaml", fmt.Appendf(nil, "name: reads\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {verbs: list(string)}\nfeatures: {f: '%s'}\nscorer: linear\nparameters: {weights: {f: 1}}\n", feature), ShippedSchemas())
		if err != nil {
			t.Errorf("%s: %v", feature, err)
		} else if m.Readings() != want {
			t.Errorf("%s reads %d times, not %d", feature, m.Readings(), want)
		}
	}
}

// What a viewer's text costs counts where each record reads it, and not
// where it is read once a question.
func TestViewersTextsCost(t *testing.T) {
	cost := func(feature string) int {
		t.Helper()
		m, err := Parse("spec.yaml", fmt.Appendf(nil, "name: reads\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {bio: string, more: string, a: list(string)}\nfeatures: {f: '%s'}\nscorer: linear\nparameters: {weights: {f: 1}}\n", feature), ShippedSchemas())
		if err != nil {
			t.Fatal(err)
		}
		return m.Cost()
	}
	for _, each := range []string{
		`viewer.bio.contains(record.verb)`,
		`cross(record.verb, viewer.bio).contains(viewer.more)`,
		`size(record.likes > 0 ? viewer.bio : viewer.more)`,
	} {
		if got := cost(each); got < 4096 {
			t.Errorf("%s costs %d", each, got)
		}
	}
	for _, once := range []string{
		`viewer.bio.contains("go")`, `record.verb.contains(viewer.bio)`, `record.verb in viewer.a`, `size(viewer.bio) + record.likes`,
		`lookup({"go|post": 1}, cross(viewer.bio, record.verb), 0)`, `viewer.bio == record.verb`,
		`lookup({"go": 1}, coalesce(viewer.bio, record.verb), 0)`,
	} {
		if got := cost(once); got > 300 {
			t.Errorf("%s costs %d", once, got)
		}
	}
}

// Crosses that each record makes of a viewer's texts take little memory, however
// many and long they are, and none of it from one question to the next.
func TestCrossesTakeLittle(t *testing.T) {
	var features, weights strings.Builder
	for i := range 12 {
		crossed := fmt.Sprintf(`cross("%d", record.verb)`, i)
		for range 55 {
			crossed = "cross(" + crossed + ", viewer.country)"
		}
		fmt.Fprintf(&features, "  f%d: 'lookup({\"post|x\": 1}, %s, 0)'\n", i, crossed)
		fmt.Fprintf(&weights, "    f%d: 1\n", i)
	}
	m, err := Parse("spec.yaml", []byte("name: boom\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {country: string}\nfeatures:\n"+features.String()+"scorer: linear\nparameters:\n  weights:\n"+weights.String()), ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	layout := ShippedSchemas()["millrace.Activity"].Layout
	var all []map[string]any
	for range 300 {
		all = append(all, map[string]any{"verb": "post", "language": "en"})
	}
	rows := activities(t, layout, all...)
	sel, out := make([]int32, rows.Len()), make([]float64, rows.Len())
	for i := range sel {
		sel[i] = int32(i)
	}
	for _, length := range []int{27, 16 << 10} {
		viewer := &millrace.Viewer{Attributes: map[string]any{"country": strings.Repeat("z", length)}}
		s, err := m.Bind(layout, nil, viewer, 0)
		if err != nil {
			t.Fatal(err)
		}
		first := allocated(func() { s.Score(rows, sel, nil, out) })
		again := allocated(func() { s.Score(rows, sel, nil, out) })
		if first > 8<<20 || again > 64<<10 {
			t.Errorf("crosses of %d bytes take %d KiB, and then %d KiB", length, first>>10, again>>10)
		}
		s.LetGo()
		if err := s.Rebind(viewer, 0); err != nil {
			t.Fatal(err)
		}
		if after := allocated(func() { s.Score(rows, sel, nil, out) }); (after > 256<<10) != (first > 256<<10) {
			t.Errorf("crosses of %d bytes: %d KiB are kept", length, (first-after)>>10)
		}
	}
}

// allocated is how many bytes a call allocates, garbage included.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestFiftyTimesSlower: it is told of a version that costs so much more than
// the one before.
func TestFiftyTimesSlower(t *testing.T) {
	quick, slow := builtinModel(t, "recency").Cost(), dots(t, 600).Cost()
	if err := MuchSlower(slow, quick); err == nil || !strings.Contains(err.Error(), "more than 50 times") {
		t.Errorf("600 products after none: %v", err)
	}
	if err := MuchSlower(slow, dots(t, 400).Cost()); err != nil {
		t.Errorf("600 products after 400: %v", err)
	}
	if err := MuchSlower(quick, slow); err != nil {
		t.Error(err)
	}
}

// What models have in common is shared evenly among those that have it; what one
// has alone, tables of its parameters included, is its own.
func TestSharesOfAJoint(t *testing.T) {
	model := func(features, parameters string) *Model {
		t.Helper()
		return parseSpec(t, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {v: list(double), w: list(double)}\nfeatures: {"+features+"}\nscorer: linear\nparameters: {"+parameters+"}\n")
	}
	const x, y, table = `x: "dot(record.features, viewer.v)"`, `y: "dot(record.features, viewer.w)"`, `t: "lookup(codes, record.verb, 0.5)"`
	onlyX := model(x, "weights: {x: 1}")
	other := model(x, "weights: {x: 5}, bias: 3")
	both := model(x+", "+y, "weights: {x: 1, y: 2}")
	looks := model(table, "weights: {t: 1}, tables: {codes: {post: 7}}")
	more := model(table+", "+x, "weights: {t: 1, x: 2}, tables: {codes: {post: 8}}")
	look := float64(looks.Cost()) // two of it for the verb and 0.5, which are common
	dot := float64(exprCost(onlyX.spec.Features[0].Tree))
	const own = 2 // with one feature
	for what, c := range map[string]struct {
		models []*Model
		parts  []float64 // of any sum
	}{
		"alone":            {[]*Model{both}, []float64{1}},
		"all the same":     {[]*Model{onlyX, other, onlyX}, []float64{1, 1, 1}},
		"nothing the same": {[]*Model{onlyX, looks}, []float64{own + dot, own + look}},
		// Both products read record.features, which is read once for all.
		"a part": {[]*Model{both, onlyX}, []float64{own + 1 + dot/2 + dot - 1, own + dot/2}},
		// The name of the table is the same, and what is in it need not be.
		"their own tables": {[]*Model{more, looks}, []float64{own + 1 + dot + look - 1, own + look - 1}},
	} {
		got, sum, want := Join(c.models...).Shares(), 0.0, 0.0
		for i := range got {
			sum, want = sum+got[i], want+c.parts[i]
		}
		if math.Abs(sum-1) > 1e-12 || len(got) != len(c.models) {
			t.Errorf("%s: %v come to %v", what, got, sum)
		}
		for i := range got {
			if math.Abs(got[i]-c.parts[i]/want) > 1e-12 {
				t.Errorf("%s: %v, want %v of %v", what, got, c.parts, want)
				break
			}
		}
	}
	if got := Join(both, onlyX).Shares(); len(got) != 2 || got[0] <= got[1] {
		t.Errorf("interpreted: %v", got)
	}
}

// What is read where a version serves is told field by field, of records, objects and
// entities, with how often: what is longer may take longer.
func TestReadingsOfAPlan(t *testing.T) {
	rows, entity := ShippedSchemas()["millrace.Activity"].Layout, schemas.Features().Layout()
	for feature, want := range map[string]string{
		`record.likes + record.features[2]`:                               "",
		`record.verb == "post" && record.verb in viewer.verbs`:            "",
		`record.text == viewer.word`:                                      "",
		`record.text.startsWith("a") && record.text.endsWith("b")`:        "",
		`lookup({"a": 1}, record.text, 0)`:                                "",
		`viewer.word.contains("b")`:                                       "",
		`size(record.text) + size(record.text)`:                           "text 1+0",
		`record.text.contains("a") && record.text.contains(record.verb)`:  "text 2+0, verb 1+0",
		`record.text == record.verb && record.text.startsWith(record.id)`: "verb 1+0, text 2+0, id 1+0",
		`size(record.likes > 1 ? record.text : record.verb)`:              "text 1+0, verb 1+0",
		`size(cross(cross(record.text, record.verb), record.text))`:       "text 4+0, verb 3+0",
		`"a" in record.about || size(record.about) > 2`:                   "about 10+0",
		`dot(record.features, viewer.taste)`:                              "features 1+0", // where it stands
		`dot(record.features, viewer.taste) + size(record.features)`:      "features 10+0",
		`dot(entity.embedding, viewer.taste)`:                             "entity embedding 0+1",
		`dot(entity.embedding, record.features)`:                          "features 1+0, entity embedding 1+8",
		`cosine(record.features, record.features)`:                        "features 10+0",
		`entity.subject.contains(record.verb)`:                            "verb 1+0, entity subject 1+0",
		`dot(object.embedding, entity.embedding) + size(object.subject)`:  "object embedding 9+0, object subject 1+0, entity embedding 1+8",
	} {
		m, err := Parse("spec.yaml", fmt.Appendf(nil, "name: reads\nversion: \"1\"\nschemas: [millrace.Activity]\nentity: millrace.Features\nobject: millrace.Features\nviewer: {verbs: list(string), word: string, taste: list(double)}\nfeatures: {f: '%s'}\nscorer: linear\nparameters: {weights: {f: 1}}\n", feature), ShippedSchemas())
		if err != nil {
			t.Errorf("%s: %v", feature, err)
			continue
		}
		s, err := m.Bind(rows, entity, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		tell := func(of string, l *column.Layout, all []plan.Reading) {
			for _, r := range all {
				got = append(got, fmt.Sprintf("%s%s %d+%d", of, l.Fields()[r.Column].Name, r.Each, r.Once))
			}
		}
		r := s.Readings(false)
		tell("", rows, r.Record)
		tell("object ", s.ObjectLayout(), r.Object)
		tell("entity ", entity, r.Entity)
		if got := strings.Join(got, ", "); got != want {
			t.Errorf("%s reads %q, not %q", feature, got, want)
		}
	}
}
