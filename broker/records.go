package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/schemas"
)

// maxSchemas bounds the cache of schemas. A cluster has dozens; beyond the
// bound they are fetched again each time.
const maxSchemas = 10_000

// records turns bodies into JSON objects by the schemas they were written
// under, which it fetches from the nodes that returned the bodies.
type records struct {
	conns *conns

	mu struct {
		sync.RWMutex
		known  map[millrace.Fingerprint]*schemas.Schema
		fields map[string]bool // of records, by these schemas
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
	s, _, err := r.ask(ctx, f, fp, from)
	return s, err
}

// ask fetches a schema, and the fingerprints of all that the node knows, from
// a node or else from any other.
func (r *records) ask(ctx context.Context, f *fanout, fp millrace.Fingerprint, from millrace.NodeID) (*schemas.Schema, []uint64, error) {
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
		var known []uint64
		if s, known, err = r.fetch(ctx, n, fp); err == nil {
			r.keep(s)
			return s, known, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Detail: fmt.Sprintf("no node could tell schema %s: %v", fp, err), WayOut: "try again after a pause"}
}

func (r *records) fetch(ctx context.Context, n cluster.Node, fp millrace.Fingerprint) (s *schemas.Schema, known []uint64, err error) {
	node, err := r.conns.get(n)
	if err != nil {
		return nil, nil, err
	}
	resp, err := node.GetSchema(ctx, &nodev1.GetSchemaRequest{Fingerprint: uint64(fp)})
	if err != nil {
		return nil, nil, err
	}
	s, err = schemas.Parse([]byte(resp.GetJson()))
	if err != nil {
		return nil, nil, fmt.Errorf("node %s: %w", n.ID, err)
	}
	if s.Fingerprint() != fp {
		return nil, nil, fmt.Errorf("node %s answered schema %s for %s", n.ID, s.Fingerprint(), fp)
	}
	return s, resp.GetKnown(), nil
}

// checkFields refuses a field that no schema has. It looks at the schemas that
// it has met first, and asks for those of the whole cluster only when none of
// them has the field: that some records go without is no fault.
func (r *records) checkFields(ctx context.Context, f *fanout, entries []entry) error {
	if len(f.q.fields) == 0 || len(entries) == 0 {
		return nil
	}
	if r.unknown(f.q.fields) < 0 {
		return nil
	}
	e := &entries[0]
	_, known, err := r.ask(ctx, f, millrace.Fingerprint(e.item.GetSchema()), e.from.node)
	if err != nil || len(known) == 0 || len(known) > maxSchemas {
		return nil // whether the field exists is not known
	}
	for _, fp := range known {
		if _, err := r.schema(ctx, f, millrace.Fingerprint(fp), e.from.node); err != nil {
			return nil
		}
	}
	wrong := r.unknown(f.q.fields)
	if wrong < 0 {
		return nil
	}
	name := f.q.fields[wrong]
	r.mu.RLock()
	defer r.mu.RUnlock()
	return &millrace.Error{
		Reason: millrace.ReasonUnknown, Field: fmt.Sprintf("fields[%d]", wrong), Detail: fmt.Sprintf("no schema has a field %.100q", name),
		WayOut: hint.Nearest(name, slices.Sorted(maps.Keys(r.mu.fields))),
	}
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
// so far; -1 if all are.
func (r *records) unknown(names []string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.IndexFunc(names, func(name string) bool { return !r.mu.fields[name] })
}
