package oracle

import (
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// One answer as the oracle, a node and a broker say it.
func TestWireItems(t *testing.T) {
	in := timeline("member:1/post")
	want := []Item{{
		Rank:   millrace.Rank{Score: 1.5, Time: 1290664733756, ID: "r", Timeline: in},
		Object: "o",
		Also:   []millrace.Rank{{Score: 0.5, Time: 7, ID: "s", Timeline: timeline("member:2/like")}},
	}}
	node := []*nodev1.Item{{
		Score: 1.5, TimeMs: 1290664733756, Id: "r", Entity: "member:1", Type: "post", Object: "o",
		Also: []*nodev1.Item{{Score: 0.5, TimeMs: 7, Id: "s", Entity: "member:2", Type: "like"}},
	}}
	if d := Diff(want, NodeItems(node)); d != "" {
		t.Errorf("node:\n%s", d)
	}
	at := func(ms millrace.Time) *timestamppb.Timestamp { return timestamppb.New(ms.Std()) }
	feed := []*feedv1.Item{{
		Score: 1.5, Time: at(1290664733756), Id: "r", Entity: "member:1", Type: "post", Object: "o",
		Also: []*feedv1.Also{{Score: 0.5, Time: at(7), Id: "s", Entity: "member:2", Type: "like"}},
	}}
	if d := Diff(want, FeedItems(feed)); d != "" {
		t.Errorf("broker:\n%s", d)
	}
}
