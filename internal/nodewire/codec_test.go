package nodewire

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// common are questions as brokers ask them.
var common = []*nodev1.QueryRequest{
	{},
	{Entities: []byte{1, 0, 1, 0, 'a'}, Model: "recency", ToMs: math.MaxInt64, Limit: 20, Types: []string{"post", "share", ""}},
	{
		Entities: bytes.Repeat([]byte("xyz"), 100), FromMs: -5, ToMs: 1 << 41, AsOfMs: 1 << 40, Filter: strings.Repeat("größer ", 20), RequestFilter: "true",
		Model: "m", MaxBytes: 1 << 30, Limit: -1, CapPerEntity: 3, DistinctObjects: true, Exclude: []uint64{1, math.MaxUint64}, ServedKey: []byte("0123456789abcdef"), ModelVersion: "2", ModelSum: strings.Repeat("0a", 32), GivesWay: true, Weights: `{"größe":-0}`, WeightsSum: "0b",
		Viewer: &feedv1.Viewer{
			Id: "member:1",
			Attributes: map[string]*structpb.Value{
				"country": structpb.NewStringValue("de"), "age": structpb.NewNumberValue(-0.5), "paid": structpb.NewBoolValue(true), "": structpb.NewBoolValue(false),
				"languages": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue("de"), structpb.NewStringValue("")}}),
				"none":      structpb.NewListValue(nil),
			},
			Features: map[string]float64{"a": 0, "b": math.Inf(-1), "c": math.NaN()},
		},
	},
	{Viewer: &feedv1.Viewer{}},
}

// rare are those that are left to protobuf.
var rare = []*nodev1.QueryRequest{
	{Explain: true}, {Features: true}, {Measure: true}, {Shadow: []*nodev1.Model{{Name: "a", Version: "1", Sum: "b"}}}, {Beside: []*nodev1.Model{{Name: "a", Version: "1"}}}, {Examine: "r"}, {Above: []*nodev1.Item{{Id: "r"}}},
	{Viewer: &feedv1.Viewer{Attributes: map[string]*structpb.Value{"null": structpb.NewNullValue()}}},
	{Viewer: &feedv1.Viewer{Attributes: map[string]*structpb.Value{"unset": {}}}},
	{Viewer: &feedv1.Viewer{Attributes: map[string]*structpb.Value{"nil": nil}}},
	{Viewer: &feedv1.Viewer{Attributes: map[string]*structpb.Value{"object": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewBoolValue(true)}})}}},
}

// commonAnswers are answers as nodes give them.
var commonAnswers = []*nodev1.QueryResponse{
	{},
	{Items: []*nodev1.Item{{}}},
	{Stages: &nodev1.Stages{Capped: 9}},
	{Stages: &nodev1.Stages{Scored: 9}},
	{Partitions: &nodev1.Partitions{LagMs: []int64{1}}},
	{Partitions: &nodev1.Partitions{Answered: []int32{1}}},
	{
		Protocol: Protocol, ScoringNs: 1 << 33, Model: "m", WithheldBytes: 1 << 40, ModelVersion: "1", ModelSum: "0a", WeightsSum: "0b", Execution: "generated", Stages: &nodev1.Stages{Candidates: 5, Scored: 3}, Partitions: &nodev1.Partitions{
			Answered: []int32{1, 700}, AppliedContent: []int64{5, -1}, AppliedFeatures: []int64{0, 1 << 40}, LagMs: []int64{0, 7},
		},
		Items: []*nodev1.Item{
			{Score: -1.5, TimeMs: 1 << 40, Id: "r1", Entity: "member:1", Type: "post", Object: "o1", Schema: 1 << 63, Body: bytes.Repeat([]byte{1, 2}, 100)},
			{Score: math.Copysign(0, -1), TimeMs: -1, Id: "größer", Object: strings.Repeat("o", 100), Also: []*nodev1.Item{{Score: math.NaN(), Id: "a"}, {Id: "b", Entity: "e"}, {}}},
			{Score: math.Inf(1), Body: []byte{0}},
		},
	},
}

// rareAnswers are those that are left to protobuf.
var rareAnswers = []*nodev1.QueryResponse{
	{Items: []*nodev1.Item{{Id: "a"}}, Beside: []*nodev1.Ranking{{Model: "m", ModelVersion: "2", Items: []*nodev1.Item{{Id: "b", Score: 3}}}, {Model: "n", Error: "it is not here"}}},
	{Lacking: map[string]int64{"likes": 3}},
	{Findings: []*nodev1.Finding{{Entity: "e"}}}, {Above: []int64{1}}, {Times: &feedv1.NodeTimes{}}, {Clauses: []*feedv1.ClauseCounts{{}}}, {UnknownTypes: []string{"x"}}, {KnownTypes: []string{"x"}},
	{Partitions: &nodev1.Partitions{Answered: []int32{1}, Missing: map[int32]string{3: "deadline"}}},
	{Items: []*nodev1.Item{{Id: "r", Explain: &feedv1.ItemExplain{Base: 1}}}},
	{FeatureNames: []string{"a", "b"}, Items: []*nodev1.Item{{Id: "r", Features: &nodev1.Vector{Numbers: []float64{1, math.NaN()}, Texts: map[int32]string{1: "x"}}}}},
	{Items: []*nodev1.Item{{Id: "r", Also: []*nodev1.Item{{Also: []*nodev1.Item{{Id: "x"}}}}}}},
}

