package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// maxWanted is how many records one call finds or deletes.
const maxWanted = 10_000

// FindRecords implements nodev1.AdminServiceServer.
func (s *Server) FindRecords(req *nodev1.FindRecordsRequest, stream nodev1.AdminService_FindRecordsServer) error {
	return rpcerr.Status(s.findRecords(req, stream))
}

func (s *Server) findRecords(req *nodev1.FindRecordsRequest, stream nodev1.AdminService_FindRecordsServer) error {
	if n := len(req.Wanted); n == 0 || n > maxWanted {
		return millrace.Invalid("id", fmt.Sprintf("%d records are wanted", n), fmt.Sprintf("name 1 to %d", maxWanted))
	}
	ctx, done, err := s.reading(stream.Context())
	if err != nil {
		return err
	}
	defer done()
	types, whole := s.cfg.Store.Types()
	seek := finding{s: s, stream: stream, looked: map[millrace.Partition]bool{}, everywhere: map[millrace.RecordID]bool{}, of: map[millrace.Partition]map[owned]bool{}}
	for _, w := range req.Wanted {
		if err := errors.Join(checkID(w.Id), ctx.Err()); err != nil {
			return err
		}
		if w.Entity == "" {
			seek.everywhere[millrace.RecordID(w.Id)] = true
			continue
		}
		if err := checkEntity(w.Entity); err != nil {
			return err
		}
		e, id := millrace.Entity(w.Entity), millrace.RecordID(w.Id)
		if !whole { // the store does not list all types by name, so the whole partition is looked through
			p := partition.Of(e)
			if seek.of[p] == nil {
				seek.of[p] = map[owned]bool{}
			}
			seek.of[p][owned{e, id}] = true
			continue
		}
		if err := seek.lookIn(e, types, id); err != nil {
			return err
		}
	}
	for p, wanted := range seek.of {
		if err := seek.scan(ctx, p, func(e millrace.Entity, id millrace.RecordID) bool { return wanted[owned{e, id}] }); err != nil {
			return err
		}
	}
	if len(seek.everywhere) > 0 {
		if err := seek.lookEverywhere(ctx); err != nil {
			return err
		}
	}
	if err := seek.send(); err != nil {
		return err
	}
	end := &nodev1.FindRecordsResponse{}
	for _, p := range slices.Sorted(maps.Keys(seek.looked)) {
		end.Partitions = append(end.Partitions, int32(p))
	}
	return stream.Send(end)
}

func checkID(id string) error {
	if id == "" || len(id) > millrace.MaxIDBytes {
		return millrace.Invalid("id", fmt.Sprintf("%.70q has %d bytes; a record's id has 1 to %d", id, len(id), millrace.MaxIDBytes), "name a record, such as post:17")
	}
	return nil
}

// finding is one search for records.
type finding struct {
	s          *Server
	stream     nodev1.AdminService_FindRecordsServer
	everywhere map[millrace.RecordID]bool            // ids that are looked for in all partitions
	of         map[millrace.Partition]map[owned]bool // records that are looked for in all types of one partition
	looked     map[millrace.Partition]bool           // partitions that were looked into: those that are here
	found      []*nodev1.FoundRecord                 // records that were found and not sent yet
}

// owned names a record of an entity, of any type.
type owned struct {
	entity millrace.Entity
	id     millrace.RecordID
}

// lookIn does what lookInto does, and sends what was found so far once it fills a message.
func (f *finding) lookIn(e millrace.Entity, types []millrace.ContentType, id millrace.RecordID) error {
	if err := f.lookInto(e, types, id); err != nil || len(f.found) < sentRecords {
		return err
	}
	return f.send()
}

// sentRecords is how many found records fill a message.
const sentRecords = 100

// lookInto looks for a record in the timelines of an entity, if they are here. It holds the
// replica's lock for reading, so that the store and the cache agree. It sends nothing, since a
// caller that does not read its messages would then hold up the ingest.
func (f *finding) lookInto(e millrace.Entity, types []millrace.ContentType, id millrace.RecordID) error {
	p := partition.Of(e)
	r, err := f.s.readable(p)
	if err != nil {
		return nil // another node has it
	}
	defer r.RUnlock()
	f.looked[p] = true
	for _, t := range types {
		if err := f.look(p, millrace.Timeline{Entity: e, Type: t}, id); err != nil {
			return err
		}
	}
	return nil
}

