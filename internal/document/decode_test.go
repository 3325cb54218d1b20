package document

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

type inner struct {
	A int     `yaml:"a,omitempty"`
	F float64 `yaml:"f,omitempty"`
}

type outer struct {
	Inline inner `yaml:",inline"`
	Name   string
	On     bool             `yaml:"on,omitempty"`
	List   []string         `yaml:"list,omitempty"`
	Span   time.Duration    `yaml:"span,omitempty"`
	Deep   inner            `yaml:"deep,omitempty"`
	By     map[string]inner `yaml:"by,omitempty"`
	Hidden int              `yaml:"-"`
}

func TestDecode(t *testing.T) {
	want := outer{
		Inline: inner{A: -3, F: 0.5}, Name: "12", On: true, List: []string{"x", "true", "1.50"}, Span: 36 * time.Hour,
		Deep: inner{A: 16}, By: map[string]inner{"a-b": {F: 2}},
	}
	var got outer
	src := "a: -3\nf: 0.5\nname: 12\non: true\nlist: [x, true, 1.50]\nspan: 36h\ndeep: {a: 0x10}\nby:\n  a-b: {f: 2}\n"
	if err := Decode([]byte(src), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	text, err := Encode(want)
	var again outer
	if err != nil || Decode(text, &again) != nil || !reflect.DeepEqual(again, want) {
		t.Errorf("written and read again: %v\n%s%+v", err, text, again)
	}
	if err := Decode([]byte("name:\n"), &got); err != nil || got.Name != "12" {
		t.Errorf("nothing for a field: %v, %+v", err, got)
	}
}

// TestDecodeTellsEveryFault: each with its place, at once.
func TestDecodeTellsEveryFault(t *testing.T) {
	var got outer
	err := Decode([]byte("naem: x\nlist: y\ndeep: {a: 1.5, b: 2}\nby: [1]\nspan: 5\non: 1\nname: a\nname: b\nhidden: 1\nf: x\n"), &got)
	for _, want := range []string{
		"line 1, column 1: naem: there is no such field; did you mean name?",
		`line 2, column 7: list: this is a text, "y", and not a list`,
		`line 3, column 11: deep.a: this is a number, "1.5", and not an integer`,
		"line 3, column 16: deep.b: there is no such field; did you mean a?",
		"line 4, column 5: by: this is a list, and not a mapping",
		`line 5, column 7: span: this is an integer, "5", and not a span of time`,
		"line 6, column 5: on: this is an integer",
		"line 8, column 1: name: it stands twice; remove one",
		"line 9, column 1: hidden: there is no such field",
		"line 10, column 4: f: this is a text",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in\n%v", want, err)
		}
	}
}

// What may be left out is told from what is false.
func TestDecodeWhatMayBeLeftOut(t *testing.T) {
	for text, want := range map[string]string{"serves: false": "false", "serves: true": "true", "": "left out", "serves: null": "left out"} {
		var c struct {
			Serves *bool `yaml:"serves"`
		}
		got := "left out"
		if err := Decode([]byte(text), &c); err != nil {
			t.Errorf("%q: %v", text, err)
		} else if c.Serves != nil {
			got = strconv.FormatBool(*c.Serves)
		}
		if got != want {
			t.Errorf("%q is %s; want %s", text, got, want)
		}
	}
	var c struct {
		Serves *bool `yaml:"serves"`
	}
	if err := Decode([]byte("serves: 7"), &c); err == nil || c.Serves != nil {
		t.Errorf("a number is taken for true or false: %v, %v", err, c.Serves)
	}
}

// A number that YAML 1.1 and 1.2 read differently is refused, whatever the
// field; a text of digits stays one.
func TestDecodeRefusesZerosBeforeANumber(t *testing.T) {
	type into struct {
		Share int     `yaml:"share"`
		Rate  float64 `yaml:"rate"`
		Name  string  `yaml:"name"`
	}
	for _, text := range []string{"share: 0010000", "share: -07", "share: 08", "rate: 010"} {
		var c into
		if err := Decode([]byte(text), &c); err == nil || !strings.Contains(err.Error(), "without zeros before it") {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
	for text, want := range map[string]into{"share: 0": {Share: 0}, "share: 0x10": {Share: 16}, "share: 0o10": {Share: 8}, "rate: 0.5": {Rate: 0.5}, "name: 007": {Name: "007"}} {
		var c into
		if err := Decode([]byte(text), &c); err != nil || c != want {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}
