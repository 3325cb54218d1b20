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

// A cluster that has everything and where nothing is written is not flagged for
// longer than a busy machine holds up what proves that its answers are new.
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
	members := sample.Members()
	flagged := func(i int) (bool, *feedv1.Coverage) {
		viewer := members[i%len(members)]
		req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: string(viewer)}, Entities: []string{string(viewer)}}
		for _, e := range sample.Follows(viewer) {
			req.Entities = append(req.Entities, string(e))
		}
		resp, err := c.broker.GetFeed(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		f := resp.GetCoverage()
		return f.GetTimelinesBehind() > 0 || len(f.GetMissing()) > 0, f
	}
	for i := 0; ; i++ { // a busy machine may be late with what proves the first
		if old, f := flagged(i); !old {
			break
		} else if ctx.Err() != nil {
			t.Fatalf("all answers are flagged: %v", f)
		}
	}
	all, old := 0, 0
	var last *feedv1.Coverage
	for began := time.Now(); time.Since(began) < 10*time.Second; all++ {
		if is, f := flagged(all); is {
			old, last = old+1, f
		}
	}
	if old > all/4 { // likewise; what is not proven is flagged for as long as it lasts
		t.Fatalf("%d of %d answers are flagged, such as %v", old, all, last)
	}
}
