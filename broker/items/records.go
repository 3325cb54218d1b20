// Package items makes the items of an answer: bodies of records, by the schemas that
// they were written under, to protobuf's wire form, and that to JSON. Nowhere on the
// way are they messages.
package items

import (
	"context"
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

// maxSchemaBytes bounds the schemas that are kept, as index nodes bound all that
// they admit. Beyond it they are fetched again each time.
const maxSchemaBytes = registry.MaxBytes

// fieldsLast is how long a node is not asked again for the fields of all
// schemas, which may be many.
const fieldsLast = time.Second

// Records turns bodies into JSON objects by the schemas they were written
// under, which it fetches from the nodes that returned the bodies.
type Records struct {
	nodes   func(topology.Node) (fanout.Node, error)
	log     *slog.Logger
	telling singleflight.Group // of the fields of all schemas

	mu struct {
		sync.RWMutex
		known map[millrace.Fingerprint]*schemas.Schema
		bytes int             // of known
		met   map[string]bool // fields of records, by the schemas known
	}
	told atomic.Pointer[fieldBook] // never nil
}

// fieldBook is what a node told of the fields of all schemas.
type fieldBook struct {
	at     time.Time
	sum    uint64 // of the names, by which a node tells whether they are others now
	names  map[string]bool
	hints  *hint.Index
	closed bool // there are no others; else there are too many to tell, or the node does not
}

// New returns one that asks nodes for the schemas that it does not know.
func New(nodes func(topology.Node) (fanout.Node, error), log *slog.Logger) *Records {
	r := &Records{nodes: nodes, log: log}
	r.mu.known, r.mu.met = map[millrace.Fingerprint]*schemas.Schema{}, map[string]bool{}
	r.told.Store(&fieldBook{hints: hint.NewIndex(nil)})
	return r
}

// record appends to dst a body as protobuf writes a Struct: a JSON object, as
// [schemas.Schema.JSONValue] says, of the fields that are to be shown.
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

// Fields is which fields of records an answer shows.
type Fields struct {
	Names    []string                              // empty: all
	Private  bool                                  // a wrong name is held against what the answer shows, and nothing else
	selected map[*schemas.Schema]schemas.Selection // of each schema met
}

// of returns the fields of a schema's records that the items carry.
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

// schema returns a schema, from the cache or from the node that sent a body
// written under it, or else from any other.
func (r *Records) schema(ctx context.Context, f *fanout.Asking, fp millrace.Fingerprint, from millrace.NodeID) (*schemas.Schema, error) {
	if s := r.byFingerprint(fp); s != nil {
		return s, nil
	}
	return r.ask(ctx, f, fp, from, false)
}

// ask fetches a schema from a node or else from any other, and with it, if it
// shall, the names of all fields that the node knows.
func (r *Records) ask(ctx context.Context, f *fanout.Asking, fp millrace.Fingerprint, from millrace.NodeID, fields bool) (*schemas.Schema, error) {
	ctx, cancel := context.WithDeadline(ctx, f.End)
	defer cancel()
	m := f.Map
	first, _ := m.Node(from)
	var err error
	for _, n := range append([]topology.Node{first}, m.Nodes()...) {
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

// learn takes over what a node says of the fields of all schemas. The names come
// only when they are others than before, or from a node that has no sums.
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

// CheckFields refuses a field that no schema has: that some records go without
// is no fault. It asks a node for the fields of all schemas only when none that
// it knows is the one, and once in so long, so that wrong names cost no more
// than look-ups. Without entries, as before nodes are asked, it goes by what is
// known.
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
		asked := r.telling.DoChan("", func() (any, error) { // one for all that come meanwhile
			return r.ask(context.WithoutCancel(ctx), f, fp, from, true)
		})
		select {
		case <-asked: // or in vain: then whether the field exists is not known
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

// fresh reports whether this is what a node said a moment ago.
func (t *fieldBook) fresh() bool { return time.Since(t.at) < fieldsLast }

// suggest says what a wrong name was probably meant to be: of a private feed
// among the fields of the records that it shows.
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

// maxNamed is among how many fields of a private feed's records a name is
// looked for: those of the first schemas.
const maxNamed = 1000

// byFingerprint returns a schema that is kept, or nil.
func (r *Records) byFingerprint(fp millrace.Fingerprint) *schemas.Schema {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.mu.known[fp]
}

// keep keeps a schema, up to the bound.
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

// unknown returns the place of the first name that is a field of no schema that
// is known of, -1 if there is none.
func (r *Records) unknown(names []string) int {
	if len(names) == 0 {
		return -1
	}
	told := r.told.Load()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.IndexFunc(names, func(name string) bool { return !r.mu.met[name] && !told.names[name] })
}
