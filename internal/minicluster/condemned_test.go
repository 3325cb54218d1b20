package minicluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

const (
	likedSpec = "name: likes\nversion: %q\nschemas: [millrace.Activity]\nviewer: {taste: double}\nfeatures: {likes: %q}\nscorer: linear\nparameters: {weights: {likes: 1}}\n"
	breaks    = "record.likes * viewer.taste + 3.0" // what has generated code that panics while breaking is set
)

var breaking atomic.Bool

func init() {
	m, err := relevance.Parse("spec.yaml", fmt.Appendf(nil, likedSpec, "1", breaks), relevance.ShippedSchemas())
	if err != nil {
		panic(err)
	}
	p, err := relevance.Join(m).Plan(schemas.Activity().Layout(), nil)
	if err != nil {
		panic(err)
	}
	compute.RegisterModel(compute.Model{Name: "likes", Shape: p.Shape(), Score: func(k *compute.ModelArgs) {
		if breaking.Load() {
			panic("a broken table")
		}
		for i := range k.Sel {
			k.Out[i] = 7
		}
	}})
}

// likesOf publishes a version of the model likes with one feature, which is a
// golden row's of one like and one impression, and waits for the nodes.
func (r *rollout) likesOf(version, feature string, golden int) artefacts.Version {
	r.Helper()
	dir := r.TempDir()
	for name, text := range map[string]string{
		modelpack.SpecFile:   fmt.Sprintf(likedSpec, version, feature),
		modelpack.GoldenFile: fmt.Sprintf(`{"features":{"likes":%d},"score":%[1]d,"record":{"likes":1,"impressions":1},"viewer":{"taste":1}}`, golden),
		modelpack.CardFile:   "Likes.\n",
	} {
		r.check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	p, err := modelpack.Seal(dir, relevance.ShippedSchemas())
	r.check(err)
	var tar bytes.Buffer
	r.check(p.WriteTar(&tar))
	v, _, err := r.models.Publish(r.ctx, "likes", version, tar.Bytes(), "test")
	r.check(err)
	r.admitted(v)
	return v
}

// page asks for a page of a feed that names no model.
func (r *rollout) page(feed, model string) (*feedv1.GetFeedResponse, error) {
	req := &feedv1.GetFeedRequest{Feed: feed, Model: model, Limit: proto.Int64(5), Viewer: &feedv1.Viewer{Id: "member:9", Features: map[string]float64{"taste": 1}}}
	for _, e := range sample.Follows("member:9") {
		req.Entities = append(req.Entities, string(e))
	}
	return r.c.broker.GetFeed(r.ctx, req)
}

// TestLastGoodOnACluster: on real nodes under load, a version that has no score
// that is a number, and one that panics, give way to the last good version, and
// no feed fails meanwhile. The cluster says why, and asks for none of them
// again before it is released.
func TestLastGoodOnACluster(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	r := &rollout{T: t, ctx: ctx}
	var err error
	r.c, err = Start(ctx, Config{Dir: t.TempDir(), Nodes: 2, Replicas: 2, Feeds: []feeds.Feed{{Name: "liked", Model: "likes"}}})
	r.check(err)
	defer func() { r.check(r.c.Close()) }()
	r.models, err = artefacts.Watch(ctx, r.c.client, indexnode.ModelsKind)
	r.check(err)
	r.heard, err = members.WatchAdmitted(ctx, r.c.client)
	r.check(err)
	condemned, err := artefacts.WatchCondemned(ctx, r.c.client)
	r.check(err)
	_, err = r.c.Produce(ctx, r.c.ContentTopic(), schemas.Activity(), sampleRecords())
	r.check(err)
	r.check(errors.Join(r.c.WaitReady(ctx), r.c.WaitIndexed(ctx)))

	good := r.likesOf("1", "record.likes", 1)
	r.check(r.models.Serve(ctx, good, nil, "test"))
	spoken := func(version, inPlaceOf string) error {
		resp, err := r.page("liked", "")
		if err == nil && (resp.Receipt.ModelVersion != version || resp.Receipt.InPlaceOf != inPlaceOf || len(resp.Items) != 5 || math.IsNaN(resp.Items[0].Score)) {
			err = fmt.Errorf("%v", resp.Receipt)
		}
		return err
	}
	r.check(r.c.wait(ctx, func() error { return spoken("1", "") }))

	var failed, answered atomic.Int64
	load, stop := context.WithCancel(ctx)
	var askers sync.WaitGroup
	for range 4 {
		askers.Go(func() {
			for load.Err() == nil {
				if _, err := r.page("liked", ""); err != nil {
					failed.Add(1)
					t.Errorf("a feed failed: %v", err)
					return
				}
				answered.Add(1)
			}
		})
	}
	for _, c := range []struct {
		version, feature string
		golden           int
	}{{"2", "record.likes * record.impressions / record.impressions", 1}, {"3", breaks, 4}} {
		version := c.version
		bad := r.likesOf(version, c.feature, c.golden)
		breaking.Store(version == "3")
		began := time.Now()
		r.check(r.models.Serve(ctx, bad, nil, "test"))
		r.check(r.c.wait(ctx, func() error { return spoken("1", "likes "+version) }))
		t.Logf("version %s gave way after %s", version, time.Since(began))
		r.check(r.c.wait(ctx, func() error {
			if condemned.Why(bad) == "" {
				return errors.New("the cluster does not say that it is condemned")
			}
			return nil
		}))
		_, err := r.page("liked", "likes")
		if e := (*millrace.Error)(nil); !errors.As(err, &e) || e.Reason != millrace.ReasonCondemned {
			t.Errorf("who names the model: %v", err)
		}
	}
	stop()
	askers.Wait()
	if failed.Load() > 0 || answered.Load() == 0 {
		t.Errorf("%d of %d feeds failed", failed.Load(), answered.Load())
	}
	// What is mended and released ranks again.
	breaking.Store(false)
	serving, _ := r.models.Served("likes")
	r.check(condemned.Release(ctx, r.models, serving, "test"))
	r.check(r.c.wait(ctx, func() error { return spoken("3", "") }))
}
