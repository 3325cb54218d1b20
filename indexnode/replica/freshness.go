package replica

import (
	"time"

	"github.com/millrace/millrace"
)

// moment is a time by two clocks: the time of day, which may be set back, and the
// monotonic clock, which stands still while the machine is suspended.
type moment struct {
	unixMilli int64
	ran       time.Duration // since the process began
}

// began is when the process began.
var began = time.Now()

func momentOf(t time.Time) *moment { return &moment{t.UnixMilli(), t.Sub(began)} }

// age returns how long ago a moment was, by the clock by which that is longer; UnknownAge
// for nil.
func (m *moment) age(now time.Time) time.Duration {
	if m == nil {
		return UnknownAge
	}
	return max(0, now.Sub(began)-m.ran, time.Duration(now.UnixMilli()-m.unixMilli)*time.Millisecond)
}

// whole says up to when a replica has everything that came into the cluster. Partitioners
// bring it to the log, and the replica applies the log.
type whole struct {
	fresh   *moment // everything that was in the log at this time is applied; nil: not known
	through int64   // Unix ms: everything that came in before this time was in the log at the time fresh; 0: not known
}

// age returns how old the content of the replica may be: the longer of the ages of fresh
// and through, and UnknownAge at most. through is by the partitioners' clocks.
func (w whole) age(now time.Time) time.Duration {
	if w.through == 0 {
		return UnknownAge
	}
	return min(max(w.fresh.age(now), time.Duration(max(0, now.UnixMilli()-w.through))*time.Millisecond), UnknownAge)
}

// mark is where a stream ended at some time. A replica that has applied the stream up to
// there has all that was in the log at that time. So it also has all that partitioners
// had, by then, reported to have brought to the log.
type mark struct {
	end     millrace.Offset
	at      time.Time
	through int64 // Unix ms: partitioners had reported that all that came in before it is in the log; 0: not known
}

// earlier returns what holds for the streams of both marks together: the earlier of their
// times, and the earlier through. The end of the returned mark has no meaning.
func (m mark) earlier(o mark) mark {
	if o.at.Before(m.at) {
		m.at = o.at
	}
	m.through = min(m.through, o.through)
	return m
}

// grain is how exact an age is. A new mark is kept only if the time since the last mark is
// at least a 32nd of the time since the oldest one. So the number of marks stays small while
// a long backlog is applied.
const grain = 32

// marks are the ends of a stream that were seen. A replica's age follows from them alone:
// if no new end is seen, nothing gets fresher.
type marks struct {
	ahead   []mark // those that are not reached yet, oldest first
	reached mark   // the newest mark that is reached; zero: none
}

// confirm notes where the stream ended, unless the last mark is too near; see grain.
func (m *marks) confirm(end mark) {
	if len(m.ahead) == 0 || end.at.Sub(m.ahead[len(m.ahead)-1].at) >= end.at.Sub(m.ahead[0].at)/grain {
		m.ahead = append(m.ahead, end)
	}
}

// reach notes how far the stream is applied, and returns the newest mark reached so far;
// zero if there is none.
func (m *marks) reach(applied millrace.Offset) mark {
	n := 0
	for n < len(m.ahead) && m.ahead[n].end <= applied {
		m.reached = m.ahead[n]
		n++
	}
	m.ahead = append(m.ahead[:0], m.ahead[n:]...)
	return m.reached
}

// forget drops all marks. It is called before a log is read anew, which may be another one.
func (m *marks) forget() { *m = marks{} }
