package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
)

// ReadState implements nodev1.AdminServiceServer.
func (s *Server) ReadState(req *nodev1.ReadStateRequest, stream nodev1.AdminService_ReadStateServer) error {
	return rpcerr.Status(s.readState(req, stream))
}

func (s *Server) readState(req *nodev1.ReadStateRequest, stream nodev1.AdminService_ReadStateServer) error {
	if len(req.Type) > millrace.MaxTypeBytes {
		return millrace.Invalid("type", fmt.Sprintf("%.70q has %d bytes; a content type has %d at most", req.Type, len(req.Type), millrace.MaxTypeBytes), "name a content type, or none for all")
	}
	asked := slices.Collect(partition.All())
	if req.Partition != nil {
		p, err := partitionOf(*req.Partition)
		if err != nil {
			return err
		}
		asked = []millrace.Partition{p}
	}
	type key struct {
		p millrace.Partition
		t millrace.ContentType
	}
	cached := map[key]cache.Held{}
	for _, h := range s.cfg.Cache.Held() {
		cached[key{h.Partition, h.Type}] = h
	}
	for _, p := range asked {
		if s.cfg.Replicas.Of(p).State() == replica.Absent {
			continue
		}
		m := &nodev1.ReadStateResponse{At: s.replicaAt(p)}
		if c, err := s.cfg.Store.Counts(p); err == nil { // where the store cannot be read, the state of the replica says why
			m.At.Content, m.At.Features, m.Counted = int64(c.Applied.Content), int64(c.Applied.Features), c.Known
			if m.DiskBytes, err = s.cfg.Store.Bytes(p); err != nil {
				return err
			}
			for _, t := range slices.Sorted(maps.Keys(c.Types)) {
				if req.Type != "" && string(t) != req.Type {
					continue
				}
				k, h := c.Types[t], cached[key{p, t}]
				x := &nodev1.TypeState{
					Type: string(t), Records: k.Records, Deleted: k.Deleted, Timelines: k.Timelines, Bytes: k.Bytes, NewestMs: int64(k.Newest),
					Taken: k.Taken, Hidden: k.Hidden, Expired: k.Expired, CachedRecords: int64(h.Records), CachedTimelines: int64(h.Timelines),
				}
				x.InRate, x.OutRate = s.cfg.Rates(p, t)
				m.Types = append(m.Types, x)
			}
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// maxLetterCounts bounds how many pairs of topic and reason are counted apart, since both come
// from headers, which anybody may write. Letters of further pairs are counted together, under
// no topic and no reason.
const maxLetterCounts = 1000

// CountDeadLetters implements nodev1.AdminServiceServer.
func (s *Server) CountDeadLetters(ctx context.Context, req *nodev1.CountDeadLettersRequest) (*nodev1.CountDeadLettersResponse, error) {
	resp, err := s.countDeadLetters(ctx, req)
	return resp, rpcerr.Status(err)
}

func (s *Server) countDeadLetters(ctx context.Context, req *nodev1.CountDeadLettersRequest) (*nodev1.CountDeadLettersResponse, error) {
	ctx, done, err := s.reading(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, heard, end := s.hearing(ctx)
	defer end()
	resp, err := s.lettersBy(ctx, req, heard)
	return resp, heardOf(ctx, err)
}

// lettersBy counts the dead letters by topic and reason. It calls heard for each letter.
func (s *Server) lettersBy(ctx context.Context, req *nodev1.CountDeadLettersRequest, heard func()) (*nodev1.CountDeadLettersResponse, error) {
	log, err := kafka.OpenDeadLetters(ctx, s.cfg.Brokers, s.cfg.Topics.DeadLetters)
	if e := (*millrace.Error)(nil); errors.As(err, &e) && e.Reason == millrace.ReasonUnknown { // there is no topic of dead letters: no partitioner has run yet
		return &nodev1.CountDeadLettersResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	var from millrace.Offset
	if req.From != nil {
		from = min(max(millrace.Offset(*req.From), log.First), log.End)
	} else if from, err = log.Since(ctx, millrace.Time(req.SinceMs)); err != nil {
		return nil, err
	}
	type key struct{ topic, reason string }
	counts := map[key]int64{}
	if err := log.Read(ctx, from, log.End, func(d kafka.DeadLetter) {
		heard()
		k := key{reason: strings.ToValidUTF8(d.Reason, "?")}
		if source, err := kafka.ParseSource([]byte(d.Source)); err == nil {
			k.topic = source.Topic
		}
		if _, known := counts[k]; !known && len(counts) >= maxLetterCounts {
			k = key{}
		}
		counts[k]++
	}); err != nil {
		return nil, err
	}
	resp := &nodev1.CountDeadLettersResponse{Next: int64(log.End)}
	for k, n := range counts {
		resp.Counts = append(resp.Counts, &nodev1.LetterCount{Topic: strings.ToValidUTF8(k.topic, "?"), Reason: k.reason, Letters: n})
	}
	slices.SortFunc(resp.Counts, func(a, b *nodev1.LetterCount) int {
		return strings.Compare(a.Topic+"\x00"+a.Reason, b.Topic+"\x00"+b.Reason)
	})
	return resp, nil
}
