package doors

import (
	"strings"
	"testing"

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
