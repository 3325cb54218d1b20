package nodewire

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Every read function reports whether it knew all of a message by hand, and
// protobuf would say the same. If not, what it has read is of no use.

// field is one field of a message.
type field struct {
	tag   uint64 // number and kind
	bits  uint64 // of what is a number
	bytes []byte // of what is not
}

const (
	varint  = uint64(protowire.VarintType)
	fixed64 = uint64(protowire.Fixed64Type)
	length  = uint64(protowire.BytesType)
)

// next takes the first field off b.
func next(b *[]byte) (f field, ok bool) {
	tag, n := protowire.ConsumeVarint(*b)
	if n < 0 {
		return f, false
	}
	rest := (*b)[n:]
	f.tag, n = tag, -1
	switch tag & 7 {
	case varint:
		f.bits, n = protowire.ConsumeVarint(rest)
	case fixed64:
		f.bits, n = protowire.ConsumeFixed64(rest)
	case length:
		f.bytes, n = protowire.ConsumeBytes(rest)
	}
	if n < 0 {
		return f, false
	}
	*b = rest[n:]
	return f, true
}

// text sets a string that shares the memory of the field.
func (f *field) text(to *string) bool {
	*to = unsafe.String(unsafe.SliceData(f.bytes), len(f.bytes))
	return utf8.Valid(f.bytes)
}

// own sets a string with memory of its own.
func (f *field) own(to *string) bool {
	*to = string(f.bytes)
	return utf8.Valid(f.bytes)
}

// each appends a string with memory of its own.
func (f *field) each(to *[]string) bool {
	*to = append(*to, string(f.bytes))
	return utf8.Valid(f.bytes)
}

