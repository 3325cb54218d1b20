package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// Exposures is the log of what answers showed.
type Exposures interface {
	// Follow passes each record of the log from a time on to take, one after the other,
	// until ctx ends.
	Follow(ctx context.Context, from millrace.Time, take func(*exposure.Record)) error
	// Whole waits until the running Follow has passed on all that the log has at the time
	// of the call. It returns the time, a moment ago, up to which that is everything. The
	// error says why Follow cannot pass on all, or why it has not when ctx ends. After the
	// log was replaced by another one, one call fails.
	Whole(ctx context.Context) (time.Time, error)
	// Topic returns which topic Follow reads.
	Topic() exposure.Topic
}

const (
	wholeWithin = 2 * time.Second // the timeout of Exposures.Whole
	breaks      = 5 * time.Second // not to read the log for longer than this is a break; for less, the log was only slow
	// settles is how long after a break no step is taken: brokers write what they could
	// not write during the break a little later, each when it tries again.
	settles = 10 * time.Second
	// blindAfter is how old evidence may be before guards are said to be blind.
	blindAfter = 10 * time.Second
	// yieldsAfter is how old evidence may be before the coordinator lets another lead.
	// Perhaps only this one is cut off from Kafka.
	yieldsAfter = 30 * time.Second
	// yieldsFor is how long it then leaves the lead to others.
	yieldsFor = 5 * time.Second
	// yieldsEvery is the least time between two such yields. If all coordinators are
	// blind, the lead would otherwise go round, and each would begin to read anew.
	yieldsEvery = 10 * time.Minute
)

// sight is how much a guard sees of what was shown.
type sight struct {
	whole time.Time     // up to when all is known to have been read; at first when the guard began
	fault error         // why not all is read now; nil: it is
	since time.Time     // when all was read again after a break; zero: there was no break
	cut   bool          // evidence was lost, which counts as a break however short it was
	rest  time.Duration // settles, or less in tests
	// patience is yieldsAfter; 0: it does not let another lead.
	patience time.Duration
}

// look asks whether everything in the log has been read, and notes the answer.
func (s *sight) look(ctx context.Context, log Exposures) {
	ctx, cancel := context.WithTimeout(ctx, wholeWithin)
	defer cancel()
	whole, err := log.Whole(ctx)
	now := time.Now()
	if err == nil {
		if s.cut || s.fault != nil && now.Sub(s.whole) > breaks {
			s.since = now
		}
		s.whole, s.cut = whole, false
	}
	s.fault = err
}

// isCut notes that a part of the evidence was lost. No step is taken before the log has been
// read again and settled.
func (s *sight) isCut() { s.cut, s.since = s.fault != nil, time.Now() }

// blind says why guards do not see what is shown; empty: they do. by is the coordinator's
// name.
func (s *sight) blind(by string) string {
	if age := time.Since(s.whole); s.fault != nil && age >= blindAfter {
		return fmt.Sprintf("guards are blind: what was shown is not all known since %s by %s, which leads%s: %v", age.Round(time.Second), by, s.next(), s.fault)
	}
	return ""
}

// next says what the coordinator does if it stays blind.
func (s *sight) next() string {
	if s.patience == 0 {
		return " again after it let others lead"
	}
	return fmt.Sprintf(" and lets another lead after %s", s.patience)
}

// yields reports whether the coordinator is to let another lead.
func (s *sight) yields() bool {
	return s.patience > 0 && s.fault != nil && time.Since(s.whole) >= s.patience
}

// waits says why no step may be taken by what is known of exposures; empty: it may.
func (s *sight) waits() string {
	switch calm := time.Since(s.since); {
	case s.fault != nil:
		return fmt.Sprintf("what was shown is not all known since %s, and no step is taken without: %v", time.Since(s.whole).Round(time.Second), s.fault)
	case calm < s.rest:
		return fmt.Sprintf("what was shown is all known again since %s; what brokers could not write before may still come for %s", calm.Round(time.Second), s.rest)
	}
	return ""
}
