package cluster

import (
	"context"
	"crypto/rand"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Secret returns 32 random bytes that the processes of a cluster share under
// a name. Whoever asks first makes them.
func (c *Client) Secret(ctx context.Context, name string) ([]byte, error) {
	if err := validID(name); err != nil {
		return nil, fmt.Errorf("cluster: secret: %w", err)
	}
	fresh := make([]byte, 32)
	_, _ = rand.Read(fresh) // never fails
	key := c.prefix + "secrets/" + name
	resp, err := c.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(fresh))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return nil, fmt.Errorf("cluster: secret %s: %w", name, err)
	}
	if resp.Succeeded {
		return fresh, nil
	}
	have := resp.Responses[0].GetResponseRange().Kvs[0].Value
	if len(have) != len(fresh) {
		return nil, fmt.Errorf("cluster: secret %s has %d bytes, not %d", name, len(have), len(fresh))
	}
	return have, nil
}
