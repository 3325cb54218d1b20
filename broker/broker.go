// Package broker answers feed requests: it validates a request against its
// feed definition, routes its entities to the fewest index nodes that cover
// them, hedges what is slow, merges and deduplicates the answers, and says how
// much of what was asked the answer covers. It holds no data. See DESIGN.md.
package broker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	grpchealth "google.golang.org/grpc/health"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/tracing"
)

// Node is what a broker asks of an index node: a local one, a remote one or
// a fake. It gives up when ctx ends. Errors are [millrace.Error] where they
// refuse the request.
type Node interface {
	Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error)
	GetSchema(ctx context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error)
	// Ping returns nil when the node is there, however much it has to do.
	Ping(ctx context.Context) error
}

// Maps gives the cluster's present map; [cluster.Watcher] does.
type Maps interface {
	Current() *cluster.Map
}

// Config is what a broker works with.
type Config struct {
	Maps Maps
	// Zone is where the broker stands. Index nodes of the same zone are asked
	// first. Empty: all are equally near.
	Zone string
	// Dial returns the way to a node. nil: [DialGRPC] without TLS. What it
	// returns is closed, if it is an io.Closer, when the node leaves the map.
	Dial func(cluster.Node) (Node, error)
	// Feeds are served beside the built-in ones and replace those of the same
	// name.
	Feeds []Feed
	// Definitions are served over all others. nil: none.
	Definitions Definitions
	// Experiments are documents of experiments; [cluster.Artefacts] of
	// [experiments.Kind] gives them. nil: none.
	Experiments experiments.Source
	// Exposures take what answers of experiments showed. nil: nobody does.
	Exposures Exposures
	// Permit is who may ask what; nil: whoever reaches the broker everything. The
	// quota of a caller that it knows goes by its name.
	Permit *permit.Policy
	// Name is this broker's, in exposures.
	Name string
	// Models says which version of a model answers. nil: only models that every
	// node has are asked for.
	Models Models
	// Condemned says which versions are not to be asked for. nil: none but those
	// that nodes refuse to rank by.
	Condemned Condemned
	// Timeout bounds a request that comes without a deadline, and any other.
	// 0: 10 s.
	Timeout time.Duration
	// Quotas are by caller, that of [DefaultCaller] for all others together.
	// A caller without one has no limit but the broker's.
	Quotas map[string]Quota
	// RequestMemory bounds what all requests take together, in bytes: a quarter
	// what has arrived by gRPC; a quarter all other bodies and what parsing
	// takes; a half answers, from before nodes are asked until the caller has
	// taken them. 0: 256 MiB, the least.
	RequestMemory int64
	// Forbid is what callers may not ask of any feed.
	Forbid Forbid
	// PageKeys are the secrets that page tokens are signed with, the newest
	// first, which all brokers of a cluster share: those of
	// [cluster.Client.Generations]. nil: a random one, so that pages continue
	// only where they began.
	PageKeys func() []cluster.Generation
	// Traced says whose requests are traced and logged; [cluster.Traced] does.
	// nil: nobody's.
	Traced  interface{ Has(viewer string) bool }
	Metrics prometheus.Registerer // nil: none
	Log     *slog.Logger          // nil: slog.Default()
}

// The memory for requests. One of the largest takes 62 MiB to be parsed, and
// maxHeldBytes to be answered.
const (
	DefaultRequestMemory = 256 << 20
	minRequestMemory     = 256 << 20
)

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if c.Maps == nil {
		errs = append(errs, errors.New("broker: no maps: pass the cluster's watcher"))
	}
	if c.Timeout < 0 {
		errs = append(errs, fmt.Errorf("broker: timeout %s is negative", c.Timeout))
	}
	if c.RequestMemory != 0 && c.RequestMemory < minRequestMemory {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "request_memory_mib", Detail: fmt.Sprintf("%d MiB do not hold the largest request", c.RequestMemory>>20), WayOut: fmt.Sprintf("give at least %d, or leave it out", minRequestMemory>>20)})
	}
	for _, f := range c.Feeds {
		errs = append(errs, f.Validate())
	}
	for _, caller := range slices.Sorted(maps.Keys(c.Quotas)) {
		errs = append(errs, c.Quotas[caller].validate(caller))
	}
	return errors.Join(errs...)
}

