package coordinator_test

import (
	"errors"
	"strings"
	"testing"

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
