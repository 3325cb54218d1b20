package replica

import "testing"

// A replica answers only in states that have evidence behind them, and every
// state but those of damage can be left.
func TestTransitions(t *testing.T) {
	for s := range states {
		for e := range events {
			after, moved := s.next(e)
			if moved == (after == s) {
				t.Errorf("%s, %s: %s, moved %v", s, e, after, moved)
			}
			if after.Answers() && !s.Answers() && e != Resumed && e != CaughtUp {
				t.Errorf("%s answers as %s after %q, without evidence of being whole", s, after, e)
			}
			if moved && after == Ready && e != CaughtUp && e != Confirmed {
				t.Errorf("%s is ready after %q, without a confirmed end of the log", s, e)
			}
			if s == Quarantined && moved && e != Replaced && e != Released {
				t.Errorf("quarantine ends by %q, with what cannot be trusted still there", e)
			}
		}
		if after, _ := s.next(Released); after != Absent && after != Draining {
			t.Errorf("%s stays %s when it is assigned elsewhere", s, after)
		}
		if after, _ := s.next(Condemned); after.Answers() {
			t.Errorf("%s goes on to answer when condemned", s)
		}
		if s.Answers() != (s.Missing() == "") {
			t.Errorf("%s answers %v, and is missing as %q", s, s.Answers(), s.Missing())
		}
	}
}
