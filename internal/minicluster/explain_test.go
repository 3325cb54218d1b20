package minicluster

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// TestExplain asks how an answer was made: what the features contribute adds
// up to the score, on the node that is named; a timeline is read from the
// store once and is cached then; the filter's clauses drop what the stages say
// was dropped.
func TestExplain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 2, Replicas: 1})
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
	req.Filter = `record.likes >= 0 && record.verb in ["post", "like"] && (record.likes / record.comments >= 0 || record.verb == "post")`
	for _, cache := range []string{"store", "fat"} {
		checkAccount(t, cl, req, cache)
	}
	req.Filter = ""
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

// checkAccount asks, and holds the account of the answer against itself.
func checkAccount(t *testing.T, cl *client.Client, req *feedv1.GetFeedRequest, cache string) {
	t.Helper()
	resp, err := cl.GetFeed(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range resp.Items {
		if it.Explain.GetCache() != cache {
			t.Errorf("%s is from %q, want %q", it.Id, it.Explain.GetCache(), cache)
		}
	}
	if got := resp.Receipt.GetSchemas(); len(got) != 1 || got[0] != schemas.Activity().Fingerprint().String() {
		t.Errorf("receipt names the schemas %q", got)
	}
	e := resp.Explain
	var sum feedv1.ClauseCounts
	var sources []string
	for _, c := range e.Clauses {
		sources = append(sources, c.Clause)
		sum.False, sum.Null, sum.Error, sum.Nan = sum.False+c.False, sum.Null+c.Null, sum.Error+c.Error, sum.Nan+c.Nan
	}
	if sum.False != e.FilteredFalse || sum.Null != e.FilteredNull || sum.Error != e.FilteredError || sum.Nan != e.FilteredNan || sum.Error == 0 {
		t.Errorf("clauses drop %v, together %v, the filter %v", e.Clauses, &sum, e)
	}
	want := []string{"record.likes >= 0", `record.verb in ["post", "like"]`, `((record.likes / record.comments) >= 0) || (record.verb == "post")`}
	if len(sources) < 3 || !slices.Equal(sources[:3], want) || e.Clauses[0].False != 0 || e.Clauses[1].False == 0 || e.Clauses[2].Error == 0 {
		t.Errorf("clauses %v", e.Clauses)
	}
	var misses int32
	for _, c := range e.Calls {
		misses += c.Times.GetMisses()
		if n := c.Times; n.GetScanMillis() <= 0 || n.GetRankMillis() <= 0 || n.GetResolveMillis() <= 0 || n.GetScanMillis()+n.GetResolveMillis() > c.Millis || (n.GetReadMillis() > 0) != (n.GetMisses() > 0) {
			t.Errorf("%s was called for %v ms, of which %v", c.Node, c.Millis, n)
		}
	}
	if (misses > 0) != (cache == "store") {
		t.Errorf("%d timelines were read from the store, of items from %s", misses, cache)
	}
	if b := e.Times; b.GetReadMillis() <= 0 || b.GetRouteMillis() <= 0 || b.GetFanOutMillis() <= 0 || b.GetMergeMillis() <= 0 || b.GetRecordsMillis() <= 0 {
		t.Errorf("times at the broker: %v", b)
	}
}
