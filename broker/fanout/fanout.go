// Package fanout gets a question answered by index nodes, as far as time and the
// cluster allow. A question is a checked request: entities by partition, with a filter
// and a model (package questions). The package picks few nodes that cover the
// partitions, sends each a shard request at the same time, hedges slow ones (asks other
// replicas as well), and remembers which nodes are slow or unresponsive. The result is an
// outcome: the answered parts, and why the other partitions are missing. [Merge] makes of
// the parts the answer that one machine would have given.
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

// Node is an index node as a broker sees it: in this process, behind gRPC, or a fake.
// Its methods give up when ctx ends. An error is a [millrace.Error] if the node refuses
// the request, [ErrUnreachable] if the node is not there, and [ErrTooLarge] if its answer
// is larger than a message may be.
type Node interface {
	Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error)
	GetSchema(ctx context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error)
	// Ping returns nil when the node is there, however much it has to do.
	Ping(ctx context.Context) error
}

// Maps gives the newest cluster map: the nodes, and which partitions each has.
// [cluster.Watcher] implements it.
type Maps interface {
	Current() *topology.Map
}

// tracer is OpenTelemetry's, which does nothing until a process installs a
// provider.
var tracer = otel.Tracer("github.com/millrace/millrace/broker")

// maxReplicas is how many replicas of a partition one request asks at most. Replicas that
// only lack the model do not count.
const maxReplicas = 3

// Fanout asks index nodes, and remembers between requests how they answered. Its methods
// may be called concurrently.
type Fanout struct {
	maps    Maps
	conns   *conns
	workers *workers       // make calls to several nodes at a time
	budget  *budget        // of hedges
	recent  *latencies     // how long calls took of late
	health  *health        // which nodes were slow, failing or silent of late
	zone    zone           // the broker's, and the share of requests that prefer it
	absent  absent         // which nodes lacked which models of late
	sizes   *sizes         // how large items were of late
	memory  *memory.Budget // see Config.Memory
	metrics *metrics

	open  context.Context // of pings; Close ends it
	end   context.CancelFunc
	pings sync.WaitGroup
}

