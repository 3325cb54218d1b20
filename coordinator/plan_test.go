package coordinator

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/partition"
)

// The longest plan that there can be, which is rolled back at its end, fits what etcd
// takes as a document, and is read as it was written; a short one is plain JSON.
func TestPlansFitEtcd(t *testing.T) {
	at := time.Unix(1e9, 123e6).UTC()
	for _, replicas := range []int{1, 15} {
		p := &Plan{ID: "p", Status: RollingBack, Wanted: replicas, Created: at}
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