// What one codec writes the other reads, both ways.
func TestCodecsUnderstandEachOther(t *testing.T) {
	ours, protobufs := Codec(), encoding.GetCodecV2("proto")
	var all []proto.Message
	for _, m := range slices.Concat(common, rare) {
		all = append(all, m)
	}
	for _, m := range slices.Concat(commonAnswers, rareAnswers) {
		all = append(all, m)
	}
	all = append(all, &nodev1.GetSchemaRequest{Fingerprint: 7}, &nodev1.GetSchemaResponse{Json: "{}"})
	for _, m := range all {
		for name, pair := range map[string][2]encoding.CodecV2{"written": {ours, protobufs}, "read": {protobufs, ours}, "both": {ours, ours}} {
			b, err := pair[0].Marshal(m)
			if err != nil {
				t.Fatalf("%s %v: %v", name, m, err)
			}
			got := m.ProtoReflect().New().Interface()
			if err := pair[1].Unmarshal(b, got); err != nil || !proto.Equal(got, m) {
				t.Errorf("%s by hand: %v, %v; want %v", name, got, err, m)
			}
			b.Free()
		}
	}
}

// What is common is done by hand, and what is rare is not.
func TestByHand(t *testing.T) {
	for i, m := range slices.Concat(common, rare) {
		var w writer
		w.request(m)
		if want := i < len(common); want == w.stuck {
			t.Errorf("written by hand: %v, want %v: %v", !w.stuck, want, m)
		}
		b, err := proto.Marshal(m)
		if got, want := readRequest(b, &nodev1.QueryRequest{}), i < len(common); err != nil || got != want {
			t.Errorf("read by hand: %v, want %v: %v, %v", got, want, m, err)
		}
	}
	for i, m := range slices.Concat(commonAnswers, rareAnswers) {
		b, err := proto.Marshal(m)
		if got, want := readResponse(b, &nodev1.QueryResponse{}), i < len(commonAnswers); err != nil || got != want {
			t.Errorf("read by hand: %v, want %v: %v, %v", got, want, m, err)
		}
	}
}

// A string that is no UTF-8 is refused at either end, as protobuf does.
func TestNoUTF8(t *testing.T) {
	bad := "\xff"
	for _, m := range []proto.Message{
		&nodev1.QueryRequest{Filter: bad}, &nodev1.QueryRequest{RequestFilter: bad}, &nodev1.QueryRequest{Types: []string{bad}}, &nodev1.QueryRequest{ModelVersion: bad}, &nodev1.QueryRequest{ModelSum: bad}, &nodev1.QueryResponse{ModelSum: bad},
		&nodev1.QueryRequest{Viewer: &feedv1.Viewer{Id: bad}}, &nodev1.QueryRequest{Viewer: &feedv1.Viewer{Features: map[string]float64{bad: 1}}},
		&nodev1.QueryRequest{Viewer: &feedv1.Viewer{Attributes: map[string]*structpb.Value{"x": structpb.NewStringValue(bad)}}},
		&nodev1.QueryResponse{Model: bad}, &nodev1.QueryResponse{Items: []*nodev1.Item{{Id: bad}}},
		&nodev1.QueryResponse{Items: []*nodev1.Item{{Also: []*nodev1.Item{{Object: bad}}}}},
		&nodev1.QueryResponse{Partitions: &nodev1.Partitions{Missing: map[int32]string{1: bad}}},
	} {
		if b, err := Codec().Marshal(m); err == nil {
			t.Errorf("wrote %v as %q", m, b.Materialize())
		}
	}
}

// What is read keeps nothing of the memory that it came in, which is used
// again, and nothing of what stood in the message before.
func TestReadOwnsItsMemory(t *testing.T) {
	for _, c := range []struct{ want, got proto.Message }{
		{common[2], &nodev1.QueryRequest{CapPerEntity: 5, Types: []string{"old"}, Explain: true}},
		{commonAnswers[len(commonAnswers)-1], &nodev1.QueryResponse{Items: []*nodev1.Item{{Id: "old"}}, Above: []int64{1}}},
	} {
		b, err := proto.Marshal(c.want)
		if err != nil {
			t.Fatal(err)
		}
		if err := Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, c.got); err != nil {
			t.Fatal(err)
		}
		clear(b)
		if !proto.Equal(c.got, c.want) {
			t.Errorf("became %v", c.got)
		}
	}
}

