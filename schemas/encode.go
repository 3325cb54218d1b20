package schemas

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas/internal/jsontext"
)

// EncodeJSON turns a JSON object into a body. A field may be left out when it
// has a default; an unknown one is refused by name. Timestamps are RFC 3339
// strings or integers in the schema's unit, integers may be strings, bytes are
// base64, unions are not wrapped. The error is an [*Error].
func (s *Schema) EncodeJSON(line []byte) (body []byte, err error) {
	if body, err = s.AppendJSON(make([]byte, 0, len(line)), line); err != nil {
		return nil, err
	}
	if _, err := s.Envelope(body); err != nil {
		return nil, err
	}
	return body, nil
}

// AppendJSON appends to dst what [Schema.EncodeJSON] makes of a JSON object. It does not
// check the roles against their limits; the caller does that by Envelope or Accept. After
// an error it returns dst as it was.
func (s *Schema) AppendJSON(dst, line []byte) ([]byte, error) {
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	e.max = millrace.MaxBodyBytes
	return e.encode(dst, s.root, line, "")
}

// CheckJSON returns an error if a text is not exactly one JSON value, or if two readers
// could understand it differently: if an object has a name twice, for example, or the text
// is not UTF-8.
func CheckJSON(text []byte) error {
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	good := e.Read(text)
	if e.Text = nil; good {
		return nil
	}
	_, err := jsontext.Value(text)
	return err
}

var encoders = sync.Pool{New: func() any { return new(encoder) }}

// encoder writes JSON values as Avro.
type encoder struct {
	jsontext.Tape
	buf    []byte  // the result
	from   int     // where in buf the value begins
	max    int     // how many bytes the value may have
	places []int32 // of the records being written: see place
	text   []byte  // memory for the next string with escapes
	// defaults asks for the rules of a schema's defaults: bytes are the code
	// points of a string, timestamps and integers are numbers only, and members of an
	// object that are no field of the record are ignored.
	defaults bool
}

// encode appends a JSON text as a value of the type n, which is at a path of the schema.
// After an error it returns dst as it was.
func (e *encoder) encode(dst []byte, n *node, text []byte, path string) ([]byte, error) {
	if !e.Read(text) {
		return dst, &Error{Reason: BadJSON, Field: path, Detail: e.notJSON()}
	}
	e.buf, e.from, e.places = dst, len(dst), e.places[:0]
	err := e.value(n, 0)
	out := e.buf
	e.buf, e.text, e.Text = nil, e.text[:0], nil
	if err == nil {
		return out, nil
	}
	var fault *Error
	if errors.As(err, &fault) {
		if fault.Field = path + fault.Field; path == "" {
			fault.Field = strings.TrimPrefix(fault.Field, ".")
		}
	}
	return dst, err
}

// notJSON returns why the text could not be read. It reads it again by [jsontext.Value],
// which is slow and says why.
func (e *encoder) notJSON() string {
	if _, err := jsontext.Value(e.Text); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("the text has more than %d bytes", jsontext.MaxBytes)
}

// detailOf returns what an encoder's error says, without its reason.
func detailOf(err error) string {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}

// inside adds a step to the front of the field that an error names, as the error goes up:
// ".name" for a record's field or a map's value, "[3]" for a list's item.
func inside(step string, err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		e.Field = step + e.Field
	}
	return err
}

// wrong returns an error: the type n cannot have the value of the token at.
func (e *encoder) wrong(n *node, at int32) error {
	return &Error{Reason: BadValue, Detail: fmt.Sprintf("want %s, got %s", n.what(), e.describe(at))}
}

func (e *encoder) describe(at int32) string {
	switch t := &e.Tokens[at]; t.Kind {
	case jsontext.Object:
		return "an object"
	case jsontext.List:
		return "a list"
	case jsontext.String:
		return quote(e.string(t))
	default:
		return string(e.Bytes(t))
	}
}

func (e *encoder) long(x int64) { e.buf = binary.AppendVarint(e.buf, x) }

func (e *encoder) bytes(b string) {
	e.long(int64(len(b)))
	e.buf = append(e.buf, b...)
}

