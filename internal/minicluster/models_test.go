package minicluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// rollout is a running cluster and its models.
type rollout struct {
	*testing.T
	ctx    context.Context
	c      *Cluster
	models *artefacts.Kind
	heard  *members.Admitted
}

func startRollout(ctx context.Context, t *testing.T, dir string) *rollout {
	t.Helper()
	r := &rollout{T: t, ctx: ctx}
	var err error
	r.c, err = Start(ctx, Config{Dir: dir, Nodes: 2, Replicas: 2})
	r.check(err)
	r.models, err = artefacts.Watch(ctx, r.c.client, indexnode.ModelsKind)
	r.check(err)
	r.heard, err = members.WatchAdmitted(ctx, r.c.client)
	r.check(err)
	return r
}

func (r *rollout) check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// publish publishes a version of the model likes and waits until every node
// has said what it makes of it.
func (r *rollout) publish(version int) artefacts.Version {
	r.Helper()
	dir := r.TempDir()
	for name, text := range map[string]string{
		modelpack.SpecFile:   fmt.Sprintf("name: likes\nversion: \"%d\"\nschemas: [millrace.Activity]\nfeatures: {likes: record.likes}\nscorer: linear\nparameters: {bias: %[1]d, weights: {likes: 0.001}}\n", version),
		modelpack.GoldenFile: fmt.Sprintf(`{"features":{"likes":1},"score":%d.001,"record":{"likes":1}}`, version),
		modelpack.CardFile:   "Likes.\n",
	} {
		r.check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	p, err := modelpack.Seal(dir, relevance.ShippedSchemas())
	r.check(err)
	var tar bytes.Buffer
	r.check(p.WriteTar(&tar))
	v, _, err := r.models.Publish(r.ctx, "likes", fmt.Sprint(version), tar.Bytes(), "test")
	r.check(err)
	r.admitted(v)
	return v
}

// admitted waits until both nodes have admitted a version.
func (r *rollout) admitted(v artefacts.Version) {
	r.Helper()
	for {
		changed, has := r.heard.Changed(), 0
		for id, all := range r.heard.Current() {
			for _, a := range all {
				if a.Of(v) && a.Refused != "" {
					r.Fatalf("%s refuses %s: %s", id, v, a.Refused)
				}
				if a.Of(v) {
					has++
				}
			}
		}
		if has == 2 {
			return
		}
		select {
		case <-changed:
		case <-r.ctx.Done():
			r.Fatalf("%d of 2 nodes have %s", has, v)
		}
	}
}

// ask asks for a page and holds every score to the version that the receipt
// names.
func (r *rollout) ask(token string) (*feedv1.GetFeedResponse, error) {
	r.Helper()
	req := &feedv1.GetFeedRequest{Feed: "recent", Model: "likes", Limit: proto.Int64(5), PageToken: token}
	for _, e := range sample.Follows("member:9") {
		req.Entities = append(req.Entities, string(e))
	}
	resp, err := r.c.broker.GetFeed(r.ctx, req)
	if err != nil {
		return nil, err
	}
	for _, it := range resp.Items {
		if got := fmt.Sprint(int(it.Score)); got != resp.Receipt.ModelVersion {
			r.Errorf("%s is scored by version %s in an answer by version %s", it.Id, got, resp.Receipt.ModelVersion)
		}
	}
	if len(resp.Items) != 5 || len(resp.Coverage.Missing) > 0 {
		r.Errorf("%d items, missing %v", len(resp.Items), resp.Coverage.Missing)
	}
	return resp, nil
}

// by asks until a version answers the first page, as it does once the broker
// has heard of it, and returns the answer.
func (r *rollout) by(version string) *feedv1.GetFeedResponse {
	r.Helper()
	var resp *feedv1.GetFeedResponse
	r.check(r.c.wait(r.ctx, func() (err error) {
		if resp, err = r.ask(""); err == nil && resp.Receipt.ModelVersion != version {
			err = fmt.Errorf("version %s answers, and not %s", resp.Receipt.ModelVersion, version)
		}
		return err
	}))
	return resp
}

// TestModelsOnACluster: on real nodes, pages keep the version of the first one
// while others come, serve and are rolled back; a dropped one says so; and
// after a restart of everything what served serves.
func TestModelsOnACluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir := t.TempDir()
	r := startRollout(ctx, t, dir)
	_, err := r.c.Produce(ctx, r.c.ContentTopic(), schemas.Activity(), sampleRecords())
	r.check(err)
	r.check(errors.Join(r.c.WaitReady(ctx), r.c.WaitIndexed(ctx)))

	first := r.publish(1)
	r.check(r.models.Serve(ctx, first, nil, "test"))
	page := r.by("1")
	second := r.publish(2)
	if got := r.by("1"); got.Receipt.ModelVersion != "1" {
		t.Error("published is not serving")
	}
	r.check(r.models.Serve(ctx, second, nil, "test"))
	r.by("2")
	for range 2 {
		page, err = r.ask(page.NextPageToken)
		r.check(err)
		if page.Receipt.ModelVersion != "1" {
			t.Fatalf("a later page is ranked by version %s", page.Receipt.ModelVersion)
		}
	}
	_, err = r.models.Rollback(ctx, "likes", "test")
	r.check(err)
	r.by("1")
	// Others serve on, and an older one comes last: nothing changes by itself.
	third := r.publish(3)
	r.publish(0)
	r.by("1")

	r.check(r.c.Close())
	r = startRollout(ctx, t, dir)
	defer func() { r.check(r.c.Close()) }()
	r.check(errors.Join(r.c.WaitReady(ctx), r.c.WaitIndexed(ctx)))
	if resp, err := r.ask(""); err != nil || resp.Receipt.ModelVersion != "1" {
		t.Fatalf("after a restart: %v, %v", resp.GetReceipt(), err)
	}
	page, err = r.ask(page.NextPageToken)
	r.check(err)
	r.admitted(third)
	r.check(r.models.Serve(ctx, third, nil, "test"))
	r.by("3")
	r.check(r.models.Drop(ctx, first, nil, "test"))
	r.check(r.c.wait(ctx, func() error {
		_, err := r.ask(page.NextPageToken)
		var e *millrace.Error
		if errors.As(err, &e) && e.Reason == millrace.ReasonPageToken {
			return nil
		}
		return fmt.Errorf("the page of a dropped version: %v", err)
	}))
}
