package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

const (
	defaultLimit = 100    // records of a timeline, if the request gives no limit
	maxLimit     = 10_000 // the largest limit of a request
	// maxReadBytes bounds the bytes of records that are read from the store for one timeline.
	maxReadBytes = 64 << 20
	// sentBytes is how many bytes a message has before it is sent.
	sentBytes = 256 << 10
)

// ReadTimeline implements nodev1.AdminServiceServer.
func (s *Server) ReadTimeline(req *nodev1.ReadTimelineRequest, stream nodev1.AdminService_ReadTimelineServer) error {
	return rpcerr.Status(s.readTimeline(req, stream))
}

func (s *Server) readTimeline(req *nodev1.ReadTimelineRequest, stream nodev1.AdminService_ReadTimelineServer) error {
	if err := checkEntity(req.Entity); err != nil {
		return err
	}
	if req.Limit < 0 || req.Limit > maxLimit {
		return millrace.Invalid("limit", fmt.Sprintf("%d records of a timeline", req.Limit), fmt.Sprintf("give 1 to %d, and narrow the window for what is older", maxLimit))
	}
	if !req.Store && !req.Cache {
		return millrace.Invalid("from", "neither the store nor the cache is to be read", "say store, cache or both")
	}
	if req.ToMs != 0 && req.FromMs >= req.ToMs {
		return millrace.Invalid("until", fmt.Sprintf("there is no time from %s to %s", millrace.Time(req.FromMs), millrace.Time(req.ToMs)), "let the window's end come after its beginning")
	}
	types, err := s.types(req.Type)
	if err != nil {
		return err
	}
	ctx, done, err := s.reading(stream.Context())
	if err != nil {
		return err
	}
	defer done()
	e := millrace.Entity(req.Entity)
	p := partition.Of(e)
	for i, t := range types {
		found, at, err := s.lookInto(p, millrace.Timeline{Entity: e, Type: t}, req)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := stream.Send(&nodev1.ReadTimelineResponse{At: at}); err != nil {
				return err
			}
		}
		if err := sendRecords(stream, s.messagesOf(found.records, t)); err != nil {
			return err
		}
		if err := stream.Send(&nodev1.ReadTimelineResponse{Cached: found.cached}); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if len(types) == 0 {
		return stream.Send(&nodev1.ReadTimelineResponse{At: s.replicaAt(p)})
	}
	return nil
}

// found is a timeline as the store and the cache have it at one moment.
type found struct {
	records []foundRecord          // newest first
	cached  *nodev1.CachedTimeline // what the cache has, and whether more records are left out
}

type foundRecord struct {
	millrace.Record
	inStore, inCache bool
}

// replicaAt returns the state of a replica and the offsets that it has applied.
func (s *Server) replicaAt(p millrace.Partition) *nodev1.ReplicaAt {
	r := s.cfg.Replicas.Of(p)
	at := r.Applied()
	return &nodev1.ReplicaAt{Partition: int32(p), State: r.State().String(), Content: int64(at[kafka.Timeline]), Features: int64(at[kafka.Features])}
}

// lookInto reads a timeline from the store, the cache or both, as req says. It holds the
// replica's lock for reading, so that store and cache agree. at is the state of the replica
// then.
func (s *Server) lookInto(p millrace.Partition, t millrace.Timeline, req *nodev1.ReadTimelineRequest) (f found, at *nodev1.ReplicaAt, err error) {
	r, err := s.readable(p)
	if err != nil {
		return f, nil, err
	}
	defer r.RUnlock()
	at = s.replicaAt(p)
	f.cached = &nodev1.CachedTimeline{Type: string(t.Type)}
	from, to := millrace.Time(req.FromMs), millrace.Time(req.ToMs)
	if to == 0 {
		to = millrace.MaxTime + 1
	}
	limit := cmp.Or(int(req.Limit), defaultLimit)
	if req.Store {
		stored, err := s.stored(p, t, from, to, limit)
		if err != nil {
			return f, nil, err
		}
		if len(stored) > limit {
			stored, f.cached.More = stored[:limit], true
		}
		for _, x := range stored {
			f.records = append(f.records, foundRecord{Record: x, inStore: true})
		}
	}
	if req.Cache {
		err = s.addCached(&f, t, from, to, limit)
	}
	return f, at, err
}

