package indexnode_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/digest"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// compared is a cluster whose replicas are compared.
type compared struct {
	*minicluster.Cluster
	t       *testing.T
	ctx     context.Context
	dir     string
	watcher *cluster.Watcher
	posted  int
}

func startCompared(t *testing.T) *compared {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	c := &compared{t: t, ctx: ctx, dir: t.TempDir()}
	var err error
	c.Cluster, err = minicluster.Start(ctx, minicluster.Config{Dir: c.dir, Nodes: 2, Replicas: 2, Node: func(n *indexnode.Config) {
		n.Audit, err = audit.Open(c.acts(n.ID))
		c.must(err)
	}})
	c.must(err)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	cl, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{c.Etcd}, Name: "millrace", ReadOnly: true})
	c.must(err)
	t.Cleanup(func() { cl.Close() })
	c.watcher, err = cl.Watch(ctx)
	c.must(err)
	for all := topology.All(); ; { // replicas that the map does not know are not compared
		changed, m := c.watcher.Changed(), c.watcher.Current()
		if nodes := m.Nodes(); len(nodes) == 2 && m.Ready(nodes[0].ID) == all && m.Ready(nodes[1].ID) == all {
			return c
		}
		select {
		case <-ctx.Done():
			t.Fatal("the nodes are not ready")
		case <-changed:
		}
	}
}

// acts is where a node's audit is.
func (c *compared) acts(id millrace.NodeID) string {
	return filepath.Join(c.dir, "audit-"+string(id))
}

func (c *compared) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *compared) dial(n topology.Node) (nodev1.NodeServiceClient, error) {
	conn, err := grpc.NewClient(n.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	c.t.Cleanup(func() { conn.Close() })
	return nodev1.NewNodeServiceClient(conn), nil
}

// post writes records of one member, and waits until all replicas have them.
func (c *compared) post(n int) {
	c.t.Helper()
	var lines iter.Seq2[[]byte, error] = func(yield func([]byte, error) bool) {
		for range n {
			c.posted++
			if !yield(fmt.Appendf(nil, `{"id":"post:%d","actor":"member:1","verb":"post","created_at":%d}`, c.posted, 1_700_000_000_000+c.posted), nil) {
				return
			}
		}
	}
	_, err := c.Produce(c.ctx, c.ContentTopic(), schemas.Activity(), lines)
	c.must(err)
	c.must(errors.Join(c.WaitReady(c.ctx), c.WaitIndexed(c.ctx)))
}

// compare compares until there are as many differences as wanted.
func (c *compared) compare(want int) []digest.Difference {
	c.t.Helper()
	for {
		all, _, err := digest.Compare(c.ctx, c.watcher.Current(), c.dial)
		if err == nil && len(all) == want {
			return all
		}
		select {
		case <-c.ctx.Done():
			c.t.Fatalf("%d differences wanted: %v, %v", want, all, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// diff returns what two replicas do not have alike.
func (c *compared) diff(p millrace.Partition) (all []digest.Delta) {
	c.t.Helper()
	m := c.watcher.Current()
	var sides [2]digest.Side
	for i, n := range m.Nodes() {
		client, err := c.dial(n)
		c.must(err)
		sides[i] = digest.Side{Node: n.ID, Client: client}
	}
	d, err := digest.Open(c.ctx, p, sides)
	c.must(err)
	defer d.Close()
	for delta, err := range d.All() {
		c.must(err)
		all = append(all, delta)
	}
	return all
}

// A record that one of two replicas has otherwise is found, shown, judged by the
// log and kept; the replica is taken out and made anew, and is equal again.
func TestReplicaThatDiffersIsFoundAndRenewed(t *testing.T) {
	c := startCompared(t)
	c.post(300)
	p := partition.Of("member:1")
	c.compare(0)
	if all := c.diff(p); len(all) > 0 {
		t.Fatalf("replicas that are equal differ in %v", all)
	}

	var b store.Batch
	b.Put(p, millrace.Timeline{Entity: "member:1", Type: "post"}, millrace.Record{ID: "no log has it", Time: 1_700_000_000_100, Schema: schemas.Activity().Fingerprint(), Body: []byte{0}})
	_, err := c.Nodes[1].Store().Apply(&b, nil)
	c.must(err)
	c.post(5)
	found := c.compare(1)[0]
	if found.Partition != p || len(found.Wrong) > 0 || len(found.Digests) != 2 {
		t.Fatalf("found %s", &found)
	}
	deltas := c.diff(p)
	if len(deltas) != 1 || deltas[0].Sides[0] != nil || deltas[0].Sides[1].GetId() != "no log has it" {
		t.Fatalf("the difference is %v", deltas)
	}

	c.must(digest.Witness(c.ctx, c.watcher.Current(), c.dial, &found))
	if len(found.Wrong) != 1 || found.Wrong[0] != "node-2" || found.Right != "node-1" || found.Witness == "" {
		t.Fatalf("named %s", &found)
	}
	c.must(digest.Condemn(c.ctx, c.watcher.Current(), c.dial, &found, found.Wrong[0]))
	files, err := filepath.Glob(filepath.Join(c.dir, "*", "differs", "*.ndjson"))
	c.must(err)
	if len(files) != 1 {
		t.Fatalf("what differs is in %q", files)
	}
	kept, err := os.ReadFile(files[0])
	c.must(err)
	if !strings.Contains(string(kept), "no log has it") || strings.Count(string(kept), "\n") != 2 {
		t.Errorf("kept: %s", kept)
	}

	for id, want := range map[millrace.NodeID]int{"node-1": 0, "node-2": 1} {
		acts, err := os.ReadFile(c.acts(id))
		c.must(err)
		if n := strings.Count(string(acts), `"who":"anybody","act":"condemn","on":"partition `+fmt.Sprint(p)+` of node-2","before":"ready","after":"quarantined`); n != want {
			t.Errorf("the audit of %s has %d acts, not %d: %s", id, n, want, acts)
		}
	}

	c.post(5)
	if len(c.diff(p)) > 0 {
		t.Error("it differs after it was renewed")
	}
	c.compare(0)
}

// A node that is told to stop does not wait for who reads a whole partition: a
// caller that neither reads nor writes is told that it has ended.
func TestAWholeReadEndsWithTheNode(t *testing.T) {
	c := startCompared(t)
	nodes := c.watcher.Current().Nodes()
	last := slices.IndexFunc(nodes, func(n topology.Node) bool { return n.ID == "node-2" })
	client, err := c.dial(nodes[last])
	c.must(err)
	stream, err := client.ReadPartition(c.ctx)
	c.must(err)
	c.must(stream.Send(&nodev1.ReadPartitionRequest{Partition: 17}))
	_, err = stream.Recv()
	c.must(err)
	stopped := c.StopNode(1)
	if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("the caller is told %v", err)
	}
	select {
	case <-stopped:
	case <-c.ctx.Done():
		t.Fatal("the node does not stop")
	}
}
