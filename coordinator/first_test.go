package coordinator_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Where no node has room, a first assignment is refused with the room that each
// has; where one has, it takes all.
func TestAFirstAssignmentNeedsRoom(t *testing.T) {
	s := &coordinator.Steered{State: &steering.State{Map: topology.NewMap(topology.Assignment{}, nil, nil)}}
	ids := []millrace.NodeID{"node-1"}
	full := map[millrace.NodeID]members.NodeStats{"node-1": {DiskBytes: 1000 << 20, FreeBytes: 99 << 20}}
	_, err := coordinator.First(s, full, ids, 1)
	var e *millrace.Error
	if !errors.As(err, &e) || e.Field != "nodes" || !strings.Contains(e.Detail, "node-1 has 99 of 1000 MiB free") || e.WayOut == "" {
		t.Errorf("%v", err)
	}
	full["node-1"] = members.NodeStats{DiskBytes: 1000 << 20, FreeBytes: 101 << 20}
	full["node-1"] = members.NodeStats{DiskBytes: 1000 << 20, FreeBytes: 101 << 20, KeptBytes: 102 << 20}
	if _, err := coordinator.First(s, full, ids, 1); !errors.As(err, &e) || !strings.Contains(e.Detail, "node-1 has 101 of 1000 MiB free") {
		t.Errorf("%v", err)
	}
	full["node-1"] = members.NodeStats{DiskBytes: 1000 << 20, FreeBytes: 101 << 20, KeptBytes: 101 << 20}
	a, err := coordinator.First(s, full, ids, 1)
	if hosted := a.Hosted("node-1"); err != nil || hosted.Len() != 720 {
		t.Errorf("%d partitions: %v", hosted.Len(), err)
	}
}

// A first assignment that would leave partitions with fewer replicas than are wanted is
// refused, and says which node has no room.
func TestAFirstAssignmentHasAllReplicas(t *testing.T) {
	s := &coordinator.Steered{State: &steering.State{Map: topology.NewMap(topology.Assignment{}, nil, nil)}}
	room := members.NodeStats{DiskBytes: 1000 << 20, FreeBytes: 900 << 20}
	stats := map[millrace.NodeID]members.NodeStats{"node-1": room, "node-2": room, "node-3": {DiskBytes: 1000 << 20, FreeBytes: 50 << 20}}
	_, err := coordinator.First(s, stats, []millrace.NodeID{"node-1", "node-2", "node-3"}, 3)
	var e *millrace.Error
	if !errors.As(err, &e) || e.Field != "nodes" || !strings.Contains(e.Detail, "720 partitions") || !strings.Contains(e.Detail, "node-3 has 50 of 1000 MiB free") || e.WayOut == "" {
		t.Errorf("%v", err)
	}
}

// More replicas than there are nodes are refused: nobody would ever have them.
func TestAFirstAssignmentNeedsANodeForEachReplica(t *testing.T) {
	s := &coordinator.Steered{State: &steering.State{Map: topology.NewMap(topology.Assignment{}, nil, nil)}}
	_, err := coordinator.First(s, nil, []millrace.NodeID{"node-1", "node-2", "node-1"}, 3)
	var e *millrace.Error
	if !errors.As(err, &e) || e.Field != "replicas" || e.WayOut == "" {
		t.Errorf("3 replicas on two nodes: %v", err)
	}
	if a, err := coordinator.First(s, nil, []millrace.NodeID{"node-1", "node-2"}, 2); err != nil || a.Wanted != 2 {
		t.Errorf("2 replicas on two nodes: %d wanted, %v", a.Wanted, err)
	}
}

// A node that backs up and serves nobody is refused, and not marked, where it is to
// host something.
func TestNodesThatBackUpAreNotToHost(t *testing.T) {
	alive := []topology.Node{{ID: "node-1", Addr: "a:1"}, {ID: "backup-1", Addr: "a:1", Keeps: "0-719"}}
	a, err := topology.Spread([]millrace.NodeID{"node-1"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	a.Wanted = 1
	s := &coordinator.Steered{State: &steering.State{Assignment: a, Map: topology.NewMap(a, alive, nil)}}
	_, first := coordinator.First(s, nil, []millrace.NodeID{"backup-1", "node-1"}, 1)
	_, added := coordinator.Propose(s, nil, coordinator.Request{Kind: coordinator.Add, Nodes: []millrace.NodeID{"backup-1"}, By: "me"}, time.Now())
	_, replaces := coordinator.Propose(s, nil, coordinator.Request{Kind: coordinator.Replace, Nodes: []millrace.NodeID{"node-1", "backup-1"}, By: "me"}, time.Now())
	for what, err := range map[string]error{"assigned": first, "added": added, "the replacement": replaces} {
		var e *millrace.Error
		if !errors.As(err, &e) || e.Field != "nodes" || e.Detail != "backup-1 backs up and does not serve" || e.WayOut == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
}
