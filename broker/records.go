package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/schemas"
)

// maxSchemas bounds the cache of schemas. A cluster has dozens; beyond the
// bound they are fetched again each time.
const maxSchemas = 10_000

// fieldsLast is how long a node is not asked again for the fields of all
// schemas, which may be many.
const fieldsLast = time.Second

// records turns bodies into JSON objects by the schemas they were written
// under, which it fetches from the nodes that returned the bodies.
type records struct {
	conns   *conns
	telling singleflight.Group // of the fields of all schemas

	mu struct {
		sync.RWMutex
		known  map[millrace.Fingerprint]*schemas.Schema
		fields map[string]bool // of records, by the schemas met
		learnt time.Time       // when a node told them of all schemas
	}
}

func newRecords(c *conns) *records {
	r := &records{conns: c}
	r.mu.known, r.mu.fields = map[millrace.Fingerprint]*schemas.Schema{}, map[string]bool{}
	return r
}

// append appends to dst a body as protobuf writes a Struct: a JSON object, as
// [schemas.Schema.JSONValue] says, of the fields that the question names, or
// all.
func (r *records) append(ctx context.Context, dst []byte, f *fanout, e *entry) ([]byte, error) {
	s, err := r.schema(ctx, f, millrace.Fingerprint(e.item.GetSchema()), e.from.node)
	if err != nil {
		return nil, err
	}
	record, err := s.AppendStruct(dst, e.item.GetBody(), f.q.fields)
	if err != nil {
		return nil, fmt.Errorf("record %q of %s: %w", e.ID, e.Timeline, err)
	}
	return record, nil
}

// schema returns a schema, from the cache or from the node that sent a body
// written under it, or else from any other.
func (r *records) schema(ctx context.Context, f *fanout, fp millrace.Fingerprint, from millrace.NodeID) (*schemas.Schema, error) {
	r.mu.RLock()
	s, ok := r.mu.known[fp]
	r.mu.RUnlock()
	if ok {
		return s, nil
	}
	return r.ask(ctx, f, fp, from, false)
}

// ask fetches a schema from a node or else from any other, and with it, if it
// shall, the names of all fields that the node knows.
func (r *records) ask(ctx context.Context, f *fanout, fp millrace.Fingerprint, from millrace.NodeID, fields bool) (*schemas.Schema, error) {
	ctx, cancel := context.WithDeadline(ctx, f.end)
	defer cancel()
	m := f.m
	first, _ := m.Node(from)
	var err error
	for _, n := range append([]cluster.Node{first}, m.Nodes()...) {
		if n.Addr == "" || !m.Alive(n.ID) && n.ID != from {
			continue
		}
		var s *schemas.Schema
		if s, err = r.fetch(ctx, n, fp, fields); err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Detail: fmt.Sprintf("no node could tell schema %s: %v", fp, err), WayOut: "try again after a pause"}
}

func (r *records) fetch(ctx context.Context, n cluster.Node, fp millrace.Fingerprint, fields bool) (*schemas.Schema, error) {
	node, err := r.conns.get(n)
	if err != nil {
		return nil, err
	}
	resp, err := node.GetSchema(ctx, &nodev1.GetSchemaRequest{Fingerprint: uint64(fp), Fields: fields})
	if err != nil {
		return nil, err
	}
	s, err := schemas.Parse([]byte(resp.GetJson()))
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.ID, err)
	}
	if s.Fingerprint() != fp {
		return nil, fmt.Errorf("node %s answered schema %s for %s", n.ID, s.Fingerprint(), fp)
	}
	r.keep(s)
	if len(resp.GetFields()) > 0 {
		r.learn(resp.GetFields())
	}
	return s, nil
}

// learn takes over the names of the fields of all schemas.
func (r *records) learn(names []string) {
	fields := make(map[string]bool, len(names))
	for _, name := range names {
		fields[name] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.fields, r.mu.learnt = fields, time.Now()
}

// checkFields refuses a field that no schema has: that some records go without
// is no fault. It asks a node for the fields of all schemas only when none that
// it knows is the one, and once in so long.
func (r *records) checkFields(ctx context.Context, f *fanout, entries []entry) error {
	if len(f.q.fields) == 0 || len(entries) == 0 {
		return nil
	}
	wrong, fresh := r.unknown(f.q.fields)
	if wrong < 0 {
		return nil
	}
	if !fresh {
		e := &entries[0]
		fp, from := millrace.Fingerprint(e.item.GetSchema()), e.from.node
		asked := r.telling.DoChan("", func() (any, error) { // one for all that come meanwhile
			return r.ask(context.WithoutCancel(ctx), f, fp, from, true)
		})
		select {
		case <-asked: // or in vain: then whether the field exists is not known
		case <-ctx.Done():
			return nil
		}
		if wrong, fresh = r.unknown(f.q.fields); wrong < 0 || !fresh {
			return nil
		}
	}
	name := f.q.fields[wrong]
	return &millrace.Error{
		Reason: millrace.ReasonUnknown, Field: fmt.Sprintf("fields[%d]", wrong), Detail: fmt.Sprintf("no schema has a field %.100q", name),
		WayOut: hint.Nearest(name, r.nameable(f.q, entries)),
	}
}

// nameable returns the fields that a refusal may name: of a private feed only
// those of the records that it shows.
func (r *records) nameable(q *question, entries []entry) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !q.feed.Private {
		return slices.Sorted(maps.Keys(r.mu.fields))
	}
	shown := map[string]bool{}
	for i := range entries {
		if s := r.mu.known[millrace.Fingerprint(entries[i].item.GetSchema())]; s != nil {
			for _, name := range s.Fields() {
				shown[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(shown))
}

// keep keeps a schema, up to the bound.
func (r *records) keep(s *schemas.Schema) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.known) >= maxSchemas {
		return
	}
	r.mu.known[s.Fingerprint()] = s
	if s.Features() {
		return
	}
	for _, name := range s.Fields() {
		r.mu.fields[name] = true
	}
}

// unknown returns the place of the first name that is a field of no schema met
// so far, -1 if all are; and whether what it knows is of all schemas, as they
// were a moment ago.
func (r *records) unknown(names []string) (wrong int, fresh bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	wrong = slices.IndexFunc(names, func(name string) bool { return !r.mu.fields[name] })
	return wrong, time.Since(r.mu.learnt) < fieldsLast
}
