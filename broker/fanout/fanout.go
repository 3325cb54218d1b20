// Package fanout gets a question answered by index nodes, as far as time and the
// cluster allow: it picks the fewest nodes that cover the partitions, asks them at
// the same time, hedges what is slow, and remembers which nodes are slow or answer
// nobody. What they answered is an outcome, which it merges as one machine would
// have answered.
package fanout

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/tracing"
)

// Node is what a broker asks of an index node: a local one, a remote one or
// a fake. It gives up when ctx ends. Errors are [millrace.Error] where they
// refuse the request, [ErrUnreachable] where the node is not there, and [ErrTooLarge]
// where its answer is larger than a message may be.
type Node interface {
	Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error)
	GetSchema(ctx context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error)
	// Ping returns nil when the node is there, however much it has to do.
	Ping(ctx context.Context) error
}

// Maps gives the cluster's present map; [cluster.Watcher] does.
type Maps interface {
	Current() *topology.Map
}

// tracer is OpenTelemetry's, which does nothing until a process installs a
// provider.
var tracer = otel.Tracer("github.com/millrace/millrace/broker")

// maxReplicas is how many replicas of a partition one request asks at most.
const maxReplicas = 3

// Fanout asks index nodes, and remembers what is to be known of them.
type Fanout struct {
	maps    Maps
	conns   *conns
	workers *workers
	budget  *budget
	recent  *latencies
	health  *health
	zone    zone
	absent  absent
	sizes   *sizes
	memory  *memory.Budget // for answers
	metrics *metrics

	open  context.Context // until close
	end   context.CancelFunc
	pings sync.WaitGroup
}

// Config is what a fan-out works with.
type Config struct {
	Maps Maps
	// Zone is where the broker stands; empty: all nodes are equally near.
	Zone string
	// Dial returns the way to a node. What it returns is closed, if it is an
	// io.Closer, a while after the node has left the map.
	Dial   func(topology.Node) (Node, error)
	Memory *memory.Budget // for answers that nobody takes away
	Log    *slog.Logger
}

// New returns a fan-out. Nodes are dialled when first asked.
func New(c Config) *Fanout {
	f := &Fanout{
		maps: c.Maps, conns: newConns(c.Dial, c.Log), workers: newWorkers(), budget: newBudget(hedgeShare, hedgeBurst), recent: &latencies{},
		health: newHealth(), zone: zone{name: c.Zone}, sizes: newSizes(), memory: c.Memory, metrics: newMetrics(),
	}
	f.open, f.end = context.WithCancel(context.Background())
	return f
}

// Close ends the connections to the nodes, once nothing is asked any more.
func (f *Fanout) Close() {
	f.end()
	f.pings.Wait()
	f.conns.close()
	f.workers.close()
}

// Node returns the way to a node.
func (f *Fanout) Node(n topology.Node) (Node, error) { return f.conns.get(n) }

// Note notes that a node lacks a model beside, so that for a moment others are
// asked before it.
func (f *Fanout) Note(id millrace.NodeID, sum string) { f.absent.note(id, sum) }

// Unresponsive reports whether a node answers nobody.
func (f *Fanout) Unresponsive(id millrace.NodeID) bool { return f.health.unresponsive(id) }

// Asking is the asking of one question. It keeps one map throughout.
type Asking struct {
	fan *Fanout
	q   *questions.Question
	Map *topology.Map

	began  time.Time
	End    time.Time // when the caller does not wait any more,
	Until  time.Time // and the nodes neither
	nodes  doubtful
	zone   string // preferred
	cancel context.CancelFunc
	room   int64 // bytes that the part of a node is likely not to exceed

	mu struct {
		sync.Mutex
		refused    error              // by a node, for what the request itself is,
		RefusedBy  questions.Weighted // version
		lacking    []millrace.NodeID  // a model
		lacked     artefacts.Version  // the last of those
		unread     error              // the first refusal of a filter, and
		unreadBy   []millrace.NodeID  // whose it and others are
		accepted   bool               // some node has answered
		unreadEnd  *time.Timer        // of the wait for one
		calls      []*feedv1.NodeCall
		fired, won int32 // hedges
		saved      time.Duration
	}
}

