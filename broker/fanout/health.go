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
// strategy of LinkedIn's D2 (Rest.li, "D2 load balancer"). Every [healthEvery] a node is
// compared with the mean of the cluster. Its score falls fast and rises slowly, and never
// falls to 0: some requests must still ask it, to see that it recovers.
//
// Calls wait for a slow node, but not for an unresponsive one. A ping tells the two apart:
// it is sent while a call is overdue, and a node that is only busy or slow answers it. A
// node from which nothing has come for [unresponsiveAfter], and that has left a ping
// unanswered for a beat, is unresponsive, and is asked last. After
// [unresponsivePatience] beats its calls are ended, and new calls end after
// [unresponsiveProbe]. Pings go on until one is answered. Beats are counted and not timed,
// so that a pause of the broker itself does not count as silence of its nodes.
type health struct {
	mu struct {
		sync.Mutex
		nodes map[millrace.NodeID]*nodeHealth
		rolls time.Time // when scores are worked out next
	}
}

// nodeHealth is what is known of a node. A silent node (see silentCalls) counts as poor,
// except for one request after each pause, which tries it.
type nodeHealth struct {
	score  float64       // 0 to 1: the share of requests that do not count it as poor
	silent int           // calls failed or overdue since the last answer in time
	probe  time.Time     // when one request tries a silent node again
	pause  time.Duration // between two such tries

	heard   time.Time          // the last time that anything came from it
	pinging bool               // it is pinged until it answers
	silence int                // beats since heard that passed without the answer to a ping
	waits   map[*wait]struct{} // calls in flight

	calls, failed int           // in this interval
	took          time.Duration // all calls of this interval that were answered, or given up when overdue
}

const (
	healthEvery  = 5 * time.Second  // the interval between two comparisons
	healthCalls  = 10               // fewer calls in an interval say nothing
	slowFactor   = 1.5              // a node is slow if its mean is above this many times the cluster's,
	slowAtLeast  = time.Millisecond // and above the cluster's mean by this
	failedShare  = 0.1              // a node fails if this share of its calls failed
	healthDown   = 0.4              // what the score of a slow or failing node loses in an interval
	healthUp     = 0.1              // what another's score gains
	healthFloor  = 0.05             // the lowest score
	slowStart    = 0.2              // the first score of a node that joins after the broker started
	silentCalls  = 3                // so many failed or overdue calls in a row make a node silent
	firstPause   = time.Second      // before one request tries a silent node again
	longestPause = 16 * time.Second // the pause doubles with each try, up to this
)

// The times of pings. A ping takes a millisecond, and some hundreds of milliseconds on a
// machine whose processors are all busy.
const (
	beat                 = 100 * time.Millisecond // the unit in which an unanswered ping is counted
	unresponsiveAfter    = 250 * time.Millisecond // since anything was heard, if a beat has passed without an answer to a ping
	unresponsivePatience = 15                     // beats until calls of an unresponsive node are ended
	unresponsiveProbe    = 100 * time.Millisecond // how long a new call waits for such a node
	pingSpacing          = 50 * time.Millisecond  // a node heard so lately is not pinged
	pingLimit            = 5 * time.Second        // of one ping; then another is sent
)

func newHealth() *health {
	h := &health{}
	h.mu.nodes = map[millrace.NodeID]*nodeHealth{}
	return h
}

// doubtful are the nodes that a request should ask only if no better replica is left:
// poor ones, which were slow or silent of late, and after them unresponsive ones. The two
// are kept apart for the moment when a pause of the broker makes every node look silent:
// a node that is frozen must still come after the others.
type doubtful struct{ poor, unresponsive []millrace.NodeID }

// doubtful returns the doubtful nodes for one request. A node with a score below 1 is poor
// at random, so that score is the share of requests that ask it like any other.
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

// unresponsive reports whether a node answers neither calls nor pings.
func (h *health) unresponsive(id millrace.NodeID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of(id).unresponsive()
}

func (n *nodeHealth) unresponsive() bool {
	return n.silence > 0 && time.Since(n.heard) >= unresponsiveAfter
}

// wait is a call of a node in flight.
type wait struct{ end context.CancelCauseFunc }

// wait returns the context for a call of a node, and a function to call after the call.
// The context ends with the cause errUnresponsive if the node proves to be unresponsive.
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
	over := func() { // it ends the context too, which frees its memory
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

// suspect reports whether the caller must now ping a node until it answers. It is false if
// the node is pinged already, or was heard within pingSpacing.
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
				answer = nil // it failed: the next ping is sent at the next beat
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

// pinged notes that a node answered a ping, or that pings ended with their context. Both
// count as heard.
func (h *health) pinged(id millrace.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.of(id)
	n.pinging = false
	n.hear()
}

// missBeat notes that a beat passed without an answer to a ping. After
// [unresponsivePatience] beats it ends the node's calls in flight.
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

// hears notes that something came from a node, even an error or late.
func (h *health) hears(id millrace.NodeID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of(id).hear()
}

func (n *nodeHealth) hear() { n.heard, n.silence = time.Now(), 0 }

// answered notes a call that a node answered after took. Only an answer in time, before a
// hedge was due, makes a silent node usable again, with half its score; a late answer
// only counts for how slow the node is.
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

// overdue notes that a call takes longer than calls commonly do. It is noted while the
// call is still in flight, because a frozen node never answers.
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

// roll compares each node with the cluster, once in healthEvery. The caller holds h.mu.
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

// bad reports whether a node was failing, or slow compared with all nodes together, whose
// calls and time it is given.
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
