package nodewire

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// A response takes no more bytes than Size says, and not much less where it is large.
func TestSizeIsNoLess(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	text := func(most int) string { return strings.Repeat("x", r.IntN(most)) }
	var item func(depth int) *nodev1.Item
	item = func(depth int) *nodev1.Item {
		it := &nodev1.Item{
			Id: text(200), Entity: text(200), Type: text(30), Object: text(200), Body: make([]byte, r.IntN(20_000)),
			Score: math.Inf(-1), TimeMs: math.MinInt64, Schema: math.MaxUint64,
		}
		if r.IntN(3) == 0 {
			it.Explain = &feedv1.ItemExplain{Base: 1, Cache: "fat"}
		}
		if r.IntN(3) == 0 {
			it.Features = &nodev1.Vector{Numbers: make([]float64, r.IntN(100)), Texts: map[int32]string{1: text(100)}}
		}
		for range r.IntN(3) {
			if depth > 0 {
				it.Also = append(it.Also, item(depth-1))
			}
		}
		return it
	}
	for range 300 {
		m := &nodev1.QueryResponse{
			Model: text(60), ModelVersion: text(60), ModelSum: strings.Repeat("a", 64), Execution: "interpreted",
			Stages:     &nodev1.Stages{Candidates: math.MaxInt64},
			Partitions: &nodev1.Partitions{Missing: map[int32]string{}},
		}
		for i := range r.IntN(720) {
			m.Partitions.Answered = append(m.Partitions.Answered, int32(i))
			m.Partitions.AppliedContent = append(m.Partitions.AppliedContent, r.Int64N(1e12))
			m.Partitions.AppliedFeatures = append(m.Partitions.AppliedFeatures, r.Int64N(1e12))
		}
		for i := range r.IntN(50) {
			m.Partitions.Missing[int32(i)] = "quarantined"
		}
		for range r.IntN(100) {
			m.Items = append(m.Items, item(2))
		}
		got, want := Size(m), int64(proto.Size(m))
		if got < want {
			t.Fatalf("%d bytes, and %d are needed", got, want)
		}
		if len(m.Items) > 10 && got > 2*want {
			t.Fatalf("%d bytes, of which %d are needed", got, want)
		}
	}
}
