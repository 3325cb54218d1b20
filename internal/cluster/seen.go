package cluster

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
)

func (c *Client) seenKey(id millrace.NodeID) string { return c.prefix + "seen/" + string(id) }

// Seen returns when each node last said that it lives, by its own clock, to
// within some ten seconds.
func (c *Client) Seen(ctx context.Context) (map[millrace.NodeID]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	prefix := c.seenKey("")
	got, err := c.etcd.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, away(err)
	}
	seen := make(map[millrace.NodeID]time.Time, len(got.Kvs))
	for _, kv := range got.Kvs {
		if at, err := time.Parse(time.RFC3339, fmt.Sprintf("%.40s", kv.Value)); err == nil {
			seen[millrace.NodeID(kv.Key[len(prefix):])] = at
		}
	}
	return seen, nil
}