// Ask gets a question answered as far as ctx, the time until end and the cluster
// allow, by the versions that it names. The error is a refusal by a node, which
// holds for the whole request.
func (f *Fanout) Ask(ctx context.Context, q *questions.Question, end time.Time) (Outcome, *Asking, error) {
	if q.Loan == nil { // of nobody who takes the answer away
		q.Loan = f.memory.Borrow()
		defer q.Loan.Return()
	}
	a := &Asking{fan: f, q: q, Map: f.maps.Current(), began: time.Now(), End: end, Until: margin(end), room: f.sizes.expect(q)}
	if err := q.Hold(requestTimes*int64(q.Bytes()) + timelineBytes*int64(q.Asked())); err != nil {
		return Outcome{}, a, err
	}
	ctx, a.cancel = context.WithDeadline(ctx, a.Until)
	defer a.cancel()
	a.nodes, a.zone = f.health.doubtful(a.Map), f.zone.preferred(a.Map)
	for _, g := range q.Groups {
		a.nodes.poor = append(a.nodes.poor, f.absent.lacking(g.Query.ModelSum)...)
	}
	if q.BesideSum != "" {
		a.nodes.poor = append(a.nodes.poor, f.absent.lacking(q.BesideSum)...)
	}
	f.conns.keep(f.maps)
	o := a.cover(ctx, q.Want, nil)
	o.oneVersion()
	q.Times.FanOut = time.Since(a.began) - q.Times.Route
	return o, a, a.refusal(&o)
}

// refusal is what the request is refused for in the end; nil for nothing.
func (a *Asking) refusal(o *Outcome) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.unread != nil {
		a.mu.unreadEnd.Stop()
		if a.mu.refused == nil && len(o.Parts) == 0 {
			a.mu.refused = a.mu.unread
		}
	}
	return a.mu.refused
}

// refuse ends everything.
func (a *Asking) refuse(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.refused == nil {
		a.mu.refused = err
	}
	a.cancel()
}

// giveWay ends everything where a node has condemned a version, or it lacks
// weights.
func (a *Asking) giveWay(g *questions.Group, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.refused == nil {
		a.mu.refused, a.mu.RefusedBy = err, questions.Weighted{Version: g.Model(), Sum: g.Query.WeightsSum}
	}
	a.cancel()
}

// readWait is how long a node's refusal of a filter waits for another that takes it.
const readWait = 250 * time.Millisecond

// mayBeRead reports whether a node's refusal of a filter is its own: it may lack a
// schema that others have read. Where none has answered by then, two nodes speak for
// the cluster, or one after a while, or all that can be asked.
func (a *Asking) mayBeRead(id millrace.NodeID, err error) bool {
	var e *millrace.Error
	if !errors.As(err, &e) || e.Reason != millrace.ReasonFilter {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.unread == nil {
		a.mu.unread, a.mu.unreadEnd = err, time.AfterFunc(readWait, func() {
			if !a.hasAccepted() {
				a.refuse(err)
			}
		})
	}
	if !slices.Contains(a.mu.unreadBy, id) {
		a.mu.unreadBy = append(a.mu.unreadBy, id)
	}
	return a.mu.accepted || len(a.mu.unreadBy) < 2
}

func (a *Asking) hasAccepted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.accepted
}

func (a *Asking) accept() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.accepted = true
}

// cover asks for partitions at replicas that were not tried yet, each node
// with its hedge, all at the same time.
func (a *Asking) cover(ctx context.Context, want topology.Set, tried []millrace.NodeID) Outcome {
	if a.spent(tried) {
		return none(want, MissNoReplica)
	}
	by := choice{m: a.Map, doubtful: a.nodes, zone: a.zone, avoid: tried, viewer: a.q.Viewer, work: a.q.Work}
	began := time.Now()
	requests, rest := by.route(want)
	if len(tried) == 0 { // before there is anything else at work
		a.q.Times.Route = time.Since(began)
	}
	calls := 0
	for _, r := range requests {
		calls += len(a.q.GroupsIn(r.parts))
	}
	room := share(a.room, calls)
	if err := a.q.Hold(2 * room * int64(calls)); err != nil {
		a.refuse(err)
		return none(want, MissOverloaded)
	}
	total := none(rest, MissNoReplica)
	outcomes := make([]Outcome, len(requests))
	var wg sync.WaitGroup
	for i := range requests {
		requests[i].room = room
	}
	for i, r := range requests {
		if i > 0 {
			wg.Add(1)
			a.fan.workers.run(func() {
				defer wg.Done()
				outcomes[i] = a.askShard(ctx, r, tried)
			})
		}
	}
	if len(requests) > 0 { // here, where there is a goroutine already
		outcomes[0] = a.askShard(ctx, requests[0], tried)
	}
	wg.Wait()
	for _, o := range outcomes {
		total.add(o)
	}
	return total
}

