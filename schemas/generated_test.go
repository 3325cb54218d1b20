package schemas

import (
	_ "embed"
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	hamba "github.com/hamba/avro/v2"

	"github.com/millrace/millrace/internal/column"
	_ "github.com/millrace/millrace/schemas/testdata/every"
)

//go:embed testdata/every/every.avsc
var everyAVSC []byte

// generatedPair is a decoder with generated code and its plan alone.
type generatedPair struct {
	s          *Schema
	fast, slow *Decoder
}

// generatedPairs are those of the schemas that have generated decoders.
func generatedPairs(t testing.TB) []generatedPair {
	t.Helper()
	var pairs []generatedPair
	for _, s := range []*Schema{Activity(), Note(), Features(), mustParse(everyAVSC)} {
		fast, err := NewDecoder(s, s)
		if err != nil {
			t.Fatal(err)
		}
		if fast.generated == nil {
			t.Fatalf("no generated decoder of %s is registered: run go test ./codegen -rewrite", s.Name())
		}
		slow := *fast
		slow.generated = nil
		pairs = append(pairs, generatedPair{s, fast, &slow})
	}
	return pairs
}

// check decodes a body both ways, behind a row that is there already, and
// reports whether it is one. Rows must be equal to the word, errors in all
// they say; and what the generated code gives up on changes nothing.
func (p generatedPair) check(t testing.TB, body []byte) bool {
	t.Helper()
	slabs := [2]*column.Slab{}
	errs := [2]error{}
	for i, d := range []*Decoder{p.fast, p.slow} {
		a := column.New(p.s.Layout(), 1, 0).Append()
		row := a.Begin()
		row.Heap([]byte("what stood there before"))
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
		errs[i] = d.Append(a, body)
		slabs[i] = a.Slab()
	}
	if !reflect.DeepEqual(errs[0], errs[1]) {
		t.Fatalf("%s: %x: generated says %v, the plan %v", p.s.Name(), body, errs[0], errs[1])
	}
	if slabs[0].Len() != slabs[1].Len() {
		t.Fatalf("%s: %x: generated has %d rows, the plan %d", p.s.Name(), body, slabs[0].Len(), slabs[1].Len())
	}
	if errs[0] != nil {
		a := column.New(p.s.Layout(), 1, 0).Append()
		if p.fast.generated(a, body) || a.Slab().Len() > 0 || len(must(a.Heap(0))) > 0 {
			t.Fatalf("%s: %x: generated takes a body that is none, or leaves something of it", p.s.Name(), body)
		}
		return false
	}
	for i, f := range p.s.Layout().Fields() {
		g, w := slabs[0], slabs[1]
		if g.Null(i, 1) != w.Null(i, 1) || g.Word(i, 1) != w.Word(i, 1) || !reflect.DeepEqual(cell(g, i, 1), cell(w, i, 1)) {
			t.Fatalf("%s: %x: column %s: generated %#v, the plan %#v", p.s.Name(), body, f.Name, cell(g, i, 1), cell(w, i, 1))
		}
	}
	return true
}

func must(heap []byte, _ bool) []byte { return heap }

// TestGenerated holds generated decoders against the plan: random records,
// with block sizes and without, each truncation of them, and flipped bits.
func TestGenerated(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
	for _, p := range generatedPairs(t) {
		hs, err := hamba.ParseBytesWithCache([]byte(p.s.JSON()), "", &hamba.SchemaCache{})
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			value := g.value(p.s.root).(object)
			if p.s.Name() == "test.Every" && g.IntN(2) == 0 {
				value["colours"], value["labels"] = []any{}, object{} // what generated code takes
			}
			body, err := p.s.EncodeJSON(mustJSON(value))
			if err != nil {
				t.Fatal(err)
			}
			var h any
			if err := hamba.Unmarshal(hs, body, &h); err != nil {
				t.Fatal(err)
			}
			blocks, err := hamba.Marshal(hs, h)
			if err != nil {
				t.Fatal(err)
			}
			for _, body := range [][]byte{body, blocks} {
				p.checkAround(t, g, body)
			}
		}
	}
}

// checkAround checks a body that is one, and those near it.
func (p generatedPair) checkAround(t *testing.T, g *generator, body []byte) {
	t.Helper()
	if !p.check(t, body) {
		t.Fatalf("%s: %x is refused", p.s.Name(), body)
	}
	for n := range body {
		if p.check(t, body[:n:n]) {
			t.Fatalf("%s: cut to %d of %d bytes and accepted: %x", p.s.Name(), n, len(body), body)
		}
	}
	for range 100 {
		flipped := append([]byte(nil), body...)
		flipped[g.IntN(len(body))] ^= 1 << g.IntN(8)
		p.check(t, flipped)
	}
	p.check(t, append(body[:len(body):len(body)], 0))
}

// TestGeneratedTakes what is right, so that its speed is had: all that the
// shipped schemas can say, and of others all but the lists that it leaves.
func TestGeneratedTakes(t *testing.T) {
	g := &generator{Rand: rand.New(rand.NewPCG(1, 0))}
	for _, p := range generatedPairs(t) {
		for range 200 {
			value := g.value(p.s.root).(object)
			if p.s.Name() == "test.Every" {
				value["colours"], value["labels"] = []any{}, object{}
			}
			body, err := p.s.EncodeJSON(mustJSON(value))
			if err != nil {
				t.Fatal(err)
			}
			if a := column.New(p.s.Layout(), 1, 0).Append(); !p.fast.generated(a, body) {
				t.Fatalf("%s: the generated decoder leaves %s to the plan", p.s.Name(), mustJSON(value))
			}
		}
	}
}

// TestGeneratedIsOfOneShape: a schema that means something else by the same
// bytes, or has other columns, has no use for the code.
func TestGeneratedIsOfOneShape(t *testing.T) {
	for name, change := range map[string]func(fields []any){
		"another name":  func(f []any) { f[12].(object)["name"] = "loves" },
		"another type":  func(f []any) { f[12].(object)["type"] = "int" },
		"a time's unit": func(f []any) { f[12].(object)["type"] = object{"type": "long", "logicalType": "timestamp-millis"} },
		"a role less":   func(f []any) { delete(f[6].(object), "millrace") },
	} {
		var avsc object
		if err := json.Unmarshal([]byte(Activity().JSON()), &avsc); err != nil {
			t.Fatal(err)
		}
		change(avsc["fields"].([]any))
		s := mustParse(mustJSON(avsc))
		d, err := NewDecoder(s, s)
		if err != nil {
			t.Fatal(err)
		}
		if d.generated != nil {
			t.Errorf("%s: decoded by the generated code of the shipped schema", name)
		}
	}
	if d, err := NewDecoder(Activity(), mustParse([]byte(Activity().JSON()))); err != nil || d.generated == nil {
		t.Errorf("the shipped schema read from a file has no generated decoder: %v", err)
	}
}

// FuzzGenerated: generated decoders and the plan do the same with any bytes.
func FuzzGenerated(f *testing.F) {
	pairs := generatedPairs(f)
	g := &generator{Rand: rand.New(rand.NewPCG(1, 0))}
	for i, p := range pairs {
		for range 5 {
			body, err := p.s.EncodeJSON(mustJSON(g.value(p.s.root)))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(i), body)
		}
	}
	f.Fuzz(func(t *testing.T, schema uint8, body []byte) { pairs[int(schema)%len(pairs)].check(t, body) })
}