// crooked are fields of a request or an answer that no broker or node writes.
var crooked = []string{
	"\x32\x01\xff", // a filter that is no UTF-8
	"\x62\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01", // a hash and a part of one
	"\x60\x01",             // a list of another kind
	"\x0a\x03\x1a\x01\xff", // an item whose id is no UTF-8
	"\x0a\x02\x38\x01",     // an item whose schema is of another kind
	"\x5a\x02\x08\x01",     // a partition outside of a list
	"\x5a\x03\x0a\x01\xff", // a number that does not end
	"\x0a\x80\x00",         // a length that is longer than need be
	"\x8a\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00",
	attribute("\x1a\x01s\x21" + "\x00"),                                               // a string and a flag
	attribute("\x1a\x01s\x20\x01"),                                                    // the same, well-formed: the last counts
	attribute("\x32\x04\x0a\x02\x32\x00"),                                             // a list in a list
	"\x42\x07\x12\x05\x0a\x01a\x12\x00" + "\x42\x09\x12\x07\x0a\x01a\x12\x02\x20\x01", // two viewers
	"\x42\x0d\x12\x0b\x0a\x01a\x12\x02\x20\x01\x12\x02\x1a\x00",                       // an entry with two values
	"\x42\x05\x12\x03\x0a\x01a",                                                       // one with none
}

// deep is a viewer's attribute of so many lists in lists.
func deep(n int) []byte {
	var b []byte
	nest := func(field protowire.Number) {
		b = protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), b)
	}
	for range n {
		nest(6)
		nest(1)
	}
	nest(6)
	nest(2)
	b = append([]byte{0x0a, 0}, b...)
	nest(2)
	nest(8)
	return b
}

func attribute(value string) string {
	entry := append([]byte("\x0a\x01a\x12"), byte(len(value)))
	entry = append(entry, value...)
	return string(slices.Concat([]byte{0x42, byte(len(entry) + 2), 0x12, byte(len(entry))}, entry))
}

func FuzzRequest(f *testing.F) {
	seed(f, slices.Concat(common, rare))
	f.Fuzz(func(t *testing.T, b []byte) { same(t, b, unmarshalRequest, &nodev1.QueryRequest{}) })
}

func FuzzResponse(f *testing.F) {
	seed(f, slices.Concat(commonAnswers, rareAnswers))
	f.Fuzz(func(t *testing.T, b []byte) { same(t, b, unmarshalResponse, &nodev1.QueryResponse{}) })
}

// same holds a decoder against protobuf's, and what it read, written again,
// against what it read.
func same[M proto.Message](t *testing.T, b []byte, unmarshal func([]byte, M) error, got M) {
	want := got.ProtoReflect().New().Interface()
	wantErr, gotErr := proto.Unmarshal(b, want), unmarshal(b, got)
	if (wantErr == nil) != (gotErr == nil) || wantErr == nil && !proto.Equal(want, got) {
		t.Fatalf("got %v, %v; want %v, %v", got, gotErr, want, wantErr)
	}
	if wantErr != nil {
		return
	}
	written, err := Codec().Marshal(got)
	if err != nil {
		t.Fatalf("cannot write %v: %v", got, err)
	}
	defer written.Free()
	again := got.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(written.Materialize(), again); err != nil {
		t.Fatalf("cannot read %v again: %v", got, err)
	}
	known := got.ProtoReflect().New().Interface() // what newer ends may add is not passed on
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, known); err != nil || !proto.Equal(known, again) && !proto.Equal(want, again) {
		t.Fatalf("became %v, %v; want %v", again, err, known)
	}
}

func seed[M proto.Message](f *testing.F, all []M) {
	f.Helper()
	var before []byte
	for _, m := range all {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(slices.Concat(before, b)) // fields that come again
		if before = b; len(b) > 0 {
			f.Add(b[:len(b)-1])
		}
	}
	f.Add(deep(5001)) // deeper than protobuf takes it
	for _, b := range crooked {
		f.Add([]byte(b))
	}
}

// BenchmarkAnswer is an answer of 20 items for 50 partitions, written and read,
// beside the same by protobuf.
func BenchmarkAnswer(b *testing.B) {
	m := &nodev1.QueryResponse{Model: "m", ModelVersion: "1", Stages: &nodev1.Stages{Candidates: 5}, Partitions: &nodev1.Partitions{}}
	for i := range 20 {
		m.Items = append(m.Items, &nodev1.Item{Score: float64(i) + 0.5, TimeMs: 1 << 40, Id: "record:12345", Entity: "member:1234", Type: "post", Object: "record:12345", Schema: 1 << 60, Body: make([]byte, 100)})
	}
	for i := range 50 {
		m.Partitions.Answered = append(m.Partitions.Answered, int32(i))
		m.Partitions.AppliedContent, m.Partitions.AppliedFeatures = append(m.Partitions.AppliedContent, 1_000_000), append(m.Partitions.AppliedFeatures, 0)
	}
	both(b, m, func() proto.Message { return &nodev1.QueryResponse{} })
}

func BenchmarkQuestion(b *testing.B) {
	both(b, common[2], func() proto.Message { return &nodev1.QueryRequest{} })
}

func both(b *testing.B, m proto.Message, fresh func() proto.Message) {
	for name, c := range map[string]encoding.CodecV2{"hand": Codec(), "protobuf": encoding.GetCodecV2("proto")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				data, err := c.Marshal(m)
				if err != nil {
					b.Fatal(err)
				}
				err = c.Unmarshal(data, fresh())
				data.Free()
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
