package broker

import (
	"context"
	"fmt"
	"sync"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster"
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
		known map[millrace.Fingerprint]*schemas.Schema
	}
}

func newRecords(c *conns) *records {
	r := &records{conns: c}
	r.mu.known = map[millrace.Fingerprint]*schemas.Schema{}
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
	ctx, cancel := context.WithDeadline(ctx, f.end)
	defer cancel()
	m := f.m
	first, _ := m.Node(from)
	var err error
	for _, n := range append([]cluster.Node{first}, m.Nodes()...) {
		if n.Addr == "" || !m.Alive(n.ID) && n.ID != from {
			continue
		}
		if s, err = r.fetch(ctx, n, fp); err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.mu.known) < maxSchemas {
				r.mu.known[fp] = s
			}
			return s, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Detail: fmt.Sprintf("no node could tell schema %s: %v", fp, err), WayOut: "try again after a pause"}
}

func (r *records) fetch(ctx context.Context, n cluster.Node, fp millrace.Fingerprint) (*schemas.Schema, error) {
	node, err := r.conns.get(n)
	if err != nil {
		return nil, err
	}
	resp, err := node.GetSchema(ctx, &nodev1.GetSchemaRequest{Fingerprint: uint64(fp)})
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
	return s, nil
}
