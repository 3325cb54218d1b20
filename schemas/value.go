package schemas

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"time"
)

// JSONValue returns a body as values that encode to JSON: timestamps as
// RFC 3339 strings, integers beyond 2^53 as strings, enums as symbols, bytes
// as base64, unions without a wrapping. It shares no memory with body. The
// error is an [*Error].
func (s *Schema) JSONValue(body []byte) (map[string]any, error) {
	// Reading values is simple once a plan has checked the body.
	m := machine{input: input{b: body}, kept: new(kept)}
	defer m.release()
	if err := m.whole(s.envelope); err != nil {
		return nil, err
	}
	in := input{b: body}
	return in.object(s.root), nil
}

// value reads a value of a body that was checked.
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

// skip passes over a value without looking at it further than that takes.
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

// skipBlocks passes over the items of an array or map: all of a block at once
// where it says where it ends, or where each has a width, else by item.
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

// maxExact is the largest integer that JSON's readers, which have doubles,
// take without loss.
const maxExact = 1 << 53

func longValue(n *node, x int64) any {
	if text, ok := appendLongText(nil, n, x); ok {
		return string(text)
	}
	return x
}

// appendLongText appends a long as text if it is no number in JSON.
func appendLongText(dst []byte, n *node, x int64) (_ []byte, ok bool) {
	if unit := timestampUnit(n.logical); unit != 0 {
		t := time.UnixMilli(x).UTC()
		if unit == time.Microsecond {
			t = time.UnixMicro(x).UTC()
		}
		if y := t.Year(); y >= 0 && y <= 9999 { // as far as RFC 3339 reaches
			dst = t.AppendFormat(dst, time.RFC3339) // which has a fast way; other layouts have not
			dst[len(dst)-1] = '.'                   // was Z
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

// shortest returns the double that prints like the float x is: 0.1 and not
// 0.10000000149011612.
func shortest(x float64) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', -1, 32), 64)
	if err != nil {
		panic(fmt.Sprintf("schemas: float %v does not print: %v", x, err))
	}
	return y
}