// askShard asks one node and, when it is slow or fails, others for the same.
func (a *Asking) askShard(ctx context.Context, r shardRequest, tried []millrace.NodeID) Outcome {
	r.entities = a.q.Among(r.parts)
	next := append(slices.Clip(tried), r.node.ID)
	var heard, shed atomic.Bool // from the node itself; that it is overloaded
	var partly atomic.Bool      // it has answered for some, and others were asked for the rest
	first := func(ctx context.Context) (Outcome, bool) {
		called, over := a.fan.health.wait(ctx, r.node.ID)
		o := a.call(called, r, len(tried) > 0)
		heard.Store(called.Err() == nil) // unless it was given up
		over()
		shed.Store(o.all(MissOverloaded))
		if left := o.Left(); len(o.Parts) > 0 && left.Len() > 0 {
			// The node has answered for the rest; only these are still open.
			partly.Store(true)
			reasons := o.Missing
			o.Missing = nil
			o.add(a.cover(ctx, left, next).explained(reasons))
		}
		return o, len(o.Missing) == 0
	}
	second := func(ctx context.Context) (Outcome, bool) {
		if partly.Load() {
			return none(r.parts, MissNoReplica), false // nobody is left to be asked for what is open
		}
		if shed.Load() && !a.fan.budget.spend() {
			return none(r.parts, MissOverloaded), false // asking on would spread the overload
		}
		o := a.cover(ctx, r.parts, next)
		o.second = true
		return o, len(o.Missing) == 0
	}
	hedged, asked := false, false
	allow := func() bool {
		if !heard.Load() {
			a.suspect(r.node)
		}
		if a.q.Inquires() {
			hedged = a.elsewhere(r.parts, next)
			return hedged
		}
		// A node that answers nobody will not answer this call either: asking
		// another is no extra work, just as when it had failed.
		hedged = a.elsewhere(r.parts, next) && (a.fan.health.unresponsive(r.node.ID) || a.fan.budget.spend())
		if !asked && !heard.Load() {
			a.fan.health.overdue(r.node.ID)
		}
		if !asked && !hedged {
			a.fan.metrics.hedges.WithLabelValues(hedgeDenied).Inc()
		}
		asked = true
		return hedged
	}
	a.fan.budget.earn()
	began := time.Now()
	delay := a.recent(r).hedgeAfter()
	if a.q.Inquires() {
		delay = inquiryDelay
	}
	ends := hedge(ctx, delay, allow, first, second)
	best := slices.MinFunc(ends, func(x, y Outcome) int { return cmp.Compare(len(x.Missing), len(y.Missing)) })
	if hedged {
		a.ledger(r, best.second && len(best.Missing) == 0, heard.Load(), time.Since(began))
	}
	for _, o := range ends {
		best = best.explained(o.Missing)
	}
	return best
}

// suspect has a node pinged whose call is overdue.
func (a *Asking) suspect(n topology.Node) {
	f := a.fan
	if !f.health.suspect(n.ID) {
		return
	}
	f.pings.Go(func() { f.health.ping(f.open, n.ID, f.pinger(n.ID)) })
}

// pinger returns what pings a node, wherever it is by then.
func (f *Fanout) pinger(id millrace.NodeID) func(context.Context) error {
	return func(ctx context.Context) error {
		n, known := f.maps.Current().Node(id)
		if !known {
			return nil // whoever comes back by this name begins anew
		}
		node, err := f.conns.get(n)
		if err != nil {
			return err
		}
		return node.Ping(ctx)
	}
}

// Ending says what an outcome tells of how busy the nodes are. What waited in
// vain for those that answer nobody tells nothing of the others, unless there
// are no others; nor does what its caller gave up.
func (a *Asking) Ending(ctx context.Context, o Outcome) admission.Ending {
	switch {
	case len(o.Missing) == 0:
		return admission.EndWhole
	case ctx.Err() != nil && time.Now().Before(a.Until):
		return admission.EndSilent
	}
	answers := func(id millrace.NodeID) bool { return a.Map.Alive(id) && !a.fan.health.unresponsive(id) }
	for p, why := range o.Missing {
		switch {
		case why == MissOverloaded:
			return admission.EndShed
		case why == MissTimeout && slices.ContainsFunc(a.Map.Replicas(p), answers):
			return admission.EndLate
		}
	}
	if !slices.ContainsFunc(a.Map.Nodes(), func(n topology.Node) bool { return answers(n.ID) }) {
		return admission.EndLate
	}
	return admission.EndPartial
}

