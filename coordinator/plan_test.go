package coordinator

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// The longest plan that there can be, which is rolled back at its end, fits what etcd
// takes as a document, and is read as it was written; a short one is plain JSON.
func TestPlansFitEtcd(t *testing.T) {
	at := time.Unix(1e9, 123e6).UTC()
	for _, replicas := range []int{1, 15} {
		p := &Plan{ID: "p", Status: RollingBack, Wanted: replicas, BaseWanted: replicas, Created: at}
		for q := range partition.All() {
			for r := range replicas {
				from, to := millrace.NodeID(fmt.Sprintf("node-of-a-long-name-%d", r)), millrace.NodeID(fmt.Sprintf("node-of-a-long-name-%d", 100+r))
				p.Base[q] = append(p.Base[q], from)
				p.Moves = append(p.Moves, Move{q, from, to, false, Moved, at.Add(time.Duration(q) * time.Second), 1e9 + int64(q)}, Move{q, to, from, false, Building, at, 1e9})
			}
		}
		s := &Steered{State: &steering.State{Documents: map[string]string{}}, Plan: p}
		if err := s.write(); err != nil {
			t.Fatal(err)
		}
		body := s.Documents[planDoc]
		if len(body) > keyspace.MaxDocumentBytes || replicas == 1 && body[0] != '{' {
			t.Errorf("%d replicas: %d bytes, beginning with %q", replicas, len(body), body[:2])
		}
		got, err := read(s.State)
		if err != nil || !reflect.DeepEqual(got.Plan.Moves, p.Moves) || got.Plan.Base.differs(&p.Base) {
			t.Errorf("%d replicas: something else is read: %v", replicas, err)
		}
		s.Documents[planDoc] = body[:len(body)-9]
		if _, err := read(s.State); err == nil {
			t.Errorf("%d replicas: a plan that was cut off is read", replicas)
		}
	}
}

// A plan that no coordinator has written is refused by its field: nothing is done by it.
func TestAPlanThatIsNone(t *testing.T) {
	good := func() *Plan {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
		w.add("n3")
		return w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)
	}
	for _, c := range []struct {
		spoil func(*Plan)
		names string
	}{
		{func(*Plan) {}, ""},
		{func(p *Plan) { p.Status, p.Held = Paused, RollingBack }, ""},
		{func(p *Plan) { *p = Plan{} }, "no id"},
		{func(p *Plan) { p.ID = "" }, "no id"},
		{func(p *Plan) { p.Status = "RUNNING" }, `status "RUNNING" is not one of ["running" `},
		{func(p *Plan) { p.Status = "" }, "status"},
		{func(p *Plan) { p.Status = Paused }, `held ""`},
		{func(p *Plan) { p.Status, p.Held = Paused, Paused }, `held "paused"`},
		{func(p *Plan) { p.Wanted = 0 }, "wanted 0"},
		{func(p *Plan) { p.Wanted = -1 }, "wanted -1"},
		{func(p *Plan) { p.Wanted = topology.MaxOwners + 1 }, "wanted 17"},
		{func(p *Plan) { p.BaseWanted = 0 }, "base_wanted 0"},
		{func(p *Plan) { p.Limits.PerNode = -1 }, "limits"},
		{func(p *Plan) { p.Limits.BytesPerSecond = -1 }, "limits"},
		{func(p *Plan) { p.Base = Layout{} }, "base says"},
		{func(p *Plan) { p.Base[7] = make([]millrace.NodeID, topology.MaxOwners+1) }, "partition 7"},
		{func(p *Plan) { p.Moves[3].Partition = partition.Count }, "move 3 is of partition 720"},
		{func(p *Plan) { p.Moves[3].Partition = 5000 }, "move 3 is of partition 5000"},
		{func(p *Plan) { p.Moves[3].State = "moved" }, `move 3 is "moved"`},
		{func(p *Plan) { p.Moves[3].From = p.Moves[3].To }, "move 3 is of"},
		{func(p *Plan) { p.Moves[3].From, p.Moves[3].To = "", "" }, "move 3 is of"},
		{func(p *Plan) { p.Moves[3].Bytes = -1 }, "move 3 is of -1 bytes"},
	} {
		p := good()
		c.spoil(p)
		s := &Steered{State: &steering.State{Documents: map[string]string{}}, Plan: p}
		if err := s.write(); err != nil {
			t.Fatal(err)
		}
		_, err := read(s.State)
		var e *millrace.Error
		if c.names == "" && err != nil || c.names != "" && (!errors.As(err, &e) || e.Field != planDoc || !strings.Contains(e.Detail, c.names) || e.WayOut == "") {
			t.Errorf("%q: %v", c.names, err)
		}
	}
}
