package coordinator_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/minicluster"
)

// differing is a node whose replica of partition 7 has a digest of its own.
type differing struct {
	nodev1.NodeServiceClient
	digest   uint64
	witness  func() // is called before a witness tells that 1 is right
	condemns func()
}

func (d differing) Digests(context.Context, *nodev1.DigestsRequest, ...grpc.CallOption) (*nodev1.DigestsResponse, error) {
	return &nodev1.DigestsResponse{Trails: []*nodev1.Trail{{Partition: 7, Answers: true, Log: "l", ContentAt: []int64{20}, Content: []uint64{d.digest}}}}, nil
}

func (d differing) WitnessPartition(context.Context, *nodev1.WitnessPartitionRequest, ...grpc.CallOption) (*nodev1.WitnessPartitionResponse, error) {
	d.witness()
	return &nodev1.WitnessPartitionResponse{Digest: 1, Source: "the log"}, nil
}

func (d differing) CondemnPartition(context.Context, *nodev1.CondemnPartitionRequest, ...grpc.CallOption) (*nodev1.CondemnPartitionResponse, error) {
	d.condemns()
	return &nodev1.CondemnPartitionResponse{}, nil
}

// A replica that differs is taken out by what the cluster is once it is known who is
// wrong, which may take minutes, while nobody else takes replicas out, and until all see
// it: the last one that answers stays.
func TestTheLastThatAnswersIsNotMadeAnew(t *testing.T) {
	ctx := t.Context()
	etcd, err := minicluster.StartEtcd(ctx, t.TempDir(), "127.0.0.1:0")
	check(t, err)
	t.Cleanup(etcd.Close)
	open := func() *cluster.Client {
		c, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{etcd.Addr()}, Name: "test", Log: slog.New(slog.DiscardHandler)})
		check(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	look, joined := open(), map[millrace.NodeID]*members.Membership{}
	for _, id := range []millrace.NodeID{"a", "b"} {
		joined[id], err = members.Join(ctx, open(), topology.Node{ID: id, Addr: string(id) + ":1"})
		check(t, err)
	}
	a, err := topology.Spread([]millrace.NodeID{"a", "b"}, 2)
	check(t, err)
	a.AllowUnknown = true
	check(t, steering.Assign(ctx, look, a))
	is := func(id millrace.NodeID, ready topology.Set) {
		joined[id].SetAnswering(ready, topology.Lag{})
		for {
			s, err := steering.Read(ctx, look)
			check(t, err)
			if s.Map.Ready(id) == ready {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	out := topology.All()
	out.Remove(7)
	for _, stays := range []bool{false, true} {
		is("a", topology.All())
		is("b", topology.All())
		condemned := 0
		witness := func() {
			if !stays {
				is("a", out)
			}
		}
		condemns := func() {
			condemned++
			wait, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			if err := look.Alone(wait, "restart a", func(context.Context) error { return nil }); err == nil {
				t.Error("others take replicas out meanwhile")
			}
			go func() {
				time.Sleep(500 * time.Millisecond)
				joined["b"].SetAnswering(out, topology.Lag{})
			}()
		}
		c, err := coordinator.New(coordinator.Config{
			Cluster: open(), Name: "one", Log: slog.New(slog.DiscardHandler), Dial: func(n topology.Node) (nodev1.NodeServiceClient, error) {
				return differing{digest: map[millrace.NodeID]uint64{"a": 1, "b": 2}[n.ID], witness: witness, condemns: condemns}, nil
			},
		})
		check(t, err)
		unsettled, err := c.Compare(ctx)
		check(t, err)
		s, err := steering.Read(ctx, look)
		check(t, err)
		ready := s.Map.Ready("b")
		if stays && (condemned != 1 || len(unsettled) > 0 || ready.Has(7)) || !stays && (condemned > 0 || len(unsettled) != 1) {
			t.Errorf("the other one answers on: %t: %d are made anew, b is still seen: %t; %v", stays, condemned, ready.Has(7), unsettled)
		}
	}
}
