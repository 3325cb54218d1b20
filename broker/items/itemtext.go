package items

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// wireText turns the wire form of messages of one type into the JSON that plainJSON
// would write. It makes no message: that of an item's record would be a hundred
// allocations. It reads only what [Records.Append] writes, and so knows only the kinds
// of fields that items have: strings, doubles and messages.
type wireText struct {
	fields []textField
	known  func(dst, wire []byte) ([]byte, error) // writes a type with a JSON form of its own; nil: use fields
}

// textField is a field of a message type that a wireText writes.
type textField struct {
	number protowire.Number
	name   string // in quotes, with a colon behind it
	kind   protoreflect.Kind
	list   bool
	of     *wireText // the type of a message field; nil for strings and doubles
}

// itemText writes messages of type feedv1.Item.
var itemText = newWireText(new(feedv1.Item).ProtoReflect().Descriptor())

// newWireText returns the wireText of a message type, and of the types of its fields. It
// panics if a field is of a kind that wireText does not know.
func newWireText(of protoreflect.MessageDescriptor) *wireText {
	switch of.FullName() {
	case "google.protobuf.Timestamp":
		return &wireText{known: appendTimeText}
	case "google.protobuf.Struct":
		return &wireText{known: appendStructText}
	case "google.protobuf.Value":
		return &wireText{known: appendValueText}
	}
	t := &wireText{}
	for i := range of.Fields().Len() {
		f := of.Fields().Get(i)
		field := textField{number: f.Number(), name: `"` + string(f.Name()) + `":`, kind: f.Kind(), list: f.IsList()}
		switch field.kind {
		case protoreflect.StringKind, protoreflect.DoubleKind:
		case protoreflect.MessageKind:
			field.of = newWireText(f.Message())
		default:
			panic(fmt.Sprintf("broker: %s is of a kind that is not written here", f.FullName()))
		}
		t.fields = append(t.fields, field)
	}
	return t
}

// append appends a message as JSON, with absent strings and doubles as zeros. It fails
// if a string is not UTF-8.
func (t *wireText) append(dst, wire []byte) (_ []byte, err error) {
	if t.known != nil {
		return t.known(dst, wire)
	}
	dst = append(dst, '{')
	for i := range t.fields {
		f := &t.fields[i]
		var last []byte // if a field is there several times, the last counts
		if f.list {
			dst = append(append(dst, f.name...), '[')
			for value := range valuesOf(wire, f.number) {
				if dst, err = f.append(dst, value); err != nil {
					return nil, err
				}
				dst = append(dst, ',')
			}
			dst = append(bytes.TrimSuffix(dst, []byte{','}), ']', ',')
			continue
		}
		for value := range valuesOf(wire, f.number) {
			last = value
		}
		if last == nil && f.of != nil {
			continue
		}
		if dst, err = f.append(append(dst, f.name...), last); err != nil {
			return nil, err
		}
		dst = append(dst, ',')
	}
	return append(bytes.TrimSuffix(dst, []byte{','}), '}'), nil
}

// append appends the value of a field as JSON. A nil value is an absent field.
func (f *textField) append(dst, value []byte) ([]byte, error) {
	switch f.kind {
	case protoreflect.StringKind:
		return appendStringText(dst, value)
	case protoreflect.DoubleKind:
		return appendDoubleText(dst, value), nil
	}
	return f.of.append(dst, value)
}

// fieldsOf yields the fields of a message in their order: the field number, and the
// bytes of the value, for strings and messages without their length. It ends early at
// a malformed field.
func fieldsOf(wire []byte) iter.Seq2[protowire.Number, []byte] {
	return func(yield func(protowire.Number, []byte) bool) {
		for {
			number, value, rest := cutField(wire)
			if number == 0 || !yield(number, value) {
				return
			}
			wire = rest
		}
	}
}

// cutField returns the first field of a message, with a value as fieldsOf yields it, and
// the rest of the message. The number is 0 at the end and where the field is malformed.
func cutField(wire []byte) (number protowire.Number, value, rest []byte) {
	if len(wire) < 2 {
		return 0, nil, nil
	}
	if tag := wire[0]; tag < 0x80 { // a tag of one byte, as nearly all are
		size := 2 + int(wire[1])
		switch number = protowire.Number(tag >> 3); protowire.Type(tag & 7) {
		case protowire.BytesType:
			if wire[1] < 0x80 && size <= len(wire) {
				return number, wire[2:size:size], wire[size:]
			}
		case protowire.Fixed64Type:
			if len(wire) >= 9 {
				return number, wire[1:9:9], wire[9:]
			}
		}
	}
	number, kind, n := protowire.ConsumeTag(wire)
	size := protowire.ConsumeFieldValue(number, kind, wire[max(n, 0):])
	if n < 0 || size < 0 {
		return 0, nil, nil
	}
	value, rest = wire[n:n+size:n+size], wire[n+size:]
	if kind == protowire.BytesType {
		value, _ = protowire.ConsumeBytes(value)
	}
	return number, value, rest
}

