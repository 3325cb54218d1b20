package reference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// Schemas are for random specs and records: test.Every has a field of every kind, with and
// without nulls; test.Member is an entity's features, and test.Thing an object's.
var Schemas = relevance.Schemas{
	"test.Every": known(
		column.Field{Name: "key", Kind: column.String, Role: "id"},
		column.Field{Name: "owner", Kind: column.String, Role: "entity"},
		column.Field{Name: "verb", Kind: column.String, Role: "type"},
		column.Field{Name: "at", Kind: column.Time, Role: "time"},
		column.Field{Name: "n", Kind: column.Int},
		column.Field{Name: "m", Kind: column.Int, Nullable: true},
		column.Field{Name: "x", Kind: column.Double},
		column.Field{Name: "y", Kind: column.Double, Nullable: true},
		column.Field{Name: "b", Kind: column.Bool},
		column.Field{Name: "c", Kind: column.Bool, Nullable: true},
		column.Field{Name: "s", Kind: column.String},
		column.Field{Name: "u", Kind: column.String, Nullable: true},
		column.Field{Name: "tags", Kind: column.Strings},
		column.Field{Name: "labels", Kind: column.Strings, Nullable: true},
		column.Field{Name: "vec", Kind: column.Doubles},
		column.Field{Name: "author.age", Kind: column.Int},
	),
	"test.Alike": known( // names that are equal in camel case, or equal names of generated variables
		column.Field{Name: "key", Kind: column.String, Role: "id"},
		column.Field{Name: "owner", Kind: column.String, Role: "entity"},
		column.Field{Name: "verb", Kind: column.String, Role: "type"},
		column.Field{Name: "at", Kind: column.Time, Role: "time"},
		column.Field{Name: "like_count", Kind: column.Int, Nullable: true},
		column.Field{Name: "likeCount", Kind: column.Double, Nullable: true},
		column.Field{Name: "stats.likes", Kind: column.Int, Nullable: true},
		column.Field{Name: "stats_likes", Kind: column.Int, Nullable: true},
		column.Field{Name: "stats_likes_null", Kind: column.Int},
		column.Field{Name: "like_count_nulls", Kind: column.Double},
		column.Field{Name: "object_rate", Kind: column.Double, Nullable: true},
		column.Field{Name: "object_clicks", Kind: column.Int, Nullable: true},
	),
	"test.Member": known(
		column.Field{Name: "followers", Kind: column.Double},
		column.Field{Name: "posts", Kind: column.Int, Nullable: true},
		column.Field{Name: "lang", Kind: column.String},
		column.Field{Name: "topics", Kind: column.Strings},
		column.Field{Name: "embedding", Kind: column.Doubles, Nullable: true},
		column.Field{Name: "vip", Kind: column.Bool},
	),
	"test.Thing": known(
		column.Field{Name: "clicks", Kind: column.Int},
		column.Field{Name: "rate", Kind: column.Double, Nullable: true},
		column.Field{Name: "kind", Kind: column.String},
		column.Field{Name: "words", Kind: column.Strings},
		column.Field{Name: "place", Kind: column.Doubles, Nullable: true},
		column.Field{Name: "hot", Kind: column.Bool, Nullable: true},
	),
}

func known(fields ...column.Field) relevance.Records {
	return relevance.Records{Layout: layout(fields...)}
}

// things are layouts of features of objects: that of test.Thing, and one with fewer fields,
// of which some have other types under the same names.
var things = []*column.Layout{Schemas["test.Thing"].Layout, layout(
	column.Field{Name: "hot", Kind: column.Bool},
	column.Field{Name: "rate", Kind: column.Int},
	column.Field{Name: "clicks", Kind: column.Double, Nullable: true},
)}

func layout(fields ...column.Field) *column.Layout {
	l, err := column.NewLayout(fields)
	if err != nil {
		panic(err)
	}
	return l
}

// spec writes random specs.
type spec struct {
	*rand.Rand
	entity, object bool // whether the spec names a schema for them
}