// Config is what a fan-out works with.
type Config struct {
	Maps Maps
	// Zone is where the broker stands; empty: all nodes are equally near.
	Zone string
	// Dial connects to a node. What it returns is closed, if it is an io.Closer, a while
	// after the node has left the map.
	Dial   func(topology.Node) (Node, error)
	Memory *memory.Budget // Ask borrows from it for a question whose Loan is nil
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

// Close ends pings and closes the connections to the nodes. No request may be in flight.
func (f *Fanout) Close() {
	f.end()
	f.pings.Wait()
	f.conns.close()
	f.workers.close()
}

// Node returns the connection to a node, which it dials if there is none. The error is
// that of Config.Dial.
func (f *Fanout) Node(n topology.Node) (Node, error) { return f.conns.get(n) }

// Note notes that a node lacks the model of the second ranking of a draft (a page that
// interleaves two rankings). For [absentFor] other nodes are asked before it for that
// model. sum is the model's checksum.
func (f *Fanout) Note(id millrace.NodeID, sum string) { f.absent.note(id, sum) }

// Unresponsive reports whether a node has of late answered neither calls nor pings; see
// health.
func (f *Fanout) Unresponsive(id millrace.NodeID) bool { return f.health.unresponsive(id) }

// Asking is the state of one question while nodes are asked, and what is known of it
// afterwards. It uses one cluster map throughout.
type Asking struct {
	fan *Fanout
	q   *questions.Question
	Map *topology.Map

	began  time.Time
	End    time.Time          // the caller's deadline
	Until  time.Time          // the nodes' deadline, a little before End
	nodes  doubtful           // the nodes to ask last
	zone   string             // the zone whose nodes are preferred; "": none
	cancel context.CancelFunc // ends all calls of the question
	room   int64              // bytes that one node's part of the answer is not likely to exceed

	mu struct {
		sync.Mutex
		refused    error              // the refusal of the whole request; nil: none
		RefusedBy  questions.Weighted // the version that a node refused to rank by; zero: none
		lacking    []millrace.NodeID  // nodes that lack the model asked for
		lacked     artefacts.Version  // the model that was found lacking last
		unread     error              // the first refusal of the filter; see mayBeRead
		unreadBy   []millrace.NodeID  // nodes that refused the filter
		accepted   bool               // some node has answered
		unreadEnd  *time.Timer        // after readWait makes unread the refusal of the request
		calls      []*feedv1.NodeCall // for explain
		fired, won int32              // hedges sent, and hedges that answered first
		saved      time.Duration      // by hedges that won, estimated
	}
}

// Ask gets a question answered by the model versions that it names, as far as ctx, the
// time until end and the cluster allow. Partitions that were not answered are in
// Outcome.Missing and are no error. The error refuses the whole request: a node refused
// it, or the broker has no memory for the answer. The Asking is never nil.
func (f *Fanout) Ask(ctx context.Context, q *questions.Question, end time.Time) (Outcome, *Asking, error) {
	if q.Loan == nil { // the caller has not reserved memory for this answer
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

// refusal returns the refusal of the whole request, or nil. A refused filter counts only
// if no part was answered.
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

// refuse refuses the whole request with err, unless it is refused already, and ends all
// its calls.
func (a *Asking) refuse(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.refused == nil {
		a.mu.refused = err
	}
	a.cancel()
}

// giveWay refuses the whole request with err, as refuse does, because a node has condemned
// the model version of group g, or the version lacks some of the weights that g sets. It
// notes the version in RefusedBy, so that the broker can ask again by another version.
func (a *Asking) giveWay(g *questions.Group, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.refused == nil {
		a.mu.refused, a.mu.RefusedBy = err, questions.Weighted{Version: g.Model(), Sum: g.Query.WeightsSum}
	}
	a.cancel()
}

// readWait is how long after the first refusal of a filter another node may still answer.
// If none has by then, the request is refused.
const readWait = 250 * time.Millisecond

// mayBeRead reports whether err refuses the filter and other nodes may accept it: the node
// may lack a schema that others have read. The filter is refused for the whole request as
// soon as two nodes have refused it and none has answered; or when none has answered
// within [readWait] of the first refusal; or when no part is answered in the end.
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

// cover asks nodes other than those tried for the wanted partitions, all nodes at the same
// time and each with its hedge. The outcome has each wanted partition, answered or missing.
func (a *Asking) cover(ctx context.Context, want topology.Set, tried []millrace.NodeID) Outcome {
	if a.spent(tried) {
		return none(want, MissNoReplica)
	}
	by := choice{m: a.Map, doubtful: a.nodes, zone: a.zone, avoid: tried, viewer: a.q.Viewer, work: a.q.Work}
	began := time.Now()
	requests, rest := by.route(want)
	if len(tried) == 0 { // only here does no other goroutine work on q
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
	if len(requests) > 0 { // on the caller's goroutine, which would only wait
		outcomes[0] = a.askShard(ctx, requests[0], tried)
	}
	wg.Wait()
	for _, o := range outcomes {
		total.add(o)
	}
	return total
}

// askShard asks one node for the partitions of r. If the node is slow or fails, it asks
// other nodes for the same partitions.
func (a *Asking) askShard(ctx context.Context, r shardRequest, tried []millrace.NodeID) Outcome {
	r.entities = a.q.Among(r.parts)
	next := append(slices.Clip(tried), r.node.ID)
	var heard, shed atomic.Bool // the node's call ended by itself; the node said that it is overloaded
	var partly atomic.Bool      // the node answered some partitions, and others were asked for the rest
	first := func(ctx context.Context) (Outcome, bool) {
		called, over := a.fan.health.wait(ctx, r.node.ID)
		o := a.call(called, r, len(tried) > 0)
		heard.Store(called.Err() == nil) // unless it was given up
		over()
		shed.Store(o.all(MissOverloaded))
		if left := o.Left(); len(o.Parts) > 0 && left.Len() > 0 {
			// The node has answered some partitions: others are asked for those left.
			partly.Store(true)
			reasons := o.Missing
			o.Missing = nil
			o.add(a.cover(ctx, left, next).explained(reasons))
		}
		return o, len(o.Missing) == 0
	}
	second := func(ctx context.Context) (Outcome, bool) {
		if partly.Load() {
			return none(r.parts, MissNoReplica), false // first has asked other nodes for the rest already
		}
		if shed.Load() && !a.fan.budget.spend() {
			return none(r.parts, MissOverloaded), false // asking other nodes would spread the overload
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
		// An unresponsive node will not answer this call either. So asking another node
		// is no extra work, just as after a failure, and takes nothing from the budget.
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

// suspect starts to ping a node whose call is overdue or could not reach it, unless the
// node is pinged already or was just heard.
func (a *Asking) suspect(n topology.Node) {
	f := a.fan
	if !f.health.suspect(n.ID) {
		return
	}
	f.pings.Go(func() { f.health.ping(f.open, n.ID, f.pinger(n.ID)) })
}

// pinger returns a function that pings a node at its address in the newest map.
func (f *Fanout) pinger(id millrace.NodeID) func(context.Context) error {
	return func(ctx context.Context) error {
		n, known := f.maps.Current().Node(id)
		if !known {
			return nil // it has left: pings end, and a node that returns by this id counts as heard
		}
		node, err := f.conns.get(n)
		if err != nil {
			return err
		}
		return node.Ping(ctx)
	}
}

// Ending returns what an outcome tells admission control about how busy the nodes are.
// A timeout counts as late (EndLate) only if an alive, responsive replica of the partition
// could have answered. If no node of the cluster is alive and responsive, any missing
// partition counts as late. A request that its caller gave up before the nodes' deadline
// says nothing (EndSilent).
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

// elsewhere reports whether a node that was not tried has a replica of one of the
// partitions, and the request may still ask it.
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

// ledger counts a hedge that was sent beside a shard request. won says that the hedge
// answered everything; heard, that the first call ended by itself; took is the time until
// the result. If the first call was given up, the time that the hedge saved is estimated
// from recent calls that took longer than took; see recent.beyond.
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

// call asks one node once, for its part of every group. again says that other nodes were
// tried before.
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

// query asks one node for its part of every group. With an error the parts are for explain
// alone: some have no Resp.
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

// queryGroups asks one node for its parts of all groups at the same time. If one fails,
// the others are cancelled and its error is returned. It is a function of its own because
// the variables that its goroutines share go to the heap: calls for one group do not pay
// for that.
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

// queryGroup asks one node for its part of a group. An answer by an older protocol, or by
// another model, version or weights than asked for, is an error.
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

// queryPart asks one node for its part of a group. cover has reserved twice r.room bytes
// for the part: its encoded bytes and the decoded message are in memory at once. A node
// whose part takes more withholds it and says how many bytes it takes; then more is
// reserved and the node is asked again, [maxAsks] times in all.
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
			return nil, rpcerr.FromStatus(err) // a node in this process returns gRPC statuses too
		}
		needs := resp.GetWithheldBytes()
		if needs == 0 {
			size = nodewire.Size(resp)
			a.fan.sizes.learn(a.q, size, len(resp.GetItems()))
			return resp, nil
		}
		needs += needs / 8 // the part may grow before the node is asked again
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

// judge tells node health and the hedge delay how a call went. A call says nothing about
// its node if the question Inquires, if the call was given up before a hedge was due, if
// the node refused the request or the model version, lacks the model or is of an older
// version of Millrace, or if the fault is the broker's own.
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

// recent returns the recent durations of calls with about as many entities as r.
func (a *Asking) recent(r shardRequest) *recent { return a.fan.recent.forSize(r.entities) }

// ended reports whether err only says that time is up or nobody waits.
func ended(err error) bool {
	var e *millrace.Error
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &e) && e.Reason == millrace.ReasonDeadline
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// count counts a call, and returns how it ended: "answered", "cancelled" or "failed".
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

// note completes a line of explain about a call, and keeps it. The outcome of a failed call
// becomes the text of err.
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

// margin returns the nodes' deadline. It is earlier than end, the caller's, by a twentieth
// of the time left, 50 ms at most, so that what is answered by then still reaches the
// caller.
func margin(end time.Time) time.Time {
	return end.Add(-min(time.Until(end)/20, 50*time.Millisecond))
}

// Explain writes every call of a node, and what hedges did, into e.
func (a *Asking) Explain(e *feedv1.Explain) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e.Calls, e.HedgesFired, e.HedgesWon, e.HedgeSavedMillis = a.mu.calls, a.mu.fired, a.mu.won, millis(a.mu.saved)
}
