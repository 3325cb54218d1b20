// Package items makes the items of an answer. It turns the bodies of records, by the
// schemas that they were written under, into protobuf's wire form, and the wire form
// into JSON. It makes no protobuf messages of them on the way.
package items

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// maxSchemaBytes bounds the memory of the schemas that are kept. Index nodes bound those
// that they admit by as much. A schema beyond it is fetched again for each record.
const maxSchemaBytes = registry.MaxBytes

// fieldsLast is how long the field names of all schemas stay fresh. They may be many, so
// within that time no node is asked for them again.
const fieldsLast = time.Second

// Records turns the bodies of records into protobuf Structs by the schemas that they
// were written under. It fetches the schemas from the nodes that returned the bodies,
// and keeps them. It is safe for concurrent use.
type Records struct {
	nodes   func(topology.Node) (fanout.Node, error)
	log     *slog.Logger
	telling singleflight.Group // requests for the fields of all schemas

	mu struct {
		sync.RWMutex
		known map[millrace.Fingerprint]*schemas.Schema
		bytes int             // the memory of known
		met   map[string]bool // the names of the fields of all schemas in known, except schemas of features
	}
	told atomic.Pointer[fieldBook] // never nil
}

// fieldBook holds the fields of all schemas, as a node told them.
type fieldBook struct {
	at     time.Time
	sum    uint64 // a checksum of the names, by which a node sees whether they have changed; 0: none
	names  map[string]bool
	hints  *hint.Index
	closed bool // names has all fields; false: they are too many to tell, or the node does not tell them
}

// New returns a Records that asks nodes for the schemas that it does not know.
func New(nodes func(topology.Node) (fanout.Node, error), log *slog.Logger) *Records {
	r := &Records{nodes: nodes, log: log}
	r.mu.known, r.mu.met = map[millrace.Fingerprint]*schemas.Schema{}, map[string]bool{}
	r.told.Store(&fieldBook{hints: hint.NewIndex(nil)})
	return r
}

// record appends the body of e to dst as the wire form of a Struct. It has the fields
// that are to be shown, with values as [schemas.Schema.JSONValue] has them.
func (r *Records) record(ctx context.Context, dst []byte, fields *Fields, f *fanout.Asking, e *fanout.Entry) ([]byte, error) {
	s, err := r.schema(ctx, f, millrace.Fingerprint(e.Item.GetSchema()), e.From.Node)
	if err != nil {
		return nil, err
	}
	record, err := s.AppendStruct(dst, e.Item.GetBody(), fields.of(s))
	if err != nil {
		return nil, fmt.Errorf("record %q of %s: %w", e.ID, e.Timeline, err)
	}
	return record, nil
}

// Fields says which fields of records an answer shows. It is of one request, and not
// safe for concurrent use.
type Fields struct {
	Names    []string                              // empty: all
	Private  bool                                  // callers must not learn what the feed drops, so hints to a wrong name come only from the records that it shows
	selected map[*schemas.Schema]schemas.Selection // the Names of each schema met so far
}

// of returns which fields of a schema's records the items carry; nil: all.
func (w *Fields) of(s *schemas.Schema) schemas.Selection {
	if len(w.Names) == 0 {
		return nil
	}
	only, ok := w.selected[s]
	if !ok {
		if w.selected == nil {
			w.selected = map[*schemas.Schema]schemas.Selection{}
		}
		only = s.Select(w.Names)
		w.selected[s] = only
	}
	return only
}

// schema returns a schema from the cache; else from the node that sent a body written
// under it; else from any other node.
func (r *Records) schema(ctx context.Context, f *fanout.Asking, fp millrace.Fingerprint, from millrace.NodeID) (*schemas.Schema, error) {
	if s := r.byFingerprint(fp); s != nil {
		return s, nil
	}
	return r.ask(ctx, f, fp, from, false)
}

