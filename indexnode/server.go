package indexnode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/schemas"
)

// maxRequestBytes bounds a query: 20,000 entities of the longest kind.
const maxRequestBytes = 16 << 20

// Query implements nodev1.NodeServiceServer.
func (n *Node) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	resp, err := n.query(ctx, req)
	if err != nil {
		if !rpcerr.Refused(err) && ctx.Err() == nil {
			n.log.Error("query failed", "err", err)
		}
		return nil, rpcerr.Status(err)
	}
	return resp, nil
}

func (n *Node) query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	spec, err := n.spec(req)
	if err != nil {
		return nil, err
	}
	entities, err := splitEntities(req.Entities)
	if err != nil {
		return nil, err
	}
	types := make([]millrace.ContentType, len(req.Types))
	for i, t := range req.Types {
		types[i] = millrace.ContentType(t)
	}
	if len(types) == 0 {
		types = n.store.Types()
	}

	q := query.New(spec)
	defer q.Release()
	resp := &nodev1.QueryResponse{Model: spec.Model.Name(), ModelVersion: spec.Model.Version()}
	for p, keys := range byPartition(entities) {
		a, err := n.queryPartition(ctx, q, &spec, p, keys, types)
		if err != nil {
			return nil, err
		}
		resp.Partitions = append(resp.Partitions, a)
	}
	answer := q.Answer()
	resp.Execution = answer.Execution
	resp.Stages = &nodev1.Stages{
		Candidates:    answer.Stages.Candidates,
		FilteredFalse: answer.Stages.Filtered.False,
		FilteredNull:  answer.Stages.Filtered.Null,
		FilteredError: answer.Stages.Filtered.Error,
		FilteredNan:   answer.Stages.Filtered.NaN,
		Scored:        answer.Stages.Scored,
		Capped:        answer.Stages.Capped,
	}
	resp.Items = make([]*nodev1.Item, len(answer.Items))
	for i := range answer.Items {
		resp.Items[i] = item(&answer.Items[i])
	}
	return resp, nil
}

// resolved is a timeline's rows and what goes with them.
type resolved struct {
	timeline millrace.Timeline
	segment  query.Segment
	features *column.Slab
}

// queryPartition adds a partition's candidates to q. All of its timelines are
// resolved at one applied offset, which the answer tells.
func (n *Node) queryPartition(ctx context.Context, q *query.Query, spec *query.Spec, p millrace.Partition, entities []millrace.Entity, types []millrace.ContentType) (*nodev1.PartitionAnswer, error) {
	part := &n.parts[p]
	a := &nodev1.PartitionAnswer{Partition: int32(p), Timelines: int32(len(entities) * len(types))}
	found, err := n.resolve(part, a, spec, entities, types)
	if errors.Is(err, store.ErrCorrupt) {
		n.log.Error("partition answers nothing", "partition", p, "err", err)
		a.Missing = quarantined.String()
		return a, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range found {
		if err := q.Add(ctx, found[i].timeline, found[i].segment, found[i].features); err != nil {
			return nil, err
		}
	}
	return a, nil
}

func (n *Node) resolve(part *part, a *nodev1.PartitionAnswer, spec *query.Spec, entities []millrace.Entity, types []millrace.ContentType) (found []resolved, err error) {
	part.mu.RLock()
	defer part.mu.RUnlock()
	if a.Missing = partState(part.state.Load()).String(); a.Missing != "" {
		return nil, nil
	}
	a.AppliedContent, a.AppliedFeatures = part.applied[0].Load(), part.applied[1].Load()
	p := millrace.Partition(a.Partition)
	var segments []query.Segment
	for _, e := range entities {
		features, err := n.entityFeatures(p, e)
		if err != nil {
			return nil, err
		}
		for _, t := range types {
			tl := millrace.Timeline{Entity: e, Type: t}
			if segments, err = n.segments(segments[:0], p, tl, spec.From, spec.To); err != nil {
				return nil, err
			}
			for _, s := range segments {
				found = append(found, resolved{tl, s, features})
			}
		}
	}
	return found, nil
}

func item(it *query.Item) *nodev1.Item {
	out := &nodev1.Item{
		Score: it.Score, TimeMs: int64(it.Time), Id: string(it.ID), Entity: string(it.Entity), Type: string(it.Type),
		Object: string(it.Object), Schema: uint64(it.Schema), Body: it.Body,
	}
	for i := range it.Also {
		out.Also = append(out.Also, item(&it.Also[i]))
	}
	return out
}

// spec checks a request and turns it into a question.
func (n *Node) spec(req *nodev1.QueryRequest) (query.Spec, error) {
	s := query.Spec{
		From: millrace.Time(req.FromMs), To: millrace.Time(req.ToMs), AsOf: millrace.Time(req.AsOfMs),
		Limit: int(req.Limit), Cap: int(req.CapPerEntity), DistinctObjects: req.DistinctObjects,
	}
	if s.Limit < 1 || s.Limit > maxLimit {
		return s, invalid("limit", fmt.Sprintf("%d is not within 1 to %d", req.Limit, maxLimit), "")
	}
	var err error
	if s.Viewer, err = viewer(req.Viewer); err != nil {
		return s, err
	}
	if s.Model, err = n.models.Get(req.Model); err != nil {
		return s, err
	}
	if req.Filter != "" {
		if s.Filter, err = n.filters.get(req.Filter, n.schemas.Snapshot()); err != nil {
			return s, err
		}
	}
	if len(req.Exclude) > 0 {
		s.Exclude = make(map[uint64]struct{}, len(req.Exclude))
		for _, h := range req.Exclude {
			s.Exclude[h] = struct{}{}
		}
	}
	return s, nil
}

const maxLimit = 1000

func invalid(field, detail, wayOut string) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut}
}

