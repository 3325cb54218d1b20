package replica

import (
	"time"

	"github.com/millrace/millrace"
)

// moment is a time of this process by two clocks. The one that tells the time of
// day may be set back, and the one that nobody sets stands still while the machine
// is suspended.
type moment struct {
	unixMilli int64
	ran       time.Duration // since the process began
}

var began = time.Now()

func momentOf(t time.Time) *moment { return &moment{t.UnixMilli(), t.Sub(began)} }

// age is how long ago a moment was, by the clock by which that is longer;
// UnknownAge for nil.
func (m *moment) age(now time.Time) time.Duration {
	if m == nil {
		return UnknownAge
	}
	return max(0, now.Sub(began)-m.ran, time.Duration(now.UnixMilli()-m.unixMilli)*time.Millisecond)
}

// whole is up to when a replica has all that came in.
type whole struct {
	fresh   *moment // all that was in the log then is applied; nil: not known
	through int64   // Unix ms: what came in before was in the log then; 0: not known
}

// age is how long ago that was. What came in is known by the clocks of others.
func (w whole) age(now time.Time) time.Duration {
	if w.through == 0 {
		return UnknownAge
	}
	return min(max(w.fresh.age(now), time.Duration(max(0, now.UnixMilli()-w.through))*time.Millisecond), UnknownAge)
}

// mark is where a stream ended at some time: who has applied up to there has
// all that was in the log then, and so all that partitioners had said, by then,
// to have brought to it.
type mark struct {
	end     millrace.Offset
	at      time.Time
	through int64 // Unix ms: what came in before is in the log, as was known at that time; 0: not known
}

// earlier returns what holds by both of two marks.
func (m mark) earlier(o mark) mark {
	if o.at.Before(m.at) {
		m.at = o.at
	}
	m.through = min(m.through, o.through)
	return m
}

// grain is how exact an age is: marks stand apart by this part of the age of
// the oldest, so that a long backlog needs no more of them.
const grain = 32

// marks are the ends of a stream that were seen and not reached yet, oldest
// first. They turn ends that are confirmed into positive evidence: without a
// new one nothing gets fresher.
type marks struct {
	ahead   []mark
	reached mark // the newest
}

// confirm notes where the stream ends.
func (m *marks) confirm(end mark) {
	if len(m.ahead) == 0 || end.at.Sub(m.ahead[len(m.ahead)-1].at) >= end.at.Sub(m.ahead[0].at)/grain {
		m.ahead = append(m.ahead, end)
	}
}

// reach notes how far the stream is applied, and returns the newest mark that it
// has reached; zero when there is none.
func (m *marks) reach(applied millrace.Offset) mark {
	n := 0
	for n < len(m.ahead) && m.ahead[n].end <= applied {
		m.reached = m.ahead[n]
		n++
	}
	m.ahead = append(m.ahead[:0], m.ahead[n:]...)
	return m.reached
}

// forget drops all evidence, as when another log may be read.
func (m *marks) forget() { *m = marks{} }
