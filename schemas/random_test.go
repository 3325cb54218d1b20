package schemas

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	hamba "github.com/hamba/avro/v2"
	twmb "github.com/twmb/avro"

	"github.com/millrace/millrace/internal/column"
)

// generator makes random schemas and values of them.
type generator struct {
	*rand.Rand
	names int
}

type object = map[string]any

func (g *generator) name(prefix string) string {
	g.names++
	return prefix + strconv.Itoa(g.names)
}

// record is a schema with the required roles and random fields beside them.
func (g *generator) record() object {
	fields := []any{
		object{"name": "id", "type": "string", "millrace": "id"},
		object{"name": "who", "type": "string", "millrace": "entity"},
		object{"name": "kind", "type": "string", "millrace": "type"},
		object{"name": "at", "type": object{"type": "long", "logicalType": "timestamp-millis"}, "millrace": "time"},
	}
	for range g.IntN(8) {
		fields = append(fields, object{"name": g.name("f"), "type": g.typ(3)})
	}
	return object{"type": "record", "name": "Root", "namespace": "n.s", "fields": fields}
}

func (g *generator) typ(depth int) any {
	switch g.IntN(8) {
	case 0:
		if depth > 0 {
			return object{"type": "array", "items": g.typ(depth - 1)}
		}
	case 1:
		if depth > 0 {
			return object{"type": "map", "values": g.typ(depth - 1)}
		}
	case 2:
		if depth > 0 {
			fields := []any{}
			for range 1 + g.IntN(3) {
				fields = append(fields, object{"name": g.name("f"), "type": g.typ(depth - 1)})
			}
			return object{"type": "record", "name": g.name("R"), "fields": fields}
		}
	case 3:
		return g.union(depth)
	}
	return g.leaf(g.IntN(4))
}

// leaf returns a type of one of four classes that JSON tells apart.
func (g *generator) leaf(class int) any {
	pick := func(of ...any) any { return of[g.IntN(len(of))] }
	switch class {
	case 0:
		return "boolean"
	case 1:
		return pick("int", "long", object{"type": "int", "logicalType": "date"}, object{"type": "long", "logicalType": "timestamp-millis"}, object{"type": "long", "logicalType": "timestamp-micros"})
	case 2:
		return pick("float", "double")
	}
	return pick("string", "bytes", object{"type": "enum", "name": g.name("E"), "symbols": []any{"A", "LONGER_THAN_A_WORD", "C"}},
		object{"type": "fixed", "name": g.name("F"), "size": g.IntN(20) + 1})
}

func (g *generator) union(depth int) any {
	branches := []any{"null"}
	for class := range 4 {
		if g.IntN(3) == 0 {
			branches = append(branches, g.leaf(class))
		}
	}
	if depth > 0 && g.IntN(3) == 0 {
		branches = append(branches, object{"type": "array", "items": g.typ(depth - 1)})
	}
	if depth > 0 && g.IntN(3) == 0 {
		branches = append(branches, object{"type": "record", "name": g.name("R"), "fields": []any{object{"name": "x", "type": g.typ(depth - 1)}}})
	}
	if g.IntN(2) == 0 {
		branches = append(branches[1:], branches[0])
	}
	return branches
}

// value returns a random JSON value of a type.
func (g *generator) value(n *node) any {
	switch n.kind {
	case kindBoolean:
		return g.IntN(2) == 0
	case kindInt:
		return int32(g.Uint32()) >> g.IntN(32)
	case kindLong:
		if n.logical != "" {
			return g.Int64N(4e12)
		}
		return int64(g.Uint64()) >> g.IntN(64)
	case kindFloat:
		return float32(g.NormFloat64())
	case kindDouble:
		return g.NormFloat64() * math.Pow(10, float64(g.IntN(20)))
	case kindString:
		return strings.Repeat(string(rune('a'+g.IntN(26))), g.IntN(20)) + []string{"", "é", "😀", "\x00"}[g.IntN(4)]
	case kindBytes, kindFixed:
		b := make([]byte, g.IntN(12))
		if n.kind == kindFixed {
			b = make([]byte, n.size)
		}
		for i := range b {
			b[i] = byte(g.Uint32())
		}
		return base64.StdEncoding.EncodeToString(b)
	case kindEnum:
		return n.symbols[g.IntN(len(n.symbols))]
	case kindArray:
		list := []any{}
		for range g.IntN(5) {
			list = append(list, g.value(n.items))
		}
		return list
	case kindMap:
		m := object{}
		for i := range g.IntN(4) {
			m[fmt.Sprintf("key %d", i)] = g.value(n.items)
		}
		return m
	case kindUnion:
		return g.value(n.branches[g.IntN(len(n.branches))])
	case kindRecord:
		m := object{}
		for _, f := range n.fields {
			m[f.name] = g.value(f.typ)
			switch {
			case f.role == "about":
				m[f.name] = []any{g.name("v"), g.name("longer than a word ")}[:g.IntN(3)]
			case f.role != "" && f.typ.kind == kindString:
				m[f.name] = g.name("v") // never empty
			}
		}
		return m
	}
	return nil
}

