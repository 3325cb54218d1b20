package minicluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/schemas"
)

// fullDisk is the file system of a node, and whether it says that it is full.
type fullDisk struct {
	vfs.FS
	full *atomic.Bool
}

func (d fullDisk) GetDiskUsage(dir string) (vfs.DiskUsage, error) {
	if d.full.Load() {
		return vfs.DiskUsage{}, nil
	}
	return d.FS.GetDiskUsage(dir)
}

// TestLag fills the disks of nodes, so that they apply nothing more while they
// go on to serve. While one lags, the other is asked; when both do, they
// answer, and the answer says so; when there is space again all is as before.
func TestLag(t *testing.T) {
	if testing.Short() {
		t.Skip("a slow cluster lags by itself")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var disks []*atomic.Bool
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 2, Broker: patient, Node: func(n *indexnode.Config) {
		disks = append(disks, new(atomic.Bool))
		n.Store.FS, n.LagLimit = fullDisk{vfs.Default, disks[len(disks)-1]}, 500*time.Millisecond
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	posts := 0
	post := func() {
		t.Helper()
		posts++
		line := fmt.Sprintf(`{"id":"post:%d","actor":"member:1","verb":"post","created_at":"2020-01-01T00:00:00Z"}`, posts)
		if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), one(line)); err != nil {
			t.Fatal(err)
		}
	}
	// until asks as many viewers, who meet both nodes, until all their answers
	// are as they should be.
	until := func(what string, ok func(*feedv1.GetFeedResponse) bool) {
		t.Helper()
		good := 0
		if err := c.wait(ctx, func() error {
			resp, err := cl.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: fmt.Sprint("viewer:", good)}, Entities: []string{"member:1"}})
			if err != nil {
				return err
			}
			if good++; !ok(resp) {
				good = 0
			}
			if good < 20 {
				return errors.New(resp.String())
			}
			return nil
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	fresh := func(resp *feedv1.GetFeedResponse) bool {
		return len(resp.Items) == posts && resp.Coverage.TimelinesBehind == 0 && len(resp.Receipt.Applied[0].LagSeconds) == 0
	}

	post()
	until("both nodes have the record", fresh)
	disks[0].Store(true)
	post()
	until("the lagging node is not asked", func(resp *feedv1.GetFeedResponse) bool {
		return fresh(resp) && resp.Receipt.Applied[0].Node == "node-2"
	})
	disks[1].Store(true)
	post()
	until("both lag, and say so", func(resp *feedv1.GetFeedResponse) bool {
		return len(resp.Items) < posts && len(resp.Coverage.Missing) == 0 && resp.Coverage.TimelinesBehind == 1 && resp.Receipt.Applied[0].LagSeconds[0] > 0
	})
	disks[0].Store(false)
	disks[1].Store(false)
	met := map[string]bool{}
	until("both are asked again", func(resp *feedv1.GetFeedResponse) bool {
		met[resp.Receipt.Applied[0].Node] = true
		return fresh(resp) && len(met) == 2
	})
}
