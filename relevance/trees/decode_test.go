package trees

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// randomDocument returns a random value as JSON has it and as UBJSON, and what both decode to:
// numbers are rounded to float32, and lists are of one kind.
func randomDocument(r *rand.Rand, depth int) (text string, binaries []byte, want any) {
	switch kind := r.IntN(9); {
	case depth > 0 && kind < 3:
		all := map[string]any{}
		var parts []string
		binaries = []byte{'{'}
		n := r.IntN(4)
		if counted := r.IntN(2) == 0; counted {
			binaries = append(append(binaries, '#'), ubjInt(r, int64(n))...)
			defer func() { binaries = binaries[:len(binaries)-1] }()
		}
		for i := range n {
			key := fmt.Sprint("k", i)
			t, b, v := randomDocument(r, depth-1)
			all[key] = v
			parts = append(parts, fmt.Sprintf("%q%s:%s", key, space(r), t))
			binaries = append(append(append(binaries, ubjInt(r, int64(len(key)))...), key...), b...)
		}
		return "{" + space(r) + strings.Join(parts, space(r)+","+space(r)) + space(r) + "}", append(binaries, '}'), all
	case depth > 0 && kind < 5:
		return randomList(r, depth)
	case kind == 5:
		s := []string{"", "plain", "ünï", "a \"quoted\" \\ one", "\n", "]}"}[r.IntN(6)]
		quoted, _ := json.Marshal(s)
		return string(quoted), append(append([]byte{'S'}, ubjInt(r, int64(len(s)))...), s...), s
	case kind == 6:
		i := r.IntN(3)
		return []string{"true", "false", "null"}[i], []byte{"TFZ"[i]}, []any{true, false, nil}[i]
	}
	return randomNumber(r)
}

func randomNumber(r *rand.Rand) (text string, binaries []byte, want any) {
	if r.IntN(2) == 0 {
		n := []int64{0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, -32768, 65536, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64}[r.IntN(16)]
		return fmt.Sprint(n), ubjInt(r, n), n
	}
	x := float64(float32([]float64{0.5, -1.25, 1e-30, 3.4e38, math.Copysign(0, -1), r.NormFloat64()}[r.IntN(6)]))
	text = fmt.Sprintf("%.9e", x)
	if r.IntN(2) == 0 {
		return text, binary.BigEndian.AppendUint64([]byte{'D'}, math.Float64bits(x)), x
	}
	return text, binary.BigEndian.AppendUint32([]byte{'d'}, math.Float32bits(float32(x))), x
}

// ubjInt is an integer in one of the forms that hold it, behind a no-op now and then.
func ubjInt(r *rand.Rand, n int64) []byte {
	forms := [][]byte{binary.BigEndian.AppendUint64([]byte{'L'}, uint64(n))}
	if n == int64(int32(n)) {
		forms = append(forms, binary.BigEndian.AppendUint32([]byte{'l'}, uint32(n)))
	}
	if n == int64(int16(n)) {
		forms = append(forms, binary.BigEndian.AppendUint16([]byte{'I'}, uint16(n)))
	}
	if n == int64(int8(n)) {
		forms = append(forms, []byte{'i', byte(n)})
	}
	if n == int64(uint8(n)) {
		forms = append(forms, []byte{'U', byte(n)})
	}
	return append([]byte("NN")[:r.IntN(3)], forms[r.IntN(len(forms))]...)
}

func space(r *rand.Rand) string { return []string{"", " ", "\r\n\t"}[r.IntN(3)] }

func randomList(r *rand.Rand, depth int) (text string, binaries []byte, want any) {
	n, numbers := r.IntN(5), r.IntN(3) > 0
	var parts []string
	var ints []int64
	var floats []float64
	var others []any
	whole := true
	counted := r.IntN(2) == 0
	if binaries = []byte{'['}; counted {
		binaries = append(append(binaries, '#'), ubjInt(r, int64(n))...)
	}
	for range n {
		var t string
		var b []byte
		var v any
		switch {
		case !numbers:
			t, b, v = randomDocument(r, depth-1)
			switch v.(type) {
			case nil, bool, int64, float64:
				t, b, v = `"text"`, []byte("SU\x04text"), "text"
			}
			others = append(others, v)
		case r.IntN(6) == 0:
			t, b, v = "NaN", []byte("Z"), math.NaN()
		case r.IntN(6) == 0:
			t, b, v = "true", []byte("T"), int64(1)
		default:
			t, b, v = randomNumber(r)
		}
		switch v := v.(type) {
		case int64:
			ints, floats = append(ints, v), append(floats, float64(float32(v)))
		case float64:
			whole, floats = false, append(floats, v)
		}
		parts, binaries = append(parts, t), append(binaries, b...)
	}
	switch {
	case numbers && n > 0 && whole:
		want = ints
	case numbers && n > 0:
		want = floats
	default:
		want = others
	}
	if !counted {
		binaries = append(binaries, ']')
	}
	return "[" + space(r) + strings.Join(parts, space(r)+","+space(r)) + space(r) + "]", binaries, want
}

// sameValue compares decoded documents. NaN is NaN, and an empty list of any kind is empty.
func sameValue(a, b any) bool {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	if x.IsValid() && y.IsValid() && x.Kind() == reflect.Slice && y.Kind() == reflect.Slice && x.Len() == 0 && y.Len() == 0 {
		return true
	}
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k := range a {
			if v, ok := b[k]; !ok || !sameValue(a[k], v) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !sameValue(a[i], b[i]) {
				return false
			}
		}
		return true
	}
	return fmt.Sprintf("%T %#v", a, a) == fmt.Sprintf("%T %#v", b, b)
}

