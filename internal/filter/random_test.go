package filter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// pick returns one of choices.
func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

var (
	someInts    = []int64{0, 1, -1, 2, 3, 7, 100, 255, 256, math.MaxInt32, math.MinInt32, math.MaxUint32, 1 << 53, 1<<53 + 1, -1<<53 - 1, 3_037_000_500, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1}
	someDoubles = []float64{0, math.Copysign(0, -1), 1, -1, 0.5, 2, 3, 100, 1e300, -1e300, math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 1 << 53, 9.3e18, -9.3e18, math.MaxInt64, math.MinInt64,
		math.Nextafter(math.MaxInt64, 0), math.Nextafter(math.MinInt64, math.Inf(-1)), math.NaN(), -math.NaN(), math.Inf(1), math.Inf(-1)}
	someStrings = []string{"", "a", "en", "de", "abcdef", "abcdefg", "abcdefgh", "abcdefgi", "abcdefh", "a string of some length", "é", "ééé", "éééa", "éééé", "ééééé", "\x00", "a\x00", "\xf0\x9f\x98\x80", "\x7f",
		strings.Repeat("a", 254), strings.Repeat("a", 255), strings.Repeat("a", 256), strings.Repeat("a", 255) + "b", strings.Repeat("é", 128), strings.Repeat("a", 65_536)}
	someTimes = []int64{0, 1, 999, 1000, 1_700_000_000_000, 1_700_000_000_001, 1_699_913_600_000, -1, -999, -1000, -1001, 253402300799999, 253402300800000, -62135596800000, -62135596800001,
		1_700_000_000_000 + 9_223_372_036_854, 1_700_000_000_000 + 9_223_372_036_855, 1_700_000_000_000 - 9_223_372_036_854, 1_700_000_000_000 - 9_223_372_036_855, math.MaxInt64, math.MinInt64, math.MinInt64 + 1}
	asOf = millrace.Time(1_700_000_000_000)
)

// fieldsOf are a column of each kind, one that can be null and one that
// cannot, named so that generated sources find them: i and ni are ints.
func fieldsOf() []column.Field {
	var fields []column.Field
	for _, k := range []struct {
		name string
		kind column.Kind
	}{{"i", column.Int}, {"j", column.Int}, {"d", column.Double}, {"e", column.Double}, {"s", column.String}, {"r", column.String}, {"b", column.Bool}, {"t", column.Time}, {"ss", column.Strings}, {"ds", column.Doubles}} {
		fields = append(fields, column.Field{Name: k.name, Kind: k.kind}, column.Field{Name: "n" + k.name, Kind: k.kind, Nullable: true})
	}
	return append(fields, column.Field{Name: "deep.i", Kind: column.Int})
}

// randomSlab returns rows of l, and the same rows as maps.
func randomSlab(t testing.TB, r *rand.Rand, l *column.Layout, rows int) (*column.Slab, []map[string]any) {
	a := column.New(l, rows, 0).Append()
	var maps []map[string]any
	for range rows {
		row, m := a.Begin(), map[string]any{}
		for i, f := range l.Fields() {
			if f.Nullable && r.IntN(3) == 0 {
				row.SetNull(i)
				m[f.Name] = nil
				continue
			}
			m[f.Name] = setRandom(r, &row, i, f.Kind)
		}
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
		maps = append(maps, m)
	}
	return a.Slab(), maps
}

func setRandom(r *rand.Rand, row *column.Row, i int, k column.Kind) any {
	switch k {
	case column.Int:
		v := pick(r, someInts...)
		row.SetInt(i, v)
		return v
	case column.Time:
		v := pick(r, someTimes...)
		row.SetInt(i, v)
		return millrace.Time(v)
	case column.Double:
		v := pick(r, someDoubles...)
		row.SetDouble(i, v)
		return v
	case column.Bool:
		v := r.IntN(2) == 0
		row.SetBool(i, v)
		return v
	case column.String:
		v := pick(r, someStrings...)
		row.SetString(i, []byte(v))
		return v
	case column.Strings:
		v := randomList(r, someStrings)
		row.SetStrings(i, v)
		return v
	}
	v := randomList(r, someDoubles)
	row.SetDoubles(i, v)
	return v
}

func randomList[T any](r *rand.Rand, from []T) []T {
	v := make([]T, r.IntN(4))
	for i := range v {
		v[i] = pick(r, from...)
	}
	return v
}

