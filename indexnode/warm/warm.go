package warm

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/wait"
)

const (
	// warmFor is how long a replica waits to be warm, at most.
	warmFor = 10 * time.Second
	// warmPeers is how many nodes with the partition are asked, one after another,
	// until one answers. Each has askFor to answer. So at least half of warmFor is left to
	// read the timelines.
	warmPeers = 2
	askFor    = warmFor / 4
	// warmGather is how long Run waits for more partitions after the first, so that
	// those that catch up at about the same time are asked for in one request.
	warmGather = 20 * time.Millisecond
	// warmSlice is how long timelines are read before questions have a turn.
	warmSlice = time.Millisecond
)

// Warmer fills the cache for replicas that are about to be announced. It asks a peer,
// another node that serves the partition, which timelines questions find in the peer's
// cache, and reads those from the store of this node. A peer may be away or slow, not know
// the request, or send nonsense. Then the replica's cache is colder, and the replica is
// announced all the same.
type Warmer struct {
	node    *Server                              // has the configuration
	maps    func() *topology.Map                 // says which nodes serve which partitions now
	dial    func(topology.Node) (hotPeer, error) // Server.dialPeer, except in tests
	within  time.Duration                        // warmFor, except in tests
	woken   chan struct{}                        // holds one token when partitions wait
	reading chan struct{}                        // holds a token for each goroutine that reads; its room leaves half of the cores to questions

	mu struct {
		sync.Mutex
		of map[millrace.Partition]*warming // the partitions whose replicas wait to be warm
	}
}

// warming is the state of one partition, from the first call of Warm for it.
type warming struct {
	until      time.Time    // when the replica is announced in any case
	told, read atomic.Int64 // how many timelines the peer named, and how many of them are in the cache now
	begun      bool         // a round warms the partition; under Warmer.mu
	over       bool         // nothing waits for it any more; under Warmer.mu
}

// hotPeer is another node that can be asked what is hot.
type hotPeer interface {
	Hot(ctx context.Context, req *nodev1.HotRequest) (*nodev1.HotResponse, error)
	Close() error
}

// Warmer returns a Warmer that finds peers by the map that maps returns. Call its Run.
func (s *Server) Warmer(maps func() *topology.Map) *Warmer {
	w := &Warmer{node: s, maps: maps, dial: s.dialPeer, within: warmFor, woken: make(chan struct{}, 1), reading: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	w.mu.of = map[millrace.Partition]*warming{}
	return w
}

// grpcPeer is a node that is reached by gRPC.
type grpcPeer struct {
	*grpc.ClientConn
	rpc nodev1.NodeServiceClient
}

func (p *grpcPeer) Hot(ctx context.Context, req *nodev1.HotRequest) (*nodev1.HotResponse, error) {
	return p.rpc.Hot(ctx, req)
}

// dialPeer returns a node to ask. It does not wait for a connection. The answer may have
// twice maxHotBytes, since there is more in it than names.
func (s *Server) dialPeer(to topology.Node) (hotPeer, error) {
	conn, err := grpc.NewClient(to.Addr, append(append(grpctune.Client(), s.cfg.Peers...),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(nodewire.Codec()), grpc.MaxCallRecvMsgSize(2*maxHotBytes)))...)
	if err != nil {
		return nil, fmt.Errorf("node %s at %s: %w", to.ID, to.Addr, err)
	}
	return &grpcPeer{conn, nodev1.NewNodeServiceClient(conn)}, nil
}

// Warm implements replica.Warmer. It reports whether a replica need not wait any longer to
// be warm, and else how far the warming is. If no peer serves the partition, there is
// nothing to wait for.
func (w *Warmer) Warm(p millrace.Partition) (warm bool, progress string) {
	peers := w.peers(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.mu.of[p]
	switch {
	case one == nil && len(peers) == 0:
		return true, ""
	case one == nil:
		w.mu.of[p] = &warming{until: time.Now().Add(w.within)}
		select {
		case w.woken <- struct{}{}:
		default:
		}
		return false, fmt.Sprintf("node %s is asked what is hot", peers[0].ID)
	case one.over || !time.Now().Before(one.until):
		one.over = true
		delete(w.mu.of, p)
		return true, ""
	}
	return false, fmt.Sprintf("%d of %d timelines that are hot elsewhere are in the cache", one.read.Load(), one.told.Load())
}

// Cool implements replica.Warmer. It ends the warming of a partition that is no longer
// hosted.
func (w *Warmer) Cool(p millrace.Partition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one := w.mu.of[p]; one != nil {
		one.over = true
		delete(w.mu.of, p)
	}
}

// peers returns the other nodes that serve a partition. Those that are not behind the log
// come first. Among equals the first one differs by partition, to spread the requests.
func (w *Warmer) peers(p millrace.Partition) (peers []topology.Node) {
	m := w.maps()
	behind := map[millrace.NodeID]int{}
	for _, id := range m.Replicas(p) {
		ready, lag := m.Ready(id), m.Lag(id)
		if n, known := m.Node(id); known && id != w.node.cfg.Node && m.Alive(id) && ready.Has(p) {
			peers = append(peers, n)
			if lag.Behind.Has(p) {
				behind[id] = 1
			}
		}
	}
	slices.SortFunc(peers, func(a, b topology.Node) int { return cmp.Compare(a.ID, b.ID) })
	if n := len(peers); n > 1 {
		peers = append(peers[int(p)%n:], peers[:int(p)%n]...)
	}
	slices.SortStableFunc(peers, func(a, b topology.Node) int { return cmp.Compare(behind[a.ID], behind[b.ID]) })
	return peers
}

// Run warms the partitions that wait, until ctx ends. It returns the error of ctx.
func (w *Warmer) Run(ctx context.Context) error {
	var rounds sync.WaitGroup
	defer rounds.Wait()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.woken:
		}
		if err := wait.For(ctx, warmGather); err != nil {
			return err
		}
		if waiting := w.take(); len(waiting) > 0 {
			r := &round{w, waiting, w.node.cfg.Cache.Warm()}
			rounds.Go(func() { r.warm(ctx) })
		}
	}
}

