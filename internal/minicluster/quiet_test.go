package minicluster

import (
	"context"
	"errors"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// Nothing is flagged on a cluster that has everything and where nothing is
// written: from when it is whole, for longer than an answer may be old.
func TestNothingIsFlaggedOnAQuietCluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 2, Replicas: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, err = c.Produce(ctx, c.ContentTopic(), schemas.Activity(), sampleRecords())
	if err := errors.Join(err, c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	members := sample.Members()
	for i := 0; time.Since(began) < 10*time.Second; i++ {
		viewer := members[i%len(members)]
		req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: string(viewer)}}
		for _, e := range sample.Follows(viewer) {
			req.Entities = append(req.Entities, string(e))
		}
		if len(req.Entities) == 0 {
			continue
		}
		resp, err := c.broker.GetFeed(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if f := resp.GetCoverage(); f.GetTimelinesBehind() > 0 || len(f.GetMissing()) > 0 {
			t.Fatalf("answer %d, %s after all was there: %v", i, time.Since(began), f)
		}
	}
}