// normal brings a value of ours, of hamba's or of twmb's to one form.
func normal(n *node, v any) (any, bool) {
	switch n.kind {
	case kindNull:
		return nil, v == nil
	case kindBoolean:
		_, ok := v.(bool)
		return v, ok
	case kindInt, kindLong:
		return normalInt(n, v)
	case kindFloat, kindDouble:
		x := reflect.ValueOf(v)
		if !x.IsValid() || !x.CanFloat() {
			return nil, false
		}
		if n.kind == kindFloat {
			return float64(float32(x.Float())), true
		}
		return x.Float(), true
	case kindString, kindEnum:
		_, ok := v.(string)
		return v, ok
	case kindBytes, kindFixed:
		return normalBytes(v)
	case kindArray:
		list, ok := v.([]any)
		out := make([]any, len(list))
		for i := range list {
			if out[i], ok = normal(n.items, list[i]); !ok {
				return nil, false
			}
		}
		return out, ok
	case kindMap:
		m, ok := v.(map[string]any)
		out := object{}
		for k := range m {
			if out[k], ok = normal(n.items, m[k]); !ok {
				return nil, false
			}
		}
		return out, ok
	case kindRecord:
		m, ok := v.(map[string]any)
		if !ok || len(m) != len(n.fields) {
			return nil, false
		}
		out := object{}
		for _, f := range n.fields {
			if out[f.name], ok = normal(f.typ, m[f.name]); !ok {
				return nil, false
			}
		}
		return out, true
	}
	return normalUnion(n, v)
}

func normalInt(n *node, v any) (any, bool) {
	switch v := v.(type) {
	case time.Time:
		switch n.logical {
		case "date":
			return v.Unix() / 86400, true
		case "timestamp-micros":
			return v.UnixMicro(), true
		}
		return v.UnixMilli(), true
	case string:
		if t, err := time.Parse(time.RFC3339Nano, v); err == nil {
			return normalInt(n, t)
		}
		i, err := strconv.ParseInt(v, 10, 64)
		return i, err == nil
	}
	x := reflect.ValueOf(v)
	if !x.IsValid() || !x.CanInt() {
		return nil, false
	}
	return x.Int(), true
}

func normalBytes(v any) (any, bool) {
	switch v := v.(type) {
	case string:
		b, err := base64.StdEncoding.DecodeString(v)
		return string(b), err == nil
	case []byte:
		return string(v), true
	}
	x := reflect.ValueOf(v)
	if !x.IsValid() || x.Kind() != reflect.Array {
		return nil, false
	}
	b := make([]byte, x.Len())
	reflect.Copy(reflect.ValueOf(b), x)
	return string(b), true
}

