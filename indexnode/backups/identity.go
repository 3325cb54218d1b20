package backups

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/secrets"
)

// Identity returns the identity that marks the backups of a cluster: its name, and an id
// from a secret in etcd, which it makes if there is none. The id tells two clusters of
// one name apart.
func Identity(ctx context.Context, c *cluster.Client) (backup.Identity, error) {
	secret, err := secrets.Get(ctx, c, identitySecret)
	if err != nil {
		return backup.Identity{}, err
	}
	return identityBy(c, secret), nil
}

// LookAtIdentity is Identity for callers that write nothing: it makes no secret. Before the
// first backup of the cluster there is none, and the identity has no ID.
func LookAtIdentity(ctx context.Context, c *cluster.Client) (backup.Identity, error) {
	all, err := secrets.All(ctx, c, identitySecret)
	if err != nil || len(all) == 0 {
		return backup.Identity{Name: c.Name()}, err
	}
	return identityBy(c, all[0].Secret), nil
}

const identitySecret = "backups"

func identityBy(c *cluster.Client, secret []byte) backup.Identity {
	sum := sha256.Sum256(secret)
	return backup.Identity{Name: c.Name(), ID: fmt.Sprintf("%x", sum[:8])}
}
