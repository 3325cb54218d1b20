package minicluster

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/schemas"
)

// A node that is told to stop says that it is to be asked no more, while it
// lives and answers; when it stops nobody asks it. No request under way fails
// or lacks anything, and the node is not ready.
func TestANodeLeavesRoutingBeforeItStops(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Hour)
	defer cancel()
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 3, Replicas: 2, Broker: patient, Node: func(n *indexnode.Config) { n.Drain = 2 * time.Second }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	const members = 200
	req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "me"}, Types: []string{"post"}, Limit: proto.Int64(members)}
	for i := range members {
		req.Entities = append(req.Entities, fmt.Sprint("member:", i))
	}
	_, err = c.Produce(ctx, c.ContentTopic(), schemas.Activity(), posts(members))
	if err == nil {
		err = c.WaitReady(ctx)
	}
	if err == nil {
		err = c.WaitIndexed(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}

	var asked atomic.Int64
	done := make(chan struct{})
	var askers sync.WaitGroup
	for i := range 4 {
		askers.Go(func() {
			cl, err := client.Dial(c.GRPC)
			if err != nil {
				t.Error(err)
				return
			}
			defer cl.Close()
			own := proto.Clone(req).(*feedv1.GetFeedRequest)
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				own.Viewer.Id = fmt.Sprint("viewer:", i, n%16) // each meets other replicas
				resp, err := cl.GetFeed(ctx, own)
				if err != nil || len(resp.Coverage.Missing) > 0 || len(resp.Items) != members {
					t.Errorf("%d items, %v, %v", len(resp.GetItems()), resp.GetCoverage(), err)
					return
				}
				asked.Add(1)
			}
		})
	}
	more := func(n int64) {
		until := asked.Load() + n
		if err := c.wait(ctx, func() error {
			if at := asked.Load(); at < until && !t.Failed() {
				return fmt.Errorf("%d questions of %d", at, until)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	more(50)
	const node = "node-1"
	stopped := c.StopNode(0)
	withdrawn := false
	for ended := false; !ended && !withdrawn; {
		changed := c.maps.Changed()
		m := c.maps.Current()
		ready := m.Ready(node)
		withdrawn = m.Alive(node) && ready.Len() == 0
		if withdrawn {
			break
		}
		select {
		case <-changed:
		case <-stopped:
			ended = true
		}
	}
	if !withdrawn {
		t.Error("the node stopped, and had not said that it is to be asked no more")
	}
	if err := c.Nodes[0].Ready(); err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("ready: %v", err)
	}
	told := false
	for _, r := range c.maps.Current().Reports(node) {
		told = told || r.Reason == "leaving"
	}
	if withdrawn && !told {
		t.Logf("reports: %v", c.maps.Current().Reports(node)) // they may come a moment later
	}
	more(50)
	<-stopped
	more(50)
	close(done)
	askers.Wait()
	if c.maps.Current().Alive(node) {
		if err := c.wait(ctx, func() error {
			if c.maps.Current().Alive(node) {
				return fmt.Errorf("%s is registered after it stopped", node)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// posts yields one post of each member.
func posts(members int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for i := range members {
			if !yield(fmt.Appendf(nil, `{"id":"r%d","actor":"member:%d","verb":"post","created_at":%d}`, i, i, 1_700_000_000_000+i), nil) {
				return
			}
		}
	}
}