// stored returns the records of a timeline in the store with times from from on and before
// to, newest first. If there are more than limit, it returns at least one more than limit, so
// that the caller knows. The error says that they have more than maxReadBytes.
func (s *Server) stored(p millrace.Partition, t millrace.Timeline, from, to millrace.Time, limit int) (in []millrace.Record, err error) {
	read := 0
	grant := func(n int) error {
		if read += n; read > maxReadBytes {
			return &millrace.Error{
				Reason: millrace.ReasonTooLarge, Field: "since", Detail: fmt.Sprintf("%s has more than %d bytes of records in the window", t, maxReadBytes), WayOut: "narrow the window",
			}
		}
		return nil
	}
	if to <= millrace.MaxTime {
		return s.cfg.Store.ReadGranted(nil, p, t, from, to, grant)
	}
	newest := store.Newest{Grant: grant}
	if err := s.cfg.Store.ReadNewestInto(&newest, p, t, limit+1); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(newest.Records, func(r millrace.Record) bool { return r.Time < from }), nil
}

// addCached adds to f the records that the cache has of a timeline, limit at most. It marks
// those that f has from the store already.
func (s *Server) addCached(f *found, t millrace.Timeline, from, to millrace.Time, limit int) error {
	reader := s.cfg.Cache.Reader()
	defer reader.Leave()
	tl := reader.Peek(t)
	if tl == nil {
		return nil
	}
	f.cached.Cached, f.cached.FromMs = true, int64(max(tl.From(), millrace.MinTime))
	var all []millrace.Record
	for ; tl != nil; tl = tl.Older() {
		for _, rows := range tl.Append(nil) {
			records, err := s.rowsOf(rows, from, to)
			if err != nil {
				return fmt.Errorf("admin: the cache's %s: %w", t, err)
			}
			all = append(all, records...)
		}
	}
	slices.SortFunc(all, newestFirst)
	if len(all) > limit {
		all, f.cached.More = all[:limit], true
	}
	inStore := len(f.records)
	for _, x := range all {
		i := slices.IndexFunc(f.records[:inStore], func(r foundRecord) bool {
			return r.ID == x.ID && r.Version == x.Version && r.Schema == x.Schema && bytes.Equal(r.Body, x.Body)
		})
		if i >= 0 {
			f.records[i].inCache = true
		} else {
			f.records = append(f.records, foundRecord{Record: x, inCache: true})
		}
	}
	slices.SortStableFunc(f.records, func(a, b foundRecord) int { return newestFirst(a.Record, b.Record) })
	return nil
}

func newestFirst(a, b millrace.Record) int {
	return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.ID, b.ID))
}

// rowsOf returns the records of rows of the cache that are within from and to. Rows
// have columns but no envelope, so it takes ids, times and versions from their bodies, as
// ingest does.
func (s *Server) rowsOf(rows column.Packed, from, to millrace.Time) (all []millrace.Record, err error) {
	known := s.cfg.Schemas.Snapshot()
	body, schema := rows.Layout().Index(schemas.BodyColumn), rows.Layout().Index(schemas.SchemaColumn)
	for i := rows.FirstAt(int64(from)); i < rows.FirstAt(int64(to)); i++ {
		fp := millrace.Fingerprint(rows.Word(schema, i))
		writer := known.ByFingerprint(fp)
		if writer == nil {
			return nil, fmt.Errorf("a row has the unknown schema %s", fp)
		}
		e, err := writer.Envelope(bytes.Clone(rows.BytesAt(body, i)))
		if err != nil {
			return nil, err
		}
		all = append(all, e.Record)
	}
	return all, nil
}

// messagesOf returns records as messages.
func (s *Server) messagesOf(records []foundRecord, t millrace.ContentType) []*nodev1.TimelineRecord {
	known := s.cfg.Schemas.Snapshot()
	out := make([]*nodev1.TimelineRecord, len(records))
	for i, r := range records {
		out[i] = recordOf(known, t, r.Record)
		out[i].InStore, out[i].InCache = r.inStore, r.inCache
	}
	return out
}

// recordOf returns a record as a message. It has no JSON if the schema is not known or the
// body cannot be read.
func recordOf(known *registry.Snapshot, t millrace.ContentType, r millrace.Record) *nodev1.TimelineRecord {
	m := &nodev1.TimelineRecord{
		Type: string(t), Id: string(r.ID), TimeMs: int64(r.Time), Version: r.Version, Object: cmp.Or(string(r.Object), string(r.ID)), Deleted: r.Deleted, Schema: uint64(r.Schema),
	}
	if writer := known.ByFingerprint(r.Schema); writer != nil {
		if v, err := writer.JSONValue(r.Body); err == nil {
			m.Json, _ = json.Marshal(v) // a body that JSON cannot represent is left out
		}
	}
	return m
}

// sendRecords sends records in messages of about sentBytes.
func sendRecords(stream nodev1.AdminService_ReadTimelineServer, all []*nodev1.TimelineRecord) error {
	for len(all) > 0 {
		n, size := 0, 0
		for ; n < len(all) && size < sentBytes; n++ {
			size += len(all[n].Json) + len(all[n].Id)
		}
		if err := stream.Send(&nodev1.ReadTimelineResponse{Records: all[:n]}); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}