// viewer reads a viewer off the wire.
func viewer(v *feedv1.Viewer) (*millrace.Viewer, error) {
	out := &millrace.Viewer{ID: v.GetId(), Features: v.GetFeatures()}
	if len(v.GetAttributes()) == 0 {
		return out, nil
	}
	out.Attributes = make(map[string]any, len(v.Attributes))
	for name, value := range v.Attributes {
		x, ok := attribute(value)
		if !ok {
			return nil, invalid("viewer.attributes."+name, "not a string, number, boolean, or list of strings or of numbers", "leave it out or send one of these")
		}
		if x != nil {
			out.Attributes[name] = x
		}
	}
	return out, nil
}

// attribute returns a value as package millrace has it; null is nil.
func attribute(v *structpb.Value) (any, bool) {
	switch k := v.GetKind().(type) {
	case nil, *structpb.Value_NullValue:
		return nil, true
	case *structpb.Value_StringValue:
		return k.StringValue, true
	case *structpb.Value_NumberValue:
		return k.NumberValue, true
	case *structpb.Value_BoolValue:
		return k.BoolValue, true
	case *structpb.Value_ListValue:
		return list(k.ListValue.GetValues())
	}
	return nil, false
}

func list(values []*structpb.Value) (any, bool) {
	var texts []string
	var numbers []float64
	for _, v := range values {
		switch k := v.GetKind().(type) {
		case *structpb.Value_StringValue:
			texts = append(texts, k.StringValue)
		case *structpb.Value_NumberValue:
			numbers = append(numbers, k.NumberValue)
		}
	}
	switch len(values) {
	case len(texts):
		return texts, true
	case len(numbers):
		return numbers, true
	}
	return nil, false
}

// splitEntities reads the packed entities of a request.
func splitEntities(b []byte) ([]millrace.Entity, error) {
	var out []millrace.Entity
	all := string(b)
	for at := 0; at < len(b); {
		size, w := binary.Uvarint(b[at:])
		if w <= 0 || size > uint64(len(b)-at-w) || size > millrace.MaxEntityBytes {
			return nil, invalid("entities", "not a run of lengths and names", "")
		}
		at += w
		out = append(out, millrace.Entity(all[at:at+int(size)]))
		at += int(size)
	}
	return out, nil
}

// byPartition yields the entities of each partition, lowest first, by a
// counting sort.
func byPartition(entities []millrace.Entity) func(yield func(millrace.Partition, []millrace.Entity) bool) {
	var ends [partition.Count + 1]int32
	of := make([]millrace.Partition, len(entities))
	for i, e := range entities {
		of[i] = partition.Of(e)
		ends[of[i]+1]++
	}
	for p := range partition.Count {
		ends[p+1] += ends[p]
	}
	sorted := make([]millrace.Entity, len(entities))
	next := ends
	for i, e := range entities {
		sorted[next[of[i]]] = e
		next[of[i]]++
	}
	return func(yield func(millrace.Partition, []millrace.Entity) bool) {
		for p := range partition.Count {
			if lo, hi := ends[p], ends[p+1]; lo < hi && !yield(millrace.Partition(p), sorted[lo:hi]) {
				return
			}
		}
	}
}

// filterCache keeps compiled filters: a feed sends the same few again and
// again.
type filterCache struct {
	mu       sync.Mutex
	known    *schemas.Snapshot
	compiled map[string]*filter.Filter
}

// maxFilters bounds the cache; when it is full it starts over.
const maxFilters = 1024

func (c *filterCache) get(src string, known *schemas.Snapshot) (*filter.Filter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known != known || len(c.compiled) >= maxFilters {
		c.known, c.compiled = known, make(map[string]*filter.Filter)
	}
	if f := c.compiled[src]; f != nil {
		return f, nil
	}
	env := expr.Env{Mode: expr.Filter}
	for _, s := range known.All() {
		switch {
		case known.Latest(s.Name()) != s:
		case s.Features():
			env.Entity = append(env.Entity, s.Layout())
		default:
			env.Record = append(env.Record, s.Layout())
		}
	}
	f, err := filter.Compile(src, env)
	if err != nil {
		var bad *expr.Error
		if errors.As(err, &bad) {
			return nil, &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: err.Error(), WayOut: "see the filter language in docs/filters.md"}
		}
		return nil, err
	}
	c.compiled[src] = f
	return f, nil
}

// GetSchema implements nodev1.NodeServiceServer.
func (n *Node) GetSchema(_ context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	s := n.schemas.Snapshot().ByFingerprint(millrace.Fingerprint(req.Fingerprint))
	if s == nil {
		return nil, rpcerr.Status(&millrace.Error{Reason: millrace.ReasonUnknown, Field: "fingerprint", Detail: fmt.Sprintf("no schema %s", millrace.Fingerprint(req.Fingerprint))})
	}
	return &nodev1.GetSchemaResponse{Json: s.JSON()}, nil
}