// look adds a record to f.found if the store or the cache has it in a timeline. The caller
// holds the replica's lock.
func (f *finding) look(p millrace.Partition, t millrace.Timeline, id millrace.RecordID) error {
	x, ok, err := f.s.cfg.Store.Find(p, t, id)
	if err != nil {
		return err
	}
	cached, err := f.s.cachedRecord(t, id)
	if err != nil || !ok && cached == nil {
		return err
	}
	known := f.s.cfg.Schemas.Snapshot()
	if !ok {
		x.Record = *cached
	}
	m := &nodev1.FoundRecord{Partition: int32(p), Entity: string(t.Entity), Record: recordOf(known, t.Type, x.Record)}
	m.Record.InStore, m.Record.InCache = ok && !x.Expired, cached != nil
	if writer := known.ByFingerprint(x.Schema); writer != nil && !x.Deleted {
		if env, err := writer.Envelope(x.Body); err == nil {
			for _, e := range append([]millrace.Entity{env.Entity}, env.About...) {
				m.Timelines = append(m.Timelines, string(e))
			}
		}
	}
	f.found = append(f.found, m)
	return nil
}

// cachedRecord returns the record as the cache has it in a timeline; nil if the cache does
// not have it.
func (s *Server) cachedRecord(t millrace.Timeline, id millrace.RecordID) (*millrace.Record, error) {
	var has found
	has.cached = &nodev1.CachedTimeline{}
	if err := s.addCached(&has, t, millrace.MinTime, millrace.MaxTime+1, int(^uint(0)>>1)); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(has.records, func(r foundRecord) bool { return r.ID == id })
	if i < 0 {
		return nil, nil
	}
	return &has.records[i].Record, nil
}

// lookEverywhere looks for all ids of f.everywhere in one pass over all partitions that are
// here.
func (f *finding) lookEverywhere(ctx context.Context) error {
	for p := range partition.All() {
		if err := f.scan(ctx, p, func(_ millrace.Entity, id millrace.RecordID) bool { return f.everywhere[id] }); err != nil {
			return err
		}
	}
	return nil
}

// scan looks for records in all timelines of a partition, if it is here. It finds their places
// without the replica's lock, and then looks into each place again while it holds that lock.
func (f *finding) scan(ctx context.Context, p millrace.Partition, wanted func(e millrace.Entity, id millrace.RecordID) bool) error {
	r, err := f.s.readable(p)
	if err != nil {
		return nil // another node has it
	}
	r.RUnlock()
	places, err := f.places(ctx, p, wanted)
	if err != nil {
		return err
	}
	f.looked[p] = true
	for _, at := range places {
		if err := f.lookIn(at.timeline.Entity, []millrace.ContentType{at.timeline.Type}, at.id); err != nil {
			return err
		}
	}
	return nil
}

// place says in which timeline a record is.
type place struct {
	timeline millrace.Timeline
	id       millrace.RecordID
}

