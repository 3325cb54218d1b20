package outcome

import (
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// Met says which outcomes no answer can have, since their viewer was shown nothing
// and they name no answer that there was. It is a Bloom filter: of who was shown
// nothing it says so in all but a few cases of a hundred, with up to five million
// viewers and answers together, and it is never wrong about who was shown something.
type Met struct {
	from millrace.Time // of the answers
	bits []uint64
}

const (
	metBits   = 1 << 26 // 8 MiB
	metProbes = 4
)

// NewMet is for answers from a time on, all of which are to be added.
func NewMet(from millrace.Time) *Met { return &Met{from: from, bits: make([]uint64, metBits/64)} }

// From is the time of its first answers.
func (m *Met) From() millrace.Time { return m.from }

// Add takes an answer.
func (m *Met) Add(r *exposure.Record) {
	for _, name := range []string{r.ID, r.Viewer} {
		for i := range probes(name) {
			m.bits[i/64] |= 1 << (i % 64)
		}
	}
}

// Lacks reports that none of the answers can have an outcome, nor one before them.
func (m *Met) Lacks(o *Outcome, window time.Duration) bool {
	if o.At < m.from+millrace.Time((window+Skew).Milliseconds()) {
		return false
	}
	who := o.Viewer
	if o.Answer != "" {
		who = o.Answer
	}
	for i := range probes(who) {
		if m.bits[i/64]&(1<<(i%64)) == 0 {
			return true
		}
	}
	return false
}

func probes(name string) func(func(uint64) bool) {
	h := hashOf(name)
	return func(yield func(uint64) bool) {
		for i := range uint64(metProbes) {
			if !yield((h + i*(h>>32|1)) % metBits) {
				return
			}
		}
	}
}