// Spec returns a random spec, as YAML, over [Schemas].
func Spec(r *rand.Rand, name string) string {
	s := spec{r, r.IntN(3) > 0, r.IntN(3) > 0}
	var b, weights strings.Builder
	fmt.Fprintf(&b, "name: %s\nversion: \"%d\"\nschemas: [test.Every]\n", name, r.IntN(100))
	if s.entity {
		b.WriteString("entity: test.Member\n")
	}
	if s.object {
		b.WriteString("object: test.Thing\n")
	}
	b.WriteString("viewer: {age: double, vip: bool, lang: string, langs: list(string), bins: list(double), vec: list(double)}\nfeatures:\n")
	for i := range 1 + r.IntN(8) {
		f := fmt.Sprintf("f%d", i)
		switch r.IntN(8) {
		case 0:
			fmt.Fprintf(&b, "  %s: %q\n", f, s.boolean(3))
			fmt.Fprintf(&weights, "    %s: %s\n", f, s.number(0))
		case 1:
			fmt.Fprintf(&b, "  %s: %q\n", f, s.str(2))
			fmt.Fprintf(&weights, "    %s: {\"\": 0.5, post: %v, \"a long string of words\": 3, xx: -1}\n", f, r.NormFloat64())
		case 2:
			fmt.Fprintf(&b, "  %s: %q\n", f, "bucketize("+s.num(2)+", [0, 1, 10, 100])")
			fmt.Fprintf(&weights, "    %s: [%v, 0, 1e-3, 2, -1e6]\n", f, r.NormFloat64())
		default:
			fmt.Fprintf(&b, "  %s: %q\n", f, s.num(4))
			fmt.Fprintf(&weights, "    %s: %s\n", f, s.number(0))
		}
	}
	fmt.Fprintf(&b, "scorer: %s\nparameters:\n  bias: %s\n  weights:\n%s", s.one("linear", "linear", "logistic"), s.number(0), weights.String())
	fmt.Fprintf(&b, "  tables:\n    verbs: {post: 1.5, like: -2, \"a long string of words\": 7, \"\": 0.25}\n    steps: {0: 1, 1: 0.5, 2.5: -3, -1: 9}\n")
	return b.String()
}

func (s spec) one(of ...string) string { return of[s.IntN(len(of))] }

// number returns a literal: 0 of either sign, or a small, large, whole or other number. It
// does not use its argument.
func (s spec) number(int) string {
	switch s.IntN(6) {
	case 0:
		return s.one("0", "1", "2", "-1", "-0.0", "100")
	case 1:
		return s.one("1e300", "-1e300", "1e-300", "3600", "0.1")
	}
	return fmt.Sprintf("%.4g", s.NormFloat64()*math.Pow(10, float64(s.IntN(5)-2)))
}

// num returns an expression that gives a number, of at most that depth.
func (s spec) num(depth int) string {
	if depth <= 0 || s.IntN(6) == 0 {
		if s.IntN(4) == 0 {
			return s.number(0)
		}
		return s.one(append(s.of("entity.followers", "entity.posts", "object.clicks", "object.rate"), "record.n", "record.m", "record.x", "record.y", "record.author.age", "viewer.age")...)
	}
	a := func() string { return s.num(depth - 1) }
	switch s.IntN(24) {
	case 0, 1, 2:
		return "(" + a() + " " + s.one("+", "-", "*", "/") + " " + a() + ")"
	case 3:
		return "-(" + a() + ")"
	case 4, 5:
		return s.one("log1p", "exp", "sqrt", "abs") + "(" + a() + ")"
	case 6:
		return "pow(" + a() + ", " + s.one("2", "0.5", a()) + ")"
	case 7:
		return s.one("min", "max") + "(" + a() + ", " + a() + s.one("", ", "+a()) + ")"
	case 8:
		return "clamp(" + a() + ", " + s.one("-1", "0") + ", " + s.one("1", "10.5") + ")"
	case 9:
		return "bucketize(" + a() + ", [-1, 0, 0.5, 10])"
	case 10:
		return "age(" + s.instant() + ")"
	case 11:
		return "decay(" + s.one(s.instant(), a()) + ", " + s.one("3600", "86400.5", "record.x") + ")"
	case 12, 13:
		return "coalesce(" + a() + ", " + a() + ")"
	case 14:
		return "lookup(" + s.one("verbs", `{"post": 2, "en": 3}`) + ", " + s.str(depth-1) + ", " + a() + ")"
	case 15:
		return "lookup(" + s.one("steps", `{0: 1, 1: 3.5}`) + ", " + a() + ", " + a() + ")"
	case 16:
		return s.one("dot", "cosine", "l2") + "(" + s.vector() + ", " + s.vector() + ")"
	case 17:
		return "size(" + s.one(s.strs(), s.vector(), s.str(depth-1)) + ")"
	}
	return "(" + s.boolean(depth-1) + " ? " + a() + " : " + a() + ")"
}