func normalUnion(n *node, v any) (any, bool) {
	if m, ok := v.(map[string]any); ok && len(m) == 1 { // hamba wraps
		for _, b := range n.branches {
			for _, tag := range []string{b.kind.String(), b.kind.String() + "." + b.logical, b.name} {
				if x, ok := m[tag]; ok {
					if out, ok := normal(b, x); ok {
						return out, true
					}
				}
			}
		}
	}
	for _, b := range n.branches {
		if out, ok := normal(b, v); ok {
			return out, true
		}
	}
	return nil, false
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func mustNormal(t testing.TB, who string, n *node, v any) any {
	t.Helper()
	out, ok := normal(n, v)
	if !ok {
		t.Fatalf("%s: %#v is not %s", who, v, n.what())
	}
	return out
}

// checkRow compares a row with the normal form of what it should hold.
func checkRow(t testing.TB, slab *column.Slab, row int, want object) {
	t.Helper()
	for i, f := range slab.Layout().Fields() {
		if strings.HasPrefix(f.Name, "$") {
			continue
		}
		var v any = want
		for part := range strings.SplitSeq(f.Name, ".") {
			m, _ := v.(object)
			v = m[part]
		}
		if v == nil {
			if !slab.Null(i, row) || slab.Word(i, row) != 0 {
				t.Fatalf("column %s: want null", f.Name)
			}
			continue
		}
		if got := cell(slab, i, row); slab.Null(i, row) || !reflect.DeepEqual(got, listOf(f.Kind, v)) {
			t.Fatalf("column %s: got %#v (null: %v), want %#v", f.Name, got, slab.Null(i, row), v)
		}
	}
}

func cell(slab *column.Slab, field, row int) any {
	w := slab.Word(field, row)
	switch slab.Layout().Fields()[field].Kind {
	case column.Bool:
		return w == 1
	case column.Int, column.Time:
		return int64(w)
	case column.Double:
		return math.Float64frombits(w)
	case column.String:
		return slab.String(w)
	case column.Doubles:
		return slab.Doubles([]float64{}, w)
	}
	return slab.Strings([]string{}, w)
}

// listOf turns the normal form of a list into what its column holds.
func listOf(k column.Kind, v any) any {
	list, ok := v.([]any)
	if !ok {
		if i, isInt := v.(int64); isInt && k == column.Double {
			return float64(i)
		}
		return v
	}
	doubles, strs := []float64{}, []string{}
	for _, x := range list {
		switch x := x.(type) {
		case int64:
			doubles = append(doubles, float64(x))
		case float64:
			doubles = append(doubles, x)
		case string:
			strs = append(strs, x)
		}
	}
	if k == column.Doubles {
		return doubles
	}
	return strs
}

// TestRandom holds the codec against hamba and twmb on random schemas: equal
// values, equal columns; every truncation refused; no bit flip a panic.
func TestRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
	for range 300 {
		avsc := mustJSON(g.record())
		s, err := Parse(avsc)
		if err != nil {
			t.Fatalf("%s: %v", avsc, err)
		}
		hs, err := hamba.ParseBytesWithCache(avsc, "", &hamba.SchemaCache{})
		if err != nil {
			t.Fatal(err)
		}
		ts, err := twmb.Parse(string(avsc))
		if err != nil {
			t.Fatal(err)
		}
		if string(ts.Canonical()) != s.canonical {
			t.Fatalf("canonical form %s, twmb has %s", s.canonical, ts.Canonical())
		}
		for range 3 {
			checkRandom(t, g, s, hs, ts)
			if t.Failed() {
				t.Fatalf("schema %s", avsc)
			}
		}
	}
}

func checkRandom(t *testing.T, g *generator, s *Schema, hs hamba.Schema, ts *twmb.Schema) {
	line := mustJSON(g.value(s.root))
	body, err := s.EncodeJSON(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	ours, err := s.JSONValue(body)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	want := mustNormal(t, "ours", s.root, ours)
	again, err := s.EncodeJSON(mustJSON(ours))
	if err != nil || string(again) != string(body) {
		t.Errorf("%s: encoded again from JSON: %x, %v; want %x", line, again, err, body)
	}

	var h any
	if err := hamba.Unmarshal(hs, body, &h); err != nil {
		t.Fatalf("hamba: %s: %v", line, err)
	}
	if got := mustNormal(t, "hamba", s.root, h); !reflect.DeepEqual(got, want) {
		t.Errorf("hamba decodes\n%#v, ours\n%#v", got, want)
	}
	var w any
	if rest, err := ts.Decode(body, &w); err != nil || len(rest) > 0 {
		t.Fatalf("twmb: %s: %v, %d bytes left", line, err, len(rest))
	}
	if got := mustNormal(t, "twmb", s.root, w); !reflect.DeepEqual(got, want) {
		t.Errorf("twmb decodes\n%#v, ours\n%#v", got, want)
	}
	checkStruct(t, s, body)
	if blocks, err := hamba.Marshal(hs, h); err != nil {
		t.Errorf("hamba does not encode what it decoded: %v", err)
	} else if v, err := s.JSONValue(blocks); err != nil || !reflect.DeepEqual(mustNormal(t, "blocks", s.root, v), want) {
		t.Errorf("hamba's encoding %x decodes to %#v, %v", blocks, v, err) // it writes block sizes
	} else {
		checkStruct(t, s, blocks)
	}

	d, err := NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(s.Layout(), 1, 0).Append()
	if err := d.Append(a, body); err != nil {
		t.Fatal(err)
	}
	checkRow(t, a.Slab(), 0, want.(object))
	for n := range body {
		if _, err := s.Envelope(body[:n]); err == nil {
			t.Errorf("cut to %d of %d bytes and accepted: %x", n, len(body), body)
		}
		checkStruct(t, s, body[:n])
		if err := d.Append(a, body[:n]); err == nil {
			t.Errorf("cut to %d of %d bytes and decoded: %x", n, len(body), body)
		}
	}
	for range 50 {
		flipped := append([]byte(nil), body...)
		flipped[g.IntN(len(body))] ^= 1 << g.IntN(8)
		_, err := s.Envelope(flipped)
		_, valueErr := s.JSONValue(flipped)
		checkStruct(t, s, flipped)
		if appendErr := d.Append(a, flipped); appendErr != nil && err == nil || (valueErr == nil) != (appendErr == nil) {
			t.Errorf("envelope, columns and JSON disagree on %x: %v, %v, %v", flipped, err, appendErr, valueErr)
		}
	}
}
