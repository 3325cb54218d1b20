package compare

import (
	"slices"
	"time"

	"github.com/millrace/millrace/internal/exposure"
)

// Basis says which answers are evidence of what an experiment's variants are now. A
// variant leaves some things to its feed's definition and to its models; these must have
// been as they are now. An answer from before such a change, or by a broker that has not
// heard of it, is no evidence. The zero value takes all answers.
type Basis struct {
	Since  time.Time          // of the last such change; zero: there was none, as far as is known
	Why    string             // what changed then, as a clause
	Feeds  map[string][]int64 // by feed, the versions of its definition that mean the same to the experiment
	Models map[string]string  // by model, the version that ranks now
}

// Has reports whether an answer is evidence. A feed or model that b does not name may have
// any version.
func (b *Basis) Has(r *exposure.Record) bool {
	if versions, known := b.Feeds[r.Feed]; known && !slices.Contains(versions, r.FeedVersion) {
		return false
	}
	return !slices.ContainsFunc(r.Models, func(m exposure.Model) bool {
		version, known := b.Models[m.Name]
		return known && m.Version != version
	})
}
