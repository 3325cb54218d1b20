package warm

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/cluster/maptest"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/partition"
)

// Asked are the others that serve a partition, those first that are not behind, and of equals
// another one first for another partition.
func TestWhichPeersAreAsked(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	w := &Warmer{node: &Server{cfg: Config{Node: "b"}}}
	for range 30 {
		var ids []millrace.NodeID
		var nodes []topology.Node
		ready, behind := map[millrace.NodeID]topology.Set{}, map[millrace.NodeID]topology.Set{}
		for _, id := range []millrace.NodeID{"a", "b", "c", "d", "e"} {
			ids, nodes = append(ids, id), append(nodes, topology.Node{ID: id, Addr: string(id) + ":1"})
			some, late := topology.All(), topology.Set{}
			for p := range partition.All() {
				if r.IntN(4) == 0 {
					some.Remove(p)
				}
				if r.IntN(3) == 0 {
					late.Add(p)
				}
			}
			ready[id], behind[id] = some, late
		}
		a, err := topology.Spread(ids, 1+r.IntN(len(ids)))
		if err != nil {
			t.Fatal(err)
		}
		m := topology.NewMap(a, nodes, ready)
		for _, id := range ids {
			m = maptest.WithLag(t, m, id, topology.Lag{Behind: behind[id]})
		}
		lost := ids[r.IntN(len(ids))]
		m = maptest.WithLost(t, m, lost)
		w.maps = func() *topology.Map { return m }
		for p := range partition.All() {
			var serve []millrace.NodeID
			for _, id := range ids {
				is := ready[id]
				if slices.Contains(m.Replicas(p), id) && id != "b" && id != lost && is.Has(p) {
					serve = append(serve, id)
				}
			}
			var want []millrace.NodeID
			for _, late := range []bool{false, true} {
				for i := range serve {
					id := serve[(int(p)+i)%len(serve)]
					if of := behind[id]; of.Has(p) == late {
						want = append(want, id)
					}
				}
			}
			var got []millrace.NodeID
			for _, n := range w.peers(p) {
				got = append(got, n.ID)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: of partition %d are asked %v, want %v", seed, p, got, want)
			}
		}
	}
}

// Names are told in the bytes that were allowed, to the last of them, and the memory for that
// is borrowed for as long as it takes.
func TestHotWithinBounds(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	names := members(t, n, h, 9, 1) // names of one length
	if _, err := n.Query(t.Context(), nodetest.OfAll(names)); err != nil {
		t.Fatal(err)
	}
	all := &nodev1.HotRequest{}
	for p := range partition.All() {
		all.Partitions = append(all.Partitions, int32(p))
	}
	each := int64(partition.EntityHead + len(names[0]))
	for _, c := range []struct {
		bytes int64
		keys  int
	}{{1, 0}, {each - 1, 0}, {each, 1}, {3*each - 1, 2}, {3 * each, 3}, {9 * each, 9}, {0, 9}, {-1, 9}, {1 << 40, 9}} {
		all.MaxBytes = c.bytes
		resp, err := n.Hot(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		keys := 0
		for _, run := range resp.Timelines {
			keys += len(run.Entities) / int(each)
		}
		if len(resp.Timelines) > 2 { // those that were looked up, and those that were not
			t.Errorf("%d keys are told in %d pieces", keys, len(resp.Timelines))
		}
		if keys != c.keys || n.cfg.Memory.Held() != 0 || len(n.telling) != 0 {
			t.Errorf("in %d bytes %d keys are told, not %d; %d bytes stay borrowed", c.bytes, keys, c.keys, n.cfg.Memory.Held())
		}
	}
	all.MaxBytes = 10 * each
	for room, want := range map[int64]codes.Code{20 * each: codes.OK, 20*each - 1: codes.ResourceExhausted} {
		n.cfg.Memory = memory.New(room, "questions")
		if _, err := n.Hot(t.Context(), all); status.Code(err) != want || len(n.telling) != 0 || n.cfg.Memory.Held() != 0 {
			t.Errorf("with %d bytes of memory: %v", room, err)
		}
	}
	n.cfg.Memory = memory.New(1<<30, "questions")
	gone, goes := context.WithCancel(t.Context())
	goes()
	for range 20 { // whether it has its turn before that is seen, or not
		if _, err := n.Hot(gone, all); status.Code(err) != codes.Canceled || len(n.telling) != 0 {
			t.Fatalf("a node that has gone is told: %v", err)
		}
	}
	n.cfg.Cache = nil // a panic is an error
	if _, err := n.Hot(t.Context(), all); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "panicked") || len(n.telling) != 0 {
		t.Errorf("a panic: %v", err)
	}
}

