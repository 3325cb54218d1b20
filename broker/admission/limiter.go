package admission

import (
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace"
)

// limiter lets in as many requests at the same time as the broker and its nodes
// answer without queueing, and refuses the others before any work is done.
//
// It learns the limit from the time that answers take, compared with the usual time of
// their kind and with what their callers allow. It decides once for each window of time. If
// more than half of the requests that end in a window are slow or late, or more than a tenth
// are late, requests wait for each other, and the limit falls.
//
// Otherwise the limit rises, if it is below readyInFlight or if as many requests as it
// allows were in flight. It does not rise further without need: a limit far above what is in
// flight would let in all of a sudden flood of requests. Then nothing would be answered in
// time any more, and the limiter would learn only from late answers.
type limiter struct {
	mu struct {
		sync.Mutex
		limit    float64 // how many requests may be in flight, rounded down
		fell     bool    // the limit has fallen at some time
		inFlight int
		usual    map[kind]time.Duration // the usual time of an answer

		// In this window:
		began             time.Time                // when the window began
		most              int                      // the most requests that were in flight at a time
		ended, slow, late int                      // requests that ended, and those of them that were slow, and late
		took              map[kind][]time.Duration // how long each answer took that ended as EndWhole
	}
}

// kind is a kind of requests that cost about the same: those of one feed, for numbers of
// entities within a factor of four.
type kind struct {
	feed string
	size int // half the number of bits of the number of entities, rounded down
}

const (
	// The bounds of the limit. It starts at minInFlight, so that the limiter does not take
	// the times of answers in a flood at the start for the usual ones.
	minInFlight = 16
	maxInFlight = 2000
	// readyInFlight is how far the limit rises even if it is not reached, to be ready for
	// bursts.
	readyInFlight = 100
	// After each window the limit may change. A window lasts limitWindow at least, and
	// limitSamples requests at least end in it.
	limitWindow  = 100 * time.Millisecond
	limitSamples = 10
	// The factors by which the limit changes after a window: limitStart where it rises and has
	// never fallen, limitRise where it rises and has fallen before, limitFall where it falls.
	limitStart = 1.5
	limitRise  = 1.1
	limitFall  = 0.8
)

// An answer is slow by one of two rules:
//
//   - It takes more than slowTimes the usual time of its kind, and more than the
//     lesser of brief and 1/briefOfAllowed of what the caller allows. Without that second
//     condition, an answer that usually takes half a millisecond would count as slow when it
//     takes two on processors that are half busy, which harms no caller.
//   - It takes more than half of slowTimes the usual time, and more than half of what the
//     caller allows.
//
// The usual time falls at once to the median of a window that is lower. It rises slowly
// towards medians that are higher: in usualWithin it covers about two thirds of the way.
const (
	slowTimes      = 4
	brief          = 10 * time.Millisecond
	briefOfAllowed = 20
	usualSamples   = 5 // a median is taken only of this many answers of a kind in a window, or more
	usualWithin    = 10 * time.Minute
)

func newLimiter() *limiter {
	l := &limiter{}
	l.mu.limit, l.mu.began = minInFlight, time.Now()
	l.mu.usual, l.mu.took = map[kind]time.Duration{}, map[kind][]time.Duration{}
	return l
}

func (l *limiter) limit() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.mu.limit)
}

// enter counts a request as in flight, or refuses it with [Overloaded]. The InFlight that it
// returns has no quota; [Control.Enter] sets that.
func (l *limiter) enter(p Priority) (*InFlight, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.mu
	if l.fullLocked(p) {
		return nil, Overloaded
	}
	m.inFlight++
	m.most = max(m.most, m.inFlight)
	return &InFlight{limiter: l, began: time.Now()}, nil
}

// Overloaded is the error with which the limiter refuses a request.
var Overloaded = &millrace.Error{
	Reason: millrace.ReasonOverloaded, Detail: "the broker has as much to do as it can", WayOut: "try again after a second, less often if it happens again; prefetch less",
}

// full reports whether enter would refuse now.
func (l *limiter) full(p Priority) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fullLocked(p)
}

