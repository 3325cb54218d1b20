// Package answers answers questions: what a request asks for is checked, found,
// ranked by query, and put on the wire. It judges meanwhile the models that rank.
package answers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/tracing"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas/registry"
)

// Config is what questions are answered with. All of it is required.
type Config struct {
	Node    millrace.NodeID
	Store   *store.Store
	Cache   *cache.Cache
	Schemas *registry.Registry
	Models  *relevance.Registry
	Lookup  *lookup.Lookup
	Panics  *panics.Teller
	Log     *slog.Logger
}

// Server answers questions.
type Server struct {
	id          millrace.NodeID
	log         *slog.Logger
	store       *store.Store
	cache       *cache.Cache
	schemas     *registry.Registry
	models      *relevance.Registry
	lookup      *lookup.Lookup
	panics      *panics.Teller
	filters     filterCache
	asked       atomic.Pointer[nodev1.QueryRequest] // the newest question that was answered
	counters    counters
	condemned   *condemner                   // versions of models that failed
	schemasHeld atomic.Pointer[func() error] // why a schema is not known here yet
	absent      absences
}

// New returns a server.
func New(c Config) *Server {
	n := &Server{id: c.Node, log: c.Log, store: c.Store, cache: c.Cache, schemas: c.Schemas, models: c.Models, lookup: c.Lookup, panics: c.Panics, counters: newCounters()}
	n.condemned = newCondemner(n)
	return n
}

// HeldBy says who tells why a schema is not known here yet.
func (s *Server) HeldBy(why func() error) { s.schemasHeld.Store(&why) }

// Newest returns the newest question that was answered, nil if none was.
func (s *Server) Newest() *nodev1.QueryRequest { return s.asked.Load() }

// TakeOver takes over what the cluster says of versions that failed, before the first
// question. Earlier tells which versions of a name served before.
func (s *Server) TakeOver(says map[artefacts.Version]artefacts.Condemnation, earlier func(name string) []artefacts.Version) {
	s.condemned.takeOver(says)
	s.condemned.earlier.Store(&earlier)
}

// FollowCondemned tells the cluster which versions failed here, and takes over what
// it says, until ctx ends.
func (s *Server) FollowCondemned(ctx context.Context, models *artefacts.Kind, all *artefacts.Condemned) error {
	return s.condemned.run(ctx, models, all)
}

// Dropped forgets what spoke against a version that is no more.
func (s *Server) Dropped(id relevance.ID) { s.condemned.dropped(id) }

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
func (s *Server) logFailure(err error, now time.Time) {
	e, ok := errors.AsType[*millrace.Error](err)
	switch {
	case !ok || e.Reason != millrace.ReasonNotHere || e.Field != "model":
		s.log.Error("query failed", "err", err)
	case s.absent.tells(e.Detail, now):
		s.log.Warn("questions for a model that is not here fail, and brokers ask other nodes; the model's own messages say why it is not", "err", err)
	}
}

