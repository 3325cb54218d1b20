package schemas

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas/internal/jsontext"
)

// everyType has a field of each type, some with defaults.
var everyType = withFields(
	`{"name":"flag","type":"boolean","default":false}`, `{"name":"whole","type":"int","default":3}`, `{"name":"large","type":["null","long"],"default":null}`,
	`{"name":"f32","type":"float","default":0.5}`, `{"name":"f64","type":"double","default":1e300}`, `{"name":"text","type":"string","default":"\u00e9"}`,
	`{"name":"raw","type":"bytes","default":"\u00ff"}`, `{"name":"four","type":{"type":"fixed","name":"Four","size":4},"default":"abcd"}`,
	`{"name":"pick","type":{"type":"enum","name":"Pick","symbols":["A","B"]},"default":"A"}`,
	`{"name":"list","type":{"type":"array","items":["string","long","double","null"]},"default":["x"]}`,
	`{"name":"map","type":{"type":"map","values":{"type":"array","items":"int"}},"default":{"a":[1]}}`,
	`{"name":"within","type":{"type":"record","name":"Within","fields":[{"name":"a","type":"int"},{"name":"b","type":"string","default":"b"}]},"default":{"a":1}}`,
	`{"name":"when","type":{"type":"long","logicalType":"timestamp-micros"},"default":0}`)

// sameAsNaive wants of a line what the naive encoder makes of it: the same body, or
// the same error, to the word.
func sameAsNaive(t *testing.T, s *Schema, line []byte) (ok bool) {
	t.Helper()
	before := bytes.Clone(line)
	got, err := s.EncodeJSON(line)
	want, wantErr := naiveJSON(s, line)
	if !reflect.DeepEqual(err, wantErr) || !bytes.Equal(got, want) {
		t.Fatalf("%s\nbecomes %x, %v\nwant    %x, %v", line, got, err, want, wantErr)
	}
	if !bytes.Equal(line, before) {
		t.Fatalf("%s was changed", before)
	}
	return err == nil
}

// TestEncodeJSONIsNaive: lines of random schemas, whole and damaged, become what the
// naive encoder makes of them.
func TestEncodeJSONIsNaive(t *testing.T) {
	good, bad := 0, 0
	for seed := range uint64(400) {
		g := &generator{Rand: rand.New(rand.NewPCG(seed, 16))}
		s := mustSchema(t, everyType)
		if seed%3 > 0 {
			s = mustSchema(t, string(mustJSON(g.record())))
		}
		for range 4 {
			line := g.line(g.value(s.root))
			if sameAsNaive(t, s, line) {
				good++
			}
			for range 8 {
				if !sameAsNaive(t, s, g.damaged(line)) {
					bad++
				}
			}
		}
	}
	if good < 1000 || bad < 1000 {
		t.Errorf("%d lines are good and %d are bad: too few to tell", good, bad)
	}
}

// line writes a value as JSON in one of the many ways there are.
func (g *generator) line(v any) []byte {
	var b bytes.Buffer
	g.write(&b, v)
	return b.Bytes()
}

func (g *generator) write(b *bytes.Buffer, v any) {
	space := func() { b.WriteString([]string{"", "", "", " ", "\t", "\r"}[g.IntN(6)]) }
	space()
	switch v := v.(type) {
	case object:
		names := make([]string, 0, len(v))
		for name := range v { // in any order
			names = append(names, name)
		}
		b.WriteByte('{')
		for i, name := range names {
			if i > 0 {
				b.WriteByte(',')
			}
			g.write(b, name)
			b.WriteByte(':')
			g.write(b, v[name])
		}
		space()
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, x := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			g.write(b, x)
		}
		space()
		b.WriteByte(']')
	case string:
		g.quote(b, v)
	default:
		b.Write(mustJSON(v))
	}
	space()
}

