package broker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/rpcerr"
)

// maxReplicas is how many replicas of a partition one request asks at most.
const maxReplicas = 3

// fanout is the asking of one question. It keeps one map throughout.
type fanout struct {
	b *Broker
	q *question
	m *cluster.Map

	began  time.Time
	end    time.Time // when the caller does not wait any more,
	until  time.Time // and the nodes neither
	nodes  standing
	zone   string // preferred
	cancel context.CancelFunc
	room   int64 // bytes that the part of a node is likely not to exceed

	mu struct {
		sync.Mutex
		refused    error             // by a node, for what the request itself is,
		refusedBy  weighted          // version
		lacking    []millrace.NodeID // a model
		lacked     cluster.Version   // the last of those
		unread     error             // the first refusal of a filter, and
		unreadBy   []millrace.NodeID // whose it and others are
		accepted   bool              // some node has answered
		unreadEnd  *time.Timer       // of the wait for one
		calls      []*feedv1.NodeCall
		fired, won int32 // hedges
		saved      time.Duration
	}
}

// ask gets the question answered as far as ctx, the time until end and the
// cluster allow: by another version of the model where the first one is
// condemned. The error is a refusal by a node, which holds for the whole
// request.
func (b *Broker) ask(ctx context.Context, q *question, end time.Time) (o outcome, f *fanout, err error) {
	for {
		o, f, err = b.askOnce(ctx, q, end)
		again := false
		if again, err = b.givesWay(q, f.mu.refusedBy, err); !again {
			return o, f, err
		}
	}
}

// askOnce asks by the version that the question names.
func (b *Broker) askOnce(ctx context.Context, q *question, end time.Time) (outcome, *fanout, error) {
	if q.loan == nil { // of nobody who takes the answer away
		q.loan = b.admission.Answering.Borrow()
		defer q.loan.Return()
	}
	f := &fanout{b: b, q: q, m: b.maps.Current(), began: time.Now(), end: end, until: margin(end), room: b.sizes.expect(q)}
	if err := q.hold(requestTimes*int64(q.bytes()) + timelineBytes*int64(q.asked())); err != nil {
		return outcome{}, f, err
	}
	ctx, f.cancel = context.WithDeadline(ctx, f.until)
	defer f.cancel()
	f.nodes, f.zone = b.health.standing(f.m), b.zone.preferred(f.m)
	for _, g := range q.groups {
		f.nodes.poor = append(f.nodes.poor, b.absent.of(g.query.ModelSum)...)
	}
	if q.draft != nil {
		f.nodes.poor = append(f.nodes.poor, b.absent.of(q.draft.Beside.Sum)...)
	}
	b.conns.keep(f.m)
	o := f.cover(ctx, q.want, nil)
	o.oneVersion()
	q.times.fanOut = time.Since(f.began) - q.times.route
	return o, f, q.feed.discreet(f.refusal(&o))
}

// refusal is what the request is refused for in the end; nil for nothing.
func (f *fanout) refusal(o *outcome) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.unread != nil {
		f.mu.unreadEnd.Stop()
		if f.mu.refused == nil && len(o.parts) == 0 {
			f.mu.refused = f.mu.unread
		}
	}
	return f.mu.refused
}

// refuse ends everything.
func (f *fanout) refuse(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.refused == nil {
		f.mu.refused = err
	}
	f.cancel()
}

// giveWay ends everything where a node has condemned a version, or it lacks
// weights.
func (f *fanout) giveWay(g *group, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.refused == nil {
		f.mu.refused, f.mu.refusedBy = err, weighted{g.model(), g.query.WeightsSum}
	}
	f.cancel()
}

// readWait is how long a node's refusal of a filter waits for another that takes it.
const readWait = 250 * time.Millisecond

// mayBeRead reports whether a node's refusal of a filter is its own: it may lack a
// schema that others have read. Where none has answered by then, two nodes speak for
// the cluster, or one after a while, or all that can be asked.
func (f *fanout) mayBeRead(id millrace.NodeID, err error) bool {
	var e *millrace.Error
	if !errors.As(err, &e) || e.Reason != millrace.ReasonFilter {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.unread == nil {
		f.mu.unread, f.mu.unreadEnd = err, time.AfterFunc(readWait, func() {
			if !f.hasAccepted() {
				f.refuse(err)
			}
		})
	}
	if !slices.Contains(f.mu.unreadBy, id) {
		f.mu.unreadBy = append(f.mu.unreadBy, id)
	}
	return f.mu.accepted || len(f.mu.unreadBy) < 2
}

func (f *fanout) hasAccepted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.accepted
}