// of returns those of the expressions whose field, of the entity or the object, the spec
// has a schema for.
func (s spec) of(fields ...string) (out []string) {
	for _, f := range fields {
		if s.entity && strings.Contains(f, "entity.") || s.object && strings.Contains(f, "object.") {
			out = append(out, f)
		}
	}
	return out
}

// instant returns an expression that gives an instant.
func (s spec) instant() string {
	return s.one("record.at", "record.time", "record.at", `timestamp("2026-01-31T00:00:00Z")`)
}

// vector returns an expression that gives a list of numbers, and strs one of texts.
func (s spec) vector() string {
	return s.one(append(s.of("entity.embedding", "object.place"), "record.vec", "record.vec", "viewer.vec", "viewer.bins")...)
}

func (s spec) strs() string {
	return s.one(append(s.of("entity.topics", "object.words"), "record.tags", "record.labels", "viewer.langs")...)
}

// str returns an expression that gives a string.
func (s spec) str(depth int) string {
	if depth <= 0 || s.IntN(3) > 0 {
		return s.one(append(s.of("entity.lang", "object.kind"), "record.s", "record.u", "record.verb", "record.type", "viewer.lang", "viewer.id", `"post"`, `""`, `"a long string of words"`)...)
	}
	switch s.IntN(3) {
	case 0:
		return "cross(" + s.one(s.str(depth-1), s.num(depth-1)) + ", " + s.one(s.str(depth-1), s.num(depth-1)) + ")"
	case 1:
		return "coalesce(" + s.str(depth-1) + ", " + s.str(depth-1) + ")"
	}
	return "(" + s.boolean(depth-1) + " ? " + s.str(depth-1) + " : " + s.str(depth-1) + ")"
}

// boolean returns an expression that gives a boolean.
func (s spec) boolean(depth int) string {
	if depth <= 0 || s.IntN(6) == 0 {
		return s.one(append(s.of("entity.vip", "has(entity.posts)", "has(entity.followers)", "object.hot", "has(object.rate)", "has(object.clicks)"),
			"record.b", "record.c", "viewer.vip", "has(record.m)", "has(record.u)", "has(record.n)", "(record.y == null)", "has(viewer.age)")...)
	}
	d := depth - 1
	switch s.IntN(10) {
	case 0, 1:
		return "(" + s.num(d) + " " + s.one("==", "!=", "<", "<=", ">", ">=") + " " + s.num(d) + ")"
	case 2, 3:
		return "(" + s.str(d) + " " + s.one("==", "!=", "<", ">=") + " " + s.str(d) + ")"
	case 4:
		return "(" + s.boolean(d) + s.one(" && ", " || ") + s.boolean(d) + ")"
	case 5:
		return "!(" + s.boolean(d) + ")"
	case 6:
		return "(" + s.str(d) + " in " + s.one(s.strs(), `["post", "en", "a long string of words"]`) + ")"
	case 7:
		return "(" + s.num(d) + " in " + s.one(s.vector(), "[0, 1, 2.5]") + ")"
	case 8:
		return s.str(d) + "." + s.one("startsWith", "endsWith", "contains") + "(" + s.str(d) + ")"
	}
	return "(" + s.boolean(d) + " == " + s.boolean(d) + ")"
}

// Objects returns the features of the objects of n records: for each a slab of one row, of
// one of two layouts, or nil.
func Objects(r *rand.Rand, n int) []*column.Slab {
	out := make([]*column.Slab, n)
	for i := range out {
		if r.IntN(4) > 0 {
			out[i] = Records(r, things[r.IntN(len(things))], 1)
		}
	}
	return out
}