// What another node says is hot is read to the limits of names and types, and not beyond.
func TestWhatIsReadOfAPeer(t *testing.T) {
	long := millrace.Entity(strings.Repeat("x", millrace.MaxEntityBytes))
	for what, c := range map[string]struct {
		typ      string
		entities []byte
		want     []millrace.Entity // nil: it is refused
	}{
		"features":      {string(cache.Features), partition.AppendEntity(nil, partition.Of("e"), "e"), []millrace.Entity{"e"}},
		"of objects":    {string(cache.Objects), partition.AppendEntity(nil, partition.Of("e"), "e"), []millrace.Entity{"e"}},
		"the longest":   {strings.Repeat("t", millrace.MaxTypeBytes), partition.AppendEntity(nil, partition.Of(long), long), []millrace.Entity{long}},
		"two":           {"post", partition.AppendEntity(partition.AppendEntity(nil, partition.Of("e"), "e"), partition.Of("f"), "f"), []millrace.Entity{"e", "f"}},
		"a long name":   {"post", partition.AppendEntity(nil, partition.Of(long+"x"), long+"x"), nil},
		"a head alone":  {"post", partition.AppendEntity(nil, partition.Of("e"), "e")[:partition.EntityHead], nil},
		"less than one": {"post", partition.AppendEntity(nil, partition.Of("e"), "e")[:partition.EntityHead-1], nil},
	} {
		keys, err := readHot(nil, &nodev1.HotTimelines{Type: c.typ, Entities: c.entities}, topology.All())
		var got []millrace.Entity
		for _, k := range keys {
			if got = append(got, k.Entity); string(k.Type) != c.typ || k.partition != partition.Of(k.Entity) {
				t.Errorf("%s: %v", what, k)
			}
		}
		if (err == nil) != (c.want != nil) || err == nil && !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

// A replica waits until its partition is done, its time is over, or it is wanted no more; who
// comes again waits anew.
func TestHowLongAReplicaWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := topology.NewMap(must(topology.Spread([]millrace.NodeID{"test", "other"}, 2)), []topology.Node{{ID: "other", Addr: "a:1"}}, map[millrace.NodeID]topology.Set{"other": topology.All()})
		w := New(Config{Node: "test"}).Warmer(func() *topology.Map { return m })
		says := func(when string, warm bool, want string) {
			t.Helper()
			if is, progress := w.Warm(7); is != warm || progress != want {
				t.Errorf("%s: %t, %q", when, is, progress)
			}
		}
		says("at first", false, "node other is asked what is hot")
		if len(w.woken) != 1 {
			t.Error("nobody is woken")
		}
		w.mu.of[7].told.Store(9)
		w.mu.of[7].read.Store(4)
		time.Sleep(warmFor - 1)
		says("before its time is over", false, "4 of 9 timelines that are hot elsewhere are in the cache")
		taken := w.take()
		if len(taken) != 1 || len(w.take()) != 0 {
			t.Error("it is taken twice, or not at all")
		}
		time.Sleep(time.Nanosecond)
		says("when it is over", true, "")
		if !taken[7].over || len(w.mu.of) != 0 {
			t.Error("it is waited for")
		}
		says("again", false, "node other is asked what is hot")
		again := w.mu.of[7]
		w.Cool(8)
		w.Cool(7)
		if !again.over || len(w.mu.of) != 0 {
			t.Error("one that is wanted no more is waited for")
		}
		says("and again", false, "node other is asked what is hot")
		w.mu.of[7].over = true
		says("once it is done", true, "")
		m = topology.NewMap(topology.Assignment{}, nil, nil)
		says("without a peer", true, "")
	})
}

func must(a topology.Assignment, err error) topology.Assignment {
	if err != nil {
		panic(err)
	}
	return a
}

// Each partition is asked for of its own peers, in turn, two at most.
func TestWhoIsAskedForWhat(t *testing.T) {
	ids := []millrace.NodeID{"a", "b", "c", "test"}
	var nodes []topology.Node
	for _, id := range ids {
		nodes = append(nodes, topology.Node{ID: id, Addr: string(id) + ":1"})
	}
	m := topology.NewMap(must(topology.Spread(ids, 4)), nodes, map[millrace.NodeID]topology.Set{"a": topology.All(), "b": topology.All(), "c": topology.All()})
	w := New(Config{Node: "test"}).Warmer(func() *topology.Map { return m })
	r := &round{Warmer: w}
	for try := range 4 {
		got, all := map[millrace.Partition]millrace.NodeID{}, 0
		for n, set := range r.byPeer(topology.All(), try) {
			for p := range set.All() {
				got[p] = n.ID
				all++
			}
		}
		if want := map[bool]int{true: partition.Count}[try < warmPeers]; all != want || len(got) != want {
			t.Errorf("at try %d %d partitions are asked for, %d of them once", try, all, len(got))
		}
		for p, id := range got {
			if want := w.peers(p)[try].ID; id != want {
				t.Errorf("at try %d %s is asked for partition %d, not %s", try, id, p, want)
			}
		}
	}
}

// What is read into the cache is counted, and nothing is read for a replica that does not wait.
func TestWhatIsReadIsCounted(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	names := members(t, n, h, 20, 2)
	over := partition.Of(millrace.Entity(names[0]))
	r := &round{n.Warmer(nil), map[millrace.Partition]*warming{}, n.cfg.Cache.Warm()}
	var keys []hotKey
	want := map[millrace.Partition]int64{}
	for _, name := range names {
		p := partition.Of(millrace.Entity(name))
		r.of[p] = &warming{over: p == over}
		keys = append(keys, hotKey{p, millrace.Timeline{Entity: millrace.Entity(name), Type: "post"}})
		if p != over {
			want[p]++
		}
	}
	for len(keys) > 0 {
		keys = r.slice(t.Context(), keys)
	}
	reader := n.cfg.Cache.Reader()
	for _, name := range names {
		p := partition.Of(millrace.Entity(name))
		if is := reader.Peek(millrace.Timeline{Entity: millrace.Entity(name), Type: "post"}) != nil; is != (p != over) || r.of[p].read.Load() != want[p] {
			t.Errorf("%s is cached: %t; %d of its partition are counted, not %d", name, is, r.of[p].read.Load(), want[p])
		}
	}
	reader.Leave()
	if len(r.reading) != 0 {
		t.Error("it reads on")
	}
	gone, goes := context.WithCancel(t.Context())
	goes()
	for range cap(r.reading) {
		r.reading <- struct{}{}
	}
	if left := r.slice(gone, make([]hotKey, 3)); len(left) != 3 {
		t.Errorf("who has gone has %d keys left", len(left))
	}
	if _, err := n.dialPeer(topology.Node{ID: "other", Addr: "dns://\x00"}); err == nil || !strings.Contains(err.Error(), "node other") {
		t.Errorf("a node that has no address: %v", err)
	}
}
