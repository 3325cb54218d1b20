package schemas

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"time"
)

// JSONValue returns a body as values that encode to JSON: timestamps as
// RFC 3339 strings, integers beyond 2^53 as strings, enums as symbols, bytes
// as base64, unions without a wrapping. It shares no memory with body. The
// error is an [*Error].
func (s *Schema) JSONValue(body []byte) (map[string]any, error) {
	// A plan checks the body first, so that reading its values meets no fault.
	m := machine{input: input{b: body}, kept: new(kept)}
	defer m.release()
	if err := m.whole(s.envelope); err != nil {
		return nil, err
	}
	in := input{b: body}
	return in.object(s.root), nil
}

// value reads a value of a type, of a body that was checked before.
func (in *input) value(n *node) any {
	switch n.kind {
	case kindBoolean:
		return in.boolean()
	case kindInt:
		return in.int()
	case kindLong:
		return longValue(n, in.long())
	case kindFloat:
		return shortest(in.float())
	case kindDouble:
		return in.double()
	case kindBytes:
		return base64.StdEncoding.EncodeToString(in.bytes())
	case kindFixed:
		return base64.StdEncoding.EncodeToString(in.take(n.size))
	case kindString:
		return string(in.string())
	case kindEnum:
		return n.symbols[in.index(len(n.symbols), BadEnumIndex)]
	case kindUnion:
		return in.value(n.branches[in.index(len(n.branches), BadUnionIndex)])
	case kindArray:
		list := []any{}
		in.blocks(func() { list = append(list, in.value(n.items)) })
		return list
	case kindMap:
		object := map[string]any{}
		in.blocks(func() {
			key := string(in.string())
			object[key] = in.value(n.items)
		})
		return object
	case kindRecord:
		return in.object(n)
	}
	return nil
}

func (in *input) object(n *node) map[string]any {
	object := make(map[string]any, len(n.fields))
	for i := range n.fields {
		object[n.fields[i].name] = in.value(n.fields[i].typ)
	}
	return object
}

// skip passes over a value. It checks only as much as it needs to find the end.
func (in *input) skip(n *node) {
	switch n.kind {
	case kindInt, kindLong, kindEnum:
		in.long()
	case kindBytes, kindString:
		in.bytes()
	case kindUnion:
		in.skip(n.branches[in.index(len(n.branches), BadUnionIndex)])
	case kindArray:
		in.skipBlocks(n.items.width(), func() { in.skip(n.items) })
	case kindMap:
		in.skipBlocks(0, func() { in.bytes(); in.skip(n.items) })
	case kindRecord:
		for i := range n.fields {
			in.skip(n.fields[i].typ)
		}
	default:
		in.take(n.width())
	}
}

// skipBlocks passes over the items of an array or map. It skips a whole block if the head
// says where the block ends, or if every item takes width bytes. Otherwise, with width 0, it
// calls item for each.
func (in *input) skipBlocks(width int, item func()) {
	for {
		count, end := in.block()
		switch {
		case count == 0:
			return
		case end >= 0:
			in.at = end
		case width > 0:
			in.take(count * width)
		default:
			for ; count > 0; count-- {
				item()
			}
		}
	}
}

// blocks calls item for every item of an array or map.
func (in *input) blocks(item func()) {
	for {
		count, _ := in.block()
		if count == 0 {
			return
		}
		for ; count > 0; count-- {
			item()
		}
	}
}

// maxExact is the integer up to which readers of JSON that use doubles lose nothing.
const maxExact = 1 << 53

// longValue returns a long as JSON has it: an int64, or a string for a timestamp or an
// integer beyond maxExact.
func longValue(n *node, x int64) any {
	if text, ok := appendLongText(nil, n, x); ok {
		return string(text)
	}
	return x
}

// appendLongText appends a long as text if JSON has it as a string: a timestamp, or an
// integer beyond maxExact. Otherwise it is not ok.
func appendLongText(dst []byte, n *node, x int64) (_ []byte, ok bool) {
	if unit := timestampUnit(n.logical); unit != 0 {
		t := time.UnixMilli(x).UTC()
		if unit == time.Microsecond {
			t = time.UnixMicro(x).UTC()
		}
		if y := t.Year(); y >= 0 && y <= 9999 { // as far as RFC 3339 reaches
			dst = t.AppendFormat(dst, time.RFC3339) // package time is fast for this layout, and slow for one with a fraction
			dst[len(dst)-1] = '.'                   // in place of the Z
			for digit := time.Second / 10; digit >= unit; digit /= 10 {
				dst = append(dst, '0'+byte(time.Duration(t.Nanosecond())/digit%10))
			}
			return append(dst, 'Z'), true
		}
	}
	if x > maxExact || x < -maxExact {
		return strconv.AppendInt(dst, x, 10), true
	}
	return dst, false
}

// shortest returns the double with the shortest decimal text that is the float x: 0.1 and
// not 0.10000000149011612.
func shortest(x float64) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', -1, 32), 64)
	if err != nil {
		panic(fmt.Sprintf("schemas: float %v does not print: %v", x, err))
	}
	return y
}

// The tags of fields of google.protobuf.Struct, of a Struct's entries, of ListValue and of
// Value in protobuf's wire format.
const (
	structEntry = 1<<3 | 2
	entryKey    = 1<<3 | 2
	entryValue  = 2<<3 | 2
	listItem    = 1<<3 | 2

	valueNull   = 1 << 3
	valueNumber = 2<<3 | 1
	valueString = 3<<3 | 2
	valueBool   = 4 << 3
	valueStruct = 5<<3 | 2
	valueList   = 6<<3 | 2
)

