// Package answers answers the questions that brokers ask an index node. A question is one
// QueryRequest. The package checks it, resolves the timelines that it asks for (package
// lookup), scans and ranks their records (package query), and makes the answer. Beside the
// model that ranks, other models may rank the same records for comparison, and shadow models
// may score the items.
//
// Meanwhile the package judges the models: a version that panics, gives no finite scores or
// takes far too long is condemned. The node tells the cluster so, and brokers ask by another
// version from then on. A broker that can ask by another version at once gives way: only to
// such brokers the node refuses a condemned version as the model that ranks.
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

// Config is what a Server needs. All of it is required.
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

// Server answers questions. Its methods may be called concurrently.
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
	condemned   *condemner                   // knows the versions of models that failed
	schemasHeld atomic.Pointer[func() error] // see HeldBy; nil: not set
	absent      absences
}

// New returns a Server.
func New(c Config) *Server {
	n := &Server{id: c.Node, log: c.Log, store: c.Store, cache: c.Cache, schemas: c.Schemas, models: c.Models, lookup: c.Lookup, panics: c.Panics, counters: newCounters()}
	n.condemned = newCondemner(n)
	return n
}

// HeldBy sets the function that returns why this node lacks a schema that others may have. The
// function returns nil if the node lacks none.
func (s *Server) HeldBy(why func() error) { s.schemasHeld.Store(&why) }

// Newest returns the newest question that was answered; nil if none was.
func (s *Server) Newest() *nodev1.QueryRequest { return s.asked.Load() }

// TakeOver takes over the versions that the cluster says are condemned. It is to be called
// before the first question. earlier returns the versions of a name that served before, the
// one that would rank instead first.
func (s *Server) TakeOver(says map[artefacts.Version]artefacts.Condemnation, earlier func(name string) []artefacts.Version) {
	s.condemned.takeOver(says)
	s.condemned.earlier.Store(&earlier)
}

// FollowCondemned tells the cluster which versions failed here, and takes over those that the
// cluster says are condemned, until ctx ends.
func (s *Server) FollowCondemned(ctx context.Context, models *artefacts.Kind, all *artefacts.Condemned) error {
	return s.condemned.run(ctx, models, all)
}

// Dropped forgets what spoke against a version that the cluster no longer has.
func (s *Server) Dropped(id relevance.ID) { s.condemned.dropped(id) }

// absences bound how often the log says that questions ask for a model that is not here.
type absences struct {
	mu   sync.Mutex
	told map[string]time.Time // when it was said last, by the text
}

const (
	absentEvery = time.Minute // the log says it of one model once in this time
	maxAbsent   = 100         // how many texts are kept; when there are so many, all are forgotten
)

// tells reports whether the log is to write the text what at the time now.
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

// logFailure logs a question that failed. That a model is not here is logged once a minute, and
// not for each question, since other nodes answer these.
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

// expired returns an error if the deadline of ctx has passed or ctx has ended; nil if somebody
// still waits for the answer. It looks at the clock, since on a busy machine contexts end late.
func expired(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// maxQueryTime bounds a question whose caller would wait longer. Memory of the cache that is
// replaced while a question runs can be used again only once the question has ended.
const maxQueryTime = time.Minute

// bounded returns ctx with a deadline no later than in maxQueryTime. It returns ctx itself if
// it has an earlier one, as most have.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= maxQueryTime {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, maxQueryTime)
}

// question is a request of a broker that is being answered. The pool questions keeps its
// memory for further ones.
type question struct {
	*lookup.Resolution
	spec   *query.Spec
	types  []millrace.ContentType // none: every type the node knows
	beside []otherRanking         // other models that rank what is found
	cost   costWatch              // watches how long the model that ranks takes
}

var questions = sync.Pool{New: func() any { return new(question) }}

// release releases the timelines that q has resolved, and returns q to the pool.
func (q *question) release() {
	q.Resolution.Release()
	*q = question{}
	questions.Put(q)
}

// asked returns what the question needs to know of timelines.
func (q *question) asked() lookup.Asked {
	s := q.spec
	return lookup.Asked{
		Types: q.types, From: s.From, To: s.To, Explain: s.Explain,
		Objects: s.Model.ReadsObjects() || s.Shadow != nil && s.Shadow.ReadsObjects() ||
			slices.ContainsFunc(q.beside, func(b otherRanking) bool { return b.model != nil && b.model.ReadsObjects() }),
	}
}

// query answers a question. It does so again while the record to examine changes meanwhile,
// maxExaminations times at most. A panic is an error.
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

// answer answers a question once. The error errMoved says that the record to examine has
// changed meanwhile.
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
		if t == "" || len(t) > millrace.MaxTypeBytes || strings.Contains(t, string(cache.Objects)) { // no type has the NUL byte, which is the cache's mark for objects
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
	if !panics.In(err) { // a query that panicked is not used again
		q.Release()
	}
	return resp, err
}

// rank does what scan does, and judges the versions of models that score in it. The times
// began and resolved are those before and after the timelines were resolved.
func (s *Server) rank(ctx context.Context, r *question, q *query.Query, req *nodev1.QueryRequest, began, resolved time.Time) (resp *nodev1.QueryResponse, err error) {
	defer s.condemned.blame(req, q, &err)
	if ctx.Value(ownQuestion{}) == nil {
		q.Watch(r.cost.begin(s.condemned, idOf(req), r.spec.Model.Own(), req.GivesWay))
	}
	resp, err = s.scan(ctx, r, q, req, began, resolved)
	s.condemned.judge(ctx, req, r, q, err)
	return resp, err
}

// scan makes the answer by q from the timelines that r has resolved.
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

// fits checks the size of an answer, which is about bytes. If the request allows fewer, fits
// removes the items of all rankings, findings, ranks and clauses from the answer and sets
// WithheldBytes. If
// bytes is more than any answer may have, or more than there is memory for, it returns an
// error.
func (q *question) fits(req *nodev1.QueryRequest, resp *nodev1.QueryResponse, bytes int64) error {
	switch {
	case bytes > maxAnswerBytes:
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "limit", Detail: fmt.Sprintf("a node's part of the answer takes %d bytes, more than %d", bytes, maxAnswerBytes), WayOut: "ask for fewer items, whose records are large"}
	case req.MaxBytes > 0 && bytes > req.MaxBytes:
		resp.Items, resp.Beside, resp.FeatureNames = nil, nil, nil
		resp.Findings, resp.Above, resp.Clauses, resp.WithheldBytes = nil, nil, nil, bytes
		return nil
	}
	return q.More(2 * bytes) // the message, and its encoded form
}

// tellTypes adds to an answer the types that the question names and no record of this node
// has. If there are any, it also adds the types that records have.
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

// maxAnswerBytes bounds an answer, in bytes: brokers take no larger message.
const maxAnswerBytes = 31 << 20
