// Package warm fills the cache for replicas before they are announced, so that the first
// questions find it warm. A node asks other nodes that serve the same partitions which
// timelines their questions find in their caches ([Warmer]), and answers such requests
// itself ([Server]). What questions find in a cache is called hot.
package warm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
)

// maxHotBytes bounds the names of hot timelines in one answer, in bytes. That is room for
// some 350,000 timelines, about as many as the node that asks can read before its time is
// over (warmFor).
const maxHotBytes = 8 << 20

// Config is what a [Server] needs. All of it is required.
type Config struct {
	Node     millrace.NodeID   // this node
	Cache    *cache.Cache      // which the warming fills, and of which others are told what is hot
	Replicas *replica.Replicas // woken when a partition need not wait any longer to be warm
	Lookup   *lookup.Lookup    // reads timelines from the store into the cache
	Memory   *memory.Budget    // what questions share; answers about what is hot take memory of it too
	Peers    []grpc.DialOption // how other nodes are dialled
	// Newest returns the newest question that this node answered; nil before the first.
	Newest func() *nodev1.QueryRequest
	Panics *panics.Teller // counts and logs requests that panicked
	Log    *slog.Logger
}

// Server tells other nodes what is hot in this node's cache.
type Server struct {
	cfg     Config
	telling chan struct{} // has room for one; full while a request is answered
}

// New returns a server.
func New(c Config) *Server { return &Server{cfg: c, telling: make(chan struct{}, 1)} }

// Hot implements nodev1.NodeServiceServer. It answers one request at a time, since each
// goes through the names of the whole cache.
func (s *Server) Hot(ctx context.Context, req *nodev1.HotRequest) (_ *nodev1.HotResponse, err error) {
	defer func() {
		s.cfg.Panics.Tell(err)
		err = rpcerr.Status(err)
	}()
	defer panics.Contain(&err)
	var wanted topology.Set
	for _, p := range req.Partitions {
		if p < 0 || p >= partition.Count {
			return nil, millrace.Invalid("partitions", fmt.Sprintf("%d is no partition", p), fmt.Sprintf("name partitions from 0 to %d", partition.Count-1))
		}
		wanted.Add(millrace.Partition(p))
	}
	room := int64(maxHotBytes)
	if req.MaxBytes > 0 {
		room = min(room, req.MaxBytes)
	}
	if err := s.takeTurn(ctx); err != nil {
		return nil, err
	}
	defer func() { <-s.telling }()
	// Memory is borrowed only now. Else requests that wait for their turn would hold
	// memory that questions need.
	loan := s.cfg.Memory.Borrow()
	defer loan.Return()
	if err := loan.More(2 * room); err != nil { // twice: the response, and its encoding
		return nil, err
	}
	return s.hot(ctx, wanted, room)
}

// turnWithin bounds how long a request waits until the requests before it are answered.
const turnWithin = 5 * time.Second

// takeTurn waits until no other request is answered, for turnWithin at most. The caller
// must receive from telling at the end of its turn.
func (s *Server) takeTurn(ctx context.Context) error {
	late := time.NewTimer(turnWithin)
	defer late.Stop()
	select {
	case s.telling <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-late.C:
		return &millrace.Error{
			Reason: millrace.ReasonOverloaded, Field: "partitions", Detail: fmt.Sprintf("others are told what is hot, for more than %s", turnWithin), WayOut: "ask again",
		}
	}
}

// hot returns the hot timelines of the wanted partitions, the hottest first, in at most
// room bytes of names.
func (s *Server) hot(ctx context.Context, wanted topology.Set, room int64) (*nodev1.HotResponse, error) {
	resp := new(nodev1.HotResponse)
	inside := func(entity []byte) bool { return wanted.Has(partition.OfBytes(entity)) }
	for h := range s.cfg.Cache.Hot(inside) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		runs := map[millrace.ContentType]*nodev1.HotTimelines{}
		for _, t := range h.Keys {
			if room -= int64(partition.EntityHead + len(t.Entity)); room < 0 {
				return resp, nil
			}
			run := runs[t.Type]
			if run == nil {
				run = &nodev1.HotTimelines{Type: string(t.Type), Empty: h.Empty}
				runs[t.Type] = run
				resp.Timelines = append(resp.Timelines, run)
			}
			run.Entities = partition.AppendEntity(run.Entities, partition.Of(t.Entity), t.Entity)
		}
	}
	return resp, nil
}

// hotKey is a timeline that another node says is hot.
type hotKey struct {
	partition millrace.Partition
	millrace.Timeline
}

// readHot appends the keys of a run, which another node sent, to dst. The error says what
// is malformed, or not of a partition that was asked for.
func readHot(dst []hotKey, run *nodev1.HotTimelines, asked topology.Set) ([]hotKey, error) {
	t := millrace.ContentType(run.GetType())
	if len(t) > millrace.MaxTypeBytes || t != cache.Objects && strings.Contains(string(t), string(cache.Objects)) {
		return dst, fmt.Errorf("%.70q is no content type", t)
	}
	for b := run.GetEntities(); len(b) > 0; {
		if len(b) < partition.EntityHead {
			return dst, errors.New("a name is cut off")
		}
		p, size := millrace.Partition(binary.LittleEndian.Uint16(b)), int(binary.LittleEndian.Uint16(b[2:]))
		if b = b[partition.EntityHead:]; size > len(b) || size > millrace.MaxEntityBytes {
			return dst, errors.New("a name is cut off, or too long")
		}
		e := millrace.Entity(b[:size])
		if b = b[size:]; p >= partition.Count || !asked.Has(p) || partition.Of(e) != p {
			return dst, fmt.Errorf("%.70q is not of a partition that was asked for", e)
		}
		dst = append(dst, hotKey{p, millrace.Timeline{Entity: e, Type: t}})
	}
	return dst, nil
}
