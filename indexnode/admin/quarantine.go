package admin

import (
	"context"
	"fmt"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/line"
	"github.com/millrace/millrace/internal/rpcerr"
)

// maxWhy is how many bytes the reason that an operator gives may have.
const maxWhy = 1000

// QuarantinePartition implements nodev1.AdminServiceServer.
func (s *Server) QuarantinePartition(ctx context.Context, req *nodev1.QuarantinePartitionRequest) (*nodev1.QuarantinePartitionResponse, error) {
	resp, err := s.quarantine(ctx, req)
	return resp, rpcerr.Status(err)
}

func (s *Server) quarantine(ctx context.Context, req *nodev1.QuarantinePartitionRequest) (*nodev1.QuarantinePartitionResponse, error) {
	p, err := partitionOf(req.Partition)
	if err != nil {
		return nil, err
	}
	if req.Why == "" || len(req.Why) > maxWhy {
		return nil, millrace.Invalid("why", fmt.Sprintf("the reason has %d bytes", len(req.Why)), fmt.Sprintf("say why, for those who find it, in at most %d", maxWhy))
	}
	if err := line.Check("why", req.Why); err != nil {
		return nil, err
	}
	r := s.cfg.Replicas.Of(p)
	if err := r.MayQuarantine(); err != nil {
		return nil, err
	}
	resp := &nodev1.QuarantinePartitionResponse{At: s.replicaAt(p)}
	if !req.Apply {
		return resp, nil
	}
	act := s.act(ctx, "quarantine", s.partition(p), resp.At.State, "quarantined: "+req.Why)
	return resp, s.do(act, func() error { return s.cfg.Replicas.Quarantine(p, fmt.Sprintf("%s (%s)", req.Why, act.Who)) })
}

func (s *Server) partition(p millrace.Partition) string {
	return fmt.Sprintf("partition %d of %s", p, s.cfg.Node)
}

// ReleasePartition implements nodev1.AdminServiceServer.
func (s *Server) ReleasePartition(ctx context.Context, req *nodev1.ReleasePartitionRequest) (*nodev1.ReleasePartitionResponse, error) {
	resp, err := s.release(ctx, req)
	return resp, rpcerr.Status(err)
}

func (s *Server) release(ctx context.Context, req *nodev1.ReleasePartitionRequest) (*nodev1.ReleasePartitionResponse, error) {
	p, err := partitionOf(req.Partition)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Replicas.MayRelease(p); err != nil {
		return nil, err
	}
	why, _ := s.cfg.Replicas.Of(p).Why()
	resp := &nodev1.ReleasePartitionResponse{At: s.replicaAt(p), Detail: why.Detail}
	if !req.Apply {
		return resp, nil
	}
	return resp, s.do(s.act(ctx, "release", s.partition(p), "quarantined: "+why.Detail, "to be made anew"), func() error { return s.cfg.Replicas.Release(p) })
}
