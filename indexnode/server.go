package indexnode

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/tracing"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/weights"
)

// maxRequestBytes bounds a query: 20,000 entities of the longest kind.
const maxRequestBytes = 16 << 20

// maxHeaderBytes bounds the headers of a call. Brokers send some hundred bytes.
const maxHeaderBytes = 16 << 10

// absences are when it was told last of each model that is asked for and not here.
type absences struct {
	mu   sync.Mutex
	told map[string]time.Time
}

const (
	absentEvery = time.Minute
	maxAbsent   = 100
)

// tells reports whether it is time to tell of one.
func (a *absences) tells(what string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if last, told := a.told[what]; told && now.Sub(last) < absentEvery {
		return false
	}
	if a.told == nil || len(a.told) >= maxAbsent {
		a.told = map[string]time.Time{}
	}
	a.told[what] = now
	return true
}

// logFailure tells of a question that failed. A model that is not here is one fact, and
// other nodes answer: it is told once a minute, and not by each question.
func (n *Node) logFailure(err error, now time.Time) {
	e, ok := errors.AsType[*millrace.Error](err)
	switch {
	case !ok || e.Reason != millrace.ReasonNotHere || e.Field != "model":
		n.log.Error("query failed", "err", err)
	case n.absent.tells(e.Detail, now):
		n.log.Warn("questions for a model that is not here fail, and brokers ask other nodes; the model's own messages say why it is not", "err", err)
	}
}

