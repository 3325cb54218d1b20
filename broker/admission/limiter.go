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
// How many that is, it learns from the time that answers take, compared with the usual time
// of their kind and with what their callers allow. When most take long, or a tenth come too
// late, requests wait for each other, and the limit falls. When the limit was reached and
// they do not, it rises. It does not rise without need: a limit far above what is in flight
// would let in a whole flood on the day that one comes. Then nothing would be answered in time
// any more, and the limiter would learn only from what was late.
type limiter struct {
	mu struct {
		sync.Mutex
		limit    float64
		fell     bool // the limit has fallen before
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

const (
	// The bounds of the limit. It starts at the least, so that a flood at the start is not
	// taken for what is usual.
	minInFlight = 16
	maxInFlight = 2000
	// readyInFlight is how far the limit rises without need, for bursts.
	readyInFlight = 100
	// After each window the limit may change: one takes so long at least, and so many
	// requests end in it.
	limitWindow  = 100 * time.Millisecond
	limitSamples = 10
	// By what the limit is multiplied: when it rises until it has fallen for the first
	// time, when it rises after that, and when it falls.
	limitStart = 1.5
	limitRise  = 1.1
	limitFall  = 0.8
)

// An answer that takes slowTimes the usual time is slow. So is one that takes half as much,
// if that is more than half of what the caller allows. But by the first rule an answer is not
// slow that takes no longer than brief, or than one in briefOfAllowed of what the caller
// allows, whichever is less: an answer that usually takes half a millisecond takes two on
// processors that are half busy, and nobody suffers. The usual time is the least median of a
// window, but follows a change that lasts.
const (
	slowTimes      = 4
	brief          = 10 * time.Millisecond
	briefOfAllowed = 20
	usualSamples   = 5 // fewer of a kind in a window have no median
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

// enter lets a request in, or refuses it.
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

// Overloaded is the error by which the limiter refuses a request.
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

// Ending is what a request says of how busy the nodes are.
type Ending uint8

const (
	EndSilent  Ending = iota // it was refused or given up
	EndWhole                 // it was answered
	EndPartial               // it was answered but by lost nodes
	EndLate                  // its time ended
	EndShed                  // nodes refused it
)

// InFlight is a request that was let in. Its Ending must be set before [InFlight.Leave], if
// it says anything of how busy the nodes are.
type InFlight struct {
	limiter *limiter
	began   time.Time
	kind    kind
	allowed time.Duration
	Ending  Ending
	of      *share // of its caller; nil: it has no quota
	left    bool
}

// Asks says what the request asks for, and until when.
func (f *InFlight) Asks(feed string, entities int, end time.Time) {
	f.kind, f.allowed = kind{feed, bits.Len(uint(entities)) / 2}, end.Sub(f.began)
}

// slow reports whether an answer took long beside the usual time.
func (f *InFlight) slow(took, usual time.Duration) bool {
	return took > slowTimes*usual && took > min(brief, f.allowed/briefOfAllowed) ||
		took > slowTimes*usual/2 && took > f.allowed/2
}

// Leave ends the request. To call it again changes nothing: a door calls it, too, for requests
// that came no further.
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
	case f.Ending == EndShed, f.Ending == EndLate && took >= usual: // an answer is always late if less than the usual time is allowed
		m.ended++
		m.late++
	}
	if window := now.Sub(m.began); window >= limitWindow && m.ended >= limitSamples {
		l.learnLocked(window)
		l.adjustLocked()
		m.began, m.most, m.ended, m.slow, m.late = now, m.inFlight, 0, 0, 0
	}
}

// learnLocked updates the usual times.
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

// adjustLocked changes the limit after a window.
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
