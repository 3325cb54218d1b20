package jsontext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// rebuilt returns the value whose token is at, as Value would, and the index after it.
func rebuilt(t *Tape, at int32) (any, int32) {
	tok := &t.Tokens[at]
	switch tok.Kind {
	case Null:
		return nil, at + 1
	case False, True:
		return tok.Kind == True, at + 1
	case Number:
		return json.Number(t.Raw(tok)), at + 1
	case String:
		return string(t.AppendString(nil, tok)), at + 1
	case List:
		list, i := []any{}, at+1
		for range tok.To {
			var v any
			v, i = rebuilt(t, i)
			list = append(list, v)
		}
		return list, i
	}
	object, i := map[string]any{}, at+1
	for range tok.To {
		name := string(t.AppendString(nil, &t.Tokens[i]))
		object[name], i = rebuilt(t, i+1)
	}
	return object, i
}

// checkText holds Value and Tape against encoding/json. what is what a refusal says; "" for
// a text that is good.
func checkText(t *testing.T, text string) (refusal string) {
	t.Helper()
	v, err := Value([]byte(text))
	tape := Tape{Tokens: make([]Token, 3)} // of a text before
	if got := tape.Read([]byte(text)); got != (err == nil) {
		t.Fatalf("%.300q: the tape takes it: %v; Value says %v", text, got, err)
	}
	var want any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	good := utf8.ValidString(text) && d.Decode(&want) == nil && json.Valid([]byte(text))
	if err != nil {
		if good && !strings.Contains(err.Error(), "twice") && !strings.Contains(err.Error(), "deeper") {
			t.Fatalf("%.300q: %v", text, err)
		}
		return err.Error()
	}
	if !good || !reflect.DeepEqual(v, want) {
		t.Fatalf("%.300q is %v, want %v, good: %v", text, v, want, good)
	}
	if all, end := rebuilt(&tape, 0); !reflect.DeepEqual(all, want) || int(end) != len(tape.Tokens) {
		t.Fatalf("%.300q: the tape has %v in %d of %d tokens, want %v", text, all, end, len(tape.Tokens), want)
	}
	for i, tok := range tape.Tokens {
		if _, end := rebuilt(&tape, int32(i)); tok.Next != end {
			t.Fatalf("%.300q: after token %d comes %d, want %d", text, i, tok.Next, end)
		}
	}
	return ""
}

// TestTexts has texts by what is said of them.
func TestTexts(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	objects := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	const more = "the text goes on after the JSON value"
	const ends = "the text ends within a JSON value"
	for text, want := range map[string]string{
		`null`: "", ` true `: "", "\t\r\nfalse\n": "", `""`: "", `{}`: "", `[]`: "", `[ ]`: "", `{ }`: "", `[1,-0,0.5,-1.25e+10,2E-3,9e9]`: "",
		`"\"\\\/\b\f\n\r\t\u0041\uD83D\ude00\ud800\udc00\u00e9"`: "", `"\ud800"`: "", `"\ud800\u0041"`: "", `"\udc00\ud800"`: "", `"\ud800\n"`: "", `"\udbff\udfff"`: "",
		`"\udc00\udc00"`: "", `"\ud800\ue000"`: "", `"\ud800\udfff"`: "", `"\ue000\ud7ff\udfff"`: "", `"\ud800\udbff"`: "", `"\ud800\\udc00"`: "", `"\ud800/udc00"`: "", `"\ud800\u0061"`: "",
		`{"a":{"a":1},"b":[{"a":2},{"a":3}]}`: "", `{"":1,"a":2}`: "", "\"\x7f\u2028\"": "", "\" \"": "",
		`{"a":":\":","b":"{[\\"}`: "", "\"12345678\"": "", "\"1234567\\n1234567\\n\"": "",
		nested(MaxDepth): "", objects(MaxDepth): "",
		nested(MaxDepth + 1): "the JSON nests deeper than 100 levels", objects(MaxDepth + 1): "the JSON nests deeper than 100 levels",
		``: ends, ` `: ends, `[`: ends, `{"a"`: ends, `"a`: ends, `"\`: ends, `"\u00`: ends, `tru`: ends, `-`: ends, `[1,`: ends,
		`1 2`: more, `{} {}`: more, `[]]`: more, "nullx": more,
		"\xff": "the text is not UTF-8", "\xef\xbb\xbf1": "the text begins with a byte order mark, which JSON has none of; save it as UTF-8 without one",
		`{"a":1,"a":2}`: `"a" stands twice in one object`, `{"a":1,"\u0061":2}`: `"a" stands twice in one object`,
		`[{"b":"b"},{"a":{"b":1,"c":"b","b":[]}}]`: `"b" stands twice in one object`, `[{"a":"a"},{"b":"b","c":1,"c":"b"}]`: `"c" stands twice in one object`, `{"":1,"":2}`: `"" stands twice in one object`,
		`{"x":["y","y"],"y":"x","z":{"x":1},"x":0}`: `"x" stands twice in one object`,
		`{"a":[{"b":1},"b","b"],"c":1,"c":2}`:       `"c" stands twice in one object`,
		`[1,]`:                                      "*", `{,}`: "*", `{"a":1,}`: "*", `{"a" 1}`: "*", `{a:1}`: "*", `[1 2]`: "*", `{"a":1 "b":2}`: "*", `{1:1}`: "*", "[\"\x1f\"]": "*", "\"1234567\x01\"": "*", "\"12345678\x00\"": "*",
		`"\x"`: "*", `"\u00g0"`: "*", `"\u00:0"`: "*", "\"\\u00`0\"": "*", `"\u00/0"`: "*", `"\u00G0"`: "*", `"\u00@0"`: "*",
		`01`: "*", `-01`: "*", `+1`: "*", `.5`: "*", `1.`: "*", `[1.]`: "*", `[1e]`: "*", `[1e+]`: "*", `[-]`: "*", `[1.e1]`: "*", `nul`: "*", `True`: "*", `]`: "*", `}`: "*", `[}`: "*", `{]`: "*", `:`: "*", `'a'`: "*",
	} {
		if got := checkText(t, text); want == "*" && got == "" || want != "*" && got != want {
			t.Errorf("%.100q: %q, want %q", text, got, want)
		}
	}
}

