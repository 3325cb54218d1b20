package backups_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/minicluster"
)

// A cluster has one identity, which the first who needs it makes; who only looks makes none. Two
// clusters of one name differ, and while etcd does not answer nobody has an identity.
func TestIdentity(t *testing.T) {
	var ids []backup.Identity
	for range 2 {
		etcd, err := minicluster.StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer etcd.Close()
		c, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{etcd.Addr()}, Name: "twin", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if none, err := backups.LookAtIdentity(t.Context(), c); err != nil || none != (backup.Identity{Name: "twin"}) {
				t.Errorf("before the first backup it is %v: %v", none, err)
			}
		}
		made, err := backups.Identity(t.Context(), c)
		if err != nil || made.Name != "twin" || len(made.ID) != 16 {
			t.Errorf("made is %v: %v", made, err)
		}
		again, err := backups.Identity(t.Context(), c)
		if looked, bad := backups.LookAtIdentity(t.Context(), c); err != nil || bad != nil || looked != made || again != made {
			t.Errorf("made is %v; then it is %v (%v), and looked at %v (%v)", made, again, err, looked, bad)
		}
		ids = append(ids, made)
		gone, goes := context.WithCancel(t.Context())
		goes()
		if _, err := backups.Identity(gone, c); err == nil {
			t.Error("without an answer of etcd there is an identity")
		}
		if _, err := backups.LookAtIdentity(gone, c); err == nil {
			t.Error("without an answer of etcd there is an identity to look at")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if ids[0] == ids[1] {
		t.Errorf("two clusters are both %v", ids[0])
	}
}