// Broker answers feed requests.
type Broker struct {
	maps        Maps
	timeout     time.Duration
	log         *slog.Logger
	feeds       *feedBook
	experiments *experiments.Live // nil: none
	exposures   Exposures         // nil: none
	permit      *permit.Policy    // nil: everybody may everything
	name        string
	models      Models // may be nil
	absent      absent
	condemned   condemned
	conns       *conns
	crew        *crew
	records     *records
	budget      *budget
	recent      *latencies
	health      *health
	zone        zone
	gate        *gate
	quotas      quotas
	metrics     *metrics
	shadows     *shadows
	gaps        *gaps
	pages       *pageRing
	forbid      Forbid

	arriving, parsing, answering *memory.Budget
	sizes                        *sizes
	arriveWithin, takenWithin    time.Duration

	checks  *grpchealth.Server // what gRPC's health service says
	leaving atomic.Bool        // see Leave

	open  context.Context // until Close
	end   context.CancelFunc
	pings sync.WaitGroup

	traced interface{ Has(viewer string) bool } // may be nil
}

// New returns a broker that serves the feeds that are defined. Nodes are dialled
// when first asked.
func New(cfg Config) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Dial == nil {
		cfg.Dial = DialGRPC()
	}
	if cfg.PageKeys == nil {
		one := []cluster.Generation{{Secret: make([]byte, 32)}}
		_, _ = rand.Read(one[0].Secret) // never fails
		cfg.PageKeys = func() []cluster.Generation { return one }
	}
	bytes := cmp.Or(cfg.RequestMemory, DefaultRequestMemory)
	conns := newConns(cfg.Dial, cfg.Log)
	b := &Broker{
		maps: cfg.Maps, models: unshadowed(cfg.Models), timeout: cmp.Or(cfg.Timeout, 10*time.Second), log: cfg.Log, pages: newPageRing(cfg.PageKeys),
		conns: conns, crew: newCrew(), records: newRecords(conns),
		budget: newBudget(hedgeShare, hedgeBurst), recent: &latencies{}, health: newHealth(), gate: newGate(), quotas: newQuotas(cfg.Quotas), zone: zone{name: cfg.Zone}, traced: cfg.Traced,
		exposures: cfg.Exposures, permit: cfg.Permit, name: cfg.Name, shadows: newShadows(), gaps: newGaps(),
		checks: grpchealth.NewServer(),
		forbid: cfg.Forbid, arriveWithin: intake.ArriveWithin, takenWithin: intake.TakenWithin, sizes: newSizes(),
		arriving:  memory.New(bytes/4, "requests that are arriving"),
		parsing:   memory.New(bytes/4, "requests that are being read"),
		answering: memory.New(bytes/2, "requests that are being answered"),
	}
	b.condemned.cluster = cfg.Condemned
	b.open, b.end = context.WithCancel(context.Background())
	b.feeds = newFeedBook(append(BuiltIn(), cfg.Feeds...), cfg.Definitions, b.tryFeed, cfg.Log)
	b.feeds.start()
	if cfg.Experiments != nil { // which refer to feeds
		b.experiments = experiments.Follow(cfg.Experiments, newReferred(b), cfg.Log)
	}
	var err error
	if b.metrics, err = newMetrics(b, cfg.Metrics); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Close ends the connections to the nodes, once.
func (b *Broker) Close() error {
	b.feeds.close()
	if b.experiments != nil {
		b.experiments.Close()
	}
	b.end()
	b.pings.Wait()
	b.shadows.running.Wait()
	b.conns.close()
	b.crew.close()
	return nil
}

// GetFeed answers one request. Every refusal is a [millrace.Error]; the only
// other error is the context's when the caller went away.
func (b *Broker) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	resp, err := b.wireFeed(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp, readItems(resp)
}

// wireFeed is GetFeed for doors that write protobuf: items are among the
// unknown fields, as [appendItem] writes them.
func (b *Broker) wireFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	start := time.Now()
	ctx = b.trace(ctx, req.GetViewer().GetId())
	ctx, span := tracer.Start(ctx, "broker.GetFeed", trace.WithSpanKind(trace.SpanKindServer))
	q, resp, err := b.getFeed(ctx, req)
	feed, shown := "", 0
	if q != nil {
		feed, shown = q.feed.Name, q.shown
	}
	b.metrics.request(feed, time.Since(start), resp, err)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("feed", feed), attribute.Int("entities", len(req.GetEntities())),
			attribute.Int("items", shown), attribute.Int("missing", len(resp.GetCoverage().GetMissing())))
	}
	endSpan(span, err)
	if err != nil {
		b.exposeRefusal(ctx, q, err)
	}
	if tracing.Forced(ctx) {
		if err == nil {
			err = readItems(resp)
		}
		b.logTraced(ctx, req, resp, err, time.Since(start))
		unexplained(req, resp)
	}
	return resp, err
}

