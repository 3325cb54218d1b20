package minicluster

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// shadowedAnswers is how many answers are compared:
// go test ./internal/minicluster -run TestAnswersBesideShadows -shadowed 10000
var shadowedAnswers = flag.Int("shadowed", 300, "answers that are compared with and without shadows")

// TestAnswersBesideShadows: an answer of a feed with shadows is, byte for
// byte, that of the same feed without, on real nodes that score by all of them
// at the same time; but for what is drawn anew for each answer.
func TestAnswersBesideShadows(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	r := &rollout{T: t, ctx: ctx}
	shadows := []string{"recency", "likes"}
	feeds := []feeds.Feed{
		{Name: "plain", Model: "home", DistinctObjects: true, CapPerEntity: 3, Limit: 20},
		{Name: "plain2", Model: "home", DistinctObjects: true, CapPerEntity: 3, Limit: 20, Shadow: shadows, ShadowShare: 1},
	}
	var err error
	r.c, err = Start(ctx, Config{Dir: t.TempDir(), Nodes: 2, Replicas: 2, Feeds: feeds})
	r.check(err)
	defer func() { r.check(r.c.Close()) }()
	r.models, err = artefacts.Watch(ctx, r.c.client, indexnode.ModelsKind)
	r.check(err)
	r.heard, err = members.WatchAdmitted(ctx, r.c.client)
	r.check(err)
	_, err = r.c.Produce(ctx, r.c.ContentTopic(), schemas.Activity(), sampleRecords())
	r.check(err)
	r.check(errors.Join(r.c.WaitReady(ctx), r.c.WaitIndexed(ctx)))
	r.check(r.models.Serve(ctx, r.likesOf("1", "record.likes", 1), nil, "test"))
	members := sample.Members()
	asOf := time.Now()
	for i := range *shadowedAnswers {
		req := &feedv1.GetFeedRequest{Viewer: &feedv1.Viewer{Id: string(members[i%len(members)])}, AsOf: timestamppb.New(asOf.Add(time.Duration(i) * time.Second)), Limit: proto.Int64(int64(1 + i%20))}
		for _, e := range sample.Follows(members[i%len(members)]) {
			req.Entities = append(req.Entities, string(e))
		}
		if len(req.Entities) == 0 {
			continue
		}
		if differ := r.besideShadows(req); differ != "" {
			t.Fatalf("answer %d of %s is another beside shadows: %s", i, req.Viewer.Id, differ)
		}
	}
	// They did rank.
	r.check(r.c.wait(ctx, func() error {
		all, err := r.c.metrics.Gather()
		r.check(err)
		for _, f := range all {
			for _, m := range f.Metric {
				if f.GetName() == "millrace_broker_shadow_overlap" && m.Histogram.GetSampleCount() > 0 {
					return nil
				}
			}
		}
		return errors.New("no shadow has ranked")
	}))
}

// besideShadows asks the same of the feed without and of the feed with shadows,
// and returns both answers if they differ.
func (r *rollout) besideShadows(req *feedv1.GetFeedRequest) (differ string) {
	r.Helper()
	var texts [2][]byte
	var answers [2]*feedv1.GetFeedResponse
	for k, name := range []string{"plain", "plain2"} {
		req.Feed = name
		resp, err := r.c.broker.GetFeed(r.ctx, req)
		r.check(err)
		// Which node was asked, and how far it has read.
		resp.Receipt.Applied, resp.Receipt.AppliedDigest = nil, ""
		resp.Receipt.AnswerId, resp.NextPageToken = "", ""
		texts[k], err = proto.MarshalOptions{Deterministic: true}.Marshal(resp)
		r.check(err)
		answers[k] = resp
	}
	if bytes.Equal(texts[0], texts[1]) {
		return ""
	}
	same := len(answers[0].Items) == len(answers[1].Items)
	for i := range answers[0].Items {
		if same && !proto.Equal(answers[0].Items[i], answers[1].Items[i]) {
			return fmt.Sprintf("item %d: %v, and beside shadows %v", i, answers[0].Items[i], answers[1].Items[i])
		}
	}
	for _, a := range answers {
		a.Items = a.Items[:0]
	}
	return fmt.Sprintf("as many items: %v; %v, and beside shadows %v", same, answers[0], answers[1])
}
