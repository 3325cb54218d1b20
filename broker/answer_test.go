package broker

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/offsets"
	"github.com/millrace/millrace/internal/partition"
)

// The receipt and the coverage tell of a part only what it covers.
func TestAppliedAndBehind(t *testing.T) {
	for name, c := range map[string]struct {
		covered []millrace.Partition
		lagMs   []int64
		want    *feedv1.Applied
		behind  int32
	}{
		"all":         {[]millrace.Partition{3, 5, 7}, nil, &feedv1.Applied{Partitions: []int32{3, 5, 7}, Content: []int64{30, 50, 70}, Features: []int64{1, 2, 3}}, 0},
		"some":        {[]millrace.Partition{3, 7}, nil, &feedv1.Applied{Partitions: []int32{3, 7}, Content: []int64{30, 70}, Features: []int64{1, 3}}, 0},
		"behind":      {[]millrace.Partition{3, 5, 7}, []int64{0, 0, 1500}, &feedv1.Applied{Partitions: []int32{3, 5, 7}, Content: []int64{30, 50, 70}, Features: []int64{1, 2, 3}, LagSeconds: []float64{0, 0, 1.5}}, 4},
		"some behind": {[]millrace.Partition{5, 7}, []int64{900, 0, 1500}, &feedv1.Applied{Partitions: []int32{5, 7}, Content: []int64{50, 70}, Features: []int64{2, 3}, LagSeconds: []float64{0, 1.5}}, 4},
	} {
		pt := fanout.Part{Node: "n0", Resp: &nodev1.QueryResponse{Partitions: &nodev1.Partitions{
			Answered: []int32{3, 5, 7}, AppliedContent: []int64{30, 50, 70}, AppliedFeatures: []int64{1, 2, 3}, LagMs: c.lagMs}}}
		g := &questions.Group{Types: 2}
		q := &question{Question: questions.Question{Groups: []*questions.Group{g}}}
		pt.Group = g
		var want topology.Set
		for _, p := range []millrace.Partition{3, 5, 7} {
			want.Add(p)
			for _, name := range []string{"a", "b"} {
				g.Add(partition.AppendEntity(nil, p, millrace.Entity(name)))
			}
			if slices.Contains(c.covered, p) {
				pt.Covered.Add(p)
			}
		}
		q.Want = want
		c.want.Node = "n0"
		var digest, again offsets.Digest
		if got := applied(&pt, true, &digest); !proto.Equal(got, c.want) {
			t.Errorf("%s: %v applied, want %v", name, got, c.want)
		}
		got := applied(&pt, false, &again)
		parts, err := offsets.Parts(got)
		whole, _ := offsets.Parts(c.want)
		if err != nil || !slices.Equal(parts, whole) || !slices.Equal(got.LagSeconds, c.want.LagSeconds) || len(got.Partitions) > 0 || got.Node != "n0" || digest != again || digest == 0 {
			t.Errorf("%s: packed %v: %v, %v, want %v; digests %s and %s", name, got, parts, err, whole, digest, again)
		}
		if got := coverage(q, fanout.Outcome{Parts: []fanout.Part{pt}}).GetTimelinesBehind(); got != c.behind {
			t.Errorf("%s: %d timelines behind, want %d", name, got, c.behind)
		}
	}
}
