package indexnode

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
)

// A node whose log has not been looked at for long is not ready, also while
// whoever would say that its partitions are stale waits for Kafka.
func TestANodeThatWaitsForKafkaIsNotReady(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	if err := n.Ready(); err != nil {
		t.Fatal(err)
	}
	n.replicas.Serve(7, time.Now().Add(-time.Hour))
	if err := n.Ready(); err == nil || !strings.Contains(err.Error(), "as the log was 3600 s ago, and Kafka") {
		t.Errorf("ready: %v", err)
	}
}

// Nor is one that has not looked at the models that serve.
func TestANodeThatWaitsForModelsIsNotReady(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	if err := n.Ready(); err != nil {
		t.Fatal(err)
	}
	n.admission.Follow(nil, nil)
	if err := n.Ready(); err == nil || err.Error() != "waiting for the models that serve" {
		t.Errorf("%v", err)
	}
}

// A node that hosts nothing is ready once an assignment says that it is to host nothing,
// and no earlier: one that has just started hosts nothing yet.
func TestANodeIsUnassignedByTheAssignmentAlone(t *testing.T) {
	n, err := Open(Config{ID: "test", Dir: t.TempDir(), Brokers: kafka.At("127.0.0.1:1"), Cluster: new(cluster.Client)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	says := func(want string) {
		t.Helper()
		if err := n.Ready(); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	says("waiting to hear of the assignment")
	var a topology.Assignment
	current := func() *topology.Map { return topology.NewMap(a, nil, nil) }
	n.maps.Store(&current)
	says("the cluster has no assignment yet")
	assign := func(epoch int64, to ...millrace.NodeID) {
		t.Helper()
		if a, err = topology.Spread(to, 1); err != nil {
			t.Fatal(err)
		}
		a.Epoch = epoch
	}
	assign(1, "test", "other")
	says("nothing of what is assigned to this node is hosted yet")
	assign(2, "other")
	if says(ErrUnassigned.Error()); !errors.Is(n.Ready(), ErrUnassigned) {
		t.Error("nobody can tell by the error")
	}
	n.cfg.Keeps = topology.All()
	says("nothing of what is assigned to this node is hosted yet")
}

// What has moved away, and answers until brokers have heard of it, makes no node unready; what
// it is yet to serve does.
func TestWhatHasMovedAwayIsNotAwaited(t *testing.T) {
	var some topology.Set
	all := topology.All()
	some.Add(7)
	ready := topology.Report{State: "ready", Partitions: all.Minus(some)}
	for state, want := range map[string]string{"draining": "", "catching_up": "1 partitions are catching_up (why: more)"} {
		hosted, err := whole([]topology.Report{ready, {State: state, Reason: "why", Detail: "more", Partitions: some}})
		if want == "" && (err != nil || hosted != 719) || want != "" && (err == nil || err.Error() != want || hosted != 720) {
			t.Errorf("%s: %d, %v", state, hosted, err)
		}
	}
}

// A replica that alone serves its partition is not taken out, whatever somebody says of it.
func TestTheOnlyReplicaIsNotCondemned(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	req := &nodev1.CondemnPartitionRequest{Partition: 7, Digest: 1, Expected: 2, Peer: "other"}
	for others, want := range map[bool]string{true: "", false: "no other node serves partition 7"} {
		a, err := topology.Spread([]millrace.NodeID{"test", "other"}, 2)
		if err != nil {
			t.Fatal(err)
		}
		var all []topology.Node
		if others {
			all = append(all, topology.Node{ID: "other", Addr: "a:1"})
		}
		current := func() *topology.Map {
			return topology.NewMap(a, all, map[millrace.NodeID]topology.Set{"other": topology.All()})
		}
		n.maps.Store(&current)
		_, err = n.condemn(t.Context(), req)
		if err == nil || want != "" && !strings.Contains(err.Error(), want) || want == "" && strings.Contains(err.Error(), "no other node") {
			t.Errorf("others serve: %t: %v", others, err)
		}
	}
}