// elsewhere reports whether any node but those tried could be asked for some
// of the partitions.
func (a *Asking) elsewhere(parts topology.Set, tried []millrace.NodeID) bool {
	if a.spent(tried) {
		return false
	}
	for p := range parts.All() {
		for _, id := range a.Map.Replicas(p) {
			if _, known := a.Map.Node(id); known && !slices.Contains(tried, id) {
				return true
			}
		}
	}
	return false
}

// ledger counts a hedge that was sent beside a shard request, and notes after how long that
// ended. What a hedge that won saved is a guess, since the first call was given up: calls
// that took as long mostly went on for so long.
func (a *Asking) ledger(r shardRequest, won, heard bool, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.fired++
	a.fan.metrics.hedges.WithLabelValues(hedgeFired).Inc()
	if won {
		a.mu.won++
		a.fan.metrics.hedges.WithLabelValues(hedgeWon).Inc()
		if !heard {
			saved := a.recent(r).beyond(took)
			a.mu.saved += saved
			a.fan.metrics.hedgeSaved.Add(saved.Seconds())
		}
	}
}

// call asks one node once, for its part of every group.
func (a *Asking) call(ctx context.Context, r shardRequest, again bool) Outcome {
	start := time.Now()
	spanned, span := tracer.Start(ctx, "broker.call", trace.WithSpanKind(trace.SpanKindClient))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("node", string(r.node.ID)), attribute.Int("partitions", r.parts.Len()), attribute.Bool("again", again))
	}
	parts, err := a.query(spanned, r)
	tracing.End(span, err)
	took := time.Since(start)
	label := a.count(ctx, r, err)
	if a.q.Query.Explain {
		for _, pt := range parts {
			a.note(r, pt.Group, &feedv1.NodeCall{
				Hedge: again, BeganMillis: millis(start.Sub(a.began)), Millis: millis(took), Times: pt.Resp.GetTimes(), Outcome: label,
			}, err)
		}
	}
	a.judge(r, took, err)
	switch {
	case err == nil:
		a.accept()
	case a.mayBeRead(r.node.ID, err):
		return none(r.parts, MissBehind)
	case rpcerr.Refused(err):
		a.refuse(err)
		fallthrough
	default:
		return none(r.parts, reason(ctx, err))
	}
	o := Outcome{Parts: parts}
	for i := range parts {
		pt := &parts[i]
		var missing map[millrace.Partition]string
		pt.Covered, missing = partitionsOf(pt.Resp, r.parts.And(pt.Group.Want))
		o.add(Outcome{Missing: missing})
	}
	o.uncover()
	return o
}

// query asks one node for its part of every group. With an error what it returns
// has no answers.
func (a *Asking) query(ctx context.Context, r shardRequest) ([]Part, error) {
	groups := a.q.GroupsIn(r.parts)
	parts := make([]Part, len(groups))
	for i, g := range groups {
		parts[i] = Part{Node: r.node.ID, Group: g}
	}
	if len(groups) == 1 {
		var err error
		parts[0].Resp, err = a.queryGroup(ctx, r, groups[0])
		return parts, err
	}
	return parts, a.queryGroups(ctx, r, parts)
}

// queryGroups asks one node for its parts of all groups at the same time. With an
// error of one the others are given up. It is a function of its own because what
// its goroutines share goes to the heap, which calls for one group do not pay.
func (a *Asking) queryGroups(ctx context.Context, r shardRequest, parts []Part) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	ask := func(i int) {
		var err error
		if parts[i].Resp, err = a.queryGroup(ctx, r, parts[i].Group); err != nil {
			once.Do(func() { first = err; cancel() })
		}
	}
	for i := 1; i < len(parts); i++ {
		wg.Add(1)
		a.fan.workers.run(func() { defer wg.Done(); ask(i) })
	}
	ask(0)
	wg.Wait()
	return first
}

// queryGroup asks one node for its part of a group, and takes no other answer
// than was asked for.
func (a *Asking) queryGroup(ctx context.Context, r shardRequest, g *questions.Group) (*nodev1.QueryResponse, error) {
	resp, err := a.queryPart(ctx, r, g)
	if err == nil && resp.GetProtocol() < a.q.Protocol(g) {
		err = errOlder
	}
	if err == nil {
		err = g.AnsweredBy(resp)
	}
	switch {
	case err == nil:
	case IsCondemned(err), LacksWeights(err):
		a.giveWay(g, err)
	case reason(ctx, err) == MissModel:
		a.lack(r.node.ID, g)
	}
	return resp, err
}