func randomViewer(r *rand.Rand) *millrace.Viewer {
	v := &millrace.Viewer{ID: pick(r, someStrings...), Attributes: map[string]any{}, Features: map[string]float64{"num": pick(r, someDoubles...)}}
	v.Attributes["str"] = pick(r, someStrings...)
	v.Attributes["flag"] = r.IntN(2) == 0
	v.Attributes["strs"] = randomList(r, someStrings)
	v.Attributes["nums"] = randomList(r, someDoubles)
	if r.IntN(2) == 0 {
		v.Attributes["any"] = pick[any](r, 1.0, "a", true, []string{"a"}, []float64{1}, math.NaN())
	}
	return v
}

// source writes random filters that type-check.
type source struct{ *rand.Rand }

func (g source) field(kind string) string {
	return pick(g.Rand, "record.", "record.", "record.", "entity.") + pick(g.Rand, kind, "n"+kind)
}

func (g source) viewer() string {
	return "viewer." + pick(g.Rand, "id", "num", "str", "flag", "strs", "nums", "any", "none")
}

func (g source) bool(depth int) string {
	if depth <= 0 {
		return g.leaf()
	}
	d := depth - 1
	switch g.IntN(22) {
	case 0, 1, 2, 3:
		return "(" + g.bool(d) + " && " + g.bool(d) + ")"
	case 4, 5:
		return "(" + g.bool(d) + " || " + g.bool(d) + " || " + g.bool(d) + ")"
	case 6:
		return "!(" + g.bool(d) + ")"
	case 7:
		return "(" + g.bool(d) + " ? !(" + g.bool(d) + ") : " + pick(g.Rand, "!("+g.bool(d)+")", "null") + ")"
	case 8:
		return g.numeric(d) + g.cmp() + g.numeric(d)
	case 9:
		return g.int(d) + g.cmp() + g.int(d)
	case 10:
		return g.string(d) + g.cmp() + g.string(d)
	case 11:
		return g.time(d) + g.cmp() + g.time(d)
	case 12:
		return g.duration(d) + g.cmp() + g.duration(d)
	case 13:
		return "(" + g.bool(d) + ")" + pick(g.Rand, " == ", " != ") + "(" + g.bool(d) + ")"
	case 14:
		return g.string(d) + "." + pick(g.Rand, "startsWith", "endsWith", "contains") + "(" + g.string(d) + ")"
	case 15:
		return g.string(d) + ".matches(" + pick(g.Rand, `"^a"`, `"[a-e]+$"`, `"é{2}"`, `"."`) + ")"
	case 16:
		return g.numeric(d) + " in " + pick(g.Rand, g.numbers(), g.field("ds"), "viewer.nums", "viewer.any")
	case 17:
		return g.string(d) + " in " + pick(g.Rand, g.strings(), g.strings(), g.field("ss"), "viewer.strs", "viewer.any", "viewer.none")
	case 18:
		return g.viewer() + pick(g.Rand, " == ", " != ") + pick(g.Rand, g.viewer(), "(viewer.any + "+pick(g.Rand, "viewer.num", "viewer.str", "viewer.any")+")")
	case 19:
		return pick(g.Rand, g.int(d), g.double(d), g.string(d), g.time(d), "("+g.bool(d)+")") + pick(g.Rand, " == null", " != null")
	case 20:
		return pick(g.Rand, "viewer.num", "viewer.str", "viewer.any") + " in " + pick(g.Rand, g.field("ss"), g.field("ds"), "viewer.strs", "[1, \"a\", viewer.id]")
	}
	return g.leaf()
}

// leaf is mostly what the loops over one column take.
func (g source) leaf() string {
	switch g.IntN(10) {
	case 0:
		return pick(g.Rand, "true", "false", "viewer.flag", "viewer.any")
	case 1:
		return g.field("b")
	case 2:
		return "!" + g.field("b")
	case 3:
		return "has(" + pick(g.Rand, g.field("i"), g.field("s"), g.field("ss"), "viewer.any", "viewer.none", "record.absent") + ")"
	case 4:
		return g.field("i") + g.cmp() + pick(g.Rand, g.intLiteral(), g.doubleLiteral(), "viewer.num")
	case 5:
		return g.field("d") + g.cmp() + pick(g.Rand, g.intLiteral(), g.doubleLiteral(), "viewer.num")
	case 6:
		return g.field("s") + g.cmp() + pick(g.Rand, g.stringLiteral(), "viewer.str", "viewer.id")
	case 7:
		return g.field("t") + g.cmp() + "as_of - " + g.durationLiteral()
	case 8:
		return g.field("s") + " in " + g.strings()
	}
	return pick(g.Rand, g.intLiteral()+g.cmp()+g.field("i"), g.field("i")+" in "+g.numbers(), g.doubleLiteral()+g.cmp()+g.field("d"))
}

func (g source) cmp() string { return pick(g.Rand, " == ", " != ", " < ", " <= ", " > ", " >= ") }

func (g source) numeric(d int) string {
	return pick(g.Rand, g.int(d), g.double(d), g.double(d), "viewer.num")
}