func (l *limiter) fullLocked(p Priority) bool {
	limit := int(l.mu.limit)
	if p == Prefetch {
		limit /= 2
	}
	return l.mu.inFlight >= limit
}

// Ending says how a request ended, as far as that tells how busy the nodes are.
type Ending uint8

const (
	EndSilent  Ending = iota // tells nothing: refused before nodes were asked, or given up by the caller
	EndWhole                 // all partitions answered
	EndPartial               // some did not, for another reason than load, such as lost nodes
	EndLate                  // the caller's time ended before nodes that can be reached had answered
	EndShed                  // nodes refused it as overloaded
)

// InFlight is a request that was admitted, until [InFlight.Leave]. Its Ending is to be set
// before Leave; otherwise it is EndSilent, and the limiter learns nothing from the request. An
// InFlight belongs to one goroutine.
type InFlight struct {
	limiter *limiter
	began   time.Time
	kind    kind          // zero until Asks is called
	allowed time.Duration // how long the caller waits, from began on
	Ending  Ending
	of      *share // the quota of its caller; nil: the caller has none
	left    bool   // Leave was called
}

// Asks tells the limiter of which kind the request is: its feed, the number of its
// entities, and the end of the time that its caller waits.
func (f *InFlight) Asks(feed string, entities int, end time.Time) {
	f.kind, f.allowed = kind{feed, bits.Len(uint(entities)) / 2}, end.Sub(f.began)
}

// slow reports whether an answer took long, compared with the usual time of its kind and
// with what the caller allows.
func (f *InFlight) slow(took, usual time.Duration) bool {
	return took > slowTimes*usual && took > min(brief, f.allowed/briefOfAllowed) ||
		took > slowTimes*usual/2 && took > f.allowed/2
}

// Leave ends the request, and changes the limit if a window ends with this request. A second
// call does nothing: both the server by gRPC or HTTP that let the request
// in and the broker behind it call Leave.
func (f *InFlight) Leave() {
	if f.left {
		return
	}
	f.left = true
	f.of.leave()
	l, now := f.limiter, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.mu
	m.inFlight--
	usual, known := m.usual[f.kind]
	switch took := now.Sub(f.began); {
	case f.Ending == EndPartial:
		m.ended++
	case f.Ending == EndWhole:
		m.ended++
		m.took[f.kind] = append(m.took[f.kind], took)
		if known && f.slow(took, usual) {
			m.slow++
		}
	case f.Ending == EndShed, f.Ending == EndLate && took >= usual: // a request that was late before the usual time had passed was allowed too little time, and tells nothing
		m.ended++
		m.late++
	}
	if window := now.Sub(m.began); window >= limitWindow && m.ended >= limitSamples {
		l.learnLocked(window)
		l.adjustLocked()
		m.began, m.most, m.ended, m.slow, m.late = now, m.inFlight, 0, 0, 0
	}
}

// learnLocked updates the usual times by the answers of a window, which is how long the
// window lasted, and forgets these answers.
func (l *limiter) learnLocked(window time.Duration) {
	for k, took := range l.mu.took {
		if len(took) >= usualSamples {
			slices.Sort(took)
			median := took[len(took)/2]
			usual, known := l.mu.usual[k]
			if !known || median < usual {
				usual = median
			} else {
				usual += time.Duration(float64(median-usual) * min(1, float64(window)/float64(usualWithin)))
			}
			l.mu.usual[k] = usual
		}
		l.mu.took[k] = took[:0]
	}
}

// adjustLocked changes the limit after a window, as [limiter] says.
func (l *limiter) adjustLocked() {
	m := &l.mu
	switch {
	case 2*(m.slow+m.late) > m.ended || 10*m.late > m.ended:
		m.limit, m.fell = max(minInFlight, m.limit*limitFall), true
	case m.limit < readyInFlight || m.most >= int(m.limit):
		rise := limitRise
		if !m.fell {
			rise = limitStart
		}
		m.limit = min(maxInFlight, m.limit*rise)
	}
}
