// Package jsontext reads JSON strictly: it refuses texts that two readers could understand
// differently. The texts of schemas are read into Go values by Value. Lines of records are
// read into a Tape, which needs no allocation for each value.
package jsontext

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// MaxDepth bounds how deep objects and arrays of a text nest.
const MaxDepth = 100

// Value reads exactly one JSON value: objects as map[string]any, arrays as
// []any, numbers as json.Number. Unlike encoding/json it refuses what two
// readers could understand differently: a name twice in an object, and
// a text that is not UTF-8. It also refuses more levels than MaxDepth.
func Value(text []byte) (any, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("the text is not UTF-8")
	}
	if bytes.HasPrefix(text, []byte("\xef\xbb\xbf")) {
		return nil, errors.New("the text begins with a byte order mark, which JSON has none of; save it as UTF-8 without one")
	}
	members, depth := survey(text)
	if depth > MaxDepth {
		return nil, fmt.Errorf("the JSON nests deeper than %d levels", MaxDepth)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("the text ends within a JSON value")
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the text goes on after the JSON value")
	}
	if countMembers(v) != members {
		return nil, fmt.Errorf("%q stands twice in one object", twice(text))
	}
	return v, nil
}

// survey returns how many members the objects of a JSON text have together,
// and how deep it nests.
func survey(text []byte) (members, depth int) {
	inString, level := false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == ':':
			members++
		case c == '{', c == '[':
			level++
			depth = max(depth, level)
		case c == '}', c == ']':
			level--
		}
	}
	return members, depth
}

func countMembers(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		n = len(v)
		for _, x := range v {
			n += countMembers(x)
		}
	case []any:
		for _, x := range v {
			n += countMembers(x)
		}
	}
	return n
}

// twice returns a name that an object of a valid JSON text has twice.
func twice(text []byte) string {
	type open struct {
		names map[string]bool // nil for an array
		value bool            // a name was read, its value comes next
	}
	stack := []open{{}}
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		t, err := d.Token()
		if err != nil {
			return ""
		}
		top := &stack[len(stack)-1]
		name, isString := t.(string)
		switch {
		case t == json.Delim('}'), t == json.Delim(']'):
			stack = stack[:len(stack)-1]
			continue
		case top.names != nil && !top.value && isString:
			if top.names[name] {
				return name
			}
			top.names[name], top.value = true, true
			continue
		}
		top.value = false
		switch t {
		case json.Delim('{'):
			stack = append(stack, open{names: map[string]bool{}})
		case json.Delim('['):
			stack = append(stack, open{})
		}
	}
}
