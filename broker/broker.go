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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/doors"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/gaps"
	"github.com/millrace/millrace/broker/items"
	"github.com/millrace/millrace/broker/pagetoken"
	"github.com/millrace/millrace/broker/shadows"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/tracing"
)

// Config is what a broker works with.
type Config struct {
	// Maps gives the map of the cluster as it is now: its nodes, and which partitions each
	// one has. It must not be nil.
	Maps fanout.Maps
	// Zone is where the broker stands. Index nodes of the same zone are asked
	// first. Empty: all are equally near.
	Zone string
	// Dial returns a connection to a node. nil: [fanout.DialGRPC] without TLS. If the
	// connection is an io.Closer, it is closed a while after the node has left the map.
	Dial func(topology.Node) (fanout.Node, error)
	// Feeds are served beside the built-in ones and replace those of the same
	// name.
	Feeds []feeds.Feed
	// Definitions are the feeds of the cluster. They replace built-in feeds and Feeds of
	// the same name. nil: none.
	Definitions feeds.Definitions
	// Experiments are documents of experiments; [artefacts.Kind] of
	// [experiments.Kind] gives them. nil: none.
	Experiments experiments.Source
	// Exposures records what an answer showed, if an experiment had a part in the answer.
	// nil: nothing is recorded.
	Exposures Exposures
	// Permit says which callers may ask what. nil: every caller may ask everything. A
	// caller that Permit names has the quota of that name in Quotas.
	Permit *permit.Policy
	// Name is the name of this broker in exposures.
	Name string
	// Models says which version of a model answers. nil: only models that every
	// node has are asked for.
	Models Models
	// Condemned says which versions of models are not to be asked for. nil: only those
	// that nodes refuse to rank by.
	Condemned Condemned
	// Timeout bounds every request. It also applies if the request's own deadline is
	// later. 0: 10 s.
	Timeout time.Duration
	// Quotas are by caller. All callers without a quota share that of
	// [admission.DefaultCaller]; if there is none, only the broker's limit holds for them.
	Quotas map[string]admission.Quota
	// RequestMemory bounds what all requests take together, in bytes. A quarter is
	// for what has arrived by gRPC, and a quarter for all other bodies and for
	// parsing. Half is for answers, from before nodes are asked until the caller has
	// taken them. 0: 256 MiB, which is also the least.
	RequestMemory int64
	// Forbid is what callers may not ask of any feed.
	Forbid feeds.Forbid
	// PageKeys are the secrets that page tokens are signed with, the newest
	// first. All brokers of a cluster share them, by [secrets.Watch]. nil: one random
	// secret, so that no other broker, nor this one after a restart, accepts its tokens.
	PageKeys func() []secrets.Generation
	// Traced says which viewers' requests are traced and logged. [brokers.Traced]
	// implements it. nil: none.
	Traced  interface{ Has(viewer string) bool }
	Metrics prometheus.Registerer // nil: none
	Log     *slog.Logger          // nil: slog.Default()
}

// The memory for all requests, in bytes. Parsing one of the largest requests takes
// 62 MiB; package questions bounds what answering it takes.
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
		errs = append(errs, c.Quotas[caller].Validate(caller))
	}
	return errors.Join(errs...)
}

// Broker answers feed requests.
type Broker struct {
	*doors.Doors

	maps        fanout.Maps
	timeout     time.Duration
	log         *slog.Logger
	feeds       *feeds.Book
	experiments *experiments.Live // nil: none
	exposures   Exposures         // nil: none
	name        string
	models      Models // may be nil
	condemned   condemned
	fanout      *fanout.Fanout
	records     *items.Records
	admission   *admission.Control
	metrics     *metrics
	shadows     *shadows.Shadows
	gaps        *gaps.Gaps
	pages       *pagetoken.Ring
	forbid      feeds.Forbid

	open context.Context    // Close cancels it
	end  context.CancelFunc // cancels open

	traced interface{ Has(viewer string) bool } // may be nil
}

