package topology

import (
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Registration is a node in etcd, with what it remembers of etcd. It is under nodes/ while the
// node is alive; a copy stays under known/.
type Registration struct {
	Node
	keyspace.Memory
}

// loss is what is known of state that etcd has lost.
type loss struct {
	by      []millrace.NodeID // nodes that remember another keyspace, or a later assignment
	epoch   int64             // the highest of the assignments that they remember
	setback *keyspace.Setback // nil: nobody has noted that etcd went back
}

func (l loss) known() bool { return len(l.by) > 0 || l.setback != nil }

func (l *loss) add(r Registration) { l.by, l.epoch = append(l.by, r.ID), max(l.epoch, r.Epoch) }

// String says what is lost. known must be true.
func (l loss) String() string {
	if len(l.by) == 0 {
		return l.setback.String()
	}
	by := fmt.Sprintf("%q", l.by[:min(len(l.by), maxListed)])
	if more := len(l.by) - maxListed; more > 0 {
		by += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s remember assignment %d, and the feeds, models and secrets beside it", by, l.epoch)
}

// maxNodeBytes bounds a registration before it is parsed.
const maxNodeBytes = 4 << 10

// DecodeRegistration decodes the registration of the node id. The error refuses one of another
// node, and one without an address or with a wrong weight.
func DecodeRegistration(id millrace.NodeID, body []byte) (r Registration, err error) {
	if len(body) > maxNodeBytes {
		return r, fmt.Errorf("a registration of %d bytes is longer than %d", len(body), maxNodeBytes)
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return r, err
	}
	if r.ID != id || r.Addr == "" || keyspace.ValidID(string(id)) != nil || !ValidWeight(r.Weight) {
		return r, fmt.Errorf("%.200q is not the registration of this node", body)
	}
	return r, nil
}
