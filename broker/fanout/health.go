package fanout

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// health decides which nodes are asked first. It follows the relative
// strategy of LinkedIn's D2 (Rest.li, "D2 load balancer"): a node is compared
// with the cluster every few seconds, goes down fast and comes up slowly, and
// is never asked by nobody, since nobody would see it recover.
//
// A node that is slow is waited for, and one that is unresponsive is not. The evidence
// is a ping beside a call that is overdue: a node that is busy or slow answers
// it. One that does not within [unresponsiveAfter] is unresponsive, and asked last; after
// [unresponsivePatience] beats its calls are ended, and new ones wait for [unresponsiveProbe].
// Pings go on until one is answered. Beats are counted and not timed, so that
// the broker's own pause is no silence of its nodes.
type health struct {
	mu struct {
		sync.Mutex
		nodes map[millrace.NodeID]*nodeHealth
		rolls time.Time // when scores are worked out next
	}
}

// nodeHealth is what is known of a node.
type nodeHealth struct {
	score  float64       // share of the requests that ask it first
	silent int           // calls failed or overdue since the last answer in time
	probe  time.Time     // when a silent node is asked again,
	pause  time.Duration // and how long after that

	heard   time.Time          // the last time that anything came from it
	pinging bool               // until it answers
	silence int                // beats since then for which a ping was not answered
	waits   map[*wait]struct{} // calls that it has not answered

	calls, failed int           // in this interval
	took          time.Duration // by answered calls in this interval
}

const (
	healthEvery  = 5 * time.Second
	healthCalls  = 10  // fewer calls in an interval say nothing
	slowFactor   = 1.5 // of the cluster's mean: slow
	slowAtLeast  = time.Millisecond
	failedShare  = 0.1 // of the calls: failing
	healthDown   = 0.4
	healthUp     = 0.1
	healthFloor  = 0.05
	slowStart    = 0.2 // of a node that comes later
	silentCalls  = 3   // failed or overdue: out of use
	firstPause   = time.Second
	longestPause = 16 * time.Second // doubling each time
)

// A ping takes a millisecond, and a few hundred on a machine that has no rest.
const (
	beat                 = 100 * time.Millisecond
	unresponsiveAfter    = 250 * time.Millisecond // since anything was heard, and a beat since a ping was sent
	unresponsivePatience = 15                     // beats
	unresponsiveProbe    = 100 * time.Millisecond
	pingSpacing          = 50 * time.Millisecond // no ping of a node that was heard so lately
	pingLimit            = 5 * time.Second       // then another is sent
)

func newHealth() *health {
	h := &health{}
	h.mu.nodes = map[millrace.NodeID]*nodeHealth{}
	return h
}

// doubtful are the nodes that a request should ask only where no better replica
// is left: those slow or silent of late (poor), and, after them, those that answer
// nothing at all. When the whole machine of a node or of the broker stops for
// a moment every node is silent; the frozen one must not be as good as they.
type doubtful struct{ poor, unresponsive []millrace.NodeID }

// doubtful returns the doubtful nodes for one request.
func (h *health) doubtful(m *topology.Map) (s doubtful) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	h.roll(now)
	first := len(h.mu.nodes) == 0
	for _, n := range m.Nodes() {
		nh := h.mu.nodes[n.ID]
		if nh == nil {
			nh = &nodeHealth{score: slowStart}
			if first { // a broker that starts has nothing to compare with
				nh.score = 1
			}
			h.mu.nodes[n.ID] = nh
		}
		switch {
		case nh.unresponsive():
			s.unresponsive = append(s.unresponsive, n.ID)
		case nh.silent >= silentCalls && now.Before(nh.probe):
			s.poor = append(s.poor, n.ID)
		case nh.silent >= silentCalls: // this request tries it
			nh.pause = min(2*nh.pause, longestPause)
			nh.probe = now.Add(nh.pause)
		case nh.score < 1 && rand.Float64() >= nh.score:
			s.poor = append(s.poor, n.ID)
		}
	}
	return s
}

// unresponsive reports whether a node answers nobody.
func (h *health) unresponsive(id millrace.NodeID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of(id).unresponsive()
}

func (n *nodeHealth) unresponsive() bool {
	return n.silence > 0 && time.Since(n.heard) >= unresponsiveAfter
}

// wait is a call that a node has not answered.
type wait struct{ end context.CancelCauseFunc }

