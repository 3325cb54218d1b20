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

// TakenOverWithin is how long brokers take at most to go by a new definition, even one
// that was frozen meanwhile. A broker that goes by an older one after that does not hear
// etcd.
const TakenOverWithin = 15 * time.Second

// maxBrokers bounds the brokers that are counted by name: whoever may write exposures can
// make up names.
const maxBrokers = 20

// Outdated counts the answers of an experiment that are of an older definition than the
// one that it has, though brokers should have taken that over.
type Outdated struct {
	name, checksum string
	runs           bool // if not, no answer should have a variant of it
	from           millrace.Time
	answers        byBroker
}

// byBroker counts answers by who gave them.
type byBroker struct {
	n    map[string]int64 // of the first maxBrokers that came
	last millrace.Time    // of all answers, the newest
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

// NewOutdated counts answers from TakenOverWithin after the definition was put in place.
func NewOutdated(d experiment.Defined, placed time.Time) *Outdated {
	return &Outdated{name: d.Experiment.Name, checksum: d.Checksum, runs: d.Experiment.State == experiment.Running, from: millrace.TimeOf(placed.Add(TakenOverWithin))}
}

// Add counts an answer if it is of an older definition. Later pages are left out: they go
// by the definition of their first page.
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

// Says names who goes by the older definition, by answers since a time; empty: nobody.
func (o *Outdated) Says(since millrace.Time) string {
	if o.answers.last == 0 || o.answers.last < since {
		return ""
	}
	return fmt.Sprintf("answers of an older definition came since %s, and brokers take a new one over within %s: %s; see millrace doctor --admin, and whether it hears etcd", o.from, TakenOverWithin, &o.answers)
}