// Query implements nodev1.NodeServiceServer.
func (n *Node) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	ctx, span := tracer.Start(tracing.Incoming(ctx), "indexnode.Query", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	if err := expired(ctx); err != nil {
		n.counters.queried(queryExpired)
		span.SetStatus(codes.Error, err.Error())
		return nil, rpcerr.Status(err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	resp, err := n.query(ctx, req)
	switch {
	case err == nil:
		n.asked.Store(req)
		n.counters.answered.Inc()
		return resp, nil
	case ctx.Err() != nil:
		n.counters.queried(queryStopped)
	case rpcerr.Refused(err):
		n.counters.queried(queryRefused)
	default:
		n.counters.queried(queryFailed)
		n.logFailure(err, time.Now())
	}
	span.SetStatus(codes.Error, err.Error())
	return nil, rpcerr.Status(err)
}

// expired reports why nobody waits for an answer any more, or nil. It looks at
// the clock: on a busy machine contexts end late.
func expired(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// maxQueryTime bounds a question whose asker would wait longer, or for ever:
// what is replaced in the cache meanwhile takes memory until it is over.
const maxQueryTime = time.Minute

// bounded returns ctx with a deadline no later than in maxQueryTime. Most have
// an earlier one, and stay as they are.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= maxQueryTime {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, maxQueryTime)
}

// query answers a question. One that panics is an error.
func (n *Node) query(ctx context.Context, req *nodev1.QueryRequest) (_ *nodev1.QueryResponse, err error) {
	defer func() { n.tellPanic(err) }()
	defer contain(&err)
	for range maxExaminations - 1 {
		if resp, err := n.answer(ctx, req); err != errMoved {
			return resp, err
		}
	}
	return n.answer(ctx, req)
}

// answer answers once. With errMoved it may be asked again.
func (n *Node) answer(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	spec, err := n.spec(req)
	if err != nil {
		return nil, err
	}
	r := resolutions.Get().(*resolution)
	defer r.release()
	r.node, r.loan, r.spec = n, n.memory.Borrow(), &spec
	if err := r.decode(req.Entities); err != nil {
		return nil, err
	}
	for _, t := range req.Types {
		if t == "" || len(t) > millrace.MaxTypeBytes || strings.Contains(t, string(cache.Objects)) {
			return nil, invalid("types", fmt.Sprintf("%.70q is no content type", t), "name a content type, or none for all")
		}
		r.asked = append(r.asked, millrace.ContentType(t))
	}
	r.beside = n.besideOf(req)
	began := time.Now()
	if err := r.run(ctx); err != nil {
		return nil, err
	}
	resolved := time.Now()
	q := query.New(spec)
	resp, err := n.rank(ctx, r, q, req, began, resolved)
	if !panicking(err) { // what panicked is not used again
		q.Release()
	}
	return resp, err
}

// rank scans, and judges the versions that score by it.
func (n *Node) rank(ctx context.Context, r *resolution, q *query.Query, req *nodev1.QueryRequest, began, resolved time.Time) (resp *nodev1.QueryResponse, err error) {
	defer n.condemned.blame(req, q, &err)
	if ctx.Value(ownQuestion{}) == nil {
		q.Watch(r.cost.begin(n.condemned, idOf(req), r.spec.Model.Own(), req.GivesWay))
	}
	resp, err = n.scan(ctx, r, q, req, began, resolved)
	n.condemned.judge(ctx, req, r, q, err)
	return resp, err
}

// scan answers by q what was resolved.
func (n *Node) scan(ctx context.Context, r *resolution, q *query.Query, req *nodev1.QueryRequest, began, resolved time.Time) (*nodev1.QueryResponse, error) {
	spec := r.spec
	r.add(q)
	n.load.count(r)
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	scanned := time.Now()
	resp := &nodev1.QueryResponse{Model: spec.Model.Name(), ModelVersion: spec.Model.Version(), ModelSum: req.ModelSum, WeightsSum: req.WeightsSum, Partitions: r.answered(), Protocol: nodewire.Protocol}
	answer := q.Answer()
	resp.ScoringNs = q.Measured().Took.Nanoseconds()
	ranked := time.Now()
	n.counters.took(resolved.Sub(began), scanned.Sub(resolved), ranked.Sub(scanned))
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
	n.tellTypes(r, resp)
	room := itemRoom{}
	room.measure(answer.Items)
	n.rankBeside(ctx, r, q, &room)
	if err := r.fits(req, resp, nodewire.Size(resp)+room.bytes()); err != nil || resp.WithheldBytes > 0 {
		return resp, err
	}
	resp.Items = n.items(answer.Items, &room, spec.Shadow)
	if req.Features {
		tellFeatures(resp, spec.Model, answer.Items)
	}
	n.tellBeside(resp, r.beside, &room, req.Measure)
	if req.Measure {
		m := q.Measured()
		resp.Lacking, resp.Looked = m.Lacking, int32(m.Looked)
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		n.describe(span, resp, resolved, scanned, ranked)
	}
	if req.Features {
		if err := r.fits(req, resp, nodewire.Size(resp)); err != nil || resp.WithheldBytes > 0 {
			return resp, err
		}
	}
	if req.Explain || req.Examine != "" || len(req.Above) > 0 {
		resp.Times = &feedv1.NodeTimes{ResolveMillis: millis(resolved.Sub(began)), ScanMillis: millis(scanned.Sub(resolved)), RankMillis: millis(ranked.Sub(scanned))}
		if err := n.explain(ctx, r, q, req, resp); err != nil {
			return nil, err
		}
		return resp, r.fits(req, resp, nodewire.Size(resp))
	}
	return resp, nil
}

// fits withholds an answer that takes more than the request allows, and
// refuses one that takes more than any may, or than there is memory for.
func (r *resolution) fits(req *nodev1.QueryRequest, resp *nodev1.QueryResponse, bytes int64) error {
	switch {
	case bytes > maxAnswerBytes:
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "limit", Detail: fmt.Sprintf("a node's part of the answer takes %d bytes, more than %d", bytes, maxAnswerBytes), WayOut: "ask for fewer items, whose records are large"}
	case req.MaxBytes > 0 && bytes > req.MaxBytes:
		resp.Items, resp.Findings, resp.Above, resp.Clauses, resp.WithheldBytes = nil, nil, nil, nil, bytes
		return nil
	}
	return r.loan.More(2 * bytes) // here, and as it is written
}

// tellTypes says which of the types asked no record of this node has.
func (n *Node) tellTypes(r *resolution, resp *nodev1.QueryResponse) {
	if len(r.asked) == 0 {
		return
	}
	known, all := n.store.Types()
	if !all {
		return
	}
	for _, t := range r.asked {
		if _, found := slices.BinarySearch(known, t); !found {
			resp.UnknownTypes = append(resp.UnknownTypes, string(t))
		}
	}
	if len(resp.UnknownTypes) > 0 {
		for _, t := range known {
			resp.KnownTypes = append(resp.KnownTypes, string(t))
		}
	}
}

// answered tells of each partition what its part of the answer shows.
func (r *resolution) answered() *nodev1.Partitions {
	n := len(r.views)
	room := make([]int64, 2*n)
	all := &nodev1.Partitions{Answered: make([]int32, 0, n), AppliedContent: room[:0:n], AppliedFeatures: room[n:n]}
	for i := range r.views {
		v := &r.views[i]
		if v.missing != "" {
			if all.Missing == nil {
				all.Missing = make(map[int32]string)
			}
			all.Missing[int32(v.partition)] = v.missing
			continue
		}
		all.Answered = append(all.Answered, int32(v.partition))
		all.AppliedContent, all.AppliedFeatures = append(all.AppliedContent, v.Applied[0]), append(all.AppliedFeatures, v.Applied[1])
	}
	r.lags(all)
	return all
}

// lags tells how old what partitions answered may be, if it is too old in any:
// what was read, which the replica may have got past since.
func (r *resolution) lags(all *nodev1.Partitions) {
	now, i := time.Now(), 0
	for k := range r.views {
		v := &r.views[k]
		if v.missing != "" {
			continue
		}
		if age := r.node.replicas.AgeOf(&v.Look, now); age > 0 {
			if all.LagMs == nil {
				all.LagMs = make([]int64, len(all.Answered))
			}
			all.LagMs[i] = age.Milliseconds()
		}
		i++
	}
}

// items puts items on the wire, which is written after their memory is given
// back: what is the timelines' is copied, into few pieces.
func (n *Node) items(from []query.Item, room *itemRoom, models *relevance.Joint) []*nodev1.Item {
	room.texts.Grow(room.textBytes)
	room.items, room.bodies = make([]nodev1.Item, room.count), make([]byte, 0, room.bodyBytes)
	all := room.of(from)
	for i := range from {
		switch why := from[i].Why; {
		case why != nil:
			all[i].Explain = n.why(why)
		case models != nil: // measured
			all[i].Explain = &feedv1.ItemExplain{}
		default:
			continue
		}
		shadow(all[i].Explain, &from[i].Shadow, models)
	}
	return all
}

// tellFeatures puts the features of items on the wire, in the order of the
// model's spec.
func tellFeatures(resp *nodev1.QueryResponse, m *relevance.Model, from []query.Item) {
	at := map[string]int{}
	for i, f := range m.Spec().Features {
		resp.FeatureNames = append(resp.FeatureNames, f.Name)
		at[f.Name] = i
	}
	for i := range from {
		v := &nodev1.Vector{Numbers: make([]float64, len(at))}
		for k := range v.Numbers {
			v.Numbers[k] = math.NaN()
		}
		for _, f := range from[i].Features {
			switch x := f.Value.(type) {
			case float64:
				v.Numbers[at[f.Name]] = x
			case string:
				if v.Texts == nil {
					v.Texts = map[int32]string{}
				}
				v.Texts[int32(at[f.Name])] = x
			}
		}
		resp.Items[i].Features = v
	}
}

// itemRoom is memory for items, of the size that was measured.
type itemRoom struct {
	count, textBytes, bodyBytes, nameBytes int

	items  []nodev1.Item
	texts  strings.Builder
	bodies []byte
}

func (r *itemRoom) measure(from []query.Item) {
	r.count += len(from)
	for i := range from {
		it := &from[i]
		r.textBytes += len(it.ID) + len(it.Object)
		r.nameBytes += len(it.Entity) + len(it.Type)
		r.bodyBytes += len(it.Body)
		r.measure(it.Also)
	}
}

// bytes returns about what the items take on the wire.
func (r *itemRoom) bytes() int64 {
	return int64(nodewire.ItemBytes*r.count + r.textBytes + r.bodyBytes + r.nameBytes)
}

// of returns items on the wire.
func (r *itemRoom) of(from []query.Item) []*nodev1.Item {
	if len(from) == 0 {
		return nil
	}
	all := make([]*nodev1.Item, len(from))
	for i := range from {
		it, out := &from[i], &r.items[0]
		all[i], r.items = out, r.items[1:]
		out.Score, out.TimeMs, out.Entity, out.Type, out.Schema = it.Score, int64(it.Time), string(it.Entity), string(it.Type), uint64(it.Schema)
		out.Id = r.text(string(it.ID))
		if out.Object = out.Id; string(it.Object) != out.Id {
			out.Object = r.text(string(it.Object))
		}
		at := len(r.bodies)
		r.bodies = append(r.bodies, it.Body...)
		out.Body = r.bodies[at:len(r.bodies):len(r.bodies)]
		out.Also = r.of(it.Also)
	}
	return all
}

// text returns a copy of s.
func (r *itemRoom) text(s string) string {
	at := r.texts.Len()
	r.texts.WriteString(s)
	return r.texts.String()[at:]
}

// shadow puts the scores of models that rank nothing on the wire.
func shadow(out *feedv1.ItemExplain, s *query.Shadow, models *relevance.Joint) {
	if s.Err != nil {
		out.ShadowError = s.Err.Error()
	}
	for i, x := range s.Scores {
		if m := models.Models()[i]; i > 0 { // the first ranks
			out.Shadow = append(out.Shadow, &feedv1.ShadowScore{Model: m.Name(), ModelVersion: m.Version(), Score: x})
		}
	}
}

// why puts an account of a score on the wire.
func (n *Node) why(e *relevance.Explanation) *feedv1.ItemExplain {
	out := &feedv1.ItemExplain{Node: string(n.cfg.ID), Base: e.Base}
	for _, f := range e.Features {
		c := &feedv1.Contribution{Feature: f.Name, Contribution: f.Contribution}
		switch v := f.Value.(type) {
		case string:
			c.Value = structpb.NewStringValue(v)
		case float64:
			c.Value = structpb.NewNumberValue(v)
			if math.IsNaN(v) {
				c.Value = structpb.NewNullValue()
			}
		}
		out.Features = append(out.Features, c)
	}
	return out
}

// spec checks a request and turns it into a question.
func (n *Node) spec(req *nodev1.QueryRequest) (query.Spec, error) {
	s := query.Spec{
		From: millrace.Time(req.FromMs), To: millrace.Time(req.ToMs), AsOf: millrace.Time(req.AsOfMs),
		Measure: req.Measure,
		Limit:   int(req.Limit), Cap: int(req.CapPerEntity), DistinctObjects: req.DistinctObjects, Explain: req.Explain, Features: req.Features,
		Folds: n.cache,
	}
	if err := tooMany(req); err != nil {
		return s, err
	}
	if s.Limit < 1 || s.Limit > maxLimit {
		return s, invalid("limit", fmt.Sprintf("%d is not within 1 to %d", req.Limit, maxLimit), "")
	}
	if s.Cap < 0 {
		return s, invalid("cap_per_entity", fmt.Sprintf("%d is negative", req.CapPerEntity), "0 is no cap")
	}
	var err error
	if s.Viewer, err = nodewire.Viewer(req.Viewer); err != nil {
		return s, err
	}
	ranks := idOf(req)
	if why := n.condemned.why(ranks); why != "" && req.GivesWay {
		return s, refusal(ranks, why)
	}
	if s.Model, err = n.models.Weighted(ranks, req.Weights, req.WeightsSum); err != nil {
		return s, err
	}
	shadow := req.Shadow
	if req.Measure {
		shadow = req.Beside
	}
	if (req.Explain || req.Measure) && len(shadow) > 0 {
		var ids []relevance.ID
		for _, m := range shadow {
			ids = append(ids, relevance.ID{Name: m.GetName(), Version: m.GetVersion(), Sum: m.GetSum()})
		}
		s.Shadow, s.ShadowErr = n.models.Join(s.Model, ids...)
	}
	if s.Filter, err = n.filters.join(sources{req.RequestFilter, req.Filter}, n.schemas.Snapshot()); err != nil {
		return s, n.unlessHeld(err)
	}
	s.Exclude, err = served(req, &s.ServedKey)
	return s, err
}

// unlessHeld is the refusal of a filter, unless this node lacks a schema that
// others may have by which it is good: then it cannot tell, and another replica
// is asked.
func (n *Node) unlessHeld(refused error) error {
	if held := n.schemasHeld.Load(); held != nil {
		if why := (*held)(); why != nil {
			return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "filter", Detail: fmt.Sprintf("a schema cannot be kept here yet (%v), and without it: %v", why, refused)}
		}
	}
	return refused
}

