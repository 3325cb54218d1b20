package topology

import (
	"encoding/json"
	"fmt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Registration is a node as etcd has it: under nodes/ while it is alive, and under known/ for
// good.
type Registration struct {
	Node
	keyspace.Memory
}

// loss is the state that etcd has lost, as far as it is known: nodes remember it.
type loss struct {
	by      []millrace.NodeID // nodes that remember another keyspace, or a later assignment
	epoch   int64             // the highest of the assignments that they remember
	setback *keyspace.Setback // nil: etcd did not go back
}

func (l loss) known() bool { return len(l.by) > 0 || l.setback != nil }

func (l *loss) add(r Registration) { l.by, l.epoch = append(l.by, r.ID), max(l.epoch, r.Epoch) }

// String says what is lost. It is for an etcd that has an assignment.
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

// DecodeRegistration reads the registration of a node.
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
