package schemas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// maxJSONDepth bounds the nesting of a schema's text and of a line.
const maxJSONDepth = 100

// readJSON reads exactly one JSON value: objects as map[string]any, arrays as
// []any, numbers as json.Number. Unlike encoding/json it refuses what two
// readers could understand differently: a name twice in an object, and
// strings that are not UTF-8.
func readJSON(text []byte) (any, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("the text is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := readValue(d, 0)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errors.New("the text ends within a JSON value")
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the text goes on after the JSON value")
	}
	return v, nil
}

func readValue(d *json.Decoder, depth int) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	if _, open := t.(json.Delim); !open {
		return t, nil
	}
	if depth++; depth > maxJSONDepth {
		return nil, fmt.Errorf("the JSON nests deeper than %d levels", maxJSONDepth)
	}
	if t == json.Delim('[') {
		return readArray(d, depth)
	}
	return readObject(d, depth)
}

func readArray(d *json.Decoder, depth int) (any, error) {
	list := []any{}
	for d.More() {
		v, err := readValue(d, depth)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	_, err := d.Token()
	return list, err
}

func readObject(d *json.Decoder, depth int) (any, error) {
	object := map[string]any{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name := t.(string) // the decoder allows nothing else here
		if _, twice := object[name]; twice {
			return nil, fmt.Errorf("%q stands twice in one object", name)
		}
		if object[name], err = readValue(d, depth); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return object, err
}
