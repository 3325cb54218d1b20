package compare

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/experiment"
)

// TakenOverWithin is how long a broker takes at most to go by a new definition, even if its
// process was frozen meanwhile. A broker that goes by an older definition after that does
// not hear etcd.
const TakenOverWithin = 15 * time.Second

// maxBrokers bounds the brokers that are counted by name, since whoever may write
// exposures can make up names.
const maxBrokers = 20

// Outdated counts the answers by an older definition of an experiment than its present
// one, from the time on when brokers should have taken the present one over.
type Outdated struct {
	name, checksum string        // of the present definition
	runs           bool          // if not, no answer should have a variant of it
	from           millrace.Time // answers before it do not count
	answers        byBroker
}

// byBroker counts answers by the broker that gave them.
type byBroker struct {
	n    map[string]int64 // by the name of the broker, for the first maxBrokers names
	last millrace.Time    // the time of the newest answer
}

func (b *byBroker) add(r *exposure.Record) {
	if b.n == nil {
		b.n = map[string]int64{}
	}
	if _, known := b.n[r.Broker]; known || len(b.n) < maxBrokers {
		b.n[r.Broker]++
	}
	b.last = max(b.last, r.Time)
}

func (b *byBroker) String() string {
	var by []string
	for _, name := range slices.Sorted(maps.Keys(b.n)) {
		by = append(by, fmt.Sprintf("%d by broker %q", b.n[name], name))
	}
	return fmt.Sprintf("%s, the last at %s", strings.Join(by, ", "), b.last)
}

// NewOutdated returns an Outdated for the present definition d, which was put in place at a
// time. It counts answers from TakenOverWithin after that.
func NewOutdated(d experiment.Defined, placed time.Time) *Outdated {
	return &Outdated{name: d.Experiment.Name, checksum: d.Checksum, runs: d.Experiment.State == experiment.Running, from: millrace.TimeOf(placed.Add(TakenOverWithin))}
}

// Add counts an answer if it is by an older definition. It leaves out pages after the
// first, since they go by the definition of their first page.
func (o *Outdated) Add(r *exposure.Record) {
	if r.Time < o.from || r.ServedBefore > 0 {
		return
	}
	for i := range r.Experiments {
		if e := &r.Experiments[i]; e.Experiment == o.name && e.Checksum != "" && (e.Checksum != o.checksum || !o.runs) {
			o.answers.add(r)
		}
	}
}

// Says returns which brokers go by an older definition, in words; empty if the newest
// answer by one is from before since.
func (o *Outdated) Says(since millrace.Time) string {
	if o.answers.last == 0 || o.answers.last < since {
		return ""
	}
	return fmt.Sprintf("answers of an older definition came since %s, and brokers take a new one over within %s: %s; see millrace doctor --admin, and whether it hears etcd", o.from, TakenOverWithin, &o.answers)
}