// valuesOf yields the values of one field.
func valuesOf(wire []byte, of protowire.Number) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for number, value := range fieldsOf(wire) {
			if number == of && !yield(value) {
				return
			}
		}
	}
}

// appendTimeText appends a Timestamp as RFC 3339 in UTC, with 0, 3, 6 or 9 digits behind
// the second. The error is always nil.
func appendTimeText(dst, wire []byte) ([]byte, error) {
	var at [2]uint64 // seconds and nanoseconds
	for number, value := range fieldsOf(wire) {
		if number == timeSeconds || number == timeNanos {
			at[number-timeSeconds], _ = protowire.ConsumeVarint(value)
		}
	}
	dst = time.Unix(int64(at[0]), int64(at[1])).UTC().AppendFormat(append(dst, '"'), "2006-01-02T15:04:05.000000000")
	for _, zeros := range []string{"000", "000", ".000"} {
		dst = bytes.TrimSuffix(dst, []byte(zeros))
	}
	return append(dst, `Z"`...), nil
}

// The field numbers of google.protobuf.Value, and of the entries of a Struct.
const (
	valueNumber protowire.Number = 2 + iota // 1 is null
	valueString
	valueBool
	valueStruct
	valueList

	entryName  protowire.Number = 1
	entryValue protowire.Number = 2
)

// appendStructText appends the fields of a Struct in the order of their names. If
// several have one name, as in a damaged map, the last counts.
func appendStructText(dst, wire []byte) (_ []byte, err error) {
	var room [32][2][]byte
	all := room[:0]
	for _, entry := range fieldsOf(wire) {
		var e [2][]byte
		for number, value := range fieldsOf(entry) {
			if number == entryName || number == entryValue {
				e[number-entryName] = value
			}
		}
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b [2][]byte) int { return bytes.Compare(a[0], b[0]) })
	dst = append(dst, '{')
	for i, e := range all {
		if i+1 < len(all) && bytes.Equal(e[0], all[i+1][0]) {
			continue
		}
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		if dst, err = appendStringText(dst, e[0]); err != nil {
			return nil, err
		}
		if dst, err = appendValueText(append(dst, ':'), e[1]); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

// appendValueText appends a google.protobuf.Value. What is none of its kinds is null.
func appendValueText(dst, wire []byte) (_ []byte, err error) {
	switch number, value, _ := cutField(wire); number {
	case valueNumber:
		return appendDoubleText(dst, value), nil
	case valueString:
		return appendStringText(dst, value)
	case valueBool:
		return strconv.AppendBool(dst, len(value) > 0 && value[0] != 0), nil
	case valueStruct:
		return appendStructText(dst, value)
	case valueList:
		dst = append(dst, '[')
		from := len(dst)
		for _, item := range fieldsOf(value) {
			if len(dst) > from {
				dst = append(dst, ',')
			}
			if dst, err = appendValueText(dst, item); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	}
	return append(dst, "null"...), nil
}

// appendDoubleText appends a double as protojson and encoding/json write it. The value
// is its 8 bytes; an absent one is 0.
func appendDoubleText(dst, value []byte) []byte {
	x := 0.0
	if len(value) == 8 {
		x = math.Float64frombits(binary.LittleEndian.Uint64(value))
	}
	switch abs := math.Abs(x); {
	case math.IsNaN(x):
		return append(dst, `"NaN"`...)
	case math.IsInf(x, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(x, -1):
		return append(dst, `"-Infinity"`...)
	case abs == 0 || abs >= 1e-6 && abs < 1e21:
		return strconv.AppendFloat(dst, x, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, x, 'e', -1, 64)
	if n := len(dst); dst[n-4] == 'e' && dst[n-3] == '-' && dst[n-2] == '0' { // e-09 is e-9
		dst = append(dst[:n-2], dst[n-1])
	}
	return dst
}

// appendStringText appends a text in quotes, with the escapes of protojson. It fails if
// the text is not UTF-8.
func appendStringText(dst, s []byte) ([]byte, error) {
	if !utf8.Valid(s) {
		return nil, fmt.Errorf("broker: %.100q is not UTF-8", s)
	}
	dst = append(dst, '"')
	for {
		i := slices.IndexFunc(s, func(c byte) bool { return c < ' ' || c == '"' || c == '\\' })
		if i < 0 {
			return append(append(dst, s...), '"'), nil
		}
		dst = append(append(dst, s[:i]...), '\\')
		if at := bytes.IndexByte([]byte("\"\\\b\f\n\r\t"), s[i]); at >= 0 {
			dst = append(dst, `"\bfnrt`[at])
		} else {
			dst = fmt.Appendf(dst, "u%04x", s[i])
		}
		s = s[i+1:]
	}
}