// places returns the places of the records of a partition that are wanted.
func (f *finding) places(ctx context.Context, p millrace.Partition, wanted func(e millrace.Entity, id millrace.RecordID) bool) (all []place, err error) {
	c, err := f.s.cfg.Store.Contents(p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	n := 0
	for row, err := range c.Rows() {
		if err != nil {
			return nil, err
		}
		if n++; n%10_000 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !row.Features() && wanted(row.Timeline.Entity, row.ID) {
			all = append(all, place{
				millrace.Timeline{Entity: millrace.Entity(strings.Clone(string(row.Timeline.Entity))), Type: millrace.ContentType(strings.Clone(string(row.Timeline.Type)))},
				millrace.RecordID(strings.Clone(string(row.ID))),
			})
		}
	}
	return all, ctx.Err()
}

func (f *finding) send() error {
	if len(f.found) == 0 {
		return nil
	}
	all := f.found
	f.found = nil
	return f.stream.Send(&nodev1.FindRecordsResponse{Found: all})
}

// DeleteRecords implements nodev1.AdminServiceServer.
func (s *Server) DeleteRecords(ctx context.Context, req *nodev1.DeleteRecordsRequest) (*nodev1.DeleteRecordsResponse, error) {
	resp, err := s.deleteRecords(ctx, req)
	return resp, rpcerr.Status(err)
}

func (s *Server) deleteRecords(ctx context.Context, req *nodev1.DeleteRecordsRequest) (*nodev1.DeleteRecordsResponse, error) {
	if n := len(req.Tombstones); n == 0 || n > maxWanted {
		return nil, millrace.Invalid("id", fmt.Sprintf("%d records are to be deleted", n), fmt.Sprintf("name 1 to %d", maxWanted))
	}
	all, err := s.inputs(ctx)
	if err != nil {
		return nil, err
	}
	topic, future, err := all.of(progress.ContentTopic, req.Topic)
	if err != nil {
		return nil, err
	}
	by := s.act(ctx, "", "", "", "").Who
	var bodies [][]byte
	for _, t := range req.Tombstones {
		body, err := encodeTombstone(t, by, future)
		if err != nil {
			return nil, err
		}
		bodies = append(bodies, body)
	}
	resp := &nodev1.DeleteRecordsResponse{Topic: topic, Records: int64(len(bodies))}
	if !req.Apply {
		return resp, nil
	}
	return resp, s.bury(ctx, topic, req.Tombstones, bodies)
}

// bury writes tombstones to a topic, each an act of its own in the audit log. A tombstone is a
// record that hides older versions of the record with its id. bodies are in the order of all.
func (s *Server) bury(ctx context.Context, topic string, all []*nodev1.Tombstone, bodies [][]byte) error {
	acts := make([]audit.Entry, len(all))
	for i, t := range all {
		acts[i] = s.deletion(ctx, t, topic)
	}
	return s.doAll(acts, func() error { return s.publish(ctx, topic, all, bodies) })
}

// encodeTombstone returns the body of a tombstone, after checking it as partitioners do. by is
// who deletes, and future how far in the future its time may be.
func encodeTombstone(t *nodev1.Tombstone, by string, future time.Duration) ([]byte, error) {
	if err := checkID(t.Id); err != nil {
		return nil, err
	}
	if len(t.Entities) == 0 {
		return nil, millrace.Invalid("entity", fmt.Sprintf("no timeline of %.70q is named", t.Id), "name an entity that has it")
	}
	line, err := json.Marshal(map[string]any{
		"tombstone_id": t.Id, "tombstone_entity": t.Entities[0], "tombstone_about": t.Entities[1:], "tombstone_type": t.Type,
		"tombstone_time": t.TimeMs, "tombstone_version": fmt.Sprint(t.Version), "tombstone": true, "tombstone_by": by,
	})
	if err != nil {
		return nil, err
	}
	body, err := schemas.Tombstone().EncodeJSON(line)
	if err == nil {
		_, err = schemas.Tombstone().Accept(body, millrace.TimeOf(time.Now()), future)
	}
	if err != nil {
		return nil, millrace.Invalid("tombstones", fmt.Sprintf("the tombstone of %.70q: %v", t.Id, err), "mend what it says")
	}
	return body, nil
}

// deletion returns the entry of the audit log for a tombstone.
func (s *Server) deletion(ctx context.Context, t *nodev1.Tombstone, topic string) audit.Entry {
	return s.act(ctx, "delete", fmt.Sprintf("record %.600q of type %s in the timelines of %.4000q", t.Id, t.Type, t.Entities), s.before(t),
		fmt.Sprintf("hidden up to version %d, by a tombstone in topic %s", t.Version, topic))
}

// before says, for the audit log, what this node has of a record that a tombstone is for. A
// request may name records that never existed.
func (s *Server) before(t *nodev1.Tombstone) string {
	seek := finding{s: s, looked: map[millrace.Partition]bool{}}
	elsewhere := 0
	for _, e := range t.Entities {
		if err := seek.lookInto(millrace.Entity(e), []millrace.ContentType{millrace.ContentType(t.Type)}, millrace.RecordID(t.Id)); err != nil {
			return "not known: " + err.Error()
		}
		if !seek.looked[partition.Of(millrace.Entity(e))] {
			elsewhere++
		}
	}
	live, newest := 0, int64(0)
	for _, f := range seek.found {
		if f.Record.InCache || f.Record.InStore && !f.Record.Deleted {
			live, newest = live+1, max(newest, f.Record.Version)
		}
	}
	says := "not there"
	if live > 0 {
		says = fmt.Sprintf("there in %d timelines, the newest of version %d", live, newest)
	} else if len(seek.found) > 0 {
		says = "deleted or expired already"
	}
	if elsewhere > 0 {
		says += fmt.Sprintf("; not known of %d timelines, which this node does not have", elsewhere)
	}
	return says
}

// publish writes tombstones to a topic, and their schema to the topic of schemas. It returns
// once Kafka has all of them.
func (s *Server) publish(ctx context.Context, topic string, all []*nodev1.Tombstone, bodies [][]byte) error {
	registry, err := registry.New(nil, nil)
	if err != nil {
		return err
	}
	log, err := schemalog.Open(schemalog.Config{Brokers: s.cfg.Brokers, Topic: s.cfg.Topics.Schemas, Registry: registry, Log: s.cfg.Log})
	if err != nil {
		return err
	}
	defer log.Close()
	if err := log.Publish(ctx, schemas.Tombstone()); err != nil {
		return err
	}
	partitions, err := kafka.Partitions(ctx, s.cfg.Brokers, topic)
	if err != nil {
		return err
	}
	p, err := kafka.NewProducer(s.cfg.Brokers, "", s.cfg.Log)
	if err != nil {
		return err
	}
	defer p.Close()
	for i, t := range all {
		p.Produce(ctx, kafka.Outgoing{
			Topic: topic, Partition: int32(partition.Hash(millrace.Entity(t.Id)) % uint64(partitions)), Key: []byte(t.Id),
			Value: schemas.Frame(schemas.Tombstone().Fingerprint(), bodies[i]),
		})
	}
	return p.Flush(ctx)
}