// Documents of both formats decode to what they were written from.
func TestDocumentsAreDecoded(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 5))
		text, binaries, want := randomDocument(r, 4)
		if got, err := decodeJSON([]byte(space(r) + text + space(r))); err != nil || !sameValue(got, want) {
			t.Fatalf("seed %d: %s\nis %#v, want %#v: %v", seed, text, got, want, err)
		}
		if got, err := ubjson(binaries); err != nil || !sameValue(got, want) {
			t.Fatalf("seed %d: %q\nis %#v, want %#v: %v", seed, binaries, got, want, err)
		}
		// The beginning of a document is none, but of a number.
		if _, number := want.(int64); len(text) > 0 && strings.ContainsAny(text[:1], `{["`) && !number {
			if _, err := decodeJSON([]byte(text[:r.IntN(len(text))])); err == nil {
				t.Fatalf("seed %d: the beginning of %s is decoded", seed, text)
			}
		}
		if _, err := ubjson(binaries[:r.IntN(len(binaries))]); err == nil {
			t.Fatalf("seed %d: the beginning of %q is decoded", seed, binaries)
		}
	}
}

// What is no document is refused with its place.
func TestDocumentsAreRefused(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for src, want := range map[string]string{
		"":              "the document ends too early",
		"[1, 2":         "byte 5: the document ends too early",
		`{"a" 1}`:       `byte 5: '1', not ':'`,
		`{a: 1}`:        `'a', not '"'`,
		`{"a": 1,}`:     `'}', not '"'`,
		`[1 2]`:         `'2', not ','`,
		`[1] 2`:         "byte 4: text behind the document",
		`nope`:          `"nope" is no number`,
		`1.5.5`:         `"1.5.5" is no number`,
		`0x10`:          `"0x10" is no number`,
		`[1, "a"]`:      "a list of numbers and of others",
		`["a", 1]`:      "a list of numbers and of others",
		`["a", 1.5]`:    "a list of numbers and of others",
		`[1.5, {}]`:     "a list of numbers and of others",
		`{"x": [1,""]}`: "x is a list of numbers and of others",
		`"a`:            "the document ends too early",
		`"a\`:           "the document ends too early",
		`"\x"`:          "invalid character",
		deep(66):        "nested deeper than 64",
		`{"a": nope}`:   "is no number",
	} {
		if _, err := decodeJSON([]byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", src, err, want)
		}
	}
	for src, want := range map[string]any{deep(65): nil, "Infinity": math.Inf(1), "-Infinity": math.Inf(-1), "1e999": math.Inf(1), "-0": math.Copysign(0, -1), "NaN": nil, "-NaN": nil, `"\u00fc"`: "ü", "\"\xff\"": "\ufffd"} {
		if got, err := decodeJSON([]byte(src)); err != nil || want != nil && !sameValue(got, want) {
			t.Errorf("%s is %v, want %v: %v", src, got, want, err)
		}
	}
	for src, want := range map[string]string{
		"":                       "the document ends too early",
		"ZZ":                     "byte 1: 1 bytes behind the document",
		"NNN":                    "the document ends too early",
		"x":                      "no type 'x'",
		"H":                      "high-precision numbers are not supported",
		"C":                      "the document ends too early",
		"SU\x05abc":              "the document ends too early",
		"Si\xff":                 "a length of -1 in 3 bytes",
		"SU\x07":                 "a length of 7 in 3 bytes",
		"Sd\x00\x00\x00\x00":     "no type 'd'",
		"SD\x00\x00\x00\x00\x00": "no type 'D'",
		"[$":                     "the document ends too early",
		"[$Ui\x01":               "a type without a count",
		"[$U":                    "a type without a count",
		"[$I#U\x02\x00\x00\x00":  "the document ends too early",
		"[$T#U\x01":              "a counted list of 'T'",
		"[$F#U\x01":              "a counted list of 'F'",
		"[$Z#U\x01":              "a counted list of 'Z'",
		"[U\x01SU\x00]":          "a list of numbers and of others",
		"[#U\x02Z":               "the document ends too early",
		"{U\x01aU\x01":           "the document ends too early",
		"{U\x01":                 "the document ends too early",
		strings.Repeat("[", 66):  "nested deeper than 64",
		"{$i#i\x01U\x01a":        "the document ends too early",
		"[#x":                    "no type 'x'",
		"[$i#x":                  "no type 'x'",
		"{#x":                    "no type 'x'",
		"[d\x00\x00":             "the document ends too early",
	} {
		if _, err := ubjson([]byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", src, err, want)
		}
	}
	for src, want := range map[string]any{
		strings.Repeat("[", 65) + strings.Repeat("]", 65): nil, "CA": "A", "NZ": nil, "{$i#i\x01U\x01a\x07": map[string]any{"a": int64(7)}, "[$i#i\x02\x07\xff": []int64{7, -1}, "[$S#i\x01U\x01a": []any{"a"},
		"[$I#i\x01\x80\x00": []int64{-32768}, "[$d#i\x01\x3f\x80\x00\x00": []float64{1}, "[$D#i\x01\x3f\xf0\x00\x00\x00\x00\x00\x00": []float64{1}, "[$U#i\x00": []int64{},
	} {
		if got, err := ubjson([]byte(src)); err != nil || want != nil && !sameValue(got, want) {
			t.Errorf("%q is %v, want %v: %v", src, got, want, err)
		}
	}
}
