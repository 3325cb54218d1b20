package replica

import (
	"time"

	"github.com/millrace/millrace"
)

// mark is where a stream ended at some time: who has applied up to there has
// all that was in the log then.
type mark struct {
	end millrace.Offset
	at  time.Time
}

// grain is how exact an age is: marks stand apart by this part of the age of
// the oldest, so that a long backlog needs no more of them.
const grain = 32

// marks are the ends of a stream that were seen and not reached yet, oldest
// first. They turn ends that are confirmed into positive evidence: without a
// new one nothing gets fresher.
type marks struct {
	ahead []mark
	fresh time.Time // of the newest end that was reached
}

// confirm notes that the stream ends at an offset.
func (m *marks) confirm(end millrace.Offset, now time.Time) {
	if len(m.ahead) == 0 || now.Sub(m.ahead[len(m.ahead)-1].at) >= now.Sub(m.ahead[0].at)/grain {
		m.ahead = append(m.ahead, mark{end, now})
	}
}

// reach notes how far the stream is applied, and returns the time up to which
// everything in it is; zero when that is not known.
func (m *marks) reach(applied millrace.Offset) time.Time {
	n := 0
	for n < len(m.ahead) && m.ahead[n].end <= applied {
		m.fresh = m.ahead[n].at
		n++
	}
	m.ahead = append(m.ahead[:0], m.ahead[n:]...)
	return m.fresh
}

// forget drops all evidence, as when another log may be read.
func (m *marks) forget() { *m = marks{} }
