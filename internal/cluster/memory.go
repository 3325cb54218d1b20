package cluster

import (
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Memory returns what the client's watcher of the map remembers of etcd: the keyspace and the
// epoch of the assignment. It is zero before the first map.
func (c *Client) Memory() keyspace.Memory {
	if m := c.remembers.Load(); m != nil {
		return *m
	}
	return keyspace.Memory{}
}

// remember sets what Memory returns.
func (c *Client) remember(from keyspace.Origin, epoch int64) {
	m := keyspace.Memory{Epoch: epoch}
	if from.Keyspace != (keyspace.Name{}) {
		m.Keyspace = from.Keyspace.String()
	}
	c.remembers.Store(&m)
}