// Records returns n random rows of a layout. Some values are ordinary, and some are limits,
// such as NaN, infinities and the largest integers.
func Records(r *rand.Rand, l *column.Layout, n int) *column.Slab {
	a := column.New(l, 1, 0).Append()
	items := make([]int, len(l.Fields())) // by field, the form of the items of its lists
	for i := range items {
		items[i] = r.IntN(kindsOfItems)
	}
	for range n {
		row := a.Begin()
		for i, f := range l.Fields() {
			if f.Nullable && r.IntN(4) == 0 {
				row.SetNull(i)
				continue
			}
			if f.Kind == column.Doubles {
				row.SetDoubles(i, numbers(r, items[i]))
				continue
			}
			set(r, &row, i, f.Kind)
		}
		if err := a.End(row); err != nil {
			panic(err)
		}
	}
	return a.Slab()
}

// set sets field i of a row to a random value of a kind.
func set(r *rand.Rand, row *column.Row, i int, k column.Kind) {
	switch k {
	case column.Bool:
		row.SetBool(i, r.IntN(2) == 0)
	case column.Int:
		row.SetInt(i, []int64{0, 1, -1, int64(r.IntN(1000)), math.MaxInt64, math.MinInt64, r.Int64()}[r.IntN(7)])
	case column.Time:
		row.SetInt(i, r.Int64N(int64(millrace.MaxTime)))
	case column.Double:
		row.SetDouble(i, Number(r))
	case column.String:
		row.SetString(i, []byte(text(r)))
	case column.Strings:
		row.SetStrings(i, texts(r))
	}
}

// Number returns a random number, NaN and infinities among them.
func Number(r *rand.Rand) float64 {
	switch r.IntN(8) {
	case 0:
		return []float64{0, math.Copysign(0, -1), math.NaN(), -math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 5e-324}[r.IntN(8)]
	case 1:
		return float64(r.IntN(5) - 1)
	case 2:
		return math.Float64frombits(r.Uint64())
	}
	return r.NormFloat64() * math.Pow(10, float64(r.IntN(8)-2))
}

// The forms of the items of lists. Lists are stored with as few bytes an item as hold each.
const (
	anyItems = iota
	float32Items
	int8Items
	int16Items
	kindsOfItems
)

// numbers returns a list of numbers of a form. Its length is one of few, so that two lists
// often have the same length.
func numbers(r *rand.Rand, items int) []float64 {
	out := make([]float64, []int{0, 1, 3, 3, 3, 3, 20, 20}[r.IntN(8)])
	for i := range out {
		switch items {
		case float32Items:
			out[i] = float64(float32(r.NormFloat64()))
		case int8Items:
			out[i] = float64(max(math.MinInt8, min(r.IntN(300)-150, math.MaxInt8)))
		case int16Items:
			out[i] = float64(max(math.MinInt16, min(r.IntN(80_000)-40_000, math.MaxInt16)))
		default:
			out[i] = Number(r)
		}
	}
	return out
}

// text returns a random text. A text of up to 7 bytes stands in the word of its row in a
// column, and a longer one elsewhere, so some texts have 7 bytes and some have 8.
func text(r *rand.Rand) string {
	return []string{"", "post", "like", "en", "de", "seven77", "eight888", "a long string of words", "a long string", "ünï", name, names}[r.IntN(12)]
}

// name is as long as an id may be, and names about as long as the longest result of cross.
var name, names = strings.Repeat("n", 512), strings.Repeat("m", 1533)

func texts(r *rand.Rand) []string {
	out := make([]string, r.IntN(4))
	for i := range out {
		out[i] = text(r)
	}
	return out
}

// Viewer returns a random viewer, who has some, all or none of what a random
// spec declares.
func Viewer(r *rand.Rand) *millrace.Viewer {
	v := &millrace.Viewer{ID: text(r), Attributes: map[string]any{}, Features: map[string]float64{}}
	give := r.IntN(3)
	for _, x := range []struct {
		name  string
		value any
	}{{"vip", r.IntN(2) == 0}, {"lang", text(r)}, {"langs", texts(r)}, {"bins", numbers(r, r.IntN(kindsOfItems))}, {"vec", numbers(r, r.IntN(kindsOfItems))}} {
		if give == 2 || give == 1 && r.IntN(2) == 0 {
			v.Attributes[x.name] = x.value
		}
	}
	if give > 0 {
		v.Features["age"] = Number(r)
	}
	return v
}