// take returns the partitions whose warming has not begun, and marks them as begun.
func (w *Warmer) take() map[millrace.Partition]*warming {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting := map[millrace.Partition]*warming{}
	for p, one := range w.mu.of {
		if !one.begun {
			one.begun = true
			waiting[p] = one
		}
	}
	return waiting
}

// round is the warming of partitions that came at about the same time.
type round struct {
	*Warmer
	of   map[millrace.Partition]*warming // the partitions
	room *cache.Warming                  // puts timelines into the cache as far as there is room
}

// warm warms the partitions of the round. A partition that is done can be announced at
// once; all others can when the time is over.
func (r *round) warm(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel()
	var set topology.Set
	for p := range r.of {
		set.Add(p)
	}
	r.ask(ctx, set, 0)
}

// ask asks the peers of partitions, each peer for all partitions for which it is the try-th
// choice. If a peer fails, ask asks the next peers of its partitions.
func (r *round) ask(ctx context.Context, set topology.Set, try int) {
	var asks sync.WaitGroup
	for peer, some := range r.byPeer(set, try) {
		set = set.Minus(some)
		asks.Go(func() {
			if err := r.askOne(ctx, peer, some); err != nil {
				r.node.cfg.Log.Info("a peer did not tell what is hot", "peer", peer.ID, "partitions", some.Len(), "err", err)
				r.ask(ctx, some, try+1)
			}
			r.end(some)
		})
	}
	r.end(set) // nobody is left to ask
	asks.Wait()
}

// byPeer returns for which partitions each node is the try-th choice, counted from 0.
// Partitions without such a node are left out.
func (r *round) byPeer(set topology.Set, try int) map[topology.Node]topology.Set {
	all := map[topology.Node]topology.Set{}
	for p := range set.All() {
		if peers := r.peers(p); try < min(len(peers), warmPeers) {
			of := all[peers[try]]
			of.Add(p)
			all[peers[try]] = of
		}
	}
	return all
}

// end marks partitions as over, so that their replicas can be announced.
func (r *round) end(set topology.Set) {
	r.mu.Lock()
	for p := range set.All() {
		r.of[p].over = true
	}
	r.mu.Unlock()
	r.node.cfg.Replicas.Wake()
}

// waits reports whether a replica of the partition still waits to be warm.
func (r *round) waits(p millrace.Partition) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.of[p].over
}

// askOne asks a node what is hot of a set of partitions, and reads that into the cache. A
// wrong answer can cause no more than reads of those partitions.
func (r *round) askOne(ctx context.Context, peer topology.Node, set topology.Set) error {
	conn, err := r.dial(peer)
	if err != nil {
		return err
	}
	defer conn.Close()
	req := &nodev1.HotRequest{MaxBytes: maxHotBytes}
	for p := range set.All() {
		req.Partitions = append(req.Partitions, int32(p))
	}
	asked, cancel := context.WithTimeout(ctx, min(askFor, r.within))
	defer cancel()
	resp, err := conn.Hot(asked, req)
	if err != nil {
		return err
	}
	runs := make([][]hotKey, len(resp.Timelines))
	for i, run := range resp.Timelines {
		if runs[i], err = readHot(nil, run, set); err != nil {
			return err
		}
		for _, k := range runs[i] {
			r.of[k.partition].told.Add(1)
		}
	}
	for i, keys := range runs {
		run := resp.Timelines[i]
		for len(keys) > 0 && ctx.Err() == nil && !r.room.Full(millrace.ContentType(run.Type), run.Empty) {
			keys = r.slice(ctx, keys)
		}
	}
	return nil
}

// slice brings the first ones of keys into the cache for about warmSlice, and returns the
// rest. If the node answered a question meanwhile, it then rests for as long as it worked.
func (r *round) slice(ctx context.Context, keys []hotKey) []hotKey {
	select {
	case r.reading <- struct{}{}:
	case <-ctx.Done():
		return keys
	}
	n := r.node
	last, began := n.cfg.Newest(), time.Now()
	read := n.cfg.Lookup.Warming(r.room)
	for len(keys) > 0 && time.Since(began) < warmSlice {
		k := keys[0]
		keys = keys[1:]
		if r.waits(k.partition) && read.Warm(k.partition, k.Timeline) {
			r.of[k.partition].read.Add(1)
		}
	}
	read.Release()
	<-r.reading
	if n.cfg.Newest() != last {
		_ = wait.For(ctx, time.Since(began)) // askOne looks at ctx
	}
	return keys
}
