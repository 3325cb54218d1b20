package reference

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/column"
)

// TestRandomIsVaried: what is drawn has all that it may have, or comparisons would be of little.
func TestRandomIsVaried(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 13))
	for name, of := range Schemas {
		rows := Records(r, of.Layout, 600)
		for c, f := range of.Layout.Fields() {
			words, nulls, lengths := map[uint64]bool{}, 0, map[int]bool{}
			for row := range rows.Len() {
				if rows.Null(c, row) {
					nulls++
					continue
				}
				switch words[rows.Word(c, row)] = true; f.Kind {
				case column.String:
					lengths[len(rows.StringAt(c, row))] = true
				case column.Doubles:
					lengths[len(rows.DoublesAt(nil, c, row))] = true
				case column.Strings:
					all := rows.StringsAt(nil, c, row)
					lengths[len(all)+len(strings.Join(all, ""))] = true
				}
			}
			if f.Nullable != (nulls > 100) || !f.Nullable && nulls > 0 {
				t.Errorf("%s.%s is null in %d rows", name, f.Name, nulls)
			}
			if least := map[column.Kind]int{column.Bool: 2, column.Int: 50, column.Time: 300, column.Double: 100}[f.Kind]; len(words) < least {
				t.Errorf("%s.%s has %d values", name, f.Name, len(words))
			}
			if least := map[column.Kind]int{column.String: 9, column.Doubles: 4, column.Strings: 12}[f.Kind]; len(lengths) < least {
				t.Errorf("%s.%s has values of %d lengths", name, f.Name, len(lengths))
			}
			if f.Kind == column.Int && (!words[math.MaxInt64] || !words[1<<63] || !words[0]) {
				t.Errorf("%s.%s has no limits", name, f.Name)
			}
		}
	}
	some, all, none := 0, 0, 0
	given := map[string]int{}
	for range 300 {
		v := Viewer(r)
		for name := range v.Attributes {
			given[name]++
		}
		switch n := len(v.Attributes) + len(v.Features); {
		case n == 0:
			none++
		case n == 6:
			all++
		default:
			some++
		}
	}
	if some < 30 || all < 60 || none < 60 || len(given) != 5 {
		t.Errorf("of 300 viewers %d have some values, %d all and %d none: %v", some, all, none, given)
	}
	var specs strings.Builder
	for range 300 {
		specs.WriteString(Spec(r, "random"))
	}
	text := specs.String()
	for _, word := range []string{
		"entity: test.Member", "object: test.Thing", "scorer: linear", "scorer: logistic", " + ", " - ", " * ", " / ", "-(", "log1p(", "exp(", "sqrt(", "abs(", "pow(", "min(", "max(", "clamp(", "bucketize(", "age(", "decay(", "coalesce(", "lookup(verbs", "lookup(steps", "lookup({",
		"dot(", "cosine(", "l2(", "size(", " ? ", "cross(", " == ", " != ", " < ", " <= ", " > ", " >= ", " && ", " || ", "!(", " in ", "startsWith(", "endsWith(", "contains(", "has(record.m)", "has(entity.posts)", "has(object.rate)", "entity.followers", "object.clicks", "entity.embedding", "object.place", "entity.topics", "object.words", "entity.lang", "object.kind", "entity.vip", "object.hot",
	} {
		if strings.Count(text, word) < 3 {
			t.Errorf("%q stands in the specs %d times", word, strings.Count(text, word))
		}
	}
	features := 0
	for _, o := range Objects(r, 400) {
		if o != nil {
			features++
		}
	}
	if features < 200 || features == 400 {
		t.Errorf("of 400 objects %d have features", features)
	}
}
