package cluster

import (
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Memory returns what the client's watcher remembers now.
func (c *Client) Memory() keyspace.Memory {
	if m := c.remembers.Load(); m != nil {
		return *m
	}
	return keyspace.Memory{}
}

func (c *Client) remember(from keyspace.Origin, epoch int64) {
	m := keyspace.Memory{Epoch: epoch}
	if from.Keyspace != (keyspace.Name{}) {
		m.Keyspace = from.Keyspace.String()
	}
	c.remembers.Store(&m)
}
