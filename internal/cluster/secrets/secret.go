// Package secrets has the random bytes that the processes of a cluster share, and
// their generations, one of which takes the place of another from some time on.
package secrets

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/wait"
)

// Get returns 32 random bytes that the processes of a cluster share under
// a name. Whoever asks first makes them, out of those kept on disk if etcd has
// lost them. When etcd is away they are those on disk, and if there are none
// it waits for etcd as long as ctx lets it.
func Get(ctx context.Context, c *cluster.Client, name string) ([]byte, error) {
	if err := keyspace.ValidID(name); err != nil {
		return nil, fmt.Errorf("cluster: secret: %w", err)
	}
	file := filepath.Join(c.Dir(), "secret-"+name)
	var kept []byte
	if c.Dir() != "" {
		if body, err := datadir.Read(file, Size); err == nil && len(body) == Size {
			kept = body
		}
	}
	secret, err := ask(ctx, c, name, kept)
	switch {
	case err != nil && kept != nil:
		return kept, nil
	case err != nil:
		return nil, fmt.Errorf("cluster: secret %s: %w", name, err)
	case c.Dir() != "" && !bytes.Equal(secret, kept):
		c.WriteFile(file, func() error { return datadir.Replace(file, secret, 0o600) })
	}
	return secret, nil
}

// ask asks etcd, again and again if nothing was kept.
func ask(ctx context.Context, c *cluster.Client, name string, kept []byte) ([]byte, error) {
	for {
		within := cluster.CallTimeout
		if kept != nil {
			within = c.FirstCall()
		}
		call, cancel := context.WithTimeout(ctx, within)
		secret, err := Share(call, c, name, kept)
		cancel()
		c.NoteSilence(err)
		if err == nil || kept != nil {
			return secret, err
		}
		c.Log().Warn("waiting for etcd, which holds a secret of the cluster", "secret", name, "err", err)
		if wait.For(ctx, cluster.RetryAfter) != nil {
			return nil, err
		}
	}
}

// Size is how many bytes a secret has.
const Size = 32

// Share writes a secret, one that was kept if there is one, to etcd unless one
// is there, and returns that which is there then.
func Share(ctx context.Context, c *cluster.Client, name string, kept []byte) ([]byte, error) {
	fresh := kept
	if fresh == nil {
		fresh = make([]byte, Size)
		_, _ = rand.Read(fresh) // never fails
	}
	key := c.Prefix() + cluster.SecretsPrefix + name
	resp, err := c.Etcd().Txn(ctx).
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
	if len(have) != Size {
		return nil, fmt.Errorf("it has %d bytes, not %d", len(have), Size)
	}
	return have, nil
}