// New returns a broker that serves the built-in feeds and those of cfg. Nodes are
// dialled when first asked. The caller must call Close.
func New(cfg Config) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Dial == nil {
		cfg.Dial = fanout.DialGRPC()
	}
	if cfg.PageKeys == nil {
		one := []secrets.Generation{{Secret: make([]byte, 32)}}
		_, _ = rand.Read(one[0].Secret) // never fails
		cfg.PageKeys = func() []secrets.Generation { return one }
	}
	admitted := admission.New(cfg.Quotas, cmp.Or(cfg.RequestMemory, DefaultRequestMemory))
	nodes := fanout.New(fanout.Config{Maps: cfg.Maps, Zone: cfg.Zone, Dial: cfg.Dial, Memory: admitted.Answering, Log: cfg.Log})
	b := &Broker{
		maps: cfg.Maps, models: unshadowed(cfg.Models), timeout: cmp.Or(cfg.Timeout, 10*time.Second), log: cfg.Log, pages: pagetoken.NewRing(cfg.PageKeys),
		fanout: nodes, records: items.New(nodes.Node, cfg.Log), admission: admitted, traced: cfg.Traced,
		exposures: cfg.Exposures, name: cfg.Name, gaps: gaps.New(),
		forbid: cfg.Forbid,
	}
	b.condemned.cluster = cfg.Condemned
	b.Doors = doors.New(doors.Config{
		Admission: admitted, Permit: cfg.Permit, Feed: b.wireFeed, Why: b.Why,
		Refused: func(err error) { b.metrics.turnedAway(err) }, Shed: func() { b.metrics.shed(1) }, Log: cfg.Log,
	})
	b.open, b.end = context.WithCancel(context.Background())
	b.shadows = shadows.New(b.open, admitted, b.timeout, cfg.Log)
	b.feeds = feeds.NewBook(append(feeds.BuiltIn(), cfg.Feeds...), cfg.Definitions, b.tryFeed, cfg.Log)
	b.feeds.Start()
	if cfg.Experiments != nil { // after b.feeds, since experiments refer to feeds
		b.experiments = experiments.Follow(cfg.Experiments, newReferred(b), cfg.Log)
	}
	var err error
	if b.metrics, err = newMetrics(b, cfg.Metrics); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// Close stops what the broker follows, and closes the connections to the nodes. It
// must be called once, after the last request.
func (b *Broker) Close() error {
	b.feeds.Close()
	if b.experiments != nil {
		b.experiments.Close()
	}
	b.end()
	b.shadows.Wait()
	b.fanout.Close()
	return nil
}

// GetFeed answers one request. Every refusal is a [millrace.Error]; the only
// other error is the context's when the caller went away.
func (b *Broker) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	resp, err := b.wireFeed(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp, items.Read(resp)
}

// wireFeed is GetFeed for doors (the gRPC and HTTP servers), which write protobuf. The
// items of its response are already encoded, among the unknown fields, as
// [items.Records.Append] writes them.
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
	tracing.End(span, err)
	if err != nil {
		b.exposeRefusal(ctx, q, err)
	}
	if tracing.Forced(ctx) {
		if err == nil {
			err = items.Read(resp)
		}
		b.logTraced(ctx, req, resp, err, time.Since(start))
		unexplained(req, resp)
	}
	return resp, err
}

// tracer is OpenTelemetry's, which does nothing until a process installs a
// provider.
var tracer = otel.Tracer("github.com/millrace/millrace/broker")

// getFeed is wireFeed without metrics, traces and exposures of refusals. With an error the
// question is nil if the request was refused before its feed was known or permitted.
func (b *Broker) getFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*question, *feedv1.GetFeedResponse, error) {
	inFlight, err := b.admission.Enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer inFlight.Leave()
	began := time.Now()
	if err := b.entitled(ctx, req); err != nil {
		return nil, nil, err
	}
	q, err := b.read(ctx, req, began)
	if err != nil {
		return q, nil, err
	}
	if err := entitledTo(ctx, &q.feed); err != nil {
		return nil, nil, err
	}
	if err := b.records.CheckFields(ctx, nil, &q.fields, nil); err != nil {
		return q, nil, err
	}
	q.Query.Explain = q.Query.Explain || tracing.Forced(ctx)
	q.Times.Read = time.Since(began)
	end := began.Add(b.timeout)
	if allowed, ok := ctx.Deadline(); ok && allowed.Before(end) {
		end = allowed
	}
	inFlight.Asks(q.feed.Name, len(req.GetEntities()), end)
	loan, over := b.admission.Loan(ctx)
	defer over()
	q.Loan = loan
	o, f, err := b.askDraft(ctx, q, end)
	if err == nil {
		inFlight.Ending = f.Ending(ctx, o)
	}
	switch {
	case err != nil:
		return q, nil, err
	case ctx.Err() != nil:
		return q, nil, late(ctx)
	case len(o.Parts) == 0:
		return q, nil, f.Nothing(o)
	}
	if err := b.typesKnown(ctx, q, f, o, req); err != nil {
		return q, nil, err
	}
	resp, err := b.answer(ctx, q, f, o)
	return q, resp, err
}

// overtakes is how long before a request's deadline a cancellation still counts as the
// deadline. A caller gives up at the deadline by its own clock and cancels, and the
// cancellation can arrive before the broker's own timer fires.
const overtakes = 20 * time.Millisecond

// late returns the error of a request whose context has ended: a refusal if it
// reached the deadline, else the context's error, since the caller went away.
func late(ctx context.Context) error {
	at, bounded := ctx.Deadline()
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) && (!bounded || time.Until(at) > overtakes) {
		return err
	}
	return &millrace.Error{Reason: millrace.ReasonDeadline, Detail: "the deadline passed before an answer", WayOut: "allow more time or ask for fewer entities"}
}