// Selection says for each of a record's own fields, in their order, whether it is selected.
// Fields beyond its end are not. nil selects all.
type Selection []bool

// Select returns the fields of these names, or all where there are no names. A name that
// no field has is ignored.
func (s *Schema) Select(names []string) Selection {
	if len(names) == 0 {
		return nil
	}
	wanted := make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	fields := make(Selection, 0, len(s.root.fields))
	last := 0
	for i := range s.root.fields {
		fields = append(fields, wanted[s.root.fields[i].name])
		if fields[i] {
			last = i + 1
		}
	}
	return fields[:last]
}

// AppendStruct appends a body as the wire form of a google.protobuf.Struct. It has the
// selected fields with the values that [Schema.JSONValue] gives them. The error is an
// [*Error], and dst is then as it was. With a selection, a fault within a field that is not
// selected may go unnoticed; without one, the error is that of JSONValue.
func (s *Schema) AppendStruct(dst, body []byte, only Selection) ([]byte, error) {
	if only != nil {
		in := input{b: body}
		return in.appendSome(dst, s.root.fields, only)
	}
	m := machine{input: input{b: body}, kept: new(kept)}
	defer m.release()
	if err := m.whole(s.envelope); err != nil {
		return dst, err
	}
	in := input{b: body}
	for i := range s.root.fields {
		dst = in.appendField(dst, &s.root.fields[i])
	}
	return dst, nil
}

// appendSome appends the selected fields of a body that was not checked before. After a
// fault it returns dst as it was, and an [*Error].
func (in *input) appendSome(dst []byte, fields []field, only Selection) ([]byte, error) {
	from := len(dst)
	for i := range fields {
		f := &fields[i]
		if i < len(only) && only[i] {
			dst = in.appendField(dst, f)
		} else {
			in.skip(f.typ)
		}
		if in.fault != "" {
			return dst[:from], &Error{Reason: in.fault, Field: f.name, Detail: explain[in.fault]}
		}
	}
	if more := len(in.b) - in.at; more > 0 {
		return dst[:from], trailing(more)
	}
	return dst, nil
}

// appendValue appends a value as a google.protobuf.Value without the Value's length.
func (in *input) appendValue(dst []byte, n *node) []byte {
	switch n.kind {
	case kindBoolean:
		if in.boolean() {
			return append(dst, valueBool, 1)
		}
		return append(dst, valueBool, 0)
	case kindInt:
		return appendNumber(dst, float64(in.int()))
	case kindLong:
		return appendLong(dst, n, in.long())
	case kindFloat:
		return appendNumber(dst, shortest(in.float()))
	case kindDouble:
		return appendNumber(dst, in.double())
	case kindBytes:
		return appendBase64(dst, in.bytes())
	case kindFixed:
		return appendBase64(dst, in.take(n.size))
	case kindString:
		return appendText(dst, valueString, in.string())
	case kindEnum:
		return appendText(dst, valueString, n.symbols[in.index(len(n.symbols), BadEnumIndex)])
	case kindUnion:
		return in.appendValue(dst, n.branches[in.index(len(n.branches), BadUnionIndex)])
	case kindArray:
		dst, at := open(dst, valueList)
		in.blocks(func() {
			item, at := open(dst, listItem)
			dst = sealed(in.appendValue(item, n.items), at)
		})
		return sealed(dst, at)
	case kindMap:
		dst, at := open(dst, valueStruct)
		in.blocks(func() {
			entry, at := open(dst, structEntry)
			entry, value := open(appendText(entry, entryKey, in.string()), entryValue)
			dst = sealed(sealed(in.appendValue(entry, n.items), value), at)
		})
		return sealed(dst, at)
	case kindRecord:
		dst, at := open(dst, valueStruct)
		for i := range n.fields {
			dst = in.appendField(dst, &n.fields[i])
		}
		return sealed(dst, at)
	}
	return append(dst, valueNull, 0)
}

// appendField appends a field of a record as an entry of a Struct.
func (in *input) appendField(dst []byte, f *field) []byte {
	dst, at := open(dst, structEntry)
	dst, value := open(appendText(dst, entryKey, f.name), entryValue)
	return sealed(sealed(in.appendValue(dst, f.typ), value), at)
}

func appendNumber(dst []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, valueNumber), math.Float64bits(x))
}

func appendLong(dst []byte, n *node, x int64) []byte {
	text, at := open(dst, valueString)
	if text, ok := appendLongText(text, n, x); ok {
		return sealed(text, at)
	}
	return appendNumber(dst, float64(x))
}

func appendBase64(dst, b []byte) []byte {
	dst, at := open(dst, valueString)
	return sealed(base64.StdEncoding.AppendEncode(dst, b), at)
}

func appendText[T string | []byte](dst []byte, tag byte, text T) []byte {
	return append(binary.AppendUvarint(append(dst, tag), uint64(len(text))), text...)
}

// open begins a field whose length is not known yet, and leaves a byte for the length. The
// field's content begins at at.
func open(dst []byte, tag byte) (_ []byte, at int) { return append(dst, tag, 0), len(dst) + 2 }

// sealed ends the field that [open] began: it writes the length. If the length takes more
// than one byte it moves the content to make room.
func sealed(dst []byte, at int) []byte {
	n := len(dst) - at
	if n < 0x80 {
		dst[at-1] = byte(n)
		return dst
	}
	var length [binary.MaxVarintLen64]byte
	wide := binary.PutUvarint(length[:], uint64(n))
	dst = append(dst, length[1:wide]...) // makes room; these bytes are overwritten
	copy(dst[at+wide-1:], dst[at:at+n])
	copy(dst[at-1:], length[:wide])
	return dst
}
