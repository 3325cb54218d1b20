package operate

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// replica is a node that tells of partition 17.
type replica struct {
	nodev1.NodeServiceClient
	answers bool
	fault   error // of a check
}

func (r replica) Digests(context.Context, *nodev1.DigestsRequest, ...grpc.CallOption) (*nodev1.DigestsResponse, error) {
	return &nodev1.DigestsResponse{Trails: []*nodev1.Trail{{Partition: 17, Answers: r.answers, Log: "l", ContentAt: []int64{5}, Content: []uint64{1}}}}, nil
}

func (r replica) CheckPartition(context.Context, *nodev1.CheckPartitionRequest, ...grpc.CallOption) (*nodev1.CheckPartitionResponse, error) {
	return &nodev1.CheckPartitionResponse{Records: 3}, r.fault
}

// Replicas are equal only where two or more have been seen, and none that there should
// be is missing.
func TestOnlyWhatIsSeenIsEqual(t *testing.T) {
	const equal, none = "the replicas are equal", "none to compare it with"
	for name, c := range map[string]struct {
		of    map[millrace.NodeID]replica // who is there
		wants []string
		fails bool
	}{
		"both":             {map[millrace.NodeID]replica{"n1": {answers: true}, "n2": {answers: true}}, []string{equal}, false},
		"one is gone":      {map[millrace.NodeID]replica{"n1": {answers: true}}, []string{"n2 ", "does not answer: its node is gone"}, true},
		"one is not ready": {map[millrace.NodeID]replica{"n1": {answers: true}, "n2": {}}, []string{"n2 ", "does not answer: not ready"}, true},
		"one is not read":  {map[millrace.NodeID]replica{"n1": {answers: true}, "n2": {answers: true, fault: errors.New("it is stopped")}}, []string{"not known: it is stopped"}, true},
	} {
		var a topology.Assignment
		a.Replicas[17] = []millrace.NodeID{"n1", "n2"}
		var alive []topology.Node
		for id := range c.of {
			alive = append(alive, topology.Node{ID: id})
		}
		dial := func(n topology.Node) (nodev1.NodeServiceClient, error) { return c.of[n.ID], nil }
		all, err := checkReplicas(t.Context(), topology.NewMap(a, alive, nil), dial, 17)
		var out strings.Builder
		if bad := all.write(&out); bad != nil {
			t.Fatal(bad)
		}
		if (errors.Join(err, all.fault()) != nil) != c.fails || strings.Contains(out.String(), equal) == c.fails || len(all.Replicas) != 2 {
			t.Errorf("%s: %v, %v\n%s", name, err, all.fault(), &out)
		}
		for _, want := range c.wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: want %q in\n%s", name, want, &out)
			}
		}
	}
	var a topology.Assignment
	a.Replicas[17] = []millrace.NodeID{"n1"}
	dial := func(topology.Node) (nodev1.NodeServiceClient, error) { return replica{answers: true}, nil }
	all, err := checkReplicas(t.Context(), topology.NewMap(a, []topology.Node{{ID: "n1"}}, nil), dial, 17)
	var out strings.Builder
	if err := errors.Join(err, all.fault(), all.write(&out)); err != nil || !strings.Contains(out.String(), none) {
		t.Errorf("the only one: %v\n%s", err, &out)
	}
}
