package bench

import (
	"time"

	"github.com/millrace/millrace/cmd/millrace/bench/rig"
)

// cpuTime is CPU time by role. nodes is that of all index nodes together; client is that of
// this process.
type cpuTime struct{ broker, nodes, client time.Duration }

func (c cpuTime) less(o cpuTime) cpuTime {
	return cpuTime{c.broker - o.broker, c.nodes - o.nodes, c.client - o.client}
}

func (c cpuTime) each(queries int) cpuTime {
	n := time.Duration(max(1, queries))
	return cpuTime{c.broker / n, c.nodes / n, c.client / n}
}

// served is the CPU time of the servers, without the client's.
func (c cpuTime) served() time.Duration { return c.broker + c.nodes }

// cpuOf returns the CPU time that the roles have used since they started.
func cpuOf(r *rig.Cluster) (c cpuTime, err error) {
	c.client = rig.OwnCPU()
	broker, err := r.Broker.Used()
	if err != nil {
		return c, err
	}
	c.broker = broker.CPU
	for _, n := range r.Nodes {
		u, err := n.Used()
		if err != nil {
			return c, err
		}
		c.nodes += u.CPU
	}
	return c, nil
}