// string returns the text of a string, with its escapes resolved. It is valid until the
// next call.
func (e *encoder) string(t *jsontext.Token) string {
	if !t.Escaped {
		return e.Raw(t)
	}
	e.text = e.AppendString(e.text[:0], t)
	return alias(e.text)
}

// value writes the value of the token at as a type. It fails if more than e.max bytes are
// written by then.
func (e *encoder) value(n *node, at int32) error {
	if err := e.unbounded(n, at); err != nil {
		return err
	}
	if len(e.buf)-e.from > e.max {
		return &Error{Reason: OverLimit, Detail: fmt.Sprintf("more than %d bytes encoded", e.max)}
	}
	return nil
}

// unbounded is value without the check of e.max.
func (e *encoder) unbounded(n *node, at int32) error {
	t := &e.Tokens[at]
	if !writable(n, t.Kind) {
		return e.wrong(n, at)
	}
	switch n.kind {
	case kindBoolean:
		e.buf = append(e.buf, byte(t.Kind-jsontext.False))
	case kindInt, kindLong:
		x, ok := e.integer(n, t)
		if !ok {
			return e.wrong(n, at)
		}
		e.long(x)
	case kindFloat, kindDouble:
		return e.float(n, at)
	case kindString:
		e.bytes(e.string(t))
	case kindBytes, kindFixed:
		return e.binary(n, at)
	case kindEnum:
		i := slices.Index(n.symbols, e.string(t))
		if i < 0 {
			return e.wrong(n, at)
		}
		e.long(int64(i))
	case kindArray:
		return e.array(n, at)
	case kindMap:
		return e.mapping(n, at)
	case kindUnion:
		return e.union(n, at)
	case kindRecord:
		return e.record(n, at)
	}
	return nil
}

// writable reports whether a value of a type may be a JSON value of the kind k. A union
// may be any.
func writable(n *node, k jsontext.Kind) bool {
	switch n.kind {
	case kindNull:
		return k == jsontext.Null
	case kindBoolean:
		return k == jsontext.False || k == jsontext.True
	case kindInt, kindLong:
		return k == jsontext.Number || k == jsontext.String
	case kindFloat, kindDouble:
		return k == jsontext.Number
	case kindString, kindBytes, kindFixed, kindEnum:
		return k == jsontext.String
	case kindArray:
		return k == jsontext.List
	case kindMap, kindRecord:
		return k == jsontext.Object
	}
	return true
}

