package compare

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/exposure"
)

// Basis says which answers show what an experiment's variants are now: what they do
// not set themselves is as its feeds are defined, and models are of the versions that
// rank. What was shown before, or by a broker that has not heard of a change, is no
// evidence on that. The zero value takes all answers.
type Basis struct {
	Since  time.Time          // when it came about; zero: as long as is known
	Why    string             // what came about then, as a clause
	Feeds  map[string][]int64 // versions of feeds that mean the same to the experiment
	Models map[string]string  // the version that ranks, by model
}

// Has reports whether an answer shows what the variants are now.
func (b *Basis) Has(r *exposure.Record) bool {
	if versions, known := b.Feeds[r.Feed]; known && !slices.Contains(versions, r.FeedVersion) {
		return false
	}
	return !slices.ContainsFunc(r.Models, func(m exposure.Model) bool {
		version, known := b.Models[m.Name]
		return known && m.Version != version
	})
}
