package relevance

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/weights"
	"github.com/millrace/millrace/schemas"
)

// stumps is a LightGBM model of two features whose score is that of its one class, or of three.
func stumps(classes int, extra string) string {
	tree := "Tree=0\nnum_leaves=2\nsplit_feature=1\nthreshold=0.5\ndecision_type=0\nleft_child=-1\nright_child=-2\nleaf_value=1 2\n\n"
	return fmt.Sprintf("tree\nversion=v4\nnum_class=%d\nnum_tree_per_iteration=%[1]d\nmax_feature_idx=1\nobjective=%s\nfeature_names=a b\n\n%send of trees\n", classes, extra, strings.Repeat(tree, classes))
}

const labels = `{"version": [2, 1, 0], "learner": {"feature_names": ["a"], "gradient_booster": {"name": "gbtree", "model": {"tree_info": [0, 1], "trees": [` + leaf + `,` + leaf + `]}},
	"learner_model_param": {"base_score": "0", "num_class": "2", "num_feature": "1"}, "objective": {"name": "multi:softmax"}}}`

const leaf = `{"default_left": [0], "left_children": [-1], "right_children": [-1], "split_conditions": [1], "split_indices": [0]}`

// What is wrong with a spec, its parameters or its trees is told with its place and the way out.
func TestSpecsAreRefused(t *testing.T) {
	const (
		plain   = "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {v: double}\nfeatures:\n  a: record.likes\n  b: record.verb\nscorer: linear\nparameters:\n  weights: {a: 1, b: {x: 1}}\n  tables: {t: {1: 2}}\n"
		forest  = "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {a: record.likes, b: record.shares}\nscorer: trees\ntrees: {model: one}\n"
		another = "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {a: record.likes}\nscorer: linear\nparameters: other.yaml\n"
	)
	files := map[string]string{"one": stumps(1, "regression"), "three": stumps(3, "multiclass num_class:3"), "bad": "tree\n", "labels": labels, "other.yaml": "weights: {a: 2}\n", "bad.yaml": "wights: {a: 2}\n"}
	open := func(name string) ([]byte, error) {
		if text, ok := files[name]; ok {
			return []byte(text), nil
		}
		return nil, errors.New("no such file")
	}
	many := func(n int) (all string) {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "  f%d: record.likes\n", i)
		}
		return b.String()
	}
	for _, c := range []struct{ src, old, new, want string }{
		{plain, "", "", ""},
		{plain, "name: m", "name: M", `1:7: "M" is not a model's name`},
		{plain, `"1"`, `"` + strings.Repeat("9", 100) + `"`, ""},
		{plain, `"1"`, `"` + strings.Repeat("9", 101) + `"`, "2:10: \"" + strings.Repeat("9", 101) + "\" is not the name of a version"},
		{plain, `"1"`, `"1 2"`, `2:10: "1 2" is not the name of a version`},
		{plain, `"1"`, `"1\u0001"`, `is not the name of a version`},
		{plain, `"1"`, `""`, `2:10: "" is not the name of a version`},
		{plain, `"1"`, `[1]`, `2:10: version is a text, and this is a list`},
		{plain, "scorer", "scorers", "8:1: a spec has no scorers\n"},
		{plain, "scorer: linear", "scorer: liner", "8:9: no scorer \"liner\""},
		{plain, "[millrace.Activity]", "millrace.Activity", ""},
		{plain, "[millrace.Activity]", "{a: b}", "3:10: schemas is a list, and this is a mapping"},
		{plain, "[millrace.Activity]", "~", "3:10: schemas is a list, and this is nothing"},
		{plain, "{v: double}", "{v-1: double}", `4:10: "v-1" is not a name`},
		{plain, "{v: double}", "{v: float}", `4:13: no type "float"`},
		{plain, "{v: double}", "{id: string}", "viewer.id is always there"},
		{plain, "{v: double}", "[v]", "4:9: viewer is a mapping of names to values, and this is a list"},
		{plain, "{v: double}", "{v: double, v: double}", "v stands twice"},
		{plain, "a: record.likes", "a-1: record.likes", `6:3: "a-1" is not a feature's name`},
		{plain, "a: record.likes", "a: record.about", "a: a feature is a number, a boolean or a string, and this is a list"},
		{plain, "  a: record.likes\n  b: record.verb\n", "  {}\n", "6:3: there are no features"},
		{plain, "  a: record.likes\n", many(maxFeatures + 1), fmt.Sprintf("%d:3: there are 4098 features; a model has at most 4096", 6+maxFeatures)},
		{plain, "tables: {t: {1: 2}}", "tables: {t-1: {1: 2}}", `11:12: "t-1" is not a table's name`},
		{plain, "tables: {t: {1: 2}}", "table: {t: {1: 2}}", "11:3: parameters have no table"},
		{plain, "tables: {t: {1: 2}}", "tables: {t: {1: 2, 1.0: 3}}", "the key 1.0 of table t stands twice"},
		{plain, "tables: {t: {1: 2}}", "tables: {t: {}}", "11:15: table t is empty"},
		{plain, "tables: {t: {1: 2}}", "tables: {t: 7}", "11:15: table t is a mapping of names to values, and this is an integer"},
		{plain, "tables: {t: {1: 2}}", "tables: {t: {1: x}}", `11:19: table t is a number, and this is the text "x"`},
		{plain, "a: 1,", "a: 1e999,", "10:16: the weight of a is "},
		{plain, "a: 1,", `a: "1e999",`, `10:16: the weight of a is a number, and this is the text "1e999"`},
		{plain, "a: 1,", "a: true,", "10:16: the weight of a is a finite number, and this is a boolean"},
		{plain, "a: 1,", "a: {x: 1},", "10:13: a is a number, and its weights are by string"},
		{plain, "a: 1,", "a: [1, 2],", ""},
		{plain, "a: 1, ", "", "6:3: the feature a has no weight"},
		{plain, "a: 1,", "a: 1, c: 1,", "a weight for c, which is not a feature"},
		{plain, "b: {x: 1}", "b: 1", "b is a string, and its weight is one number"},
		{plain, "scorer: linear", "scorer: linear\ntrees: {model: one}", "9:1: there are trees, and the scorer is another"},
		{plain, "name: m", "name: \xff", "not YAML"},
		{forest, "", "", ""},
		{forest, "trees: {model: one}\n", "", "1:1: the scorer is trees, and there are none"},
		{forest, "{model: one}", "{}", "6:1: trees without a model"},
		{forest, "{model: one}", "{mode: one}", "6:9: trees have no mode"},
		{forest, "{model: one}", "{model: none}", "6:16: no such file"},
		{forest, "{model: one}", "{model: bad}", "6:16: bad: trees: LightGBM model: line 1: "},
		{forest, "{model: one}", "{model: one, class: 0}", ""},
		{forest, "{model: one}", "{model: one, class: 1}", "6:28: class 1; the model has classes 0 to 0"},
		{forest, "{model: one}", "{model: three, class: 2}", ""},
		{forest, "{model: one}", "{model: three, class: 0.5}", "class 0.5; the model has classes 0 to 2"},
		{forest, "{model: one}", "{model: three}", "6:1: the model has 3 classes, and a record has one score"},
		{forest, "{model: one}", "{model: one, output: raw}", ""},
		{forest, "{model: one}", "{model: one, output: linked}", ""},
		{forest, "{model: one}", "{model: one, output: log}", `6:29: no output "log"`},
		{forest, "{a: record.likes, b: record.shares}", "{a: record.likes}", "6:1: the model's column 1 is b, which is not a feature"},
		{forest, "{a: record.likes, b: record.shares}", "{b: record.likes}", ""}, // no split reads a
		{forest, "{a: record.likes, b: record.shares}", "{a: record.likes, b: record.shares, c: record.comments}", "the model has no column c"},
		{forest, "{model: one}", "{model: one, inputs: [b, a]}", ""},
		{forest, "{model: one}", "{model: one, inputs: [a]}", "6:21: the model has 2 columns, and 1 are named"},
		{forest, "{model: one}", "{model: one, inputs: [b, b]}", "the model has two columns b"},
		{forest, "b: record.shares", "b: record.verb", "4:29: b is a string, and trees take numbers"},
		{forest, "scorer: trees", "scorer: trees\nparameters: {weights: {a: 1}}", "a weight for a, and trees have none"},
		{strings.Replace(forest, ", b: record.shares", "", 1), "{model: one}", "{model: labels, class: 0, output: raw}", ""},
		{strings.Replace(forest, ", b: record.shares", "", 1), "{model: one}", "{model: labels, class: 0}", "6:1: multi:softmax gives the number of a class, which is not a score"},
		{strings.TrimSuffix(plain, "\n"), "tables: {t: {1: 2}}", "tables: {t: {}}", "11:15: table t is empty\n   11 |   tables: {t: {}}\n"},
		{another, "", "", ""},
		{another, "other.yaml", "none.yaml", "6:13: no such file"},
		{another, "other.yaml", "bad.yaml", "bad.yaml:1:1: parameters have no wights"},
	} {
		if !strings.Contains(c.src, c.old) {
			t.Fatalf("no %s", c.old)
		}
		_, err := SpecText{"spec.yaml", []byte(strings.Replace(c.src, c.old, c.new, 1)), open}.Parse(ShippedSchemas())
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.1000v, want %q", c.new, err, c.want)
		}
	}
	for src, want := range map[string]string{forest: "6:16: the file one cannot be read from here", another: "6:13: the file other.yaml cannot be read from here"} {
		if _, err := Parse("spec.yaml", []byte(src), ShippedSchemas()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := ParseFile(fstest.MapFS{}, "spec.yaml", nil); err == nil || !strings.HasPrefix(err.Error(), "relevance: open spec.yaml") {
		t.Errorf("no file: %v", err)
	}
}

// A spec of very many faults is read no further than a hundred of them, and one is shown with
// the part of its line that is near it.
func TestFaultsAreBounded(t *testing.T) {
	spec := func(n int) string {
		return "name: m\nversion: \"1\"\nfeatures: {t: record.time}\nscorer: linear\nparameters:\n  weights: {t: 1}\n  tables:\n" + strings.Repeat("    a-1: {1: 1}\n", 1) + func() string {
			var b strings.Builder
			for i := range n - 1 {
				fmt.Fprintf(&b, "    b-%d: {1: 1}\n", i)
			}
			return b.String()
		}()
	}
	for n, want := range map[int]int{1: 1, maxProblems: maxProblems, maxProblems + 1: maxProblems + 1, maxProblems + 50: maxProblems + 1} {
		_, err := Parse("spec.yaml", []byte(spec(n)), nil)
		var faults *SpecError
		if !errors.As(err, &faults) || len(faults.Problems) != want {
			t.Fatalf("%d faults: %v", n, err)
		}
		if last := faults.Problems[want-1].Message; (last == "there are more faults from here on") != (n > maxProblems) {
			t.Errorf("of %d faults the last is %q", n, last)
		}
	}
	for _, c := range []struct {
		before, after int
		want          string
	}{
		{3, 3, "s:1:4: x\n    1 | aaa!bbb\n      |    ^"},
		{69, 68, "s:1:70: x\n    1 | " + strings.Repeat("a", 69) + "!" + strings.Repeat("b", 68) + "\n      | " + strings.Repeat(" ", 69) + "^"},
		{71, 75, "s:1:72: x\n    1 | " + strings.Repeat("a", 70) + "!" + strings.Repeat("b", 69) + "\n      | " + strings.Repeat(" ", 70) + "^"},
	} {
		p := Problem{File: "s", Line: 1, Col: c.before + 1, Message: "x", text: strings.Repeat("a", c.before) + "!" + strings.Repeat("b", c.after)}
		if got := (&SpecError{[]Problem{p}}).Error(); got != c.want {
			t.Errorf("got\n%s\nwant\n%s", got, c.want)
		}
	}
	e := &SpecError{[]Problem{{File: "s", Line: 12345, Col: 9, Message: "x", Suggestion: "mend it", text: "\tü"}, {File: "s", Line: 1, Message: "y"}}}
	if want := "s:12345:9: x\n12345 |  ü\n      |   ^ mend it\ns:1:0: y\n    1 | \n      | ^"; e.Error() != want {
		t.Errorf("got\n%q\nwant\n%q", e.Error(), want)
	}
	// Faults stand in the order of files, lines and columns, and lines end without \r.
	_, err := SpecText{"spec.yaml", []byte("parameters: p.yaml\r\nversion: ' '\r\nname: M\r\nfeatures: {a-1: 1, b-1: 1}\r\nscorer: linear\r\n"), func(string) ([]byte, error) { return []byte("bia: 1\nweight: 2\n"), nil }}.Parse(nil)
	var faults *SpecError
	if !errors.As(err, &faults) {
		t.Fatal(err)
	}
	var at []string
	for _, p := range faults.Problems {
		at = append(at, fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Col))
		if strings.Contains(p.text, "\r") {
			t.Errorf("%q ends in the way of Windows", p.text)
		}
	}
	if want := []string{"spec.yaml:2:10", "spec.yaml:3:7", "spec.yaml:4:12", "spec.yaml:4:20", "p.yaml:1:1", "p.yaml:2:1"}; !slices.Equal(at, want) {
		t.Errorf("faults at %q, want %q", at, want)
	}
}

