package minicluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// TestRandomClustersEqualTheOracle asks clusters of 1 to 7 nodes with random
// assignments of one to three replicas, while some nodes are down and some so
// slow that they are hedged. A partition is missing only when all its replicas
// are down, and the answer is the oracle's for all others. MILLRACE_EXACT says
// how many questions to ask; otherwise it is few, of two clusters.
func TestRandomClustersEqualTheOracle(t *testing.T) {
	total, sizes := 300, []int{1, 2, 3, 4, 5, 6, 7}
	seed := seedOf(t)
	r := rand.New(rand.NewPCG(seed, 2))
	if text := os.Getenv("MILLRACE_EXACT"); text != "" {
		var err error
		if total, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	} else if testing.Short() {
		total, sizes = 60, []int{3 + r.IntN(2)}
	} else {
		sizes = []int{2 + r.IntN(2), 4 + r.IntN(4)}
	}
	truth := oracle.New()
	for line := range sampleRecords() {
		if err := truth.Load(schemas.Activity(), line); err != nil {
			t.Fatal(err)
		}
	}
	for line := range followers(truth) {
		if err := truth.Load(schemas.Features(), line); err != nil {
			t.Fatal(err)
		}
	}
	log, err := StartKafka(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for i, nodes := range sizes {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			faults := &faults{}
			c, err := Start(t.Context(), Config{
				Dir: t.TempDir(), Nodes: nodes, Kafka: log.Addr(), Feeds: feedsOfAll(),
				Assign: func(ids []millrace.NodeID) topology.Assignment { return randomAssignment(r, ids) },
				Broker: faults.into,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
			if i == 0 {
				_, err = c.Produce(t.Context(), c.ContentTopic(), schemas.Activity(), sampleRecords())
				_, again := c.Produce(t.Context(), c.cfg.Features[0], schemas.Features(), followers(truth))
				if err := errors.Join(err, again); err != nil {
					t.Fatal(err)
				}
			}
			wait, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			if err := errors.Join(c.WaitReady(wait), c.WaitIndexed(wait)); err != nil {
				t.Fatal(err)
			}
			askWithFaults(t, c, truth, faults, r, total/len(sizes)+1)
		})
	}
}

func randomAssignment(r *rand.Rand, ids []millrace.NodeID) topology.Assignment {
	a := topology.Assignment{Epoch: 1}
	for p := range a.Replicas {
		order := r.Perm(len(ids))
		for _, i := range order[:min(1+r.IntN(3), len(order))] {
			a.Replicas[p] = append(a.Replicas[p], ids[i])
		}
	}
	return a
}

// askWithFaults asks n questions, each with other nodes down and slow.
func askWithFaults(t *testing.T, c *Cluster, truth *oracle.Feed, faults *faults, r *rand.Rand, n int) {
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	eval, err := oracle.NewEval(schemas.Activity(), schemas.Features())
	if err != nil {
		t.Fatal(err)
	}
	draw, long, m := oracle.NewQuestions(truth), records(truth), c.maps.Current()
	partial, refused, hedges := 0, 0, int32(0)
	for i := range n {
		q := draw.Draw(r)
		q.Entities = atMost(q.Entities, long)
		down := faults.draw(r, c.ids)
		lost := func(p millrace.Partition) bool {
			for _, id := range m.Replicas(p) {
				if !down[id] {
					return false
				}
			}
			return true
		}
		req := request(&q)
		req.Explain = true
		covered := q
		covered.Entities = nil
		for _, e := range q.Entities {
			if !lost(partition.Of(e)) {
				covered.Entities = append(covered.Entities, e)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // the client's own is short
		resp, err := cl.GetFeed(ctx, req)
		var why *millrace.Error
		if errors.As(err, &why) && why.Reason == millrace.ReasonTooLarge { // hundreds of explained items of many nodes may be
			req.Explain = false
			resp, err = cl.GetFeed(ctx, req)
		}
		cancel()
		if len(covered.Entities) == 0 && errors.As(err, &why) && why.Reason == millrace.ReasonUnavailable {
			refused++
			continue
		}
		if err != nil {
			t.Fatalf("question %d, down %v: %v\n%v", i, down, err, req)
		}
		for _, missing := range resp.Coverage.Missing {
			if !lost(millrace.Partition(missing.Partition)) {
				t.Fatalf("question %d, down %v: partition %d is missing (%s) of replicas %v", i, down, missing.Partition, missing.Reason, m.Replicas(millrace.Partition(missing.Partition)))
			}
		}
		if len(resp.Coverage.Missing) > 0 {
			partial++
		}
		query, err := eval.Query(covered)
		if err != nil {
			t.Fatal(err)
		}
		if diff := oracle.Diff(truth.Query(query).Items, oracle.FeedItems(resp.Items)); diff != "" {
			t.Fatalf("question %d, down %v, differs:\n%s\n%v", i, down, diff, req)
		}
		hedges += resp.GetExplain().GetHedgesFired()
	}
	t.Logf("%d questions: %d answered in part, %d not at all; %d hedges", n, partial, refused, hedges)
}

// faults makes the nodes that a broker asks go down or slow.
type faults struct {
	mu         sync.Mutex
	down, slow map[millrace.NodeID]bool
}

// draw chooses the faults of the next question, and returns who is down.
func (f *faults) draw(r *rand.Rand, ids []millrace.NodeID) map[millrace.NodeID]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down, f.slow = map[millrace.NodeID]bool{}, map[millrace.NodeID]bool{}
	for _, id := range ids {
		f.down[id], f.slow[id] = r.IntN(6) == 0, r.IntN(6) == 0
	}
	return f.down
}

func (f *faults) into(cfg *broker.Config) {
	patient(cfg)
	dial := fanout.DialGRPC()
	cfg.Dial = func(n topology.Node) (fanout.Node, error) {
		real, err := dial(n)
		return &faultyNode{real, f, n.ID}, err
	}
}

// slowness is longer than a broker waits before it asks another node.
const slowness = 20 * time.Millisecond

type faultyNode struct {
	fanout.Node
	faults *faults
	id     millrace.NodeID
}

func (n *faultyNode) Close() error { return n.Node.(io.Closer).Close() }

func (n *faultyNode) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	n.faults.mu.Lock()
	down, slow := n.faults.down[n.id], n.faults.slow[n.id]
	n.faults.mu.Unlock()
	if slow {
		select {
		case <-time.After(slowness):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if down {
		return nil, errors.New("the node is down")
	}
	return n.Node.Query(ctx, req)
}
