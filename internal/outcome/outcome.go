// Package outcome joins what viewers did with what they were shown: clicks,
// likes, hides and the like (Outcome) with the answers that brokers told of
// (exposure.Record).
package outcome

import (
	"fmt"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// Outcome is something that a viewer did with a record.
type Outcome struct {
	ID     string // told twice, it counts once
	Viewer string
	Record string
	Action string        // such as click
	Answer string        // the answer_id of the receipt the record came with; empty: nobody knows
	At     millrace.Time // by the clock of who logged it
}

// MaxOutcomes is how many a Ledger holds.
const MaxOutcomes = 2 << 20

// Skew is by how much the clocks of brokers and of who logs outcomes may differ.
const Skew = time.Minute

// Place is one item of one answer.
type Place struct {
	Answer string
	Place  int // in the answer, from 1
}

// Done is what became of an item by one action.
type Done struct {
	Action string
	Count  int
	First  millrace.Time
}

// Report says what became of outcomes.
type Report struct {
	Attributed int // to an item
	Twice      int // told before, under the same id
	Elsewhere  int // of an answer that went to another viewer
	NotShown   int // of an answer, or a viewer, that showed no such record, or not in the window
}

// Ledger attributes each outcome to at most one item of one answer:
//
//   - one that names its answer to the record in it, if the answer was the
//     viewer's; of a record that is there twice, by two timelines, to the first;
//   - any other to the latest answer that showed the viewer the record, at most
//     a window before the outcome. Clocks differ: where there is no such answer
//     it may be the first that came up to Skew later.
//
// Add all outcomes, then Offer every answer, then Settle: what comes in which
// order makes no difference within each.
type Ledger struct {
	window time.Duration
	seen   map[string]struct{} // ids
	named  map[shown][]*entry  // by answer and record
	met    map[shown][]*entry  // by viewer and record
	all    []*entry
	report Report
}

// shown is a record beside who it was shown to, or in which answer.
type shown struct{ by, record string }

// entry is an outcome and the item that has it.
type entry struct {
	Outcome
	place     Place
	when      millrace.Time // of the answer; meaningless without a place
	elsewhere bool
}

// NewLedger returns a ledger without outcomes.
func NewLedger(window time.Duration) *Ledger {
	return &Ledger{window: window, seen: map[string]struct{}{}, named: map[shown][]*entry{}, met: map[shown][]*entry{}}
}

// Add takes an outcome. The error is a [*millrace.Error]: there are too many.
func (l *Ledger) Add(o Outcome) error {
	if _, twice := l.seen[o.ID]; twice {
		l.report.Twice++
		return nil
	}
	if len(l.all) == MaxOutcomes {
		return &millrace.Error{
			Reason: millrace.ReasonTooLarge, Field: "outcomes", Detail: fmt.Sprintf("there are more than %d in this time", MaxOutcomes),
			WayOut: "export a shorter time, by --since and --until",
		}
	}
	l.seen[o.ID] = struct{}{}
	e := &entry{Outcome: o}
	l.all = append(l.all, e)
	if o.Answer != "" {
		k := shown{o.Answer, o.Record}
		l.named[k] = append(l.named[k], e)
	} else {
		k := shown{o.Viewer, o.Record}
		l.met[k] = append(l.met[k], e)
	}
	return nil
}

// Len returns how many outcomes there are.
func (l *Ledger) Len() int { return len(l.all) }

// Earliest returns when the first outcome was. There must be one.
func (l *Ledger) Earliest() millrace.Time {
	earliest := l.all[0].At
	for _, e := range l.all {
		earliest = min(earliest, e.At)
	}
	return earliest
}

// Offer lets an answer have the outcomes that are its own, and reports whether
// it has any now. An answer that comes later may take them.
func (l *Ledger) Offer(r *exposure.Record) (has bool) {
	for i := range r.Items {
		it := &r.Items[i]
		at := Place{r.ID, it.Place}
		for _, e := range l.named[shown{r.ID, it.ID}] {
			if e.elsewhere = e.Viewer != r.Viewer; e.elsewhere {
				continue
			}
			if has = true; e.place == (Place{}) || at.Place < e.place.Place {
				e.place = at
			}
		}
		if r.Viewer == "" { // so many may be nobody
			continue
		}
		for _, e := range l.met[shown{r.Viewer, it.ID}] {
			if l.fits(e, r.Time) && (e.place == Place{} || e.nearer(r.Time, at)) {
				e.place, e.when, has = at, r.Time, true
			}
		}
	}
	return has
}

// fits reports whether an answer came early enough for an outcome, and not too
// early.
func (l *Ledger) fits(e *entry, t millrace.Time) bool {
	after := time.Duration(e.At-t) * time.Millisecond
	return -Skew <= after && after <= l.window
}

// nearer reports whether an answer is to have the outcome that another has. Of
// two at once, the one with the lesser id has it, however they come.
func (e *entry) nearer(t millrace.Time, at Place) bool {
	before, had := t <= e.At, e.when <= e.At
	switch {
	case before != had:
		return before
	case t != e.when:
		return t > e.when == before
	}
	return at.Answer < e.place.Answer || at.Answer == e.place.Answer && at.Place < e.place.Place
}

// Settle ends the offers and returns what became of each item that something
// did, in the order of the outcomes.
func (l *Ledger) Settle() (map[Place][]Done, Report) {
	done := map[Place][]Done{}
	for _, e := range l.all {
		switch {
		case e.place != Place{}:
			l.report.Attributed++
			done[e.place] = count(done[e.place], &e.Outcome)
		case e.elsewhere:
			l.report.Elsewhere++
		default:
			l.report.NotShown++
		}
	}
	return done, l.report
}

func count(all []Done, o *Outcome) []Done {
	for i := range all {
		if d := &all[i]; d.Action == o.Action {
			d.Count++
			d.First = min(d.First, o.At)
			return all
		}
	}
	return append(all, Done{o.Action, 1, o.At})
}