// ask fetches a schema from the node from, or else from any other node that is alive.
// With fields it also fetches the names of all fields that the node knows.
func (r *Records) ask(ctx context.Context, f *fanout.Asking, fp millrace.Fingerprint, from millrace.NodeID, fields bool) (*schemas.Schema, error) {
	ctx, cancel := context.WithDeadline(ctx, f.End)
	defer cancel()
	m := f.Map
	first, _ := m.Node(from)
	err := errors.New("no node is there to ask")
	for i, n := range append([]topology.Node{first}, m.Nodes()...) {
		if n.Addr == "" || i > 0 && (n.ID == from || !m.Alive(n.ID)) {
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

func (r *Records) fetch(ctx context.Context, n topology.Node, fp millrace.Fingerprint, fields bool) (*schemas.Schema, error) {
	node, err := r.nodes(n)
	if err != nil {
		return nil, err
	}
	was := r.told.Load()
	resp, err := node.GetSchema(ctx, &nodev1.GetSchemaRequest{Fingerprint: uint64(fp), Fields: fields, FieldsSum: was.sum})
	if err != nil {
		return nil, err
	}
	if fields {
		r.learn(was, resp)
	}
	if s := r.byFingerprint(fp); s != nil {
		return s, nil
	}
	s, err := schemas.Parse([]byte(resp.GetJson()))
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.ID, err)
	}
	if s.Fingerprint() != fp {
		return nil, fmt.Errorf("node %s answered schema %s for %s", n.ID, s.Fingerprint(), fp)
	}
	r.keep(s)
	return s, nil
}

// learn stores what a node says of the fields of all schemas. A node leaves out the
// names if their sum is that of was.
func (r *Records) learn(was *fieldBook, resp *nodev1.GetSchemaResponse) {
	next := &fieldBook{at: time.Now(), sum: resp.GetFieldsSum()}
	names := resp.GetFields()
	switch {
	case next.sum != 0 && next.sum == was.sum:
		next.names, next.hints, next.closed = was.names, was.hints, was.closed
	default:
		next.names, next.hints, next.closed = make(map[string]bool, len(names)), hint.NewIndex(names), len(names) > 0
		for _, name := range names {
			next.names[name] = true
		}
	}
	r.told.Store(next)
}

// CheckFields refuses a field that no schema has, with a [millrace.Error]. A field that
// only some records lack is no fault. It asks a node for the fields of all schemas only
// if it knows of no such field, and at most once in fieldsLast after a node has answered,
// so that wrong names cost no more than look-ups. Without entries it asks no node, and
// refuses only by an answer that is no older than that. f may be nil if there are no
// entries, as before nodes are asked; CheckFields then refuses nothing of a private feed.
func (r *Records) CheckFields(ctx context.Context, f *fanout.Asking, fields *Fields, entries []fanout.Entry) error {
	wrong := r.unknown(fields.Names)
	if wrong < 0 || f == nil && fields.Private {
		return nil
	}
	if !r.told.Load().fresh() {
		if len(entries) == 0 {
			return nil
		}
		e := &entries[0]
		fp, from := millrace.Fingerprint(e.Item.GetSchema()), e.From.Node
		asked := r.telling.DoChan("", func() (any, error) { // one question for all requests that come meanwhile
			return r.ask(context.WithoutCancel(ctx), f, fp, from, true)
		})
		select {
		case <-asked: // perhaps with an error: then nobody knows whether the field exists
		case <-ctx.Done():
			return nil
		}
		wrong = r.unknown(fields.Names)
	}
	if now := r.told.Load(); wrong < 0 || !now.fresh() || !now.closed {
		return nil
	}
	name := fields.Names[wrong]
	return &millrace.Error{
		Reason: millrace.ReasonUnknown, Field: fmt.Sprintf("fields[%d]", wrong), Detail: fmt.Sprintf("no schema has a field %.100q", name),
		WayOut: r.suggest(name, fields, entries),
	}
}

// fresh reports whether a node said this within the last fieldsLast.
func (t *fieldBook) fresh() bool { return time.Since(t.at) < fieldsLast }

// suggest says what a wrong name was probably meant to be. For a private feed it knows
// only the fields of the records that the answer shows.
func (r *Records) suggest(name string, fields *Fields, entries []fanout.Entry) string {
	if !fields.Private {
		return r.told.Load().hints.Nearest(name)
	}
	shown := map[string]bool{}
	for i := range entries {
		s := r.byFingerprint(millrace.Fingerprint(entries[i].Item.GetSchema()))
		if s == nil || len(shown) > maxNamed {
			continue
		}
		for _, field := range s.Fields() {
			shown[field] = true
		}
	}
	return hint.Nearest(name, slices.Sorted(maps.Keys(shown)))
}

// maxNamed bounds among how many fields of a private feed's records suggest looks for a
// name: beyond it, further schemas are left out.
const maxNamed = 1000

// byFingerprint returns a schema that is kept, or nil.
func (r *Records) byFingerprint(fp millrace.Fingerprint) *schemas.Schema {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.known[fp]
}

// keep keeps a schema, unless all together would then exceed maxSchemaBytes.
func (r *Records) keep(s *schemas.Schema) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.known[s.Fingerprint()] != nil || r.mu.bytes+s.Bytes() > maxSchemaBytes {
		return
	}
	r.mu.bytes += s.Bytes()
	r.mu.known[s.Fingerprint()] = s
	if s.Features() {
		return
	}
	for _, name := range s.Fields() {
		r.mu.met[name] = true
	}
}

// unknown returns the index of the first name that no known schema has as a field; -1 if
// there is none.
func (r *Records) unknown(names []string) int {
	if len(names) == 0 {
		return -1
	}
	told := r.told.Load()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.IndexFunc(names, func(name string) bool { return !r.mu.met[name] && !told.names[name] })
}
