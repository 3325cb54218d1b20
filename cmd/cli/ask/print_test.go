package ask

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// A table names its records, tells a score of recency as the time it is, and
// says why it is empty.
func TestPrintFeed(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	table := func(model string, score float64) string {
		var out strings.Builder
		resp := &feedv1.GetFeedResponse{
			Items:    []*feedv1.Item{{Id: "n17", Entity: "member:1", Type: "post", Time: timestamppb.New(at), Score: score, Object: "n17", Explain: &feedv1.ItemExplain{Node: "node-1", Base: score}}},
			Coverage: &feedv1.Coverage{TimelinesAsked: 1, TimelinesAnswered: 1},
			Receipt:  &feedv1.Receipt{Model: model, ModelVersion: "1", Execution: "generated"},
		}
		Print(&out, resp, func(e millrace.Entity) string { return string(e) })
		printReasons(&out, resp)
		return out.String()
	}
	want := `#  SCORE                     ID   WHO       WHAT  WHEN              WHY  ABOUT
1  2026-01-02T03:04:05.678Z  n17  member:1  post  2026-01-02 03:04       n17

1 items; 1 of 1 timelines answered; model recency 1, generated

1. n17 scores 2026-01-02T03:04:05.678Z on node-1
`
	if got := table("recency", float64(at.UnixMilli())); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := table("likes", 0.14351); !strings.Contains(got, "1  0.1435  n17  ") || !strings.Contains(got, "1. n17 scores 0.1435 on node-1: +0.1435\n") {
		t.Errorf("got\n%s", got)
	}
	var out strings.Builder
	printContributions(&out, &feedv1.ItemExplain{Base: 1, Features: []*feedv1.Contribution{{Feature: "small", Contribution: 1e-6}, {Feature: "likes", Contribution: 2}, {Feature: "rate", Contribution: math.NaN()}}})
	if got := out.String(); got != ": +1, rate NaN, likes +2" {
		t.Errorf("of a feature that is no number: %q", got)
	}
	out.Reset()
	Print(&out, &feedv1.GetFeedResponse{Hints: []string{"nobody is there"}}, nil)
	if !strings.HasSuffix(out.String(), "\nhint: nobody is there\n") {
		t.Errorf("got\n%s", out.String())
	}
}
