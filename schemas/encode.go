package schemas

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace"
)

// EncodeJSON turns a JSON object into a body. A field may be left out when it
// has a default; an unknown one is refused by name. Timestamps are RFC 3339
// strings or integers in the schema's unit, bytes are base64, unions are not
// wrapped. The error is an [*Error].
func (s *Schema) EncodeJSON(line []byte) (body []byte, err error) {
	v, err := readJSON(line)
	if err != nil {
		return nil, &Error{Reason: BadJSON, Detail: err.Error()}
	}
	e := encoder{max: millrace.MaxBodyBytes}
	if err := e.value(s.root, v, ""); err != nil {
		return nil, err
	}
	if _, err := s.Envelope(e.buf); err != nil {
		return nil, err
	}
	return e.buf, nil
}

// encoder writes JSON values as Avro.
type encoder struct {
	buf []byte
	max int
	// defaults asks for the rules of a schema's defaults: bytes are the code
	// points of a string, timestamps and integers are numbers only, and what a
	// record has beyond its fields is ignored.
	defaults bool
}

// detailOf returns what an encoder's error says, without its reason.
func detailOf(err error) string {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}

func (e *encoder) wrong(n *node, v any, path string) error {
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

func (e *encoder) long(x int64) { e.buf = binary.AppendVarint(e.buf, x) }

func (e *encoder) bytes(b string) {
	e.long(int64(len(b)))
	e.buf = append(e.buf, b...)
}

func (e *encoder) value(n *node, v any, path string) error {
	if err := e.unbounded(n, v, path); err != nil {
		return err
	}
	if len(e.buf) > e.max {
		return &Error{Reason: OverLimit, Field: path, Detail: fmt.Sprintf("more than %d bytes encoded", e.max)}
	}
	return nil
}

func (e *encoder) unbounded(n *node, v any, path string) error {
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
func (e *encoder) integer(n *node, v any) (int64, bool) {
	bits := 64
	if n.kind == kindInt {
		bits = 32
	}
	if x, ok := v.(json.Number); ok {
		i, err := strconv.ParseInt(x.String(), 10, bits)
		return i, err == nil
	}
	x, ok := v.(string)
	if !ok || e.defaults {
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

// timestampUnit is that of a logical type that JSON shows as RFC 3339; of
// others 0.
func timestampUnit(logical string) time.Duration {
	switch logical {
	case "timestamp-millis":
		return time.Millisecond
	case "timestamp-micros":
		return time.Microsecond
	}
	return 0
}

func (e *encoder) float(n *node, v any, path string) error {
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

func (e *encoder) binary(n *node, v any, path string) error {
	text, ok := v.(string)
	if !ok {
		return e.wrong(n, v, path)
	}
	b, err := e.unescape(text)
	if err != nil || n.kind == kindFixed && len(b) != n.size {
		return e.wrong(n, v, path)
	}
	if n.kind == kindBytes {
		e.long(int64(len(b)))
	}
	e.buf = append(e.buf, b...)
	return nil
}

func (e *encoder) unescape(text string) ([]byte, error) {
	if !e.defaults {
		return base64.StdEncoding.DecodeString(text)
	}
	var b []byte
	for _, r := range text {
		if r > 0xff {
			return nil, errors.New("a code point beyond 255 is not a byte")
		}
		b = append(b, byte(r))
	}
	return b, nil
}

func (e *encoder) array(n *node, v any, path string) error {
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

func (e *encoder) mapping(n *node, v any, path string) error {
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
func (e *encoder) union(n *node, v any, path string) error {
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

func (e *encoder) record(n *node, v any, path string) error {
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
	if known == len(object) || e.defaults {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !slices.ContainsFunc(n.fields, func(f field) bool { return f.name == name }) {
			return &Error{Reason: UnknownField, Field: join(path, name), Detail: "the schema " + n.name + " has no such field"}
		}
	}
	return nil
}
