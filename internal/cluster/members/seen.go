package members

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
)

func seenKey(c *cluster.Client, id millrace.NodeID) string { return c.Prefix() + "seen/" + string(id) }

// Seen returns when each node last said that it lives, by its own clock. A node says so
// about once in cluster.LeaseSeconds. Nodes that are gone stay in it.
func Seen(ctx context.Context, c *cluster.Client) (map[millrace.NodeID]time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	prefix := seenKey(c, "")
	got, err := c.Etcd().Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, cluster.Away(err)
	}
	seen := make(map[millrace.NodeID]time.Time, len(got.Kvs))
	for _, kv := range got.Kvs {
		if at, err := time.Parse(time.RFC3339, fmt.Sprintf("%.40s", kv.Value)); err == nil {
			seen[millrace.NodeID(kv.Key[len(prefix):])] = at
		}
	}
	return seen, nil
}