func (f *fanout) accept() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.accepted = true
}

// cover asks for partitions at replicas that were not tried yet, each node
// with its hedge, all at the same time.
func (f *fanout) cover(ctx context.Context, want cluster.Set, tried []millrace.NodeID) outcome {
	if f.spent(tried) {
		return none(want, missNoReplica)
	}
	by := choice{m: f.m, standing: f.nodes, zone: f.zone, avoid: tried, viewer: f.q.viewer, work: f.q.work}
	began := time.Now()
	legs, rest := by.route(want)
	if len(tried) == 0 { // before there is anything else at work
		f.q.times.route = time.Since(began)
	}
	calls := 0
	for _, l := range legs {
		calls += len(f.q.groupsIn(l.parts))
	}
	room := share(f.room, calls)
	if err := f.q.hold(2 * room * int64(calls)); err != nil {
		f.refuse(err)
		return none(want, missOverloaded)
	}
	total := none(rest, missNoReplica)
	outcomes := make([]outcome, len(legs))
	var wg sync.WaitGroup
	for i := range legs {
		legs[i].room = room
	}
	for i, l := range legs {
		if i > 0 {
			wg.Add(1)
			f.b.crew.run(func() {
				defer wg.Done()
				outcomes[i] = f.leg(ctx, l, tried)
			})
		}
	}
	if len(legs) > 0 { // here, where there is a goroutine already
		outcomes[0] = f.leg(ctx, legs[0], tried)
	}
	wg.Wait()
	for _, o := range outcomes {
		total.add(o)
	}
	return total
}

// leg asks one node and, when it is slow or fails, others for the same.
func (f *fanout) leg(ctx context.Context, l leg, tried []millrace.NodeID) outcome {
	l.entities = f.q.among(l.parts)
	next := append(slices.Clip(tried), l.node.ID)
	var heard, shed atomic.Bool // from the node itself; that it is overloaded
	first := func(ctx context.Context) (outcome, bool) {
		called, over := f.b.health.wait(ctx, l.node.ID)
		o := f.call(called, l, len(tried) > 0)
		heard.Store(called.Err() == nil) // unless it was given up
		over()
		shed.Store(o.all(missOverloaded))
		if left := o.left(); len(o.parts) > 0 && left.Len() > 0 {
			// The node has answered for the rest; only these are still open.
			reasons := o.missing
			o.missing = nil
			o.add(f.cover(ctx, left, next).explained(reasons))
		}
		return o, len(o.missing) == 0
	}
	second := func(ctx context.Context) (outcome, bool) {
		if shed.Load() && !f.b.budget.spend() {
			return none(l.parts, missOverloaded), false // asking on would spread the overload
		}
		o := f.cover(ctx, l.parts, next)
		o.second = true
		return o, len(o.missing) == 0
	}
	hedged, asked := false, false
	allow := func() bool {
		if !heard.Load() {
			f.suspect(l.node)
		}
		if f.q.inquires() {
			hedged = f.elsewhere(l.parts, next)
			return hedged
		}
		// A node that answers nobody will not answer this call either: asking
		// another is no extra work, just as when it had failed.
		hedged = f.elsewhere(l.parts, next) && (f.b.health.mute(l.node.ID) || f.b.budget.spend())
		if !asked && !heard.Load() {
			f.b.health.overdue(l.node.ID)
		}
		if !asked && !hedged {
			f.b.metrics.hedges.WithLabelValues(hedgeDenied).Inc()
		}
		asked = true
		return hedged
	}
	f.b.budget.earn()
	began := time.Now()
	delay := f.recent(l).hedgeAfter()
	if f.q.inquires() {
		delay = inquiryDelay
	}
	ends := hedge(ctx, delay, allow, first, second)
	best := slices.MinFunc(ends, func(a, b outcome) int { return cmp.Compare(len(a.missing), len(b.missing)) })
	if hedged {
		f.ledger(l, best.second && len(best.missing) == 0, heard.Load(), time.Since(began))
	}
	for _, o := range ends {
		best = best.explained(o.missing)
	}
	return best
}

// suspect has a node pinged whose call is overdue.
func (f *fanout) suspect(n cluster.Node) {
	b := f.b
	if !b.health.suspect(n.ID) {
		return
	}
	b.pings.Go(func() { b.health.ping(b.open, n.ID, b.pinger(n.ID)) })
}

