package bench

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// some is an answer, and change what may be different in another.
func some(t testing.TB, change func(*feedv1.GetFeedResponse)) []byte {
	t.Helper()
	resp := &feedv1.GetFeedResponse{
		Items: []*feedv1.Item{
			{Id: "a", Score: 2, Record: &structpb.Struct{Fields: map[string]*structpb.Value{"likes": structpb.NewNumberValue(1)}}},
			{Id: "b", Score: 1},
		},
		NextPageToken: "t", Coverage: &feedv1.Coverage{TimelinesAsked: 2, TimelinesAnswered: 2}, Receipt: &feedv1.Receipt{MapEpoch: 3},
	}
	change(resp)
	b, err := proto.Marshal(resp)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A glance sees every change of an item, and none of what differs between
// answers that show the same.
func TestGlance(t *testing.T) {
	at := func(change func(*feedv1.GetFeedResponse)) (g glance) {
		t.Helper()
		b := some(t, change)
		// In two pieces, as it may come from the wire.
		if err := (asBytes{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b[:9]), mem.SliceBuffer(b[9:])}, &g); err != nil {
			t.Fatal(err)
		}
		return g
	}
	same := at(func(*feedv1.GetFeedResponse) {})
	if same.partial {
		t.Error("a whole answer is partial")
	}
	for name, change := range map[string]func(*feedv1.GetFeedResponse){
		"score":  func(r *feedv1.GetFeedResponse) { r.Items[1].Score = 1.5 },
		"record": func(r *feedv1.GetFeedResponse) { r.Items[0].Record.Fields["likes"] = structpb.NewNumberValue(2) },
		"order":  func(r *feedv1.GetFeedResponse) { r.Items[0], r.Items[1] = r.Items[1], r.Items[0] },
		"fewer":  func(r *feedv1.GetFeedResponse) { r.Items = r.Items[:1] },
		"also":   func(r *feedv1.GetFeedResponse) { r.Items[1].Also = []*feedv1.Also{{Id: "c"}} },
	} {
		if at(change).items == same.items {
			t.Errorf("another %s is not seen", name)
		}
	}
	other := at(func(r *feedv1.GetFeedResponse) { r.NextPageToken, r.Receipt.MapEpoch = "u", 4 })
	if other != same {
		t.Errorf("%v, want %v: the items are the same", other, same)
	}
	if !at(func(r *feedv1.GetFeedResponse) { r.Coverage.Missing = []*feedv1.Missing{{Partition: 1}} }).partial {
		t.Error("a partial answer is whole")
	}
}

// What is no protobuf is refused, and what is, is not.
func FuzzGlance(f *testing.F) {
	f.Add(some(f, func(*feedv1.GetFeedResponse) {}))
	f.Add(some(f, func(r *feedv1.GetFeedResponse) { r.Coverage.Missing = []*feedv1.Missing{{Partition: 1}} }))
	f.Add([]byte{0x0a, 0x05, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		var g glance
		err := g.read(bytes.Clone(b))
		var resp feedv1.GetFeedResponse
		if proto.Unmarshal(b, &resp) != nil {
			return
		}
		if err != nil {
			t.Fatalf("protobuf reads it, a glance does not: %v", err)
		}
		if partial := len(resp.GetCoverage().GetMissing()) > 0; g.partial != partial {
			t.Fatalf("partial is %v, want %v", g.partial, partial)
		}
	})
}
