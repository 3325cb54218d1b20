package trees

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// maxDepth bounds the nesting of a document, so that a hostile one cannot exhaust the stack.
const maxDepth = 64

var errTruncated = errors.New("the document ends too early")

// ubjson reads a Universal Binary JSON document (draft 12, as XGBoost writes it) into
// map[string]any, []any, []float64, []int64, string, float64, int64, bool and nil. An array
// of numbers, booleans and nulls becomes []int64, or []float64 if not all have integer types; a
// null is NaN there.
func ubjson(src []byte) (any, error) {
	d := ubj{src: src, room: roomOf(src)}
	mark, err := d.mark()
	if err != nil {
		return nil, err
	}
	v, err := d.value(mark, 0)
	if err == nil && d.at != len(src) {
		err = fmt.Errorf("%d bytes behind the document", len(src)-d.at)
	}
	if err != nil {
		return nil, fmt.Errorf("byte %d: %w", d.at, err)
	}
	return v, nil
}

// ubj is a document while it is read.
type ubj struct {
	src  []byte
	at   int  // the offset of what is read next
	room room // how many more values may come: see its type in json.go
}

// mark reads the marker that says of which type the next value is. It skips no-ops.
func (d *ubj) mark() (byte, error) {
	for d.at < len(d.src) && d.src[d.at] == 'N' {
		d.at++
	}
	if d.at >= len(d.src) {
		return 0, errTruncated
	}
	d.at++
	return d.src[d.at-1], nil
}

// take reads n bytes. They share the document's memory.
func (d *ubj) take(n int) ([]byte, error) {
	if n < 0 || n > len(d.src)-d.at {
		return nil, errTruncated
	}
	d.at += n
	return d.src[d.at-n : d.at], nil
}

// sizes are how many bytes a number takes, by its marker. The markers of floating-point
// numbers are d and D; the others are of integers.
var sizes = map[byte]int{'i': 1, 'U': 1, 'I': 2, 'l': 4, 'L': 8, 'd': 4, 'D': 8}

// value reads a value after its marker, mark. depth is how deep the value is nested.
func (d *ubj) value(mark byte, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch mark {
	case 'Z':
		return nil, nil
	case 'T', 'F':
		return mark == 'T', nil
	case 'C':
		b, err := d.take(1)
		return string(b), err
	case 'S':
		return d.text()
	case '[':
		return d.array(depth)
	case '{':
		return d.object(depth)
	case 'd', 'D':
		return d.float(mark)
	case 'H':
		return nil, errors.New("high-precision numbers are not supported")
	}
	return d.int(mark)
}

func (d *ubj) int(mark byte) (int64, error) {
	n, ok := sizes[mark]
	if !ok || mark == 'd' || mark == 'D' {
		return 0, fmt.Errorf("no type %q", mark)
	}
	b, err := d.take(n)
	if err != nil {
		return 0, err
	}
	switch mark {
	case 'i':
		return int64(int8(b[0])), nil
	case 'U':
		return int64(b[0]), nil
	case 'I':
		return int64(int16(binary.BigEndian.Uint16(b))), nil
	case 'l':
		return int64(int32(binary.BigEndian.Uint32(b))), nil
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

func (d *ubj) float(mark byte) (float64, error) {
	b, err := d.take(sizes[mark])
	if err != nil {
		return 0, err
	}
	if mark == 'd' {
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b))), nil
	}
	return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
}

// length reads a count: an integer with its marker.
func (d *ubj) length() (int, error) {
	mark, err := d.mark()
	if err != nil {
		return 0, err
	}
	n, err := d.int(mark)
	if err == nil && (n < 0 || n > int64(len(d.src))) {
		err = fmt.Errorf("a length of %d in %d bytes", n, len(d.src))
	}
	return int(n), err
}

func (d *ubj) text() (string, error) {
	n, err := d.length()
	if err != nil {
		return "", err
	}
	b, err := d.take(n)
	return string(b), err
}

// container reads what may follow an opening bracket: $ and the type of all items, and # and
// their count. kind is 0 if there is no type, and n is -1 if there is no count.
func (d *ubj) container() (kind byte, n int, err error) {
	n = -1
	if d.at < len(d.src) && d.src[d.at] == '$' {
		d.at++
		if kind, err = d.mark(); err != nil {
			return 0, 0, err
		}
		if d.at >= len(d.src) || d.src[d.at] != '#' {
			return 0, 0, errors.New("a type without a count")
		}
	}
	if d.at < len(d.src) && d.src[d.at] == '#' {
		d.at++
		n, err = d.length()
	}
	return kind, n, err
}

func (d *ubj) array(depth int) (any, error) {
	kind, n, err := d.container()
	if err != nil {
		return nil, err
	}
	if size, number := sizes[kind]; number {
		return d.numbers(kind, n, size)
	}
	if kind == 'T' || kind == 'F' || kind == 'Z' {
		return nil, fmt.Errorf("a counted list of %q, which takes no bytes", kind)
	}
	var out list
	for i := 0; n < 0 || i < n; i++ {
		mark := kind
		if mark == 0 {
			if mark, err = d.mark(); err != nil {
				return nil, err
			}
			if n < 0 && mark == ']' {
				break
			}
		}
		v, err := d.value(mark, depth+1)
		if err == nil {
			err = out.add(v, &d.room)
		}
		if err != nil {
			return nil, err
		}
	}
	return out.values(), nil
}

// numbers reads an array of n numbers of one type, of size bytes each.
func (d *ubj) numbers(kind byte, n, size int) (any, error) {
	if n > (len(d.src)-d.at)/size {
		return nil, errTruncated
	}
	if kind == 'd' || kind == 'D' {
		out := make([]float64, n)
		for i := range out {
			out[i], _ = d.float(kind)
		}
		return out, nil
	}
	out := make([]int64, n)
	for i := range out {
		out[i], _ = d.int(kind)
	}
	return out, nil
}

func (d *ubj) object(depth int) (any, error) {
	kind, n, err := d.container()
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for i := 0; n < 0 || i < n; i++ {
		if n < 0 && d.at < len(d.src) && d.src[d.at] == '}' {
			d.at++
			break
		}
		key, err := d.text()
		if err == nil {
			err = d.room.take()
		}
		if err != nil {
			return nil, err
		}
		mark := kind
		if mark == 0 {
			if mark, err = d.mark(); err != nil {
				return nil, err
			}
		}
		if out[key], err = d.value(mark, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}
