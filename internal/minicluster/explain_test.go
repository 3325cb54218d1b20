package minicluster

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// TestExplain asks why each item scores what it does: what the features
// contribute adds up to the score, on the node that is named.
func TestExplain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), sampleRecords()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
		t.Fatal(err)
	}
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	req := &feedv1.GetFeedRequest{
		Feed: "home", AsOf: timestamppb.New(sample.End().Std()), Explain: true,
		Viewer: &feedv1.Viewer{Id: "member:9", Attributes: map[string]*structpb.Value{"country": structpb.NewStringValue("India")}},
	}
	for _, e := range sample.Follows("member:9") {
		req.Entities = append(req.Entities, string(e))
	}
	resp, err := cl.GetFeed(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Items) != 20 {
		t.Fatalf("%d items, want 20", len(resp.Items))
	}
	for _, it := range resp.Items {
		e := it.Explain
		if e.GetNode() != "node-1" && e.GetNode() != "node-2" || len(e.GetFeatures()) < 10 {
			t.Fatalf("%s: %v", it.Id, e)
		}
		sum := e.Base
		for _, f := range e.Features {
			sum += f.Contribution
		}
		if math.Abs(sum-it.Score) > 1e-9 {
			t.Errorf("%s scores %v, its parts add up to %v: %v", it.Id, it.Score, sum, e)
		}
	}
	req.Explain = false
	if resp, err = cl.GetFeed(ctx, req); err != nil || resp.Items[0].Explain != nil {
		t.Errorf("explained though not asked: %v, %v", resp, err)
	}
}
