package fanout

import (
	"errors"
	"slices"
	"testing"

	"github.com/millrace/millrace"
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

// Where nothing was answered, the refusal says why, by how many partitions.
func TestNothingSaysWhy(t *testing.T) {
	for _, c := range []struct {
		missing map[millrace.Partition]string
		reason  millrace.Reason
		why     string
	}{
		{map[millrace.Partition]string{1: MissTimeout, 2: MissTimeout}, millrace.ReasonDeadline, "2 timeout"},
		{map[millrace.Partition]string{1: MissOverloaded}, millrace.ReasonOverloaded, "1 overloaded"},
		{map[millrace.Partition]string{1: MissTooLarge}, millrace.ReasonTooLarge, "1 too_large"},
		{map[millrace.Partition]string{1: MissTimeout, 2: MissBehind, 3: MissBehind}, millrace.ReasonUnavailable, "2 behind, 1 timeout"},
	} {
		var e *millrace.Error
		if err := (&Asking{}).Nothing(Outcome{Missing: c.missing}); !errors.As(err, &e) || e.Reason != c.reason || e.Detail != "no partition answered: "+c.why || e.WayOut == "" {
			t.Errorf("%v: %+v", c.missing, e)
		}
	}
}
