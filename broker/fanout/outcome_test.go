package fanout

import (
	"slices"
	"testing"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Of two versions of a built-in model, one makes the answer, and the rest is
// missing.
func TestTwoVersionsNeverMeet(t *testing.T) {
	var few, many topology.Set
	few.Add(1)
	many.Add(2)
	many.Add(3)
	o := Outcome{Parts: []Part{
		{Node: "n0", Covered: few, Resp: &nodev1.QueryResponse{Model: "home", ModelVersion: "1"}}, {Node: "n1", Covered: many, Resp: &nodev1.QueryResponse{Model: "home", ModelVersion: "2"}},
	}}
	o.oneVersion()
	if len(o.Parts) != 1 || o.Parts[0].Node != "n1" || o.Missing[1] != MissModel || len(o.Missing) != 1 {
		t.Fatalf("%+v", o)
	}
}

// A node may say whatever it likes of partitions that there are not.
func TestAnswersOfNoPartition(t *testing.T) {
	pt := Part{Covered: topology.All(), Resp: &nodev1.QueryResponse{Partitions: &nodev1.Partitions{
		Answered: []int32{-1, 5, 719, 720, 800, 1 << 30}, AppliedContent: make([]int64, 6), AppliedFeatures: make([]int64, 6),
	}}}
	var got []int
	for a := range pt.Answers() {
		got = append(got, int(a.Partition))
	}
	if !slices.Equal(got, []int{5, 719}) {
		t.Errorf("it answers %v", got)
	}
}