// What a spec declares of the viewer is known without its schemas.
func TestViewerValuesOfASpec(t *testing.T) {
	const spec = "name: m\nversion: \"1\"\nschemas: [nobody.Knows]\nviewer: {a: double, b: bool, c: string, d: list(double), e: list(string)}\n"
	values, err := SpecText{Name: "spec.yaml", Text: []byte(spec)}.ViewerValues()
	if got := fmt.Sprint(values); err != nil || got != "map[a:number b:bool c:string d:list(number) e:list(string)]" {
		t.Errorf("%s: %v", got, err)
	}
	if _, err := (SpecText{Name: "spec.yaml", Text: []byte("viewer: {a: float}\n")}).ViewerValues(); err == nil || !strings.Contains(err.Error(), `no type "float"`) {
		t.Errorf("%v", err)
	}
	m := parseSpec(t, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {a: double}\nfeatures: {a: record.likes, t: record.deleted, s: record.verb}\nscorer: linear\nparameters: {weights: {a: 1, t: 1, s: {x: 1}}}\n")
	if got := fmt.Sprint(m.ViewerValues()); got != "map[a:number]" {
		t.Errorf("the model's are %s", got)
	}
	if got := fmt.Sprint(m.FeatureTypes()); got != "[{a number} {t number} {s string}]" {
		t.Errorf("its features are %s", got)
	}
	if m.ReadsViewer() || m.ReadsObjects() {
		t.Error("it reads nothing of the viewer, nor of objects")
	}
	both := parseSpec(t, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nobject: millrace.Features\nviewer: {a: double}\nfeatures: {a: record.likes, v: viewer.a * record.likes}\nscorer: linear\nparameters: {weights: {a: 1, v: 1}}\n")
	if !both.ReadsViewer() || !both.ReadsObjects() || !Join(m, both).ReadsObjects() || Join(m, m).ReadsObjects() {
		t.Error("it reads the viewer, and names a schema of objects")
	}
	with := m.WithViewers([]map[string]any{{"id": "x"}})
	if len(with.Viewers()) != 1 || len(m.Viewers()) != 0 || with.Name() != "m" {
		t.Errorf("with viewers: %v, %v", with.Viewers(), m.Viewers())
	}
	l := RoleLayout()
	for _, role := range []string{"id", "entity", "type", "time", "version", "object"} {
		if l.Index(role) < 0 || l.Role(role) != l.Index(role) {
			t.Errorf("role %s is at %d, and the field at %d", role, l.Role(role), l.Index(role))
		}
	}
}

// Weights are written for people and for JSON.
func TestWeightsAsTextAndNumbers(t *testing.T) {
	m := parseSpec(t, weightedSpec)
	for name, want := range map[string][2]string{
		"likes": {"1.5", "1.5"}, "verb": {"{post: 1, share: 3}", "map[post:1 share:3]"}, "level": {"{1: 4, 2.5: 5}", "map[1:4 2.5:5]"},
	} {
		w := m.Parameters().Weights[name]
		if w.String() != want[0] || fmt.Sprint(w.Number()) != want[1] {
			t.Errorf("%s is %s and %v", name, w, w.Number())
		}
	}
	if w := m.Parameters().Weights["verb"].Number().(map[string]float64); len(w) == 2 {
		w["post"] = 9
		if m.Parameters().Weights["verb"].Table.Strings["post"] != 1 {
			t.Error("the numbers for JSON are the model's own")
		}
	}
	other, err := m.Weighted(map[string]float64{"likes": 2})
	if err != nil || other.Own() != m || m.Own() != m {
		t.Errorf("a model with other weights is of another: %v", err)
	}
	again, err := other.Weighted(map[string]float64{"code": 2})
	if err != nil || again.Own() != m || again.Parameters().Weights["likes"].Scalar != 2 {
		t.Errorf("weighted twice it is of another: %v", err)
	}
}

// Costs have their limits at the exact numbers.
func TestLimitsOfCosts(t *testing.T) {
	for _, c := range []struct {
		now, before int
		ok          bool
	}{{minSlow, 1, true}, {minSlow + 1, 1, false}, {50_000, 1000, true}, {50_001, 1000, false}} {
		if err := MuchSlower(c.now, c.before); (err == nil) != c.ok {
			t.Errorf("%d after %d: %v", c.now, c.before, err)
		}
	}
	if got := builtinModel(t, "recency").CostLimit(); got != leastLimit {
		t.Errorf("the least limit is %s", got)
	}
	m := dots(t, 600)
	if got, want := m.CostLimit(), 25*time.Nanosecond*time.Duration(m.Cost()); got != want || got <= leastLimit {
		t.Errorf("%d operations may take %s, want %s", m.Cost(), got, want)
	}
}

// A version is found by all of its id, until it is dropped; what was made of it goes too.
func TestRegistryOfVersions(t *testing.T) {
	r, m := Builtin(), parseSpec(t, weightedSpec)
	id := ID{"weighted", "7", strings.Repeat("ab", 32)}
	made := 0
	admit := func(id ID) error {
		return r.Admit(id, func() (*Model, error) { made++; return m, nil })
	}
	for _, bad := range []ID{{"weighted", "", "x"}, {"weighted", "7", ""}, {"home", "7", "x"}} {
		if err := admit(bad); err == nil || !strings.Contains(err.Error(), "relevance: admit ") || made > 0 {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if err := r.Admit(id, func() (*Model, error) { return nil, errors.New("no") }); err == nil || err.Error() != "no" {
		t.Errorf("what is not valid: %v", err)
	}
	if _, err := r.Find(id); err == nil {
		t.Error("what was not admitted is found")
	}
	if err := admit(id); err != nil || made != 1 {
		t.Fatal(err)
	}
	if got, err := r.Find(id); err != nil || got != m {
		t.Errorf("%v, %v", got, err)
	}
	if got := r.Names(); !slices.Equal(got, []string{"home", "recency", "weighted"}) {
		t.Errorf("the names are %q", got)
	}
	for _, c := range []struct {
		id           ID
		reason       millrace.Reason
		detail, what string
	}{
		{ID{"weighted", "8", "x"}, millrace.ReasonNotHere, "no model weighted 8 (x) here", "ask another replica"},
		{ID{"weighted", "", "x"}, millrace.ReasonNotHere, "no model weighted (x) here", "ask another replica"},
		{ID{"weighted", "7", ""}, millrace.ReasonNotHere, "no model weighted 7 () here", "ask another replica"},
		{ID{Name: "weighted"}, millrace.ReasonUnknown, `no version of model "weighted" serves`, "let one serve"},
		{ID{Name: "nobody"}, millrace.ReasonUnknown, `no model "nobody"`, "use one of home, recency, weighted"},
	} {
		_, err := r.Find(c.id)
		var e *millrace.Error
		if !errors.As(err, &e) || e.Reason != c.reason || e.Detail != c.detail || !strings.Contains(e.WayOut, c.what) || e.Field != "model" {
			t.Errorf("%+v: %+v", c.id, e)
		}
	}
	derived := func() *Model {
		t.Helper()
		const form = `{"likes":2}`
		got, err := r.Weighted(id, form, weights.Sum(form))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first, joint := derived(), r.Joined(m, builtinModel(t, "home"))
	if derived() != first || r.Joined(m, builtinModel(t, "home")) != joint || r.Joined(builtinModel(t, "home"), m) == joint {
		t.Error("what was made is made again, or in another order is the same")
	}
	r.Drop(ID{Name: "home"})
	if _, err := r.Get("home"); err != nil {
		t.Errorf("a built-in model is dropped: %v", err)
	}
	r.Drop(id)
	if _, err := r.Find(id); err == nil {
		t.Error("what was dropped is found")
	}
	if err := admit(id); err != nil {
		t.Fatal(err)
	}
	if derived() == first || r.Joined(m, builtinModel(t, "home")) == joint {
		t.Error("what was made of a version that was dropped is kept")
	}
	// So many joints are kept, and then none of them.
	joint = r.Joined(m, builtinModel(t, "home"))
	for i := range maxJoints - 1 {
		r.Joined(slices.Repeat([]*Model{m}, i+2)...)
	}
	if r.Joined(m, builtinModel(t, "home")) != joint {
		t.Error("a joint is not kept though there is room")
	}
	r.Joined(slices.Repeat([]*Model{m}, maxJoints+1)...)
	if r.Joined(m, builtinModel(t, "home")) == joint {
		t.Error("more joints are kept than may be")
	}
}

// Models that read a field of objects as different types score alone, and not together.
func TestModelsThatCannotBeJoined(t *testing.T) {
	of := func(kind string) *Model {
		s, err := schemas.Parse([]byte(`{"type":"record","name":"Thing","namespace":"shop","millrace":"features","fields":[{"name":"id","type":"string","millrace":"entity"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"rate","type":"` + kind + `"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		weight := map[string]string{"string": "{x: 1}", "double": "1"}[kind]
		m, err := Parse("spec.yaml", []byte("name: m"+kind+"\nversion: \"1\"\nschemas: [millrace.Activity]\nobject: shop.Thing\nfeatures: {a: object.rate}\nscorer: linear\nparameters: {weights: {a: "+weight+"}}\n"), familyOf(t, s))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	text, number := of("string"), of("double")
	rows := ShippedSchemas()["millrace.Activity"].Layout
	for _, m := range []*Model{text, number} {
		if s, err := m.Bind(rows, nil, nil, 0); err != nil || s.ObjectLayout().Index("rate") != 0 {
			t.Errorf("%s alone: %v", m.Name(), err)
		}
	}
	if _, err := Join(text, number).Bind(rows, nil, nil, 0); err == nil || err.Error() != "relevance: bind mstring with mdouble: object.rate: one model reads a string, another a double" {
		t.Errorf("together: %v", err)
	}
	if _, err := Join(number, number).Bind(rows, nil, nil, 0); err != nil {
		t.Errorf("the same twice: %v", err)
	}
	vague := parseSpec(t, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {a: double}\nfeatures: {a: viewer.a * record.likes}\nscorer: linear\nparameters: {weights: {a: 1}}\n")
	bad := &millrace.Viewer{Attributes: map[string]any{"a": "x"}}
	if _, err := Join(vague, vague).Bind(rows, nil, bad, 0); err == nil || !strings.Contains(err.Error(), "viewer.a") {
		t.Errorf("a viewer of another type: %v", err)
	}
}

// A scorer says what it reads, whole or with a part folded.
func TestWhatIsRead(t *testing.T) {
	m := parseSpec(t, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nentity: millrace.Features\nviewer: {w: string}\nfeatures: {a: record.likes, b: \"record.shares * entity.embedding[0]\", c: record.text.contains(viewer.w), d: size(record.language)}\nscorer: linear\nparameters: {weights: {a: 1, b: 1, c: 1, d: 1}}\n")
	rows, entity := ShippedSchemas()["millrace.Activity"].Layout, schemas.Features().Layout()
	s, err := m.Bind(rows, entity, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := func(columns []int) (all []string) {
		for _, c := range columns {
			all = append(all, rows.Fields()[c].Name)
		}
		slices.Sort(all)
		return all
	}
	whole, readsEntity := s.Reads(nil, false)
	if got := names(whole); !slices.Equal(got, []string{"language", "likes", "shares", "text"}) || !readsEntity {
		t.Errorf("the whole reads %q, the entity %v", got, readsEntity)
	}
	folded, readsEntity := s.Reads([]int{rows.Index("verb")}, true)
	if len(folded) > 0 && folded[0] == rows.Index("verb") {
		folded = folded[1:]
	} else {
		t.Error("what was there is gone")
	}
	if s.planned.rest == nil {
		t.Fatal("nothing is folded")
	}
	if got := names(folded); !slices.Equal(got, []string{"shares", "text"}) || !readsEntity {
		t.Errorf("the rest reads %q, the entity %v", got, readsEntity)
	}
	if whole, rest := s.Readings(false), s.Readings(true); len(whole.Record) != 2 || len(rest.Record) != 1 || rest.None() || rest.Record[0].Column != rows.Index("text") {
		t.Errorf("from end to end %+v, of the rest %+v", whole, rest)
	}
	if whole := s.Readings(false); !(&Readings{}).None() || whole.None() {
		t.Error("nothing is something")
	}
	plain := parseSpec(t, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {a: record.comments}\nscorer: linear\nparameters: {weights: {a: 1}}\n")
	j, err := Join(m, plain).Bind(rows, entity, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	joint, readsEntity := j.Reads(nil)
	if got := names(joint); !slices.Equal(got, []string{"comments", "language", "likes", "shares", "text"}) || !readsEntity || len(j.Readings().Record) != 2 || j.Execution() != "interpreted" {
		t.Errorf("joined they read %q, the entity %v, %s", got, readsEntity, j.Execution())
	}
	if j, err = Join(plain).Bind(rows, entity, nil, 0); err != nil {
		t.Fatal(err)
	}
	if _, readsEntity := j.Reads(nil); readsEntity {
		t.Error("it reads the entity")
	}
}

// The lengths that readings have are those of the rows.
func TestLengthsOfReadings(t *testing.T) {
	m := parseSpec(t, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {a: size(record.text), b: size(record.about), c: \"dot(record.features, record.features)\"}\nscorer: linear\nparameters: {weights: {a: 1, b: 1, c: 1}}\n")
	l := ShippedSchemas()["millrace.Activity"].Layout
	a := column.New(l, 1, 0).Append()
	for _, n := range []int{20, 0, 100} {
		row := a.Begin()
		row.SetString(l.Index("text"), []byte(strings.Repeat("x", n)))
		row.SetDoubles(l.Index("features"), make([]float64, n))
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
	}
	rows := a.Slab()
	s, err := m.Bind(l, nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	met := 0
	for _, r := range s.Readings(false).Record {
		if r.Length(nil, 0) != 0 || r.Lengths(nil, []int32{0}) != 0 {
			t.Error("no rows have a length")
		}
		if name := l.Fields()[r.Column].Name; name == "text" || name == "features" {
			met++
			for row, want := range []int{20, 0, 100} {
				if got := r.Length(rows, row); got != want {
					t.Errorf("%s of row %d is %d long, want %d", name, row, got, want)
				}
			}
			if got := r.Lengths(rows, []int32{2, 0, 2}); got != 220 {
				t.Errorf("%s of three rows is %d long", name, got)
			}
		}
	}
	if met != 2 {
		t.Errorf("%d readings", met)
	}
}

// Features give scores whichever way they are scored, in batches of any length.
func TestScoresOfFeatures(t *testing.T) {
	file, err := os.ReadFile("trees/testdata/lightgbm/model_simple.txt")
	if err != nil {
		t.Fatal(err)
	}
	m, err := SpecText{"spec.yaml", []byte("name: f\nversion: 1\nschemas: [millrace.Activity]\nfeatures: {X1: record.likes, X2: record.shares > 3}\nscorer: trees\ntrees: {model: model}\n"), func(string) ([]byte, error) { return file, nil }}.Parse(ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	var all [][]any
	for i := range 150 {
		all = append(all, []any{float64(i * 7), i%2 == 0})
	}
	got := m.ScoreFeatures(all...)
	if len(got) != len(all) {
		t.Fatalf("%d scores", len(got))
	}
	l := ShippedSchemas()["millrace.Activity"].Layout
	s, err := m.Bind(l, nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	distinct := map[float64]bool{}
	for i, features := range all {
		rows := activities(t, l, map[string]any{"likes": int(features[0].(float64)), "shares": map[any]int{true: 4, false: 3}[features[1]]})
		var want [1]float64
		s.Score(rows, []int32{0}, nil, want[:])
		if got[i] != want[0] || m.ScoreFeatures(features)[0] != want[0] {
			t.Fatalf("%v scores %v, want %v", features, got[i], want[0])
		}
		distinct[got[i]] = true
	}
	if len(distinct) < 2 {
		t.Errorf("%d scores differ", len(distinct))
	}
	linear := parseSpec(t, weightedSpec)
	if x := linear.ScoreFeatures([]any{1.0, math.NaN(), "post", 1.0, 0.5})[0]; !math.IsNaN(x) {
		t.Errorf("a missing feature scores %v", x)
	}
	if x, want := linear.ScoreFeatures([]any{true, 1.0, "post", 2.5, 0.5})[0], 1/(1+math.Exp(-(0.25+1.5+2+1+5+3))); math.Abs(x-want) > 1e-15 {
		t.Errorf("features score %v, want %v", x, want)
	}
}
