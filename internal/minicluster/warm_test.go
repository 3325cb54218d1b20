package minicluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// Every partition moves to a node that has nothing, while questions are asked:
// each is answered whole and right, and those that the new node answers, from
// the first on, find nearly all that they ask for in its cache.
func TestAMoveHandsTheCacheOver(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	on := func(node int) func([]millrace.NodeID) topology.Assignment {
		return func(ids []millrace.NodeID) topology.Assignment {
			a, err := topology.Spread(ids[node:node+1], 1)
			if err != nil {
				t.Error(err)
			}
			return a
		}
	}
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 2, Feeds: feedsOfAll(), Assign: on(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	truth := oracle.New()
	for line := range sample.Records() {
		if err := truth.Load(schemas.Activity(), line); err != nil {
			t.Fatal(err)
		}
	}
	// Questions ask for features of entities, so that somebody must know them.
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Features(), each(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), sampleRecords()); err != nil {
		t.Fatal(err)
	}
	served := func(node int) func() error {
		return func() error {
			m := c.maps.Current()
			id := c.ids[node]
			all := topology.All()
			if ready := m.Ready(id); m.Hosted(id) != all || ready != all {
				return fmt.Errorf("%s serves %d partitions", id, ready.Len())
			}
			return nil
		}
	}
	if err := errors.Join(c.wait(ctx, served(0)), c.WaitIndexed(ctx)); err != nil {
		t.Fatal(err)
	}
	questions := ask(t, truth, 60)
	compare(t, c, questions, "cold")
	compare(t, c, questions, "warm")

	load := c.load(t, questions)
	defer load()
	assign := func(next topology.Assignment) {
		t.Helper()
		next.Epoch, next.AllowShrink = c.maps.Current().Epoch()+1, true
		if err := steering.Assign(ctx, c.client, next); err != nil {
			t.Fatal(err)
		}
	}
	both, err := topology.Spread(c.ids, 2)
	if err != nil {
		t.Fatal(err)
	}
	assign(both)
	if err := c.wait(ctx, served(1)); err != nil {
		t.Fatal(err)
	}
	if c.cache(t, 1)["warmed_total"] == 0 {
		t.Error("nothing was handed over")
	}
	assign(on(1)(c.ids))
	if err := c.wait(ctx, func() error {
		if replicas := c.maps.Current().Replicas(0); len(replicas) > 1 {
			return fmt.Errorf("partition 0 is on %v", replicas)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	compare(t, c, questions, "handed over")
	load()
	// How much is handed over is bounded in time, which a busy machine may miss.
	s := c.cache(t, 1)
	if hits, misses, features := s["fat_hits_total"], s["misses_total"], s["features_misses_total"]; 4*(misses+features) > hits || hits == 0 {
		t.Errorf("the new node found %v timelines in its cache and had to read %v, and features of %v", hits, misses, features)
	}
}

// cache returns what a node says of its cache, by what the metrics are named behind
// millrace_cache_.
func (c *Cluster) cache(t *testing.T, node int) map[string]float64 {
	t.Helper()
	all, err := c.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]float64{}
	for _, f := range all {
		name, is := strings.CutPrefix(f.GetName(), "millrace_cache_")
		for _, m := range f.GetMetric() {
			ofNode := slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
				return l.GetName() == "node" && l.GetValue() == string(c.ids[node])
			})
			if is && ofNode {
				said[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() // it is one of them
			}
		}
	}
	return said
}

// load asks questions, one after another, until the returned function is
// called. Each must be answered, whole and right.
func (c *Cluster) load(t *testing.T, questions []asked) (stop func()) {
	t.Helper()
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var loader sync.WaitGroup
	answered := 0
	loader.Go(func() {
		for ; ctx.Err() == nil; answered++ {
			q := &questions[answered%len(questions)]
			once, done := context.WithTimeout(t.Context(), time.Minute) // the client's own is short
			resp, err := cl.GetFeed(once, q.req)
			done()
			switch {
			case err != nil:
				t.Errorf("under load: %v", err)
				return
			case len(resp.Coverage.Missing) > 0:
				t.Errorf("under load: partial: %v", resp.Coverage)
				return
			}
			if diff := oracle.Diff(q.want, oracle.FeedItems(resp.Items)); diff != "" {
				t.Errorf("under load: %s", diff)
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		cancel()
		loader.Wait()
		t.Logf("%d questions were answered meanwhile", answered)
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
}
