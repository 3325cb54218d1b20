package topology

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// What a node is to delete survives etcd, is never of a partition that it
// hosts, and is forgotten by who goes back to an earlier assignment.
func TestDrop(t *testing.T) {
	a, err := Spread([]millrace.NodeID{"a", "b", "c"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	hosted := a.Hosted("a")
	free := All()
	free = free.Minus(hosted)
	a.Wanted, a.Drop = 2, map[millrace.NodeID]Set{"a": free}
	body, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	back, err := DecodeAssignment(body)
	if err != nil {
		t.Fatal(err)
	}
	if !back.Equal(&a) || back.Drop["a"] != free {
		t.Errorf("came back as %v, wanted %d", back.Drop, back.Wanted)
	}
	if m := NewMap(*back, nil, nil); m.Drops("a") != free || m.Drops("b") != (Set{}) {
		t.Errorf("a drops %v, b %v", m.Drops("a"), m.Drops("b"))
	}

	file := filepath.Join(t.TempDir(), "map.json")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		t.Fatal(err)
	}
	earlier, err := ReadAssignment(file)
	if err != nil || earlier.Drop != nil {
		t.Errorf("an earlier assignment orders %v, %v", earlier.Drop, err)
	}

	a.Drop["a"] = hosted
	if err := a.Validate(); err == nil || !strings.Contains(err.Error(), "which hosts it") {
		t.Errorf("a hosted partition is dropped: %v", err)
	}
}

// Whatever the order of replicas in the assignment, each node has about as many
// partitions to back up, and one that is gone changes nothing for the others'.
func TestKeepersShare(t *testing.T) {
	ids := []millrace.NodeID{"node-1", "node-2", "node-3"}
	a, err := Spread(ids, 2)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []Node
	for _, id := range ids {
		nodes = append(nodes, Node{ID: id, Addr: "a:1"})
	}
	for p := range a.Replicas {
		slices.Sort(a.Replicas[p])
	}
	m := NewMap(a, nodes, nil)
	kept := map[millrace.NodeID]int{}
	less := *m
	less.alive = maps.Clone(m.alive)
	delete(less.alive, "node-2")
	for p := range a.Replicas {
		id, ok := m.Keeper(millrace.Partition(p))
		if !ok {
			t.Fatalf("nobody keeps %d", p)
		}
		kept[id]++
		if now, ok := less.Keeper(millrace.Partition(p)); id != "node-2" && now != id || !ok || now == "node-2" {
			t.Errorf("%d was kept by %s, and is by %s", p, id, now)
		}
	}
	for _, id := range ids {
		if n := kept[id]; n < 180 || n > 300 {
			t.Errorf("%s keeps %d of 720", id, n)
		}
	}
}

// What an older version kept of an assignment lacks what it does not know: etcd's
// takes its place, though it is of the same epoch.
func TestAnOlderVersionKeptTheAssignment(t *testing.T) {
	a, err := Spread([]millrace.NodeID{"a", "b"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	a.Epoch = 7
	kept := a.Clone()
	a.Wanted, a.Drop = 1, map[millrace.NodeID]Set{"c": All()}
	body, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	next, err := NewMap(kept, nil, nil).Next(at(map[string][]byte{"assignment": body}))
	if err != nil || !next.assignment.Equal(&a) {
		t.Errorf("%v: %d wanted, %v to drop", err, next.assignment.Wanted, next.assignment.Drop)
	}
}
