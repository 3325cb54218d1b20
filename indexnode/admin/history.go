package admin

import (
	"context"
	"slices"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/schemas"
)

// ReadHistory implements nodev1.AdminServiceServer.
func (s *Server) ReadHistory(req *nodev1.ReadHistoryRequest, stream nodev1.AdminService_ReadHistoryServer) error {
	return rpcerr.Status(s.readHistory(req, stream))
}

func (s *Server) readHistory(req *nodev1.ReadHistoryRequest, stream nodev1.AdminService_ReadHistoryServer) error {
	if err := checkEntity(req.Entity); err != nil {
		return err
	}
	ctx, done, err := s.reading(stream.Context())
	if err != nil {
		return err
	}
	defer done()
	ctx, heard, end := s.hearing(ctx)
	defer end()
	span, err := s.tellHistory(ctx, req, stream, heard)
	if err != nil {
		return heardOf(ctx, err)
	}
	return stream.Send(&nodev1.ReadHistoryResponse{First: int64(span.From.Next), End: int64(span.To)})
}

// tellHistory sends the entries of the log that are asked for, and returns the offsets that
// it looked through. It calls heard each time that Kafka sends something.
func (s *Server) tellHistory(ctx context.Context, req *nodev1.ReadHistoryRequest, stream nodev1.AdminService_ReadHistoryServer, heard func()) (streams.Span, error) {
	tp := kafka.TopicPartition{Stream: kafka.Timeline, Partition: partition.Of(millrace.Entity(req.Entity))}
	span, err := s.span(ctx, tp, millrace.Time(req.SinceMs))
	if err != nil {
		return span, err
	}
	cfg := streams.TailsConfig{Brokers: s.cfg.Brokers, Topics: s.cfg.Topics, Log: s.cfg.Log}
	return span, streams.ReadTails(ctx, cfg, map[kafka.TopicPartition]streams.Span{tp: span}, func(f streams.Fetched) error {
		if f.Err != nil {
			return f.Err
		}
		heard()
		return s.tellEntries(req, f.Records, stream)
	})
}

// span returns the offsets that the log has of a partition from a time on.
func (s *Server) span(ctx context.Context, tp kafka.TopicPartition, since millrace.Time) (span streams.Span, err error) {
	c, err := streams.NewConsumer(streams.Config{Brokers: s.cfg.Brokers, Topics: s.cfg.Topics, Log: s.cfg.Log})
	if err != nil {
		return span, err
	}
	defer c.Close()
	begin, err := c.OffsetsSince(ctx, since, tp)
	if err != nil {
		return span, err
	}
	end, err := c.EndOffsets(ctx, tp)
	return streams.Span{From: kafka.Position{Next: begin[tp], Epoch: -1}, To: max(begin[tp], end[tp])}, err // -1: the leader epoch is not known
}

// tellEntries sends those of records that are asked for. Records that ingest refuses are sent
// whatever type is asked for.
func (s *Server) tellEntries(req *nodev1.ReadHistoryRequest, records []streams.Record, stream nodev1.AdminService_ReadHistoryServer) error {
	var all []*nodev1.LogEntry
	size := 0
	for i := range records {
		r := &records[i]
		if string(r.Key) != req.Entity || r.Time < millrace.Time(req.SinceMs) {
			continue
		}
		e := s.entry(r)
		if req.Type != "" && e.Record.Type != req.Type && e.Refused == "" || req.Id != "" && e.Record.Id != req.Id {
			continue
		}
		all, size = append(all, e), size+len(e.Record.Json)
		if size >= sentBytes {
			if err := stream.Send(&nodev1.ReadHistoryResponse{Entries: all}); err != nil {
				return err
			}
			all, size = nil, 0
		}
	}
	if len(all) == 0 {
		return nil
	}
	return stream.Send(&nodev1.ReadHistoryResponse{Entries: all})
}

// entry returns a record of the log as a message, with the reason if ingest refuses it.
func (s *Server) entry(r *streams.Record) *nodev1.LogEntry {
	e := &nodev1.LogEntry{Offset: int64(r.Offset), LoggedMs: int64(r.Time), Source: string(r.Source), Record: &nodev1.TimelineRecord{}}
	known := s.cfg.Schemas.Snapshot()
	err := kafka.CheckCRC(r.CRC, r.Value)
	var framed schemas.Framed
	if err == nil {
		framed, err = schemas.Unframe(r.Value)
	}
	if err != nil {
		e.Refused = err.Error()
		return e
	}
	writer := known.ByFingerprint(framed.Fingerprint)
	if writer == nil {
		e.Refused = "its schema " + framed.Fingerprint.String() + " is not known"
		return e
	}
	env, err := writer.Envelope(framed.Body)
	if err != nil {
		e.Refused = err.Error()
		return e
	}
	if to := millrace.Entity(r.Key); env.Entity != to && !slices.Contains(env.About, to) {
		e.Refused = "the entity of its timeline is neither its own nor in about"
	}
	e.Record = recordOf(known, env.Type, env.Record)
	return e
}