// tracer is OpenTelemetry's, which does nothing until a process installs a
// provider.
var tracer = otel.Tracer("github.com/millrace/millrace/broker")

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

func (b *Broker) getFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*question, *feedv1.GetFeedResponse, error) {
	visit, err := b.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer visit.leave()
	began := time.Now()
	if err := b.entitled(ctx, req); err != nil {
		return nil, nil, err
	}
	q, err := b.read(req, began)
	if err != nil {
		return q, nil, err
	}
	if err := b.records.checkFields(ctx, nil, q, nil); err != nil {
		return q, nil, err
	}
	q.query.Explain = q.query.Explain || tracing.Forced(ctx)
	q.times.read = time.Since(began)
	end := began.Add(b.timeout)
	if allowed, ok := ctx.Deadline(); ok && allowed.Before(end) {
		end = allowed
	}
	visit.of(q.feed.Name, len(req.GetEntities()), end)
	loan, over := b.loanOf(ctx)
	defer over()
	q.loan = loan
	o, f, err := b.askDraft(ctx, q, end)
	if err == nil {
		visit.ending = f.ending(ctx, o)
	}
	switch {
	case err != nil:
		return q, nil, err
	case ctx.Err() != nil:
		return q, nil, late(ctx.Err())
	case len(o.parts) == 0:
		return q, nil, f.nothing(o)
	}
	if err := b.typesKnown(ctx, f, o, req); err != nil {
		return q, nil, err
	}
	resp, err := b.answer(ctx, f, o)
	return q, resp, err
}

// enter lets a request in, or refuses it. One that a door has let in already
// is let in as it was.
func (b *Broker) enter(ctx context.Context) (*visit, error) {
	h := headersOf(ctx)
	a, _ := ctx.Value(admissionKey{}).(*admission)
	switch {
	case a == nil: // no door has seen it
		if err := b.admit(h.caller); err != nil {
			return nil, err
		}
		a = &admission{}
	case a.visit != nil:
		return a.visit, nil
	}
	var err error
	if a.visit, err = b.gate.enter(h.priority); err != nil {
		b.metrics.shed.Inc()
	}
	return a.visit, err
}

// admit holds a caller to its quota.
func (b *Broker) admit(caller string) error {
	known := b.quotas.known(caller)
	err := b.quotas.take(known, time.Now())
	outcome := "admitted"
	if err != nil {
		outcome = "refused"
	}
	b.metrics.callers.WithLabelValues(known, outcome).Inc()
	return err
}

// margin is the deadline of the nodes: a twentieth of the time before the
// end of the caller's, 50 ms at most, so that what has been answered by then still
// reaches the caller.
func margin(end time.Time) time.Time {
	return end.Add(-min(time.Until(end)/20, 50*time.Millisecond))
}

// late is the refusal of a request whose context has ended.
func late(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &millrace.Error{Reason: millrace.ReasonDeadline, Detail: "the deadline passed before an answer", WayOut: "allow more time or ask for fewer entities"}
	}
	return err
}

// nothing is the refusal when no partition was answered: an empty page would
// look like an empty feed.
func (f *fanout) nothing(o outcome) error {
	counts := map[string]int{}
	for _, why := range o.missing {
		counts[why]++
	}
	e := &millrace.Error{Reason: millrace.ReasonUnavailable, WayOut: "try again after a pause; if it lasts, see what millrace cluster show says of the index nodes"}
	switch n := len(o.missing); {
	case counts[missModel] == n:
		return f.nobodyHas()
	case counts[missOlder] == n:
		e.WayOut = "upgrade the index nodes, and the brokers after them; until then only first pages are answered"
	case counts[missTimeout] == n:
		e.Reason, e.WayOut = millrace.ReasonDeadline, "allow more time or ask for fewer entities"
	case counts[missOverloaded] == n:
		e.Reason, e.WayOut = millrace.ReasonOverloaded, "try again after a pause"
	case counts[missTooLarge] == n:
		e.Reason, e.WayOut = millrace.ReasonTooLarge, fewerItems
	}
	var whys []string
	for _, why := range sortedKeys(counts) {
		whys = append(whys, fmt.Sprintf("%d %s", counts[why], why))
	}
	e.Detail = "no partition answered: " + strings.Join(whys, ", ")
	return e
}
