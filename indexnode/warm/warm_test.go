package warm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/partition"
)

// served serves a node's RPCs, and returns where.
func servedBy(t testing.TB, n nodev1.NodeServiceServer) string {
	t.Helper()
	l, err := grpctune.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(append(grpctune.Server(), grpc.ForceServerCodecV2(nodewire.Codec()))...)
	nodev1.RegisterNodeServiceServer(s, n)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// beside returns the warmer of a node that hosts everything as the peers do,
// of which there is one at each address.
func beside(t testing.TB, n *node, addresses ...string) *Warmer {
	t.Helper()
	ids, nodes, ready := []millrace.NodeID{n.cfg.Node}, []topology.Node{}, map[millrace.NodeID]topology.Set{}
	for i, addr := range addresses {
		id := millrace.NodeID(fmt.Sprint("peer-", i))
		ids, nodes, ready[id] = append(ids, id), append(nodes, topology.Node{ID: id, Addr: addr}), topology.All()
	}
	a, err := topology.Spread(ids, len(ids))
	if err != nil {
		t.Fatal(err)
	}
	m := topology.NewMap(a, nodes, ready)
	w := n.Warmer(func() *topology.Map { return m })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the warmer ended by itself: %v", err)
		}
	})
	return w
}

// warmed waits until partitions are warm.
func warmed(t testing.TB, w *Warmer, set topology.Set) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for set.Len() > 0 {
		for p := range set.All() {
			if warm, progress := w.Warm(p); warm {
				set.Remove(p)
			} else if progress == "" {
				t.Fatalf("partition %d waits, and does not say for what", p)
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d partitions are never warm", set.Len())
		case <-time.After(time.Millisecond):
		}
	}
}

// twins returns two nodes with the same records and features, of which the
// caches know nothing.
func twins(t testing.TB, c cache.Config, count int) (hot, cold *node, names []string) {
	t.Helper()
	for _, n := range []**node{&hot, &cold} {
		one, h := openNode(t, c)
		names = members(t, one, h, count, 3)
		*n = one
	}
	return hot, cold, names
}