// wait returns the context of a call of a node, which ends with errUnresponsive when
// the node proves to be unresponsive, and what is to be called after the call.
func (h *health) wait(ctx context.Context, id millrace.NodeID) (context.Context, func()) {
	ctx, end := context.WithCancelCause(ctx)
	w := &wait{end}
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.of(id)
	if n.waits == nil {
		n.waits = map[*wait]struct{}{}
	}
	n.waits[w] = struct{}{}
	over := func() { // of the map, too: a context that has ended frees its memory
		h.mu.Lock()
		delete(n.waits, w)
		h.mu.Unlock()
		end(nil)
	}
	if n.silence < unresponsivePatience {
		return ctx, over
	}
	probe := time.AfterFunc(unresponsiveProbe, func() { end(errUnresponsive) })
	return ctx, func() { probe.Stop(); over() }
}

// suspect reports whether a node is to be pinged now until it answers, by
// whoever asks: not if somebody does, or if it was just heard.
func (h *health) suspect(id millrace.NodeID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.of(id)
	if n.pinging || time.Since(n.heard) < pingSpacing {
		return false
	}
	n.pinging = true
	return true
}

// ping pings a node until it answers or ctx ends.
func (h *health) ping(ctx context.Context, id millrace.NodeID, ping func(context.Context) error) {
	beats := time.NewTicker(beat)
	defer beats.Stop()
	for ctx.Err() == nil {
		limit, cancel := context.WithTimeout(ctx, pingLimit)
		answer := make(chan error, 1)
		go func() { answer <- ping(limit) }()
		for waiting := true; waiting; {
			select {
			case err := <-answer:
				if err == nil {
					cancel()
					h.pinged(id)
					return
				}
				answer = nil // the next is sent at the next beat
			case <-beats.C:
				h.missBeat(id)
				waiting = answer != nil
			case <-ctx.Done():
				if answer != nil {
					<-answer
				}
				waiting = false
			}
		}
		cancel()
	}
	h.pinged(id)
}

// pinged notes that a node answered a ping, or is not pinged any more.
func (h *health) pinged(id millrace.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.of(id)
	n.pinging = false
	n.hear()
}

// missBeat notes that a ping was not answered for a beat, and ends the calls of
// a node that has been silent for long.
func (h *health) missBeat(id millrace.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.of(id)
	if n.silence++; n.silence < unresponsivePatience {
		return
	}
	for w := range n.waits {
		w.end(errUnresponsive)
	}
}

// hears notes that something came from a node, if not in time.
func (h *health) hears(id millrace.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of(id).hear()
}

func (n *nodeHealth) hear() { n.heard, n.silence = time.Now(), 0 }

// answered notes a call that a node answered: in time, or when it was overdue
// already. Late answers do not end a silence, but they say how slow it is.
func (h *health) answered(id millrace.NodeID, took time.Duration, inTime bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.of(id)
	if inTime {
		if n.silent >= silentCalls {
			n.score = max(healthFloor, n.score/2)
		}
		n.silent = 0
	}
	n.hear()
	n.calls++
	n.took += took
}

// overdue notes that a call takes longer than calls commonly do. It is told
// at once, since a frozen node answers none.
func (h *health) overdue(id millrace.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of(id).missed()
}

// gaveUp notes how long an overdue call was waited for.
func (h *health) gaveUp(id millrace.NodeID, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.of(id)
	n.calls++
	n.took += took
}

// failed notes a call that gave an error.
func (h *health) failed(id millrace.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.of(id)
	n.calls++
	n.failed++
	n.missed()
}

func (n *nodeHealth) missed() {
	if n.silent++; n.silent == silentCalls {
		n.pause = firstPause
		n.probe = time.Now().Add(n.pause)
	}
}

func (h *health) of(id millrace.NodeID) *nodeHealth {
	nh := h.mu.nodes[id]
	if nh == nil {
		nh = &nodeHealth{score: 1}
		h.mu.nodes[id] = nh
	}
	return nh
}

// roll compares each node with the cluster once an interval.
func (h *health) roll(now time.Time) {
	if now.Before(h.mu.rolls) {
		return
	}
	h.mu.rolls = now.Add(healthEvery)
	var calls int
	var took time.Duration
	for _, n := range h.mu.nodes {
		calls += n.calls
		took += n.took
	}
	for _, n := range h.mu.nodes {
		if n.bad(calls, took) {
			n.score = max(healthFloor, n.score-healthDown)
		} else {
			n.score = min(1, n.score+healthUp)
		}
		n.calls, n.failed, n.took = 0, 0, 0
	}
}

// bad reports whether a node was slow or failing beside all nodes together.
func (n *nodeHealth) bad(calls int, took time.Duration) bool {
	if n.calls < healthCalls {
		return false
	}
	if float64(n.failed) >= failedShare*float64(n.calls) {
		return true
	}
	mean, all := n.took/time.Duration(n.calls), took/time.Duration(calls)
	return mean > time.Duration(slowFactor*float64(all)) && mean > all+slowAtLeast
}