// integer reads a whole number, or a timestamp as RFC 3339. A whole number may be in
// a string, since answers write large ones so.
func (e *encoder) integer(n *node, t *jsontext.Token) (int64, bool) {
	bits := 64
	if n.kind == kindInt {
		bits = 32
	}
	if t.Kind == jsontext.Number {
		i, err := strconv.ParseInt(e.Raw(t), 10, bits)
		return i, err == nil
	}
	if e.defaults {
		return 0, false
	}
	x := e.string(t)
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

// timestampUnit returns the unit of a logical type that JSON shows as RFC 3339; 0 for any
// other.
func timestampUnit(logical string) time.Duration {
	switch logical {
	case "timestamp-millis":
		return time.Millisecond
	case "timestamp-micros":
		return time.Microsecond
	}
	return 0
}

func (e *encoder) float(n *node, at int32) error {
	bits := 64
	if n.kind == kindFloat {
		bits = 32
	}
	x, err := strconv.ParseFloat(e.Raw(&e.Tokens[at]), bits)
	if err != nil {
		return e.wrong(n, at)
	}
	if bits == 32 {
		e.buf = binary.LittleEndian.AppendUint32(e.buf, math.Float32bits(float32(x)))
	} else {
		e.buf = binary.LittleEndian.AppendUint64(e.buf, math.Float64bits(x))
	}
	return nil
}

func (e *encoder) binary(n *node, at int32) error {
	b, err := e.unprint(e.string(&e.Tokens[at]))
	if err != nil || n.kind == kindFixed && len(b) != n.size {
		return e.wrong(n, at)
	}
	if n.kind == kindBytes {
		e.long(int64(len(b)))
	}
	e.buf = append(e.buf, b...)
	return nil
}

// unprint returns the bytes that a string stands for: it is base64, or, in a schema's
// default, each code point is a byte.
func (e *encoder) unprint(text string) ([]byte, error) {
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

// array writes a list as one block: the number of items, the items, and the end.
func (e *encoder) array(n *node, at int32) error {
	if count := e.Tokens[at].To; count > 0 {
		e.long(int64(count))
	}
	end := e.Tokens[at].Next
	for i, item := 0, at+1; item < end; i, item = i+1, e.Tokens[item].Next {
		if err := e.value(n.items, item); err != nil {
			return inside(fmt.Sprintf("[%d]", i), err)
		}
	}
	e.long(0)
	return nil
}

// mapping writes a map, in the order of its names.
func (e *encoder) mapping(n *node, at int32) error {
	type member struct {
		name  string
		value int32
	}
	members := make([]member, 0, e.Tokens[at].To)
	for i := range e.members(at) {
		members = append(members, member{strings.Clone(e.string(&e.Tokens[i])), i + 1})
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	if len(members) > 0 {
		e.long(int64(len(members)))
	}
	for _, m := range members {
		e.bytes(m.name)
		if err := e.value(n.items, m.value); err != nil {
			return inside("."+m.name, err)
		}
	}
	e.long(0)
	return nil
}

// members ranges over the tokens of an object's names. The token after a name is its
// value.
func (e *encoder) members(at int32) func(func(int32) bool) {
	return func(yield func(int32) bool) {
		for i := at + 1; i < e.Tokens[at].Next && yield(i); i = e.Tokens[i+1].Next {
		}
	}
}

// union writes the value as the first branch that takes it.
func (e *encoder) union(n *node, at int32) error {
	start := len(e.buf)
	var err error
	for i, b := range n.branches {
		if !writable(b, e.Tokens[at].Kind) {
			continue
		}
		e.long(int64(i))
		if err = e.value(b, at); err == nil {
			return nil
		}
		e.buf = e.buf[:start]
	}
	if b, ok := n.nullable(); ok && e.Tokens[at].Kind != jsontext.Null {
		return cmp.Or(err, e.wrong(b, at)) // the other branch is null
	}
	return e.wrong(n, at)
}

// record writes the fields of a record in the order of the schema. The members of the
// object may have any order.
func (e *encoder) record(n *node, at int32) error {
	base := len(e.places)
	defer func() { e.places = e.places[:base] }()
	unknown := e.place(n, at)
	for i := range n.fields {
		f := &n.fields[i]
		switch value := e.places[base+i]; {
		case value > 0:
			if err := e.value(f.typ, value); err != nil {
				return inside("."+f.name, err)
			}
		case f.hasDefault:
			e.buf = append(e.buf, f.def...)
		default:
			return inside("."+f.name, &Error{Reason: MissingField, Detail: "the field is missing and has no default"})
		}
	}
	if unknown && !e.defaults {
		return e.unknown(n, at)
	}
	return nil
}

// place appends to e.places, for each field of a record, the token of its value, or 0 if it
// has none. It reports whether some member is no field of the record. It is fast for
// members in the order of the fields, as they mostly come.
func (e *encoder) place(n *node, at int32) (unknown bool) {
	base := len(e.places)
	e.places = append(e.places, make([]int32, len(n.fields))...)
	next := 0
	for i := range e.members(at) {
		name := e.string(&e.Tokens[i])
		if next >= len(n.fields) || n.fields[next].name != name {
			f, ok := n.byName[name]
			if !ok {
				unknown = true
				continue
			}
			next = f
		}
		e.places[base+next] = i + 1
		next++
	}
	return unknown
}

// unknown returns an error for the members that are no field: it names the first in
// alphabetical order.
func (e *encoder) unknown(n *node, at int32) error {
	var names []string
	for i := range e.members(at) {
		if name := e.string(&e.Tokens[i]); !has(n, name) {
			names = append(names, strings.Clone(name))
		}
	}
	return &Error{Reason: UnknownField, Field: "." + slices.Min(names), Detail: "the schema " + n.name + " has no such field"}
}

func has(n *node, field string) bool {
	_, ok := n.byName[field]
	return ok
}
