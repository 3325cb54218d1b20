package schemas

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas/internal/jsontext"
)

// naiveJSON is EncodeJSON as encoding/json would have it: of values in maps.
func naiveJSON(s *Schema, line []byte) (body []byte, err error) {
	v, err := jsontext.Value(line)
	if err != nil {
		return nil, &Error{Reason: BadJSON, Detail: err.Error()}
	}
	e := naive{max: millrace.MaxBodyBytes}
	if err := e.value(s.root, v, ""); err != nil {
		return nil, err
	}
	if _, err := s.Envelope(e.buf); err != nil {
		return nil, err
	}
	return e.buf, nil
}

// naive writes JSON values as Avro.
type naive struct {
	buf []byte
	max int
}

func (e *naive) wrong(n *node, v any, path string) error {
	return &Error{Reason: BadValue, Field: path, Detail: fmt.Sprintf("want %s, got %s", n.what(), describe(v))}
}

func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return quote(v)
	}
	return fmt.Sprint(v)
}

func (e *naive) long(x int64) { e.buf = binary.AppendVarint(e.buf, x) }

func (e *naive) bytes(b string) {
	e.long(int64(len(b)))
	e.buf = append(e.buf, b...)
}

func (e *naive) value(n *node, v any, path string) error {
	if err := e.unbounded(n, v, path); err != nil {
		return err
	}
	if len(e.buf) > e.max {
		return &Error{Reason: OverLimit, Field: path, Detail: fmt.Sprintf("more than %d bytes encoded", e.max)}
	}
	return nil
}

func (e *naive) unbounded(n *node, v any, path string) error {
	switch n.kind {
	case kindNull:
		if v != nil {
			return e.wrong(n, v, path)
		}
	case kindBoolean:
		x, ok := v.(bool)
		if !ok {
			return e.wrong(n, v, path)
		}
		e.buf = append(e.buf, 0)
		if x {
			e.buf[len(e.buf)-1] = 1
		}
	case kindInt, kindLong:
		x, ok := e.integer(n, v)
		if !ok {
			return e.wrong(n, v, path)
		}
		e.long(x)
	case kindFloat, kindDouble:
		return e.float(n, v, path)
	case kindString:
		x, ok := v.(string)
		if !ok {
			return e.wrong(n, v, path)
		}
		e.bytes(x)
	case kindBytes, kindFixed:
		return e.binary(n, v, path)
	case kindEnum:
		x, ok := v.(string)
		i := slices.Index(n.symbols, x)
		if !ok || i < 0 {
			return e.wrong(n, v, path)
		}
		e.long(int64(i))
	case kindArray:
		return e.array(n, v, path)
	case kindMap:
		return e.mapping(n, v, path)
	case kindUnion:
		return e.union(n, v, path)
	case kindRecord:
		return e.record(n, v, path)
	}
	return nil
}

// integer reads a whole number, or a timestamp as RFC 3339. A whole number in
// a string is one too, since that is how long ones leave in an answer.
func (e *naive) integer(n *node, v any) (int64, bool) {
	bits := 64
	if n.kind == kindInt {
		bits = 32
	}
	if x, ok := v.(json.Number); ok {
		i, err := strconv.ParseInt(x.String(), 10, bits)
		return i, err == nil
	}
	x, ok := v.(string)
	if !ok {
		return 0, false
	}
	if unit := timestampUnit(n.logical); unit != 0 {
		if t, err := time.Parse(time.RFC3339Nano, x); err == nil {
			if unit == time.Millisecond {
				return t.UnixMilli(), true
			}
			return t.UnixMicro(), true
		}
	}
	i, err := strconv.ParseInt(x, 10, bits)
	return i, err == nil
}

func (e *naive) float(n *node, v any, path string) error {
	bits := 64
	if n.kind == kindFloat {
		bits = 32
	}
	number, ok := v.(json.Number)
	x, err := strconv.ParseFloat(number.String(), bits)
	if !ok || err != nil {
		return e.wrong(n, v, path)
	}
	if bits == 32 {
		e.buf = binary.LittleEndian.AppendUint32(e.buf, math.Float32bits(float32(x)))
	} else {
		e.buf = binary.LittleEndian.AppendUint64(e.buf, math.Float64bits(x))
	}
	return nil
}

func (e *naive) binary(n *node, v any, path string) error {
	text, ok := v.(string)
	if !ok {
		return e.wrong(n, v, path)
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || n.kind == kindFixed && len(b) != n.size {
		return e.wrong(n, v, path)
	}
	if n.kind == kindBytes {
		e.long(int64(len(b)))
	}
	e.buf = append(e.buf, b...)
	return nil
}

func (e *naive) array(n *node, v any, path string) error {
	list, ok := v.([]any)
	if !ok {
		return e.wrong(n, v, path)
	}
	if len(list) > 0 {
		e.long(int64(len(list)))
	}
	for i, x := range list {
		if err := e.value(n.items, x, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	e.long(0)
	return nil
}

func (e *naive) mapping(n *node, v any, path string) error {
	object, ok := v.(map[string]any)
	if !ok {
		return e.wrong(n, v, path)
	}
	if len(object) > 0 {
		e.long(int64(len(object)))
	}
	for _, k := range slices.Sorted(maps.Keys(object)) {
		e.bytes(k)
		if err := e.value(n.items, object[k], join(path, k)); err != nil {
			return err
		}
	}
	e.long(0)
	return nil
}

// union writes the value as the first branch that takes it.
func (e *naive) union(n *node, v any, path string) error {
	start := len(e.buf)
	var first error
	for i, b := range n.branches {
		e.long(int64(i))
		err := e.value(b, v, path)
		if err == nil {
			return nil
		}
		e.buf = e.buf[:start]
		if b.kind != kindNull && first == nil {
			first = err
		}
	}
	if _, ok := n.nullable(); ok && v != nil {
		return first
	}
	return e.wrong(n, v, path)
}

func (e *naive) record(n *node, v any, path string) error {
	object, ok := v.(map[string]any)
	if !ok {
		return e.wrong(n, v, path)
	}
	known := 0
	for i := range n.fields {
		f := &n.fields[i]
		x, ok := object[f.name]
		switch {
		case ok:
			known++
			if err := e.value(f.typ, x, join(path, f.name)); err != nil {
				return err
			}
		case f.hasDefault:
			e.buf = append(e.buf, f.def...)
		default:
			return &Error{Reason: MissingField, Field: join(path, f.name), Detail: "the field is missing and has no default"}
		}
	}
	if known == len(object) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !slices.ContainsFunc(n.fields, func(f field) bool { return f.name == name }) {
			return &Error{Reason: UnknownField, Field: join(path, name), Detail: "the schema " + n.name + " has no such field"}
		}
	}
	return nil
}
