package minicluster

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// A backup node has every partition, whatever is assigned to it, backs all of
// them up alone, and answers nobody.
func TestBackupNode(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	to := "file://" + t.TempDir()
	c, err := Start(ctx, Config{
		Dir: t.TempDir(), Nodes: 3,
		Node: func(n *indexnode.Config) {
			n.Backup = backups.Config{To: to, Every: 500 * time.Millisecond, Keep: 2}
			if n.ID == "node-3" {
				n.Keeps = topology.All()
			}
		},
		Assign: func([]millrace.NodeID) topology.Assignment {
			a, err := topology.Spread([]millrace.NodeID{"node-1", "node-2"}, 2)
			if err != nil {
				t.Fatal(err)
			}
			return a
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	var lines iter.Seq2[[]byte, error] = func(yield func([]byte, error) bool) {
		for i := range 500 {
			if !yield(fmt.Appendf(nil, `{"id":"post:%d","actor":"member:%d","verb":"post","created_at":%d}`, i, i%50, 1_700_000_000_000+i), nil) {
				return
			}
		}
	}
	// Before it is known the others back up.
	if err := c.wait(ctx, func() error {
		if !c.maps.Current().Alive("node-3") {
			return errors.New("the backup node is not registered")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), lines); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
		t.Fatal(err)
	}
	bucket, err := backup.Open(ctx, to, backup.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	if err := c.wait(ctx, func() error {
		newest, err := bucket.Newest(ctx, func(d *backup.Damage) { t.Error(d) })
		if err != nil {
			return err
		}
		for p := range partition.All() {
			m, want := newest[p], c.Nodes[0].Applied(p)
			if m == nil || [2]millrace.Offset{m.Applied.Content, m.Applied.Features} != want {
				return fmt.Errorf("partition %d is backed up at %v, and at %v in the nodes", p, m, want)
			}
			if m.Node != "node-3" && want[0] > 0 { // what has not changed since is not backed up again
				return fmt.Errorf("partition %d was backed up by %s", p, m.Node)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if ready := c.maps.Current().Ready("node-3"); ready.Len() > 0 {
		t.Errorf("brokers may ask the backup node for %s", &ready)
	}
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "me"}}
	for i := range 50 {
		req.Entities = append(req.Entities, fmt.Sprint("member:", i))
	}
	resp, err := cl.GetFeed(ctx, req)
	if err != nil || len(resp.Items) == 0 || len(resp.Coverage.Missing) > 0 {
		t.Errorf("%v, %v", resp, err)
	}
}
