package admission

import (
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace"
)

// gate lets in as many requests at the same time as the broker and its nodes
// answer without queueing, and refuses the others before any work is done.
//
// How many that is shows in the time that answers take, beside the usual time
// of their kind and what their callers allow. When most take long, or a tenth
// come too late, they wait for each other, and the limit falls; when the gate
// was full and they do not, it rises. It does not rise without need: a limit far above
// what is in flight lets a whole flood in on the day that one comes, and then
// nothing is answered in time any more, and nothing teaches the gate but what
// was late.
type gate struct {
	mu struct {
		sync.Mutex
		limit    float64
		fell     bool // ever
		inFlight int
		usual    map[kind]time.Duration

		// In this window:
		began             time.Time
		most              int // in flight at a time
		ended, slow, late int // requests, and those of them that were slow or late
		took              map[kind][]time.Duration
	}
}

// kind is requests that cost about the same: of one feed, for a number of
// entities within a factor of four.
type kind struct {
	feed string
	size int
}

// The bounds of requests in flight, from the least of which it starts, lest a
// flood be taken for what is usual; where it comes to without need, for bursts;
// how long a window is and how many requests end in it, at least; and by what
// the limit changes after it, at first to find its place and then to keep it.
const (
	minInFlight   = 16
	readyInFlight = 100
	maxInFlight   = 2000
	gateWindow    = 100 * time.Millisecond
	gateSamples   = 10
	gateStart     = 1.5
	gateRise      = 1.1
	gateFall      = 0.8
)

// slowTimes the usual time is slow, and half as much when the caller allows
// less than twice that. What takes no longer than brief, or one in briefOfAllowed of
// what the caller allows if that is less, is not slow by the first: an answer that
// usually takes half a millisecond takes two where processors are half busy, and
// nobody suffers. The
// usual time is the least median of a window, but follows a change that lasts.
const (
	slowTimes      = 4
	brief          = 10 * time.Millisecond
	briefOfAllowed = 20
	usualSamples   = 5 // fewer of a kind in a window have no median
	usualWithin    = 10 * time.Minute
)

func newGate() *gate {
	g := &gate{}
	g.mu.limit, g.mu.began = minInFlight, time.Now()
	g.mu.usual, g.mu.took = map[kind]time.Duration{}, map[kind][]time.Duration{}
	return g
}

func (g *gate) limit() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int(g.mu.limit)
}

// enter lets a request in, or refuses it.
func (g *gate) enter(p Priority) (*Visit, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &g.mu
	if g.fullLocked(p) {
		return nil, Overloaded
	}
	m.inFlight++
	m.most = max(m.most, m.inFlight)
	return &Visit{gate: g, began: time.Now()}, nil
}

// Overloaded is the gate's refusal.
var Overloaded = &millrace.Error{
	Reason: millrace.ReasonOverloaded, Detail: "the broker has as much to do as it can", WayOut: "try again after a second, less often if it happens again; prefetch less",
}

// full reports whether enter would refuse now.
func (g *gate) full(p Priority) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.fullLocked(p)
}

func (g *gate) fullLocked(p Priority) bool {
	limit := int(g.mu.limit)
	if p == Prefetch {
		limit /= 2
	}
	return g.mu.inFlight >= limit
}

// Ending is what a request says of how busy the nodes are.
type Ending uint8

const (
	EndSilent  Ending = iota // it was refused or given up
	EndWhole                 // it was answered
	EndPartial               // it was answered but by lost nodes
	EndLate                  // its time ended
	EndShed                  // nodes refused it
)

// Visit is a request that was let in. It leaves having said its ending.
type Visit struct {
	gate    *gate
	began   time.Time
	kind    kind
	allowed time.Duration
	Ending  Ending
	of      *share // of its caller; nil: it has no quota
	left    bool
}

// Asks says what the request asks for, and until when.
func (v *Visit) Asks(feed string, entities int, end time.Time) {
	v.kind, v.allowed = kind{feed, bits.Len(uint(entities)) / 2}, end.Sub(v.began)
}

// slow reports whether an answer took long beside the usual time.
func (v *Visit) slow(took, usual time.Duration) bool {
	return took > slowTimes*usual && took > min(brief, v.allowed/briefOfAllowed) ||
		took > slowTimes*usual/2 && took > v.allowed/2
}

// Leave ends a visit. To leave again changes nothing: a door leaves for what
// never came further.
func (v *Visit) Leave() {
	if v.left {
		return
	}
	v.left = true
	v.of.leave()
	g, now := v.gate, time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &g.mu
	m.inFlight--
	usual, known := m.usual[v.kind]
	switch took := now.Sub(v.began); {
	case v.Ending == EndPartial:
		m.ended++
	case v.Ending == EndWhole:
		m.ended++
		m.took[v.kind] = append(m.took[v.kind], took)
		if known && v.slow(took, usual) {
			m.slow++
		}
	case v.Ending == EndShed, v.Ending == EndLate && took >= usual: // who allows less than the usual time is late anyway
		m.ended++
		m.late++
	}
	if window := now.Sub(m.began); window >= gateWindow && m.ended >= gateSamples {
		g.learnLocked(window)
		g.adjustLocked()
		m.began, m.most, m.ended, m.slow, m.late = now, m.inFlight, 0, 0, 0
	}
}

// learnLocked updates the usual times.
func (g *gate) learnLocked(window time.Duration) {
	for k, took := range g.mu.took {
		if len(took) >= usualSamples {
			slices.Sort(took)
			median := took[len(took)/2]
			usual, known := g.mu.usual[k]
			if !known || median < usual {
				usual = median
			} else {
				usual += time.Duration(float64(median-usual) * min(1, float64(window)/float64(usualWithin)))
			}
			g.mu.usual[k] = usual
		}
		g.mu.took[k] = took[:0]
	}
}

// adjustLocked changes the limit after a window.
func (g *gate) adjustLocked() {
	m := &g.mu
	switch {
	case 2*(m.slow+m.late) > m.ended || 10*m.late > m.ended:
		m.limit, m.fell = max(minInFlight, m.limit*gateFall), true
	case m.limit < readyInFlight || m.most >= int(m.limit):
		rise := gateRise
		if !m.fell {
			rise = gateStart
		}
		m.limit = min(maxInFlight, m.limit*rise)
	}
}
