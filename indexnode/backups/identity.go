package backups

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster"
)

// Identity returns whose the backups of a cluster are: its name, and an id that
// etcd holds. Two clusters of one name are told apart by it.
func Identity(ctx context.Context, c *cluster.Client) (backup.Identity, error) {
	secret, err := c.Secret(ctx, "backups")
	if err != nil {
		return backup.Identity{}, err
	}
	sum := sha256.Sum256(secret)
	return backup.Identity{Name: c.Name(), ID: fmt.Sprintf("%x", sum[:8])}, nil
}