// A node that was warmed answers the questions that its peer was asked without
// a read, features and what is empty included, and as the peer does.
func TestAWarmNodeAnswersFromItsCache(t *testing.T) {
	hot, cold, names := twins(t, cache.Config{}, 300)
	for i, name := range names[:100] {
		nodetest.Feature(t, hot.replicas, name, i)
		nodetest.Feature(t, cold.replicas, name, i)
	}
	req := nodetest.OfAll(append(names[:200:200], "member:who", "member:is", "member:not"))
	req.Types = []string{"post", "share"}
	want, err := hot.Query(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	warmed(t, beside(t, cold, servedBy(t, hot)), topology.All())
	if s, of := cold.CacheStats(), hot.CacheStats(); s.Timelines != of.Timelines || s.EmptyKeys != of.EmptyKeys || s.FeatureRows != of.FeatureRows || s.Timelines != 200 {
		t.Errorf("%d timelines, %d empty and %d rows of features are warm, of %d, %d and %d", s.Timelines, s.EmptyKeys, s.FeatureRows, of.Timelines, of.EmptyKeys, of.FeatureRows)
	}
	got, err := cold.Query(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if s := cold.CacheStats(); s.Misses+s.FeatureMisses > 0 || s.FatHits != 200 {
		t.Errorf("%d misses, and %d of features", s.Misses, s.FeatureMisses)
	}
	if len(got.Items) != 10 || fmt.Sprint(got.Items) != fmt.Sprint(want.Items) {
		t.Errorf("it answers %v, and its peer %v", got.Items, want.Items)
	}
}

// telling is a peer that says what a test wants.
type telling struct {
	nodev1.UnimplementedNodeServiceServer
	hot func(context.Context, *nodev1.HotRequest) (*nodev1.HotResponse, error)
}

func (p *telling) Hot(ctx context.Context, req *nodev1.HotRequest) (*nodev1.HotResponse, error) {
	return p.hot(ctx, req)
}

// A peer that is away, old, slow or lies costs nothing but warmth: the replica
// waits no longer than it may, and answers as it should.
func TestAPeerCostsNothingButWarmth(t *testing.T) {
	const entity = "member:7"
	here := partition.Of(entity)
	run := func(typ string, entities []byte) func(context.Context, *nodev1.HotRequest) (*nodev1.HotResponse, error) {
		return func(context.Context, *nodev1.HotRequest) (*nodev1.HotResponse, error) {
			good := &nodev1.HotTimelines{Type: "share", Entities: partition.AppendEntity(nil, here, entity)}
			return &nodev1.HotResponse{Timelines: []*nodev1.HotTimelines{good, {Type: typ, Entities: entities}}}, nil
		}
	}
	good := partition.AppendEntity(nil, here, entity)
	for name, hot := range map[string]func(context.Context, *nodev1.HotRequest) (*nodev1.HotResponse, error){
		"old": nil,
		"failing": func(context.Context, *nodev1.HotRequest) (*nodev1.HotResponse, error) {
			return nil, status.Error(codes.Internal, "no")
		},
		"slow": func(ctx context.Context, _ *nodev1.HotRequest) (*nodev1.HotResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"nothing":             run("post", nil),
		"another partition":   run("post", partition.AppendEntity(nil, partition.Of("member:8"), "member:8")),
		"a wrong partition":   run("post", partition.AppendEntity(nil, here, "member:8")),
		"no partition":        run("post", partition.AppendEntity(nil, 1<<16-1, entity)),
		"cut in a name":       run("post", good[:len(good)-1]),
		"cut before a name":   run("post", append(good[:len(good):len(good)], 1)),
		"a long name":         run("post", partition.AppendEntity(nil, here, millrace.Entity(strings.Repeat("x", millrace.MaxEntityBytes+1)))),
		"a long type":         run(strings.Repeat("x", millrace.MaxTypeBytes+1), good),
		"no type":             run("a\x00b", good),
		"endless":             run("post", make([]byte, 20<<20)),
		"the same repeatedly": run("post", []byte(strings.Repeat(string(good), 10_000))),
	} {
		t.Run(name, func(t *testing.T) {
			n, h := openNode(t, cache.Config{})
			names := members(t, n, h, 10, 3)
			var peer nodev1.NodeServiceServer = nodev1.UnimplementedNodeServiceServer{}
			if hot != nil {
				peer = &telling{hot: hot}
			}
			w := beside(t, n, servedBy(t, peer))
			if name == "slow" {
				w.within = 50 * time.Millisecond
			}
			var set topology.Set
			set.Add(here)
			warmed(t, w, set)
			lies := name != "nothing" && name != "the same repeatedly"
			if s := n.CacheStats(); lies && s.Warmed > 0 || s.Warmed > 2 {
				t.Errorf("%d timelines were warmed", s.Warmed)
			}
			if resp, err := n.Query(t.Context(), nodetest.OfAll(names)); err != nil || resp.Stages.Candidates != 30 {
				t.Errorf("it answers %v, %v", resp, err)
			}
		})
	}
}

// Where one peer is of no use the next is asked; nobody is waited for who is
// not there.
func TestTheNextPeerIsAsked(t *testing.T) {
	hot, cold, names := twins(t, cache.Config{}, 100)
	if _, err := hot.Query(t.Context(), nodetest.OfAll(names)); err != nil {
		t.Fatal(err)
	}
	gone, err := grpctune.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	warmed(t, beside(t, cold, gone.Addr().String(), servedBy(t, hot)), topology.All())
	if s := cold.CacheStats(); s.Timelines != 100 {
		t.Errorf("%d of 100 timelines are warm", s.Timelines)
	}
	alone := beside(t, cold)
	for p := range partition.All() {
		if warm, _ := alone.Warm(p); !warm {
			t.Fatalf("partition %d waits for a peer, and there is none", p)
		}
	}
}

// What a peer invents takes free room, and no more than a quarter of the room
// there is; what questions of this node use stays.
func TestInventedKeysPushNothingOut(t *testing.T) {
	const memory, room = 512 << 10, 400 // for empty timelines, at 200 bytes a key
	n, h := openNode(t, cache.Config{Memory: memory})
	names := members(t, n, h, 100, 3)
	req := nodetest.OfAll(names)
	req.Types = []string{"post", "share"}
	for range 3 {
		if _, err := n.Query(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	peer := &telling{hot: func(_ context.Context, req *nodev1.HotRequest) (*nodev1.HotResponse, error) {
		var invented []byte
		for i := range 5000 {
			e := millrace.Entity(fmt.Sprint("nobody:", i))
			if p := partition.Of(e); slices.Contains(req.Partitions, int32(p)) {
				invented = partition.AppendEntity(invented, p, e)
			}
		}
		return &nodev1.HotResponse{Timelines: []*nodev1.HotTimelines{{Type: "post", Entities: invented}}}, nil
	}}
	before := n.CacheStats()
	warmed(t, beside(t, n, servedBy(t, peer)), topology.All())
	if _, err := n.Query(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	s := n.CacheStats()
	if s.Misses != before.Misses {
		t.Errorf("%d timelines that were in use are gone", s.Misses-before.Misses)
	}
	if s.EmptyKeys > room || s.Warmed == 0 {
		t.Errorf("%d keys in room for %d, and %d warmed", s.EmptyKeys, room, s.Warmed)
	}
}

// A replica waits no longer than it may, and nothing is read for it after.
func TestAReplicaIsNotHeldBackForLong(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	names := members(t, n, h, 10, 3)
	released := make(chan struct{})
	peer := &telling{hot: func(_ context.Context, req *nodev1.HotRequest) (*nodev1.HotResponse, error) {
		<-released
		var all []byte
		for _, name := range names {
			e := millrace.Entity(name)
			if p := partition.Of(e); slices.Contains(req.Partitions, int32(p)) {
				all = partition.AppendEntity(all, p, e)
			}
		}
		return &nodev1.HotResponse{Timelines: []*nodev1.HotTimelines{{Type: "post", Entities: all}}}, nil
	}}
	addr := servedBy(t, peer)
	w, p := beside(t, n, addr), partition.Of(millrace.Entity(names[0]))
	if warm, _ := w.Warm(p); warm {
		t.Fatal("it is warm, and nobody was asked")
	}
	w.Cool(p) // nobody waits any more
	close(released)
	late := beside(t, n, addr)
	late.within = time.Nanosecond
	warmed(t, late, topology.All())
	if s := n.CacheStats(); s.Warmed > 0 {
		t.Errorf("%d timelines were read when the time was over", s.Warmed)
	}
}

// Of what is hot a node tells what it is asked for, the hottest first, in the
// bytes that were allowed.
func TestHot(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	names := members(t, n, h, 200, 3)
	for _, asked := range [][]string{names, names[:20], names[:20]} {
		if _, err := n.Query(t.Context(), nodetest.OfAll(asked)); err != nil {
			t.Fatal(err)
		}
	}
	hot := func(req *nodev1.HotRequest) (keys []hotKey) {
		resp, err := n.Hot(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range resp.Timelines {
			if keys, err = readHot(keys, run, topology.All()); err != nil {
				t.Fatal(err)
			}
		}
		return keys
	}
	everywhere := &nodev1.HotRequest{}
	for p := range partition.All() {
		everywhere.Partitions = append(everywhere.Partitions, int32(p))
	}
	if keys := hot(everywhere); len(keys) != 200 || keys[0].Type != "post" {
		t.Errorf("%d timelines are hot", len(keys))
	} else {
		hottest := map[millrace.Entity]bool{}
		for _, k := range keys[:20] {
			hottest[k.Entity] = true
		}
		for _, name := range names[:20] {
			if !hottest[millrace.Entity(name)] {
				t.Errorf("%s was asked for most, and is not among the hottest", name)
			}
		}
	}
	p := partition.Of(millrace.Entity(names[3]))
	for _, k := range hot(&nodev1.HotRequest{Partitions: []int32{int32(p)}}) {
		if k.partition != p {
			t.Errorf("%v is not of the partition asked for", k)
		}
	}
	everywhere.MaxBytes = 100
	if keys := hot(everywhere); len(keys) == 0 || len(keys) > 100/(partition.EntityHead+len("member:1")) {
		t.Errorf("%d timelines in 100 bytes", len(keys))
	}
	for _, p := range []int32{-1, partition.Count} {
		if _, err := n.Hot(t.Context(), &nodev1.HotRequest{Partitions: []int32{p}}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "from 0 to 719") {
			t.Errorf("partition %d: %v", p, err)
		}
	}
}

// Nodes that wait until others were told hold nothing of what questions are answered
// in, and wait for a bounded time.
func TestWhoWaitsForATurnBorrowsNothing(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	held := n.cfg.Memory.Held()
	synctest.Test(t, func(t *testing.T) {
		turn := n.telling
		defer func() { n.telling = turn }()
		n.telling = make(chan struct{}, 1) // of the bubble, whose clock goes on while it is waited for
		n.telling <- struct{}{}
		done := make(chan error, 1)
		go func() {
			_, err := n.Hot(t.Context(), &nodev1.HotRequest{Partitions: []int32{1}})
			done <- err
		}()
		synctest.Wait()
		if now := n.cfg.Memory.Held(); now != held {
			t.Errorf("who waits has borrowed %d bytes", now-held)
		}
		time.Sleep(turnWithin)
		synctest.Wait()
		select {
		case err := <-done:
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("who has waited for %s is told %v", turnWithin, err)
			}
		default:
			t.Errorf("it waits for more than %s", turnWithin)
			<-n.telling
			<-done
		}
	})
}
