// Package secrets keeps random bytes that the processes of a cluster share, by name. A secret
// has generations: a new one takes the place of the one before from some time on.
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

// Get returns 32 random bytes that the processes of a cluster share under a name. The
// process that asks first puts them into etcd: those that it kept on disk, or else new
// ones. While etcd is away, Get returns those on disk; if there are none, it waits for etcd
// until ctx ends.
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

// ask asks etcd for the secret. If nothing was kept, it asks again until it has an answer
// or ctx ends.
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

// Share returns the secret that etcd has under a name. If etcd has none, it writes kept, or
// new random bytes if kept is nil.
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