// TestRandomTexts are of values, whole and damaged, and of objects with names that are
// likely to be the same.
func TestRandomTexts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	var write func(b *bytes.Buffer, depth int)
	quote := func(b *bytes.Buffer) {
		b.WriteByte('"')
		for range r.IntN(4) {
			b.WriteString(pick("a", "b", "name of some length", "é", "😀", `\n`, `\"`, `\\`, `\u0061`, `\u00E9`, `\ud83d\ude00`, `\ud83d`, `\ude00`))
		}
		b.WriteByte('"')
	}
	write = func(b *bytes.Buffer, depth int) {
		b.WriteString(pick("", "", " ", "\n"))
		switch kind := r.IntN(8); {
		case kind < 2 && depth > 0:
			b.WriteByte('[')
			for i := range r.IntN(5) {
				b.WriteString(","[:min(i, 1)])
				write(b, depth-1)
			}
			b.WriteByte(']')
		case kind < 5 && depth > 0:
			b.WriteByte('{')
			for i := range r.IntN(5) {
				b.WriteString(","[:min(i, 1)])
				quote(b)
				b.WriteString(pick(":", " :", ":\t"))
				write(b, depth-1)
			}
			b.WriteByte('}')
		case kind < 6:
			quote(b)
		default:
			b.WriteString(pick("null", "true", "false", "0", "-1", "12.5", "1e5", "-0.25E-2", "9007199254740993"))
		}
		b.WriteString(pick("", "", "\r", "\t"))
	}
	said := map[string]int{}
	for range 4000 {
		var b bytes.Buffer
		write(&b, 3)
		text := b.String()
		if r.IntN(3) == 0 {
			at := r.IntN(len(text) + 1)
			text = text[:at] + pick(`"`, `\`, ",", ":", "[", "]", "{", "}", "0", ".", "e", "-", " ", "\x00", "\xff", "x") + text[min(len(text), at+r.IntN(3)):]
		}
		refusal := checkText(t, text)
		if strings.HasSuffix(refusal, "twice in one object") {
			refusal = "twice"
		}
		said[refusal]++
	}
	if said[""] < 500 || said["twice"] < 50 || len(said) < 5 {
		t.Errorf("the texts try too little: %v", said)
	}
}

// TestManyNames has objects with more names than are compared with each other, and one
// name twice, at each place.
func TestManyNames(t *testing.T) {
	for _, n := range []int{1, 2, 3, fewNames - 1, fewNames, fewNames + 1, 200} {
		for twice := -1; twice < n; twice += 1 + n/7 {
			for _, escape := range []bool{false, true} {
				var members []string
				for i := range n {
					members = append(members, fmt.Sprintf(`%q:{"name 0":[%d]}`, "name "+strconv.Itoa(i), i))
				}
				want := ""
				if twice >= 0 {
					name := "name " + strconv.Itoa(twice)
					want = strconv.Quote(name) + " stands twice in one object"
					if escape {
						name = `\u006e` + name[1:]
					}
					members = append(members, `"`+name+`":0`)
				}
				if got := checkText(t, "{"+strings.Join(members, ",")+"}"); got != want {
					t.Fatalf("%d names, and %d twice: %q, want %q", n, twice, got, want)
				}
			}
		}
	}
}