// tooMany refuses a request that has more of something than brokers send, before
// anything is made of it.
func tooMany(req *nodev1.QueryRequest) error {
	v := req.Viewer
	for _, has := range []struct {
		field   string
		n, most int
		of      string
	}{
		{"types", len(req.Types), maxTypes, "types"}, {"exclude", len(req.Exclude), maxExclude, "hashes"},
		{"above", len(req.Above), maxAbove, "items"}, {"shadow", len(req.Shadow), maxShadow, "models"}, {"beside", len(req.Beside), maxShadow, "models"},
		{"viewer.attributes", len(v.GetAttributes()), maxAttributes, "attributes"}, {"viewer.features", len(v.GetFeatures()), maxFeatures, "features"},
		{"viewer.id", len(v.GetId()), maxNameBytes, "bytes"}, {"examine", len(req.Examine), millrace.MaxIDBytes, "bytes"},
		{"model", len(req.Model), maxNameBytes, "bytes"}, {"model_version", len(req.ModelVersion), maxNameBytes, "bytes"}, {"model_sum", len(req.ModelSum), maxNameBytes, "bytes"},
		{"weights", len(req.Weights), weights.MaxBytes, "bytes"}, {"weights_sum", len(req.WeightsSum), maxNameBytes, "bytes"},
	} {
		if has.n > has.most {
			return invalid(has.field, fmt.Sprintf("%d %s, more than %d", has.n, has.of, has.most), "")
		}
	}
	for field, models := range map[string][]*nodev1.Model{"shadow": req.Shadow, "beside": req.Beside} {
		for i, m := range models {
			if n := max(len(m.GetName()), len(m.GetVersion()), len(m.GetSum())); n > maxNameBytes {
				return invalid(fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("%d bytes, more than %d", n, maxNameBytes), "")
			}
		}
	}
	return nil
}

