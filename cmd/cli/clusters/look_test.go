package clusters

import (
	"errors"
	"strings"
	"testing"

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
	l.Fault = errors.New("etcd has another assignment")
	if got := l.WayOut(); !strings.Contains(got, "cluster assign --from") {
		t.Errorf("%q", got)
	}
}