// pinger returns what pings a node, wherever it is by then.
func (b *Broker) pinger(id millrace.NodeID) func(context.Context) error {
	return func(ctx context.Context) error {
		n, known := b.maps.Current().Node(id)
		if !known {
			return nil // whoever comes back by this name begins anew
		}
		node, err := b.conns.get(n)
		if err != nil {
			return err
		}
		return node.Ping(ctx)
	}
}

// ending says what an outcome tells of how busy the nodes are. What waited in
// vain for those that answer nobody tells nothing of the others, unless there
// are no others; nor does what its caller gave up.
func (f *fanout) ending(ctx context.Context, o outcome) admission.Ending {
	switch {
	case len(o.missing) == 0:
		return admission.EndWhole
	case ctx.Err() != nil && time.Now().Before(f.until):
		return admission.EndSilent
	}
	answers := func(id millrace.NodeID) bool { return f.m.Alive(id) && !f.b.health.mute(id) }
	for p, why := range o.missing {
		switch {
		case why == missOverloaded:
			return admission.EndShed
		case why == missTimeout && slices.ContainsFunc(f.m.Replicas(p), answers):
			return admission.EndLate
		}
	}
	if !slices.ContainsFunc(f.m.Nodes(), func(n cluster.Node) bool { return answers(n.ID) }) {
		return admission.EndLate
	}
	return admission.EndPartial
}

// elsewhere reports whether any node but those tried could be asked for some
// of the partitions.
func (f *fanout) elsewhere(parts cluster.Set, tried []millrace.NodeID) bool {
	if f.spent(tried) {
		return false
	}
	for p := range parts.All() {
		for _, id := range f.m.Replicas(p) {
			if _, known := f.m.Node(id); known && !slices.Contains(tried, id) {
				return true
			}
		}
	}
	return false
}

// ledger books a hedge that was sent beside a leg, and after how long the leg
// ended. What one that won saved nobody knows, since the first call was given
// up: the guess is what calls that took as long went on to take.
func (f *fanout) ledger(l leg, won, heard bool, took time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.fired++
	f.b.metrics.hedges.WithLabelValues(hedgeFired).Inc()
	if won {
		f.mu.won++
		f.b.metrics.hedges.WithLabelValues(hedgeWon).Inc()
		if !heard {
			saved := f.recent(l).beyond(took)
			f.mu.saved += saved
			f.b.metrics.hedgeSaved.Add(saved.Seconds())
		}
	}
}

// call asks one node once, for its part of every group.
func (f *fanout) call(ctx context.Context, l leg, again bool) outcome {
	start := time.Now()
	spanned, span := tracer.Start(ctx, "broker.call", trace.WithSpanKind(trace.SpanKindClient))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("node", string(l.node.ID)), attribute.Int("partitions", l.parts.Len()), attribute.Bool("again", again))
	}
	parts, err := f.query(spanned, l)
	endSpan(span, err)
	took := time.Since(start)
	label := f.count(ctx, l, err)
	if f.q.query.Explain {
		for _, pt := range parts {
			f.note(l, pt.group, &feedv1.NodeCall{
				Hedge: again, BeganMillis: millis(start.Sub(f.began)), Millis: millis(took), Times: pt.resp.GetTimes(), Outcome: label,
			}, err)
		}
	}
	f.judge(l, took, err)
	switch {
	case err == nil:
		f.accept()
	case f.mayBeRead(l.node.ID, err):
		return none(l.parts, missBehind)
	case rpcerr.Refused(err):
		f.refuse(err)
		fallthrough
	default:
		return none(l.parts, reason(ctx, err))
	}
	o := outcome{parts: parts}
	for i := range parts {
		pt := &parts[i]
		var missing map[millrace.Partition]string
		pt.covered, missing = partitionsOf(pt.resp, l.parts.And(pt.group.want))
		o.add(outcome{missing: missing})
	}
	o.uncover()
	return o
}

// query asks one node for its part of every group. With an error what it returns
// has no answers.
func (f *fanout) query(ctx context.Context, l leg) ([]part, error) {
	groups := f.q.groupsIn(l.parts)
	parts := make([]part, len(groups))
	for i, g := range groups {
		parts[i] = part{node: l.node.ID, group: g}
	}
	if len(groups) == 1 {
		var err error
		parts[0].resp, err = f.queryGroup(ctx, l, groups[0])
		return parts, err
	}
	return parts, f.queryGroups(ctx, l, parts)
}