// served returns what earlier pages served, and sets the key of its hashes: none
// for those of a broker that does not know it.
func served(req *nodev1.QueryRequest, key *millrace.ServedKey) (map[uint64]struct{}, error) {
	if len(req.Exclude) == 0 {
		return nil, nil
	}
	if n := len(req.ServedKey); n > 0 && n != len(key) {
		return nil, &millrace.Error{Reason: millrace.ReasonPageToken, Field: "page_token", Detail: fmt.Sprintf("the broker hashes what pages served under a key of %d bytes, not of %d", len(req.ServedKey), len(key)), WayOut: "ask for the first page again"}
	}
	copy(key[:], req.ServedKey)
	all := make(map[uint64]struct{}, len(req.Exclude))
	for _, h := range req.Exclude {
		all[h] = struct{}{}
	}
	return all, nil
}

const (
	maxLimit  = 1000
	maxTypes  = 100
	maxShadow = 8
	maxAbove  = 20_000

	// These are what brokers take of callers.
	maxAttributes = 1_000
	maxFeatures   = 10_000
	maxNameBytes  = 512
	// maxExclude is twice what brokers remember of a feed's earlier pages.
	maxExclude = 20_000
)

func invalid(field, detail, wayOut string) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut}
}

// GetSchema implements nodev1.NodeServiceServer.
func (n *Node) GetSchema(_ context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	known := n.schemas.Snapshot()
	s := known.ByFingerprint(millrace.Fingerprint(req.Fingerprint))
	if s == nil {
		return nil, rpcerr.Status(&millrace.Error{Reason: millrace.ReasonUnknown, Field: "fingerprint", Detail: fmt.Sprintf("no schema %s", millrace.Fingerprint(req.Fingerprint))})
	}
	resp := &nodev1.GetSchemaResponse{Json: s.JSON()}
	if req.Fields {
		names, sum := known.Fields()
		if resp.FieldsSum = sum; sum != req.FieldsSum {
			resp.Fields = names
		}
	}
	return resp, nil
}
