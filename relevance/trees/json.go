package trees

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decodeJSON reads a JSON document into the types that ubjson returns. It accepts two words
// that XGBoost writes and JSON does not have: NaN (the condition of a categorical split),
// which becomes nil, and Infinity. Integers become int64, and other numbers are rounded to
// float32, as the library reads them. encoding/json would take ten times the memory, since a
// model is mostly lists of numbers.
func decodeJSON(src []byte) (any, error) {
	d := jsonReader{src: src, room: roomOf(src)}
	v, err := d.value(0)
	if d.peek(); err == nil && d.at < len(src) {
		err = errors.New("text behind the document")
	}
	if err != nil {
		return nil, fmt.Errorf("byte %d: %w", d.at, err)
	}
	return v, nil
}

// jsonReader is a document while it is read.
type jsonReader struct {
	src  []byte
	at   int  // the offset of what is read next
	room room // how many more values may come
}

// peek skips white space and returns what follows; 0 at the end.
func (d *jsonReader) peek() byte {
	for d.at < len(d.src) {
		switch c := d.src[d.at]; c {
		case ' ', '\t', '\r', '\n':
			d.at++
		default:
			return c
		}
	}
	return 0
}

// skip skips white space and a byte c that must follow.
func (d *jsonReader) skip(c byte) error {
	switch next := d.peek(); next {
	case c:
		d.at++
		return nil
	case 0:
		return errTruncated
	default:
		return fmt.Errorf("%q, not %q", next, c)
	}
}

// value reads the next value. depth is how deep it is nested.
func (d *jsonReader) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch d.peek() {
	case 0:
		return nil, errTruncated
	case '{':
		out := map[string]any{}
		return out, d.items('}', func() error {
			key, err := d.text()
			if err == nil {
				err = d.skip(':')
			}
			if err == nil {
				err = d.room.take()
			}
			if err == nil {
				out[key], err = d.value(depth + 1)
			}
			if errors.Is(err, errMixed) {
				err = fmt.Errorf("%s is %w", clip(key), err)
			}
			return err
		})
	case '[':
		out := list{most: d.length}
		err := d.items(']', func() error {
			v, err := d.value(depth + 1)
			if err == nil {
				err = out.add(v, &d.room)
			}
			return err
		})
		return out.values(), err
	case '"':
		return d.text()
	}
	return d.word()
}

// items reads items with commas between them, from an opening bracket to the closing one,
// end. item reads one.
func (d *jsonReader) items(end byte, item func() error) error {
	d.at++
	if d.peek() == end {
		d.at++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if d.peek() == end {
			d.at++
			return nil
		}
		if err := d.skip(','); err != nil {
			return err
		}
	}
}

// length returns how many numbers there may be up to the end of a list of numbers.
func (d *jsonReader) length() int {
	rest := d.src[d.at:]
	return bytes.Count(rest[:max(bytes.IndexByte(rest, ']'), 0)], []byte(",")) + 1
}

// text reads a string in quotes.
func (d *jsonReader) text() (s string, err error) {
	if err := d.skip('"'); err != nil {
		return "", err
	}
	start, plain := d.at, true
	for ; d.at < len(d.src) && d.src[d.at] != '"'; d.at++ {
		if c := d.src[d.at]; c == '\\' {
			plain = false
			d.at++
		} else if c < ' ' || c >= utf8.RuneSelf {
			plain = false
		}
	}
	if d.at >= len(d.src) {
		return "", errTruncated
	}
	d.at++
	if plain {
		return string(d.src[start : d.at-1]), nil
	}
	err = json.Unmarshal(d.src[start-1:d.at], &s)
	return s, err
}

// word reads a number, or a name without quotes such as true and NaN.
func (d *jsonReader) word() (any, error) {
	start := d.at
	for d.at < len(d.src) && strings.IndexByte(",]} \t\r\n", d.src[d.at]) < 0 {
		d.at++
	}
	w := string(d.src[start:d.at])
	switch w {
	case "true", "false":
		return w == "true", nil
	case "null", "NaN", "-NaN":
		return nil, nil
	case "Infinity":
		return math.Inf(1), nil
	case "-Infinity":
		return math.Inf(-1), nil
	}
	if n, err := strconv.ParseInt(w, 10, 64); err == nil && w != "-0" {
		return n, nil
	}
	x, err := strconv.ParseFloat(w, 32) // infinite, with ErrRange, if it is too large
	if strings.Trim(w, "0123456789+-.eE") != "" || err != nil && !errors.Is(err, strconv.ErrRange) {
		return nil, fmt.Errorf("%q is no number", clip(w))
	}
	return x, nil
}

// room is how many more values a document may have that are not numbers in lists. Such
// values take far more memory than bytes of the file. A model has a few of them for each of
// its trees and features.
type room int

// roomOf returns the room of a document: two values for each feature that a model may have,
// and one for every 16 bytes. A tree takes far more bytes for each of its few values.
func roomOf(src []byte) room { return room(2*maxFeatures + len(src)/16) }

// take counts a value. The error says that there is no room for it.
func (r *room) take() error {
	if *r--; *r < 0 {
		return errors.New("more objects, lists and texts than a model of this size has")
	}
	return nil
}

// list is an array of numbers, or of other values. One of the three slices is in use.
type list struct {
	ints   []int64    // in use while all numbers are whole
	floats []float64  // in use once a number is not whole
	others []any      // in use if the values are no numbers
	most   func() int // how many more numbers there may be; nil: not known
}

// add adds a value: an int64 or a bool as an integer, a float64 as a number, nil as NaN.
func (l *list) add(v any, r *room) error {
	switch v := v.(type) {
	case int64:
		return l.number(v, float64(float32(v)), true)
	case bool:
		return l.add(bit(v), r)
	case float64:
		return l.number(0, v, false)
	case nil:
		return l.number(0, math.NaN(), false)
	}
	if l.ints != nil || l.floats != nil {
		return errMixed
	}
	l.others = append(l.others, v)
	return r.take()
}

// errMixed refuses a list that no model has. [jsonReader.value] puts the name of the list
// before its text.
var errMixed = errors.New("a list of numbers and of others")

// number adds a number: n if it is whole and the list has had whole numbers only, else x.
func (l *list) number(n int64, x float64, whole bool) error {
	switch {
	case l.others != nil:
		return errMixed
	case whole && l.floats == nil:
		if l.ints == nil {
			l.ints = make([]int64, 0, l.capacity())
		}
		l.ints = append(l.ints, n)
		return nil
	}
	if l.floats == nil { // the first number that is not whole turns all before it into floats
		l.floats = make([]float64, 0, len(l.ints)+l.capacity())
	}
	for _, n := range l.ints {
		l.floats = append(l.floats, float64(float32(n)))
	}
	l.ints, l.floats = nil, append(l.floats, x)
	return nil
}

// capacity returns for how many numbers memory is allocated at first. While append grows a
// slice, both the old and the new one take memory, which this avoids.
func (l *list) capacity() int {
	if l.most == nil {
		return 0
	}
	return l.most() + 1
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// values returns the list as []int64, []float64 or []any. An empty list is a nil []int64.
func (l *list) values() any {
	switch {
	case l.others != nil:
		return l.others
	case l.floats != nil:
		return l.floats
	}
	return l.ints
}