// quote writes a string with some of its characters escaped.
func (g *generator) quote(b *bytes.Buffer, s string) {
	if g.IntN(4) > 0 {
		b.Write(mustJSON(s))
		return
	}
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r > 0xffff:
			fmt.Fprintf(b, `\u%04X\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		case r < ' ' || r == '"' || r == '\\' || g.IntN(3) == 0:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

// pieces are what damage puts into lines.
var pieces = []string{`"`, `\`, `\u`, `\ud800`, `\udc00`, `\/`, `\b`, `{`, `}`, `[`, `]`, `,`, `:`, `-`, `0`, `1`, `.`, `e+`, `null`, `true`, `"id":"x",`, `"nobody":1,`, "\x00", "\x1f", "\x7f", "\xff", "é",
	strings.Repeat(`[`, 101), ` `, `1e999`, `99999999999999999999`}

// damaged returns a line with a few bytes changed.
func (g *generator) damaged(line []byte) []byte {
	out := bytes.Clone(line)
	for range 1 + g.IntN(2) {
		at := g.IntN(len(out) + 1)
		rest := out[at:]
		switch g.IntN(4) {
		case 0: // as it is
		case 1:
			rest = rest[min(1, len(rest)):]
		case 2:
			rest = rest[min(g.IntN(20), len(rest)):]
		case 3:
			rest = out[g.IntN(len(out)+1):]
		}
		put := pieces[g.IntN(len(pieces))]
		if g.IntN(3) == 0 {
			put = ""
		}
		out = append(append(bytes.Clone(out[:at]), put...), rest...)
	}
	return out
}

// TestEncodeJSONOfManyNames: names are told apart in objects of any size, however
// they are written.
func TestEncodeJSONOfManyNames(t *testing.T) {
	s := mustSchema(t, withFields(`{"name":"f","type":{"type":"map","values":"int"}}`))
	for _, n := range []int{1, 2, 20, 64, 65, 3000} { // more than 64 are compared another way
		for _, twice := range []string{"", `,"name 0":1`, `,"n\u0061me 0":1`, fmt.Sprintf(`,"name %d":1`, n-1)} {
			var b strings.Builder
			b.WriteString(`{"id":"i","who":"m:1","kind":"post","at":5,"f":{`)
			for i := range n {
				fmt.Fprintf(&b, `"name %d":%d,`, i, i)
			}
			line := strings.TrimSuffix(b.String(), ",") + twice + `}}`
			if ok := sameAsNaive(t, s, []byte(line)); ok != (twice == "") {
				t.Errorf("%d names and then %q: accepted is %v", n, twice, ok)
			}
		}
	}
}

// TestEncodeJSONLimits: what just fits, and what just does not.
func TestEncodeJSONLimits(t *testing.T) {
	s := mustSchema(t, withFields(`{"name":"f","type":["null","string"]}`, `{"name":"g","type":["null","bytes","string"]}`))
	good, bad := 0, 0
	for d := range 16 {
		for _, line := range []string{`{"id":"i","who":"m:1","kind":"post","at":5,"f":%q,"g":null}`, `{"id":"i","who":"m:1","kind":"post","at":5,"f":null,"g":%q}`} {
			if sameAsNaive(t, s, fmt.Appendf(nil, line, strings.Repeat("x", 1<<20-12-d))) {
				good++
			} else {
				bad++
			}
		}
	}
	if good == 0 || bad == 0 {
		t.Errorf("%d lines fit and %d do not: none is at the limit", good, bad)
	}
	for _, depth := range []int{jsontext.MaxDepth - 2, jsontext.MaxDepth - 1, jsontext.MaxDepth, jsontext.MaxDepth + 1} {
		sameAsNaive(t, s, []byte(`{"f":`+strings.Repeat(`[`, depth)+strings.Repeat(`]`, depth)+`}`))
	}
}

// FuzzEncodeJSON: a line is refused as the naive encoder refuses it, or becomes the
// same body, which every reader takes.
func FuzzEncodeJSON(f *testing.F) {
	f.Add([]byte(activityLine))
	f.Add([]byte(`{"id":"a","actor":"b","verb":"c","created_at":0,"likes":"9007199254740993"}`))
	f.Add([]byte(`{"id":"a","who":"b","kind":"c","at":"2026-01-02T03:04:05Z","list":["a",1,2.5,null],"within":{"a":1},"raw":"AP8=","map":{"x":[1]}}`))
	every := mustSchema(f, everyType)
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, s := range []*Schema{Activity(), every} {
			if sameAsNaive(t, s, line) {
				body, _ := s.EncodeJSON(line)
				checkBody(t, s, body)
			}
		}
	})
}
