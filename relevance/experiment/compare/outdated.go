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

// TakenOverWithin is how long brokers take at most to go by a new definition, one that
// was frozen too. One that still goes by an older one then has lost the way to etcd.
const TakenOverWithin = 15 * time.Second

// maxBrokers bounds the brokers that are named: whoever may write exposures makes names.
const maxBrokers = 20

// Outdated counts the answers of an experiment that are of an older definition than the
// one that it has, though brokers should have taken that over.
type Outdated struct {
	name, checksum string
	runs           bool // else nobody deals its variants
	from           millrace.Time
	brokers        map[string]int64 // by name, of the first maxBrokers
	last           millrace.Time
}

// NewOutdated counts answers from some time after the definition was put in place.
func NewOutdated(d experiment.Defined, placed time.Time) *Outdated {
	return &Outdated{name: d.Experiment.Name, checksum: d.Checksum, runs: d.Experiment.State == experiment.Running, from: millrace.TimeOf(placed.Add(TakenOverWithin)), brokers: map[string]int64{}}
}

// Add takes what an answer showed. A further page is by the definition of its first one.
func (o *Outdated) Add(r *exposure.Record) {
	if r.Time < o.from || r.ServedBefore > 0 {
		return
	}
	for i := range r.Experiments {
		if e := &r.Experiments[i]; e.Experiment == o.name && e.Checksum != "" && (e.Checksum != o.checksum || !o.runs) {
			if _, known := o.brokers[r.Broker]; known || len(o.brokers) < maxBrokers {
				o.brokers[r.Broker]++
			}
			o.last = max(o.last, r.Time)
		}
	}
}

// Says names who goes by the older definition, by answers since a time; empty: nobody.
func (o *Outdated) Says(since millrace.Time) string {
	if o.last == 0 || o.last < since {
		return ""
	}
	var by []string
	for _, name := range slices.Sorted(maps.Keys(o.brokers)) {
		by = append(by, fmt.Sprintf("%d by broker %q", o.brokers[name], name))
	}
	return fmt.Sprintf("answers of an older definition came since %s, and brokers take a new one over within %s: %s, the last at %s; see millrace doctor --admin, and whether it hears etcd", o.from, TakenOverWithin, strings.Join(by, ", "), o.last)
}