// Query implements nodev1.NodeServiceServer.
func (s *Server) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	ctx, span := tracer.Start(tracing.Incoming(ctx), "indexnode.Query", trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	if err := expired(ctx); err != nil {
		s.counters.queried(queryExpired)
		span.SetStatus(codes.Error, err.Error())
		return nil, rpcerr.Status(err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	resp, err := s.query(ctx, req)
	switch {
	case err == nil:
		s.asked.Store(req)
		s.counters.answered.Inc()
		return resp, nil
	case ctx.Err() != nil:
		s.counters.queried(queryStopped)
	case rpcerr.Refused(err):
		s.counters.queried(queryRefused)
	default:
		s.counters.queried(queryFailed)
		s.logFailure(err, time.Now())
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

// question is one that is answered. Its memory is used again by the next.
type question struct {
	*lookup.Resolution
	spec   *query.Spec
	types  []millrace.ContentType // none: every type the node knows
	beside []otherRanking         // other models that rank what is found
	cost   costWatch              // of the model that ranks
}

var questions = sync.Pool{New: func() any { return new(question) }}

// release gives the memory back, and with it what was resolved.
func (q *question) release() {
	q.Resolution.Release()
	*q = question{}
	questions.Put(q)
}

// asked is what timelines are asked for.
func (q *question) asked() lookup.Asked {
	s := q.spec
	return lookup.Asked{
		Types: q.types, From: s.From, To: s.To, Explain: s.Explain,
		Objects: s.Model.ReadsObjects() || s.Shadow != nil && s.Shadow.ReadsObjects() ||
			slices.ContainsFunc(q.beside, func(b otherRanking) bool { return b.model != nil && b.model.ReadsObjects() }),
	}
}

// query answers a question. One that panics is an error.
func (s *Server) query(ctx context.Context, req *nodev1.QueryRequest) (_ *nodev1.QueryResponse, err error) {
	defer func() { s.panics.Tell(err) }()
	defer panics.Contain(&err)
	for range maxExaminations - 1 {
		if resp, err := s.answer(ctx, req); err != errMoved {
			return resp, err
		}
	}
	return s.answer(ctx, req)
}

// answer answers once. With errMoved it may be asked again.
func (s *Server) answer(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	spec, err := s.spec(req)
	if err != nil {
		return nil, err
	}
	r := questions.Get().(*question)
	r.Resolution, r.spec = s.lookup.Resolve(), &spec
	defer r.release()
	if err := r.Decode(req.Entities); err != nil {
		return nil, err
	}
	for _, t := range req.Types {
		if t == "" || len(t) > millrace.MaxTypeBytes || strings.Contains(t, string(cache.Objects)) {
			return nil, millrace.Invalid("types", fmt.Sprintf("%.70q is no content type", t), "name a content type, or none for all")
		}
		r.types = append(r.types, millrace.ContentType(t))
	}
	r.beside = s.besideOf(req)
	began := time.Now()
	if err := r.Run(ctx, r.asked()); err != nil {
		return nil, err
	}
	resolved := time.Now()
	q := query.New(spec)
	resp, err := s.rank(ctx, r, q, req, began, resolved)
	if !panics.In(err) { // what panicked is not used again
		q.Release()
	}
	return resp, err
}

// rank scans, and judges the versions that score by it.
func (s *Server) rank(ctx context.Context, r *question, q *query.Query, req *nodev1.QueryRequest, began, resolved time.Time) (resp *nodev1.QueryResponse, err error) {
	defer s.condemned.blame(req, q, &err)
	if ctx.Value(ownQuestion{}) == nil {
		q.Watch(r.cost.begin(s.condemned, idOf(req), r.spec.Model.Own(), req.GivesWay))
	}
	resp, err = s.scan(ctx, r, q, req, began, resolved)
	s.condemned.judge(ctx, req, r, q, err)
	return resp, err
}

// scan answers by q what was resolved.
func (s *Server) scan(ctx context.Context, r *question, q *query.Query, req *nodev1.QueryRequest, began, resolved time.Time) (*nodev1.QueryResponse, error) {
	spec := r.spec
	r.Add(q)
	r.Count()
	if err := q.Scan(ctx); err != nil {
		return nil, err
	}
	scanned := time.Now()
	resp := &nodev1.QueryResponse{Model: spec.Model.Name(), ModelVersion: spec.Model.Version(), ModelSum: req.ModelSum, WeightsSum: req.WeightsSum, Partitions: r.Answered(), Protocol: nodewire.Protocol}
	answer := q.Answer()
	resp.ScoringNs = q.Measured().Took.Nanoseconds()
	ranked := time.Now()
	s.counters.took(resolved.Sub(began), scanned.Sub(resolved), ranked.Sub(scanned))
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
	s.tellTypes(r, resp)
	room := itemRoom{}
	room.measure(answer.Items)
	s.rankBeside(ctx, r, q, &room)
	if err := r.fits(req, resp, nodewire.Size(resp)+room.bytes()); err != nil || resp.WithheldBytes > 0 {
		return resp, err
	}
	resp.Items = s.items(answer.Items, &room, spec.Shadow)
	if req.Features {
		tellFeatures(resp, spec.Model, answer.Items)
	}
	s.tellBeside(resp, r.beside, &room, req.Measure)
	if req.Measure {
		m := q.Measured()
		resp.Lacking, resp.Looked = m.Lacking, int32(m.Looked)
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		s.describe(span, resp, resolved, scanned, ranked)
	}
	if req.Features {
		if err := r.fits(req, resp, nodewire.Size(resp)); err != nil || resp.WithheldBytes > 0 {
			return resp, err
		}
	}
	if req.Explain || req.Examine != "" || len(req.Above) > 0 {
		resp.Times = &feedv1.NodeTimes{ResolveMillis: millis(resolved.Sub(began)), ScanMillis: millis(scanned.Sub(resolved)), RankMillis: millis(ranked.Sub(scanned))}
		if err := s.explain(ctx, r, q, req, resp); err != nil {
			return nil, err
		}
		return resp, r.fits(req, resp, nodewire.Size(resp))
	}
	return resp, nil
}

// fits withholds an answer that takes more than the request allows, and
// refuses one that takes more than any may, or than there is memory for.
func (q *question) fits(req *nodev1.QueryRequest, resp *nodev1.QueryResponse, bytes int64) error {
	switch {
	case bytes > maxAnswerBytes:
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "limit", Detail: fmt.Sprintf("a node's part of the answer takes %d bytes, more than %d", bytes, maxAnswerBytes), WayOut: "ask for fewer items, whose records are large"}
	case req.MaxBytes > 0 && bytes > req.MaxBytes:
		resp.Items, resp.Findings, resp.Above, resp.Clauses, resp.WithheldBytes = nil, nil, nil, nil, bytes
		return nil
	}
	return q.More(2 * bytes) // here, and as it is written
}

// tellTypes says which of the types asked no record of this node has.
func (s *Server) tellTypes(r *question, resp *nodev1.QueryResponse) {
	if len(r.types) == 0 {
		return
	}
	known, all := s.store.Types()
	if !all {
		return
	}
	for _, t := range r.types {
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

// maxAnswerBytes bounds an answer: brokers take no larger message.
const maxAnswerBytes = 31 << 20