// queryGroups asks one node for its parts of all groups at the same time. With an
// error of one the others are given up. It is a function of its own because what
// its goroutines share goes to the heap, which calls for one group do not pay.
func (f *fanout) queryGroups(ctx context.Context, l leg, parts []part) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	ask := func(i int) {
		var err error
		if parts[i].resp, err = f.queryGroup(ctx, l, parts[i].group); err != nil {
			once.Do(func() { first = err; cancel() })
		}
	}
	for i := 1; i < len(parts); i++ {
		wg.Add(1)
		f.b.crew.run(func() { defer wg.Done(); ask(i) })
	}
	ask(0)
	wg.Wait()
	return first
}

// queryGroup asks one node for its part of a group, and takes no other answer
// than was asked for.
func (f *fanout) queryGroup(ctx context.Context, l leg, g *group) (*nodev1.QueryResponse, error) {
	resp, err := f.queryPart(ctx, l, g)
	if err == nil && resp.GetProtocol() < f.q.protocol(g) {
		err = errOlder
	}
	if err == nil {
		err = g.answeredBy(resp)
	}
	switch {
	case err == nil:
	case isCondemned(err), lacksWeights(err):
		f.giveWay(g, err)
	case reason(ctx, err) == missModel:
		f.lack(l.node.ID, g)
	}
	return resp, err
}

// queryPart asks one node for its part of a group. What the part may take has
// been reserved; a node whose part takes more says how much, and is asked again
// when there is room for it.
func (f *fanout) queryPart(ctx context.Context, l leg, g *group) (*nodev1.QueryResponse, error) {
	room := l.room
	var size int64
	defer func() { _ = f.q.loan.More(size - 2*room) }()
	n, err := f.b.conns.get(l.node)
	if err != nil {
		return nil, err
	}
	for range maxAsks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		resp, err := n.Query(ctx, f.q.ask(g, l.parts, room))
		if err != nil {
			return nil, rpcerr.FromStatus(err) // a node in this process speaks as on the wire
		}
		needs := resp.GetWithheldBytes()
		if needs == 0 {
			size = nodewire.Size(resp)
			f.b.sizes.learn(f.q, size, len(resp.GetItems()))
			return resp, nil
		}
		needs += needs / 8 // what comes meanwhile
		if err := f.q.hold(2 * (needs - room)); err != nil {
			f.refuse(err)
			return nil, err
		}
		room = needs
	}
	return nil, errTooLarge
}

// judge tells health and the hedges' delay how a call went. A call given up
// early, or refused for the request's sake, says nothing about its node.
func (f *fanout) judge(l leg, took time.Duration, err error) {
	if f.q.inquires() {
		return
	}
	id, recent := l.node.ID, f.recent(l)
	due := recent.hedgeAfter()
	if err != nil && !ended(err) && !errors.Is(err, errUnreachable) {
		f.b.health.hears(id)
	}
	switch {
	case err == nil:
		f.b.health.answered(id, took, took < due)
		recent.add(took)
		f.b.metrics.callTimes.Observe(took.Seconds())
	case rpcerr.Refused(err), isCondemned(err), reason(context.Background(), err) == missModel, errors.Is(err, errOlder):
	case !ended(err):
		f.b.health.failed(id)
		if errors.Is(err, errUnreachable) {
			f.suspect(l.node)
		}
	case took >= due:
		f.b.health.gaveUp(id, took)
	}
}

// recent returns how long calls like a leg's took of late.
func (f *fanout) recent(l leg) *recent { return f.b.recent.of(l.entities) }

// ended reports whether err only says that time is up or nobody waits.
func ended(err error) bool {
	var e *millrace.Error
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &e) && e.Reason == millrace.ReasonDeadline
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// count counts a call, and returns how it ended.
func (f *fanout) count(ctx context.Context, l leg, err error) string {
	label := "failed"
	switch {
	case err == nil:
		label = "answered"
	case errors.Is(context.Cause(ctx), context.Canceled):
		label = "cancelled"
	}
	f.b.metrics.calls.WithLabelValues(string(l.node.ID), label).Inc()
	return label
}

// note completes a line for explain.
func (f *fanout) note(l leg, g *group, c *feedv1.NodeCall, err error) {
	if c.Outcome == "failed" {
		c.Outcome = err.Error()
	}
	parts := l.parts.And(g.want)
	c.Node, c.Partitions = string(l.node.ID), int32(parts.Len())
	for p := range parts.All() {
		c.Timelines += int32(g.timelines(p))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.calls = append(f.mu.calls, c)
}
