package feeds

import "github.com/millrace/millrace/broker/fanout"

// maxSpacing bounds each field of a feed's [Spacing].
const maxSpacing = 10

// Apart reorders entries in place. Each place gets the best entry left that keeps its
// distance from the entries before it. If none does, the place gets the best one left.
func (s Spacing) Apart(entries []fanout.Entry) {
	if s == (Spacing{}) {
		return
	}
	for at := range entries {
		pick := at
		for i := at; i < len(entries); i++ {
			if s.fits(entries[:at], &entries[i]) {
				pick = i
				break
			}
		}
		best := entries[pick]
		copy(entries[at+1:pick+1], entries[at:pick]) // the others keep their order
		entries[at] = best
	}
}

// fits reports whether e keeps its distance from the entries of before, which it follows.
func (s Spacing) fits(before []fanout.Entry, e *fanout.Entry) bool {
	for back := 1; back <= min(len(before), max(s.Entity, s.Type)); back++ {
		b := &before[len(before)-back]
		if back <= s.Entity && b.Entity == e.Entity || back <= s.Type && b.Type == e.Type {
			return false
		}
	}
	return true
}
