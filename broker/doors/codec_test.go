package doors

import (
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/memory"
)

// The connection forgets the loan of every answer, also of one that is too small for
// gRPC to tell when it is sent, or that cannot be written.
func TestEveryDeliveryIsForgotten(t *testing.T) {
	budget := memory.New(1<<20, "answers")
	for name, c := range map[string]struct {
		answer proto.Message
		fails  bool
	}{
		"empty":      {&feedv1.GetFeedResponse{}, false},
		"small":      {&feedv1.GetFeedResponse{NextPageToken: strings.Repeat("x", 200)}, false},
		"large":      {&feedv1.GetFeedResponse{NextPageToken: strings.Repeat("x", 2000)}, false},
		"very large": {&feedv1.GetFeedResponse{NextPageToken: strings.Repeat("x", 2*maxPooledBytes)}, false},
		"no text":    {&feedv1.GetFeedResponse{NextPageToken: "\xff"}, true},
	} {
		loan := budget.Borrow()
		if err := loan.Hold(1 << 10); err != nil {
			t.Fatal(err)
		}
		forgotten := 0
		out, err := newCodec().Marshal(&delivery{answer: c.answer, loan: loan, sent: func() { loan.Return(); forgotten++ }})
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
		out.Free()
		if forgotten != 1 || budget.Held() != 0 {
			t.Errorf("%s: forgotten %d times, %d bytes are held", name, forgotten, budget.Held())
		}
	}
}

// A request is read into its parcel with the memory that it takes; what refuses it is in the
// parcel, and never gRPC's to tell.
func TestParcels(t *testing.T) {
	req := &feedv1.GetFeedRequest{Feed: "f", Entities: []string{"a", "b"}}
	message, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data   []byte
		budget int64
		says   string
	}{"read": {message, 1 << 20, ""}, "malformed": {[]byte{10}, 1 << 20, "GetFeedRequest"}, "no memory for its bytes": {message, 3, "take all"}, "no memory to parse it": {message, int64(len(message)), "take all"}} {
		budget := memory.New(c.budget, "requests")
		p := &parcel{req: &feedv1.GetFeedRequest{}, loan: budget.Borrow()}
		if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(c.data)}, p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if (p.err == nil) != (c.says == "") || p.err != nil && !strings.Contains(p.err.Error(), c.says) || p.err == nil && (!proto.Equal(p.req, req) || p.loan.Held() <= int64(len(message))) {
			t.Errorf("%s: %v, %v, %d bytes are held", name, p.req, p.err, p.loan.Held())
		}
		if p.loan.Return(); budget.Held() != 0 {
			t.Errorf("%s: %d bytes are held", name, budget.Held())
		}
	}
	other := &feedv1.GetFeedRequest{}
	if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(message)}, other); err != nil || !proto.Equal(other, req) {
		t.Errorf("what is no parcel: %v, %v", other, err)
	}
}
