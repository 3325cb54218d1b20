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
	// Follow hands over what was shown from a time on, until ctx ends, one after
	// the other.
	Follow(ctx context.Context, from millrace.Time, take func(*exposure.Record)) error
	// Whole waits until the Follow that runs has handed over all that can be read of
	// what the log has when it is called, and returns as of when that is all: a moment
	// ago. The error says why it cannot, or has not when ctx ends; it fails once after
	// the log became another one.
	Whole(ctx context.Context) (time.Time, error)
	// Topic returns which topic Follow reads.
	Topic() exposure.Topic
}

const (
	wholeWithin = 2 * time.Second // a look at where the log ends
	breaks      = 5 * time.Second // for less than this the log was only slow
	// settles is how long the log is to be whole without a break before a step is
	// taken after one: what brokers could not write meanwhile they write a little
	// later, each when it tries again.
	settles = 10 * time.Second
	// blindAfter is how old evidence may be before guards are said to be blind.
	blindAfter = 10 * time.Second
	// yieldsAfter is for how long guards are blind before their coordinator lets another
	// lead, which may see: it may be that it alone is cut off from Kafka.
	yieldsAfter = 30 * time.Second
	// yieldsFor is for how long it leaves the lead to others.
	yieldsFor = 5 * time.Second
	// yieldsEvery is how often it does so at most: where all are blind, the lead would
	// go round, and each begins to read anew.
	yieldsEvery = 10 * time.Minute
)

// sight is how much a guard sees of what was shown.
type sight struct {
	whole time.Time     // when all was last known to have been read; first: when it began
	fault error         // why that is not so now
	since time.Time     // when it became whole after a break; zero: there was none
	cut   bool          // the break is one, however short: a log became another one
	rest  time.Duration // settles, or less of tests
	// patience is for how long it may be blind; 0: for any time.
	patience time.Duration
}

// look asks whether all that there is has been read.
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

// isCut takes it that a part of what there was is gone: no step is taken before what is
// left has settled.
func (s *sight) isCut() { s.cut, s.since = s.fault != nil, time.Now() }

// blind says why guards of a coordinator do not see what is shown; empty: they do.
func (s *sight) blind(by string) string {
	if age := time.Since(s.whole); s.fault != nil && age >= blindAfter {
		return fmt.Sprintf("guards are blind: what was shown is not all known since %s by %s, which leads%s: %v", age.Round(time.Second), by, s.next(), s.fault)
	}
	return ""
}

// next says what follows if it stays blind.
func (s *sight) next() string {
	if s.patience == 0 {
		return " again after it let others lead"
	}
	return fmt.Sprintf(" and lets another lead after %s", s.patience)
}

// yields reports whether another is to lead.
func (s *sight) yields() bool {
	return s.patience > 0 && s.fault != nil && time.Since(s.whole) >= s.patience
}

// waits says why no step may be taken by what is known; empty: it may.
func (s *sight) waits() string {
	switch calm := time.Since(s.since); {
	case s.fault != nil:
		return fmt.Sprintf("what was shown is not all known since %s, and no step is taken without: %v", time.Since(s.whole).Round(time.Second), s.fault)
	case calm < s.rest:
		return fmt.Sprintf("what was shown is all known again since %s; what brokers could not write before may still come for %s", calm.Round(time.Second), s.rest)
	}
	return ""
}
