package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Secret returns 32 random bytes that the processes of a cluster share under
// a name. Whoever asks first makes them, out of those kept on disk if etcd has
// lost them. When etcd is away they are those on disk, and if there are none
// it waits for etcd as long as ctx lets it.
func (c *Client) Secret(ctx context.Context, name string) ([]byte, error) {
	if err := keyspace.ValidID(name); err != nil {
		return nil, fmt.Errorf("cluster: secret: %w", err)
	}
	file := filepath.Join(c.dir, "secret-"+name)
	var kept []byte
	if c.dir != "" {
		if body, err := datadir.Read(file, secretBytes); err == nil && len(body) == secretBytes {
			kept = body
		}
	}
	secret, err := c.askSecret(ctx, name, kept)
	switch {
	case err != nil && kept != nil:
		return kept, nil
	case err != nil:
		return nil, fmt.Errorf("cluster: secret %s: %w", name, err)
	case c.dir != "":
		c.write(file, func() error { return os.WriteFile(file, secret, 0o600) })
	}
	return secret, nil
}

// askSecret asks etcd, again and again if nothing was kept.
func (c *Client) askSecret(ctx context.Context, name string, kept []byte) ([]byte, error) {
	for {
		within := callTimeout
		if kept != nil {
			within = c.firstCall()
		}
		call, cancel := context.WithTimeout(ctx, within)
		secret, err := c.share(call, name, kept)
		cancel()
		c.noteSilence(err)
		if err == nil || kept != nil {
			return secret, err
		}
		c.log.Warn("waiting for etcd, which holds a secret of the cluster", "secret", name, "err", err)
		if wait(ctx, retryAfter) != nil {
			return nil, err
		}
	}
}

const secretBytes = 32

// share writes a secret, one that was kept if there is one, to etcd unless one
// is there, and returns that which is there then.
func (c *Client) share(ctx context.Context, name string, kept []byte) ([]byte, error) {
	fresh := kept
	if fresh == nil {
		fresh = make([]byte, secretBytes)
		_, _ = rand.Read(fresh) // never fails
	}
	key := c.prefix + secretsPrefix + name
	resp, err := c.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(fresh))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return nil, err
	}
	if resp.Succeeded {
		return fresh, nil
	}
	have := resp.Responses[0].GetResponseRange().Kvs[0].Value
	if len(have) != secretBytes {
		return nil, fmt.Errorf("it has %d bytes, not %d", len(have), secretBytes)
	}
	return have, nil
}
