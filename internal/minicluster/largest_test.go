package minicluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/cluster"
)

// oneNode starts a cluster of one node, which is ready and ends with the test.
func oneNode(t *testing.T) (context.Context, *Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Hour)
	t.Cleanup(cancel)
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 1, Broker: patient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx, c
}

// What a broker takes at most its node takes too: as many entities as may be,
// of the longest names, and so many values of the viewer.
func TestTheLargestRequest(t *testing.T) {
	ctx, c := oneNode(t)
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "me", Features: map[string]float64{}}, Types: []string{"post"}, Limit: proto.Int64(1000)}
	for i := range 10_000 {
		req.Viewer.Features[fmt.Sprintf("%s%d", strings.Repeat("f", 120), i)] = 1
	}
	for i := range 20_000 {
		name := fmt.Sprint(i)
		req.Entities = append(req.Entities, strings.Repeat("x", 512-len(name))+name)
	}
	if n := proto.Size(req); n < 10<<20 {
		t.Errorf("%d bytes only", n)
	}
	resp, err := cl.GetFeed(ctx, req)
	if err != nil || resp.Coverage.TimelinesAnswered != 20_000 {
		t.Errorf("%v, %v", resp.GetCoverage(), err)
	}
}

// A cluster of which every node is well is not ready while what is known of it
// leaves partitions without a replica, as before the assignment is heard of.
func TestNotReadyWithoutAMap(t *testing.T) {
	ctx, c := oneNode(t)
	nobody, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{c.Etcd}, Name: "another"})
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	deaf, err := nobody.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	known := c.maps
	c.maps = deaf
	err = c.Ready()
	c.maps = known
	if err == nil || !strings.Contains(err.Error(), "720 partitions have no replica") {
		t.Errorf("ready: %v", err)
	}
}