// queryPart asks one node for its part of a group. What the part may take has
// been reserved; a node whose part takes more says how much, and is asked again
// when there is room for it.
func (a *Asking) queryPart(ctx context.Context, r shardRequest, g *questions.Group) (*nodev1.QueryResponse, error) {
	room := r.room
	var size int64
	defer func() { _ = a.q.Loan.More(size - 2*room) }()
	n, err := a.fan.conns.get(r.node)
	if err != nil {
		return nil, err
	}
	for range maxAsks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		resp, err := n.Query(ctx, a.q.Ask(g, r.parts, room))
		if err != nil {
			return nil, rpcerr.FromStatus(err) // a node in this process speaks as on the wire
		}
		needs := resp.GetWithheldBytes()
		if needs == 0 {
			size = nodewire.Size(resp)
			a.fan.sizes.learn(a.q, size, len(resp.GetItems()))
			return resp, nil
		}
		needs += needs / 8 // what comes meanwhile
		if err := a.q.Hold(2 * (needs - room)); err != nil {
			a.refuse(err)
			return nil, brokersFault{err}
		}
		room = needs
	}
	return nil, ErrTooLarge
}

// brokersFault is the broker's own fault, such as that it has no room for an answer. It
// says nothing of the node that was asked.
type brokersFault struct{ error }

func (b brokersFault) Unwrap() error { return b.error }

// judge tells health and the hedges' delay how a call went. A call given up
// early, or refused for the request's sake, says nothing about its node.
func (a *Asking) judge(r shardRequest, took time.Duration, err error) {
	if a.q.Inquires() {
		return
	}
	id, recent := r.node.ID, a.recent(r)
	due := recent.hedgeAfter()
	if err != nil && !ended(err) && !errors.Is(err, ErrUnreachable) {
		a.fan.health.hears(id)
	}
	switch {
	case err == nil:
		a.fan.health.answered(id, took, took < due)
		recent.add(took)
		a.fan.metrics.callTimes.Observe(took.Seconds())
	case rpcerr.Refused(err), errors.As(err, new(brokersFault)), IsCondemned(err), reason(context.Background(), err) == MissModel, errors.Is(err, errOlder):
	case !ended(err):
		a.fan.health.failed(id)
		if errors.Is(err, ErrUnreachable) {
			a.suspect(r.node)
		}
	case took >= due:
		a.fan.health.gaveUp(id, took)
	}
}

// recent returns how long calls with about as many entities took of late.
func (a *Asking) recent(r shardRequest) *recent { return a.fan.recent.forSize(r.entities) }

// ended reports whether err only says that time is up or nobody waits.
func ended(err error) bool {
	var e *millrace.Error
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &e) && e.Reason == millrace.ReasonDeadline
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// count counts a call, and returns how it ended.
func (a *Asking) count(ctx context.Context, r shardRequest, err error) string {
	label := "failed"
	switch {
	case err == nil:
		label = "answered"
	case errors.Is(context.Cause(ctx), context.Canceled):
		label = "cancelled"
	}
	a.fan.metrics.calls.WithLabelValues(string(r.node.ID), label).Inc()
	return label
}

// note completes a line for explain.
func (a *Asking) note(r shardRequest, g *questions.Group, c *feedv1.NodeCall, err error) {
	if c.Outcome == "failed" {
		c.Outcome = err.Error()
	}
	parts := r.parts.And(g.Want)
	c.Node, c.Partitions = string(r.node.ID), int32(parts.Len())
	for p := range parts.All() {
		c.Timelines += int32(g.Timelines(p))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.calls = append(a.mu.calls, c)
}

// margin is the deadline of the nodes: a twentieth of the time before the
// end of the caller's, 50 ms at most, so that what has been answered by then still
// reaches the caller.
func margin(end time.Time) time.Time {
	return end.Add(-min(time.Until(end)/20, 50*time.Millisecond))
}

// Explain tells every call of a node, and what hedges did.
func (a *Asking) Explain(e *feedv1.Explain) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e.Calls, e.HedgesFired, e.HedgesWon, e.HedgeSavedMillis = a.mu.calls, a.mu.fired, a.mu.won, millis(a.mu.saved)
}
