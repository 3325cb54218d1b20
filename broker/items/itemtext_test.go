package items

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// Items that are written from their wire form are those that protojson writes,
// byte for byte.
func TestItemsAreWrittenAsProtojsonDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		return strings.Repeat([]string{"", "a", "ä", "\x00\x1f", "\"\\/", "\b\f\n\r\t", "\u2028\x7f", "😀", "<&>", "\ufffd"}[r.IntN(10)], r.IntN(4))
	}
	number := func() float64 {
		if r.IntN(3) == 0 {
			return []float64{0, math.Copysign(0, -1), 1e-6, 9.9e-7, 1e-10, 1e21, -1e21, 1e20, math.MaxFloat64, 5e-324, 0.1}[r.IntN(11)]
		}
		return math.Round(r.NormFloat64()*1e6) / math.Pow(10, float64(r.IntN(9)))
	}
	var value func(depth int) *structpb.Value
	object := func(depth int) *structpb.Struct {
		s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
		for range r.IntN(6) {
			s.Fields[fmt.Sprint(text(), r.IntN(99))] = value(depth + 1)
		}
		return s
	}
	value = func(depth int) *structpb.Value {
		switch k := r.IntN(6 + 2*max(0, 3-depth)); {
		case k < 2:
			return structpb.NewNumberValue(number())
		case k < 4:
			return structpb.NewStringValue(text())
		case k == 4:
			return structpb.NewBoolValue(r.IntN(2) == 0)
		case k == 5:
			return structpb.NewNullValue()
		case k%2 == 0:
			return structpb.NewStructValue(object(depth))
		}
		list := &structpb.ListValue{}
		for range r.IntN(5) {
			list.Values = append(list.Values, value(depth+1))
		}
		return structpb.NewListValue(list)
	}
	at := func() *timestamppb.Timestamp {
		return &timestamppb.Timestamp{Seconds: []int64{r.Int64N(4e9), -r.Int64N(4e9), -62135596800, 253402300799, 0, 1}[r.IntN(6)], Nanos: []int32{0, 5e8, 123e6, 123456e3, 123456789, 1}[r.IntN(6)]}
	}
	score := func() float64 {
		return []float64{number(), math.NaN(), math.Inf(1), math.Inf(-1)}[max(0, r.IntN(12)-8)]
	}
	for range 3000 {
		it := &feedv1.Item{Id: text(), Entity: text(), Type: text(), Object: text(), Score: score(), Time: at()}
		if r.IntN(4) > 0 {
			it.Record = object(0)
		}
		for range r.IntN(3) {
			it.Also = append(it.Also, &feedv1.Also{Id: text(), Score: score(), Time: at()})
		}
		if r.IntN(3) == 0 {
			it.Explain = &feedv1.ItemExplain{Node: text(), Base: score(), Shadow: []*feedv1.ShadowScore{{Model: "m", Score: 1}}}
			for range r.IntN(3) {
				it.Explain.Features = append(it.Explain.Features, &feedv1.Contribution{Feature: text(), Value: value(3), Contribution: score()})
			}
		}
		wire, err := proto.Marshal(it)
		if err != nil {
			t.Fatal(err)
		}
		if r.IntN(4) == 0 { // fields of a later version, which are not written
			wire = protowire.AppendVarint(protowire.AppendTag(wire, 999, protowire.VarintType), r.Uint64())
			wire = protowire.AppendString(protowire.AppendTag(wire, 15, protowire.BytesType), "later")
			wire = protowire.AppendFixed32(protowire.AppendTag(wire, 14, protowire.Fixed32Type), 7)
		}
		one := new(feedv1.Item)
		if err := proto.Unmarshal(wire, one); err != nil {
			t.Fatal(err)
		}
		want, err := plainJSON(one)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := itemText.append(nil, wire); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v\n%s\nwant\n%s", err, got, want)
		}
	}
	// Of a field that is there twice, as in a damaged map, the last counts.
	entries, err := proto.Marshal(&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewNumberValue(2)}})
	if err != nil {
		t.Fatal(err)
	}
	record, err := proto.Marshal(&structpb.Struct{Fields: map[string]*structpb.Value{"a": structpb.NewNumberValue(1), "b": structpb.NewNullValue()}})
	if err != nil {
		t.Fatal(err)
	}
	wire := protowire.AppendBytes(protowire.AppendTag(nil, itemRecord, protowire.BytesType), append(record, entries...))
	one := new(feedv1.Item)
	if err := proto.Unmarshal(wire, one); err != nil {
		t.Fatal(err)
	}
	want, err := plainJSON(one)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := itemText.append(nil, wire); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	// What is not UTF-8 is written nowhere, and what is cut off does no harm.
	texts, err := structpb.NewStruct(map[string]any{"#0": "#1", "list": []any{"a", "#2"}, "nested": map[string]any{"#3": "#4"}})
	if err != nil {
		t.Fatal(err)
	}
	wire, err = proto.MarshalOptions{Deterministic: true}.Marshal(&feedv1.Item{Id: "#5", Record: texts, Also: []*feedv1.Also{{Id: "#6"}}, Explain: &feedv1.ItemExplain{Node: "#7"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		bad := bytes.Replace(wire, fmt.Appendf(nil, "#%d", i), []byte{0xff, 'x'}, 1)
		if got, err := itemText.append(nil, bad); bytes.Equal(bad, wire) || err == nil {
			t.Errorf("what is not UTF-8 is written: %s", got)
		}
	}
	for n := range wire {
		if got, err := itemText.append(nil, wire[:n]); err == nil && !json.Valid(got) {
			t.Errorf("%d bytes of %d: %s", n, len(wire), got)
		}
	}
}
