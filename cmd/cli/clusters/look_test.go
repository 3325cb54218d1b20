package clusters

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// The way out of a key that is malformed names it.
func TestAMalformedKeyIsNamed(t *testing.T) {
	m, fault := topology.NewMap(topology.Assignment{Epoch: 1}, nil, nil).Next(&keyspace.Snapshot{Values: map[string]keyspace.Value{"nodes/n9": {Data: []byte("{")}}})
	l := Look{Map: m, Health: m.Health(nil), Fault: fault, Prefix: "/millrace/test/map/"}
	if got := l.WayOut(); !strings.Contains(got, `etcdctl del "/millrace/test/map/nodes/n9"`) {
		t.Errorf("%q, of %v", got, fault)
	}
	const out = "bring back what it was"
	for epoch := range int64(2) {
		l.Health.Epoch = epoch
		l.Fault = errors.Join(nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "plan", Detail: "it is none", WayOut: out})
		if got := l.WayOut(); got != out {
			t.Errorf("epoch %d, of a plan that is none: %q", epoch, got)
		}
	}
	l.Health.Epoch = 0 // what etcd has is an assignment, and none that anybody takes
	l.Fault = errors.New("etcd has another assignment")
	if got := l.WayOut(); !strings.Contains(got, "cluster assign --from") {
		t.Errorf("%q", got)
	}
}