func (g source) intLiteral() string { return fmt.Sprint(pick(g.Rand, someInts...)) }

func (g source) doubleLiteral() string {
	x := pick(g.Rand, 0.0, math.Copysign(0, -1), 1, -1, 0.5, 2, 3, 100, 1e300, math.MaxFloat64, math.SmallestNonzeroFloat64, 1<<53, 9.3e18, -9.3e18, 1<<63, -1<<63)
	s := fmt.Sprint(x)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// stringLiteral leaves out what is longer than a source may be.
func (g source) stringLiteral() string {
	return quote(pick(g.Rand, someStrings[:len(someStrings)-1]...))
}

func quote(s string) string { return `"` + strings.ReplaceAll(s, "\x00", `\000`) + `"` }

func (g source) durationLiteral() string {
	return "duration(" + pick(g.Rand, `"0s"`, `"1ms"`, `"24h"`, `"-1h"`, `"2500000h"`, `"-2500000h"`, `"2562047h47m16.854s"`, `"-2562047h47m16.854s"`) + ")"
}

func (g source) strings() string {
	list := make([]string, g.IntN(14))
	for i := range list {
		list[i] = pick(g.Rand, g.stringLiteral(), g.stringLiteral(), g.stringLiteral(), "viewer.str", "viewer.none")
	}
	return "[" + strings.Join(list, ", ") + "]"
}

func (g source) numbers() string {
	list := make([]string, g.IntN(5))
	for i := range list {
		list[i] = pick(g.Rand, g.intLiteral(), g.doubleLiteral(), "viewer.num")
	}
	return "[" + strings.Join(list, ", ") + "]"
}

func (g source) int(d int) string {
	if d <= 0 {
		return pick(g.Rand, g.field("i"), g.field("j"), g.intLiteral(), "record.deep.i", "record.absent", "size("+g.field("ss")+")")
	}
	d--
	switch g.IntN(8) {
	case 0:
		return "(" + g.bool(d) + " ? " + g.int(d) + " : " + pick(g.Rand, g.int(d), "null") + ")"
	case 1:
		return "size(" + pick(g.Rand, g.string(d), g.field("ss"), g.field("ds"), "viewer.any") + ")"
	case 2:
		return "-" + g.field("i")
	case 3:
		return "int(" + pick(g.Rand, g.double(d), g.int(d)) + ")"
	case 4:
		return g.int(0)
	}
	return "(" + g.int(d) + pick(g.Rand, " + ", " - ", " * ", " / ", " % ") + g.int(d) + ")"
}

func (g source) double(d int) string {
	if d <= 0 {
		return pick(g.Rand, g.field("d"), g.field("e"), g.doubleLiteral())
	}
	d--
	switch g.IntN(7) {
	case 0:
		return "(" + g.bool(d) + " ? " + g.double(d) + " : " + g.double(d) + ")"
	case 1:
		return "-" + g.field("d")
	case 2:
		return "double(" + g.int(d) + ")"
	case 3:
		return g.double(0)
	case 4:
		return "(" + pick(g.Rand, "viewer.num", "viewer.any") + pick(g.Rand, " + ", " - ", " * ", " / ") + g.double(d) + ")"
	}
	return "(" + g.double(d) + pick(g.Rand, " + ", " - ", " * ", " / ") + g.double(d) + ")"
}

func (g source) string(d int) string {
	if d > 0 && g.IntN(4) == 0 {
		return "(" + g.bool(d-1) + " ? " + g.string(d-1) + " : " + pick(g.Rand, g.string(d-1), "null") + ")"
	}
	return pick(g.Rand, g.field("s"), g.field("s"), g.field("r"), g.stringLiteral())
}

func (g source) time(d int) string {
	if d > 0 && g.IntN(2) == 0 {
		return "(" + g.time(d-1) + pick(g.Rand, " + ", " - ") + g.duration(d-1) + ")"
	}
	return pick(g.Rand, g.field("t"), g.field("t"), "as_of", `timestamp("2023-11-14T22:13:20Z")`, `timestamp("1969-12-31T23:59:59.999Z")`, `timestamp("0001-01-01T00:00:00Z")`, `timestamp("9999-12-31T23:59:59.999Z")`)
}

func (g source) duration(d int) string {
	if d <= 0 {
		return g.durationLiteral()
	}
	d--
	switch g.IntN(4) {
	case 0:
		return "(" + g.duration(d) + pick(g.Rand, " + ", " - ") + g.duration(d) + ")"
	case 1:
		return "-(" + g.duration(d) + ")"
	case 2:
		return g.durationLiteral()
	}
	return "(" + g.time(d) + " - " + g.time(d) + ")"
}
