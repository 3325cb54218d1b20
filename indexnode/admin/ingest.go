package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/rpcerr"
)

// maxPause bounds a pause. A pause that an operator forgets ends by itself.
const maxPause = 24 * time.Hour

// PauseIngest implements nodev1.AdminServiceServer.
func (s *Server) PauseIngest(ctx context.Context, req *nodev1.PauseIngestRequest) (*nodev1.PauseIngestResponse, error) {
	resp, err := s.pauseIngest(ctx, req)
	return resp, rpcerr.Status(err)
}

func (s *Server) pauseIngest(ctx context.Context, req *nodev1.PauseIngestRequest) (*nodev1.PauseIngestResponse, error) {
	lasts := time.Duration(req.ForMs) * time.Millisecond
	if req.ForMs <= 0 || req.ForMs > maxPause.Milliseconds() {
		return nil, millrace.Invalid("for", fmt.Sprintf("a pause of %d ms", req.ForMs), fmt.Sprintf("say how long it lasts, such as 10m, at most %s; it ends by itself then", maxPause))
	}
	now := time.Now()
	was, until := s.cfg.Replicas.Paused(now), now.Add(lasts).Truncate(time.Millisecond)
	answering, _, _ := s.cfg.Replicas.Answering(now)
	resp := &nodev1.PauseIngestResponse{Partitions: int32(answering.Len()), WasUntilMs: millisOf(was), UntilMs: until.UnixMilli()}
	if !req.Apply {
		return resp, nil
	}
	return resp, s.do(s.act(ctx, "pause ingest", "node "+string(s.cfg.Node), pausedText(was), pausedText(until)), func() error {
		s.cfg.Replicas.Pause(until)
		s.cfg.Log.Warn("ingest is paused by an operator, and goes on by itself", "until", until)
		return nil
	})
}

// ResumeIngest implements nodev1.AdminServiceServer.
func (s *Server) ResumeIngest(ctx context.Context, req *nodev1.ResumeIngestRequest) (*nodev1.ResumeIngestResponse, error) {
	was := s.cfg.Replicas.Paused(time.Now())
	resp := &nodev1.ResumeIngestResponse{WasUntilMs: millisOf(was)}
	if !req.Apply {
		return resp, nil
	}
	return resp, rpcerr.Status(s.do(s.act(ctx, "resume ingest", "node "+string(s.cfg.Node), pausedText(was), pausedText(time.Time{})), func() error {
		s.cfg.Replicas.Pause(time.Time{})
		s.cfg.Log.Warn("ingest goes on by an operator's word")
		return nil
	}))
}

func millisOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func pausedText(until time.Time) string {
	if until.IsZero() {
		return "not paused"
	}
	return "paused until " + until.UTC().Format(time.RFC3339Nano)
}
