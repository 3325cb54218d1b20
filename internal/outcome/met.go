package outcome

import (
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// Met tells which outcomes cannot belong to any answer: their viewer was shown nothing, or
// they name an answer that does not exist. It is a Bloom filter of viewers and answers. With
// five million of both together it misses one in two hundred of such outcomes, and with ten
// million four in a hundred. It never takes an outcome that may belong to an answer for one
// of them.
type Met struct {
	from millrace.Time // the time from which on the answers were added
	bits []uint64
}

const (
	metBits   = 1 << 26 // 8 MiB
	metProbes = 4       // the bits that are set for each name, of a viewer or an answer
)

// NewMet returns a Met for the answers from a time on. All of them must be added.
func NewMet(from millrace.Time) *Met { return &Met{from: from, bits: make([]uint64, metBits/64)} }

// From returns the time from which on the Met has the answers.
func (m *Met) From() millrace.Time { return m.from }

// Add adds an answer.
func (m *Met) Add(r *exposure.Record) {
	for _, name := range []string{r.ID, r.Viewer} {
		for i := range probes(name) {
			m.bits[i/64] |= 1 << (i % 64)
		}
	}
}

// Lacks reports whether an outcome certainly belongs to no answer. It returns false for an
// outcome so old that it may belong to an answer before From. window is the ledger's.
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

// probes yields the numbers of the bits of a name.
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
