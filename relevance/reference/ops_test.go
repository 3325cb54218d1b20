package reference

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace/relevance"
)

// TestOperationsEqualReference scores by each operation that a spec can be made of, with
// operands of every kind: of the record, the entity, the object and the viewer, constant, and
// missing.
func TestOperationsEqualReference(t *testing.T) {
	numbers := []string{
		"age(record.at)", "age(record.time) / 60.0", "as_of", "-record.x", "record.x * viewer.age - entity.followers / object.rate",
		"record.vec[0]", "record.vec[2] + record.vec[1]", "entity.embedding[1]", "viewer.vec[1] * record.x", "viewer.bins[0]", "object.place[2]", "record.vec[19]",

		"size(entity.topics)", "size(object.words)", "size(record.s)", "size(viewer.lang)", "size(record.tags)", "size(object.kind)", "size(entity.embedding)", "size(viewer.langs)",
		"dot(record.vec, viewer.vec)", "cosine(viewer.vec, record.vec)", "l2(entity.embedding, record.vec)", "dot(object.place, entity.embedding)", "cosine(object.place, viewer.vec)", "l2(record.vec, object.place)", "dot(entity.embedding, viewer.vec)", "dot(record.vec, record.vec)", "dot(viewer.vec, viewer.bins)", "l2(viewer.bins, entity.embedding) + l2(record.vec, viewer.vec) + dot(record.vec, viewer.vec)",
		"dot(record.vec, viewer.vec) + record.vec[0] + size(record.vec)",
		"bucketize(record.x, [0.0])", "bucketize(record.n, [0, 1, 2])", "bucketize(record.y, [-1.0, 0.0, 1.0, 2.0])", "bucketize(record.x, [-10.0, -1.0, 0.0, 1.0, 10.0, 100.0])", "bucketize(record.n, [1, 10, 100, 1000])", "bucketize(viewer.age, [0.0, 18.0, 30.0, 65.0, 80.0])",
		"coalesce(record.m, coalesce(record.y, viewer.age))", "coalesce(record.n, 3.0)", "coalesce(record.m, 3.0)", "coalesce(min(record.n, 3.0), record.x)", "coalesce(viewer.age, 0.5)", "coalesce(object.rate, entity.posts)",
		"min(record.x, viewer.age, 3.0)", "max(record.n, record.m, entity.posts, -1.0)", "clamp(record.x, viewer.age, 5.0)", "clamp(record.n, -1.0, 1.0)", "pow(record.x, 2.0)", "pow(viewer.age, record.x)", "decay(record.at, 3600.0)", "decay(record.x, entity.followers)", "decay(viewer.age, record.y)", "sqrt(abs(record.x))", "log1p(record.n)", "log1p(record.y)", "log1p(max(record.n, 2.0))", "exp(record.x)", "exp(viewer.age)", "abs(entity.followers)",
		`lookup(verbs, record.verb, 0.5)`, `lookup(verbs, viewer.lang, record.x)`, `lookup(verbs, coalesce(record.u, record.s), 0.0)`, `lookup(steps, record.n, -1.0)`, `lookup(steps, viewer.age, record.y)`, `lookup({"post|en": 2.0, "like|": 3.0}, cross(record.verb, viewer.lang), 0.0)`, `lookup({"en": 2.0}, entity.lang, record.x)`, `lookup({1: 2.0, 0: 5.0}, object.clicks, 0.0)`,
		`size(cross(record.s, record.n))`, `size(cross(record.x, viewer.age))`, `size(cross(object.kind, cross(entity.lang, record.u)))`, `size(record.b ? record.s : viewer.lang)`, `size(cross("a", viewer.lang))`,
		"2.0 * record.x + 3.0 * record.y + 4.0 * record.n + 5.0 * record.m + 6.0 * entity.followers + 7.0 * object.rate",
		"record.x + viewer.age * viewer.age", "record.x + record.y * record.n", "record.x + entity.followers * entity.followers", "record.x + viewer.age * record.y + record.n * record.x + 2.0 * record.n", "(record.y + 2.0 * record.x) * (record.y + 2.0 * record.x) + 2.0 * record.x",
		"record.x + viewer.age * record.y + viewer.age * record.n + 0.5 * record.x",
	}
	booleans := []string{
		"record.b", "!record.c", "record.b && viewer.vip && entity.vip", "record.c || object.hot || viewer.vip", "viewer.vip", "record.b ? record.c : viewer.vip", "viewer.vip ? record.b : object.hot", "record.b == viewer.vip", "record.b != record.c", "entity.vip == record.c", "true", "false",
		"record.x > record.y", "record.x >= viewer.age", "record.n < 3", "record.n <= record.m", "record.x == 0.0", "record.y != record.x", "viewer.age > 30.0", "entity.followers >= record.x", "object.clicks < record.n", "3.0 > record.x", "record.at > as_of", "record.at <= record.time",
		`record.verb == "post"`, `"post" == record.verb`, `record.verb != viewer.lang`, `viewer.lang == record.s`, `record.s < record.u`, `record.s >= "post"`, `viewer.lang <= record.u`, `record.s > entity.lang`, `entity.lang == object.kind`, `record.u == ""`,
		`record.verb in ["post", "like"]`, `record.verb in viewer.langs`, `viewer.lang in record.tags`, `"en" in record.labels`, `entity.lang in object.words`, `record.s in entity.topics`, `record.n in [0, 1]`, `record.x in viewer.bins`, `viewer.age in record.vec`, `record.x in entity.embedding`, `(record.b ? entity.embedding[0] : record.x) in entity.embedding`, `(record.b ? viewer.vec[0] : record.x) in viewer.vec`, `(record.b ? record.vec[2] : object.place[0]) in object.place`, `(record.b ? "en" : record.s) in entity.topics`, `record.vec[0] in record.vec`, `coalesce(record.u, "post") in viewer.langs`,
		"has(record.m)", "has(record.n)", "has(record.u)", "has(record.labels)", "has(viewer.age)", "has(viewer.langs)", "has(entity.posts)", "has(entity.followers)", "has(entity.embedding)", "has(object.rate)", "has(object.words)",
		`record.s.startsWith("po")`, `record.s.endsWith(viewer.lang)`, `viewer.lang.contains("n")`, `record.u.contains(record.verb)`, `entity.lang.startsWith(object.kind)`, "record.m == null", "record.y != null", "viewer.age == null",
	}
	texts := []string{"record.s", "record.u", "viewer.lang", "entity.lang", "object.kind", "viewer.id", "record.verb", "record.type", `"post"`, "cross(record.s, viewer.lang)", "record.b ? record.s : record.u", "viewer.vip ? entity.lang : viewer.lang", "coalesce(record.u, record.s)", "coalesce(viewer.lang, object.kind)"}
	compareAll := func(what string, features, weights []string, scorer string, seed uint64) {
		t.Helper()
		var f, w strings.Builder
		for i, src := range features {
			fmt.Fprintf(&f, "  f%d: '%s'\n", i, strings.ReplaceAll(src, "'", "''"))
			fmt.Fprintf(&w, "    f%d: %s\n", i, weights[i%len(weights)])
		}
		spec := "name: ops\nversion: \"1\"\nschemas: [test.Every]\nentity: test.Member\nobject: test.Thing\nviewer: {age: double, vip: bool, lang: string, langs: list(string), bins: list(double), vec: list(double)}\nfeatures:\n" + f.String() +
			"scorer: " + scorer + "\nparameters:\n  bias: 0.25\n  weights:\n" + w.String() + "  tables:\n    verbs: {post: 1.5, like: -2, \"a long string of words\": 7, \"\": 0.25}\n    steps: {0: 1, 1: 0.5, 2.5: -3, -1: 9}\n"
		m, err := relevance.Parse("ops.yaml", []byte(spec), Schemas)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		entity := Schemas["test.Member"].Layout
		if seed%3 == 2 {
			entity = nil
		}
		if err := Compare(rand.New(rand.NewPCG(seed, 9)), m, Schemas["test.Every"].Layout, entity); err != nil {
			t.Errorf("%s, seed %d: %v", what, seed, err)
		}
	}
	table := []string{`{post: 1.5, en: 2, "": -1, "a long string of words": 4}`}
	for i, src := range numbers {
		compareAll(src, []string{src}, []string{"1.5"}, "linear", uint64(i))
	}
	for i, src := range booleans {
		compareAll(src, []string{src}, []string{"2"}, "linear", uint64(i))
	}
	for i, src := range texts {
		compareAll(src, []string{src}, table, "linear", uint64(i))
	}
	for seed := range uint64(3) { // together, so that values are shared, summed in lanes and fused
		compareAll("all numbers", numbers, []string{"1e-3", "-2", "0.5"}, "linear", seed)
		compareAll("all booleans", booleans, []string{"1", "-3"}, "logistic", seed)
		compareAll("all texts", texts, table, "linear", seed)
	}
}
