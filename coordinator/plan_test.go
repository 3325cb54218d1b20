package coordinator

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
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
		{func(p *Plan) { *p = Plan{} }, `id: "" is not an id`},
		{func(p *Plan) { p.ID = "" }, `id: "" is not an id`},
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
		{func(p *Plan) { p.Moves[3].From = p.Moves[3].To }, "to the same node"},
		{func(p *Plan) { p.Moves[3].From, p.Moves[3].To = "", "" }, "to the same node"},
		{func(p *Plan) { p.Moves[3].From = "\x1b[31mn" }, "move 3: "},
		{func(p *Plan) { p.ID = "p\x1b[31m" }, "id: "},
		{func(p *Plan) { p.Base[7][0] = "" }, "base, of partition 7"},
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

// What is small in etcd and large in memory is refused before it is there, and so is a base
// that does not speak of every partition: a rollback would take the rest away.
func TestPlansThatWouldTakeAllMemory(t *testing.T) {
	packed := func(text string) string {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		_, err := z.Write([]byte(text))
		if err := errors.Join(err, z.Close()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	moves := func(n int) string { return `{"id":"p","moves":[{}` + strings.Repeat(",{}", n) + `]}` }
	base := func(n int) string {
		return `{"id":"p","status":"done","wanted":1,"base_wanted":1,"base":[["n0"]` + strings.Repeat(`,["n0"]`, n-1) + `]}`
	}
	for names, body := range map[string]string{
		"longer than 16777216 bytes": packed(moves(8 << 20)),
		"parts, more than":           packed(moves(2 << 20)),
		"600004 parts, more than":    moves(300_000),
		"base is of 719 partitions":  base(719),
		"base is of 721 partitions":  base(721),
		"base is of 0 partitions":    `{"id":"p","base":[]}`,
	} {
		if len(body) > keyspace.MaxDocumentBytes {
			t.Fatalf("%q: etcd would not take %d bytes", names, len(body))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := read(&steering.State{Documents: map[string]string{planDoc: body}})
		runtime.ReadMemStats(&after)
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != planDoc || !strings.Contains(e.Detail, names) {
			t.Errorf("%q: %v", names, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 100<<20 {
			t.Errorf("%q: it took %d MiB", names, took>>20)
		}
	}
	if _, err := read(&steering.State{Documents: map[string]string{planDoc: base(720)}}); err != nil {
		t.Error(err)
	}
}
