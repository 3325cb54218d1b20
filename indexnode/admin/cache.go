package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
)

// DropCache implements nodev1.AdminServiceServer.
func (s *Server) DropCache(ctx context.Context, req *nodev1.DropCacheRequest) (*nodev1.DropCacheResponse, error) {
	resp, err := s.dropCache(ctx, req)
	return resp, rpcerr.Status(err)
}

func (s *Server) dropCache(ctx context.Context, req *nodev1.DropCacheRequest) (*nodev1.DropCacheResponse, error) {
	named := 0
	for _, is := range []bool{req.Entity != "", req.Partition != nil, req.All} {
		if is {
			named++
		}
	}
	if named != 1 {
		return nil, millrace.Invalid("entity", "what is to be dropped is one thing", "name an entity, a partition, or all")
	}
	wanted, on := func([]byte) bool { return true }, "everything"
	switch {
	case req.Entity != "":
		if err := checkEntity(req.Entity); err != nil {
			return nil, err
		}
		wanted, on = func(e []byte) bool { return string(e) == req.Entity }, fmt.Sprintf("entity %q", req.Entity)
	case req.Partition != nil:
		p, err := partitionOf(*req.Partition)
		if err != nil {
			return nil, err
		}
		wanted, on = func(e []byte) bool { return partition.OfBytes(e) == p }, fmt.Sprintf("partition %d", p)
	}
	resp, keys := s.cachedKeys(wanted, !req.All)
	if !req.Apply {
		return resp, nil
	}
	before := fmt.Sprintf("%d timelines, %d known to be empty, features of %d", resp.Timelines, resp.Empty, resp.Features)
	return resp, s.do(s.act(ctx, "drop cache", fmt.Sprintf("%s in the cache of %s", on, s.cfg.Node), before, "nothing"), func() error {
		if req.All {
			s.cfg.Cache.Purge()
			return nil
		}
		for _, t := range keys {
			s.cfg.Cache.Remove(t)
		}
		if req.Partition != nil { // Forget also drops the keys that cachedKeys left out: those that moved within the cache meanwhile, and those whose names the cache does not keep
			return s.cfg.Forget(millrace.Partition(*req.Partition))
		}
		if req.Entity != "" { // drops the keys of the entity that cachedKeys left out
			types, _ := s.cfg.Store.Types()
			for _, t := range slices.Concat(types, []millrace.ContentType{cache.Features, cache.Objects}) { // others read types too
				s.cfg.Cache.Remove(millrace.Timeline{Entity: millrace.Entity(req.Entity), Type: t})
			}
		}
		return nil
	})
}

// cachedKeys counts what the cache has of the entities that are wanted, and if needed also
// returns the keys. It leaves out keys whose names the cache does not keep, and may leave out
// keys that are added or moved while it runs.
func (s *Server) cachedKeys(wanted func([]byte) bool, needed bool) (*nodev1.DropCacheResponse, []millrace.Timeline) {
	var keys []millrace.Timeline
	resp := &nodev1.DropCacheResponse{}
	for h := range s.cfg.Cache.Hot(wanted) {
		for _, t := range h.Keys {
			switch {
			case t.Type == cache.Features || t.Type == cache.Objects:
				resp.Features++
			case h.Empty:
				resp.Empty++
			default:
				resp.Timelines++
			}
		}
		if needed {
			keys = append(keys, h.Keys...)
		}
	}
	return resp, keys
}

func partitionOf(i int32) (millrace.Partition, error) {
	if i < 0 || i >= partition.Count {
		return 0, millrace.Invalid("partition", fmt.Sprintf("there is no partition %d", i), fmt.Sprintf("name one from 0 to %d", partition.Count-1))
	}
	return millrace.Partition(i), nil
}