func readRequest(b []byte, m *nodev1.QueryRequest) bool {
	for len(b) > 0 {
		f, ok := next(&b)
		if !ok {
			return false
		}
		switch f.tag {
		case 1<<3 | length:
			m.Entities = bytes.Clone(f.bytes)
		case 2<<3 | length:
			ok = f.each(&m.Types)
		case 3<<3 | varint:
			m.FromMs = int64(f.bits)
		case 4<<3 | varint:
			m.ToMs = int64(f.bits)
		case 5<<3 | varint:
			m.AsOfMs = int64(f.bits)
		case 6<<3 | length:
			ok = f.own(&m.Filter)
		case 7<<3 | length:
			ok = f.own(&m.Model)
		case 8<<3 | length:
			ok = m.Viewer == nil // two would be joined
			m.Viewer = &feedv1.Viewer{}
			ok = ok && ReadViewer(f.bytes, m.Viewer)
		case 9<<3 | varint:
			m.Limit = int32(f.bits)
		case 10<<3 | varint:
			m.CapPerEntity = int32(f.bits)
		case 11<<3 | varint:
			m.DistinctObjects = protowire.DecodeBool(f.bits)
		case 12<<3 | length:
			for ; len(f.bytes) >= 8; f.bytes = f.bytes[8:] {
				m.Exclude = append(m.Exclude, binary.LittleEndian.Uint64(f.bytes))
			}
			ok = len(f.bytes) == 0
		case 17<<3 | length:
			ok = f.own(&m.ModelVersion)
		case 18<<3 | length:
			ok = f.own(&m.ModelSum)
		case 30<<3 | length:
			ok = f.own(&m.RequestFilter)
		case 40<<3 | varint:
			m.MaxBytes = int64(f.bits)
		case 41<<3 | length:
			m.ServedKey = bytes.Clone(f.bytes)
		case 44<<3 | length:
			ok = f.own(&m.Weights)
		case 45<<3 | length:
			ok = f.own(&m.WeightsSum)
		case 50<<3 | varint:
			m.GivesWay = protowire.DecodeBool(f.bits)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	return true
}

// ReadViewer reads a viewer into one that is empty, with memory of its own. It
// reports whether it knew all of it by hand, and protobuf would say the same.
func ReadViewer(b []byte, v *feedv1.Viewer) bool {
	for len(b) > 0 {
		f, ok := next(&b)
		if !ok {
			return false
		}
		switch f.tag {
		case 1<<3 | length:
			ok = f.own(&v.Id)
		case 2<<3 | length:
			name, value, known := entry(f.bytes)
			x := &structpb.Value{}
			ok = known && value.tag == 2<<3|length && readValue(value.bytes, x, true)
			if v.Attributes == nil {
				v.Attributes = map[string]*structpb.Value{}
			}
			v.Attributes[name] = x
		case 3<<3 | length:
			name, value, known := entry(f.bytes)
			ok = known && value.tag == 2<<3|fixed64
			if v.Features == nil {
				v.Features = map[string]float64{}
			}
			v.Features[name] = math.Float64frombits(value.bits)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	return true
}

// entry splits an entry of a map into its name and its value.
func entry(b []byte) (name string, value field, ok bool) {
	key, ok := next(&b)
	if !ok || key.tag != 1<<3|length || !key.own(&name) {
		return "", field{}, false
	}
	value, ok = next(&b)
	return name, value, ok && len(b) == 0
}

// readValue reads one of the kinds that brokers send. Only where lists may be
// does it take one.
func readValue(b []byte, v *structpb.Value, lists bool) bool {
	f, ok := next(&b)
	if !ok || len(b) > 0 {
		return false
	}
	switch f.tag {
	case 2<<3 | fixed64:
		v.Kind = &structpb.Value_NumberValue{NumberValue: math.Float64frombits(f.bits)}
	case 3<<3 | length:
		k := &structpb.Value_StringValue{}
		v.Kind = k
		return f.own(&k.StringValue)
	case 4<<3 | varint:
		v.Kind = &structpb.Value_BoolValue{BoolValue: protowire.DecodeBool(f.bits)}
	case 6<<3 | length:
		list := &structpb.ListValue{}
		v.Kind = &structpb.Value_ListValue{ListValue: list}
		return lists && readList(f.bytes, list)
	default:
		return false
	}
	return true
}

func readList(b []byte, list *structpb.ListValue) bool {
	for len(b) > 0 {
		f, ok := next(&b)
		x := &structpb.Value{}
		if !ok || f.tag != 1<<3|length || !readValue(f.bytes, x, false) {
			return false
		}
		list.Values = append(list.Values, x)
	}
	return true
}

func readResponse(b []byte, m *nodev1.QueryResponse) bool {
	n := countItems(b)
	m.Items = make([]*nodev1.Item, 0, n)
	room := make(items, n)
	for len(b) > 0 {
		f, ok := next(&b)
		if !ok {
			return false
		}
		switch f.tag {
		case 1<<3 | length:
			it := room.next()
			m.Items = append(m.Items, it)
			ok = readItem(f.bytes, it, &room)
		case 3<<3 | length:
			ok = f.own(&m.Model)
		case 4<<3 | length:
			ok = f.own(&m.ModelVersion)
		case 5<<3 | length:
			ok = f.own(&m.Execution)
		case 6<<3 | length:
			ok = m.Stages == nil
			m.Stages = &nodev1.Stages{}
			ok = ok && proto.Unmarshal(f.bytes, m.Stages) == nil
		case 11<<3 | length:
			ok = m.Partitions == nil
			m.Partitions = &nodev1.Partitions{}
			ok = ok && readPartitions(f.bytes, m.Partitions)
		case 12<<3 | length:
			ok = f.own(&m.ModelSum)
		case 40<<3 | varint:
			m.WithheldBytes = int64(f.bits)
		case 44<<3 | length:
			ok = f.own(&m.WeightsSum)
		case 50<<3 | varint:
			m.Protocol = int32(f.bits)
		case 51<<3 | varint:
			m.ScoringNs = int64(f.bits)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	return true
}

func readPartitions(b []byte, m *nodev1.Partitions) bool {
	for len(b) > 0 {
		f, ok := next(&b)
		if !ok {
			return false
		}
		switch f.tag {
		case 1<<3 | length:
			ok = numbers(f.bytes, &m.Answered)
		case 2<<3 | length:
			ok = numbers(f.bytes, &m.AppliedContent)
		case 3<<3 | length:
			ok = numbers(f.bytes, &m.AppliedFeatures)
		case 4<<3 | length:
			ok = numbers(f.bytes, &m.LagMs)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	return true
}

// numbers appends a list of numbers.
func numbers[T int32 | int64](b []byte, to *[]T) bool {
	n := 0
	for _, c := range b {
		if c < 0x80 { // the last byte of one
			n++
		}
	}
	*to = slices.Grow(*to, n)
	for len(b) > 0 {
		x, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return false
		}
		*to, b = append(*to, T(x)), b[n:]
	}
	return true
}

// countItems returns how many items a response has, up to its first fault.
func countItems(b []byte) (n int) {
	for len(b) > 0 {
		f, ok := next(&b)
		if !ok {
			return n
		}
		if f.tag == 1<<3|length {
			n++
		}
	}
	return n
}

// items is room for items.
type items []nodev1.Item

func (i *items) next() *nodev1.Item {
	if len(*i) == 0 { // more than were counted: those under "also"
		*i = make(items, 8)
	}
	it := &(*i)[0]
	*i = (*i)[1:]
	return it
}

// readItem reads an item, without room one that stands under "also".
func readItem(b []byte, it *nodev1.Item, room *items) bool {
	for len(b) > 0 {
		f, ok := next(&b)
		if !ok {
			return false
		}
		switch f.tag {
		case 1<<3 | fixed64:
			it.Score = math.Float64frombits(f.bits)
		case 2<<3 | varint:
			it.TimeMs = int64(f.bits)
		case 3<<3 | length:
			ok = f.text(&it.Id)
		case 4<<3 | length:
			ok = f.text(&it.Entity)
		case 5<<3 | length:
			ok = f.text(&it.Type)
		case 6<<3 | length:
			ok = f.text(&it.Object)
		case 7<<3 | fixed64:
			it.Schema = f.bits
		case 8<<3 | length:
			it.Body = f.bytes[:len(f.bytes):len(f.bytes)]
		case 9<<3 | length:
			if room == nil {
				return false
			}
			also := room.next()
			it.Also = append(it.Also, also)
			ok = readItem(f.bytes, also, nil)
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	return true
}
