// Package outcome joins what viewers did, such as clicks, likes and hides ([Outcome]), with
// the answers that showed it to them, as brokers recorded these answers (exposure.Record).
// An answer may be a draft: items that several models, its teams, chose in turn (package
// relevance/interleave).
package outcome

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// Outcome is something that a viewer did with a record.
type Outcome struct {
	ID     string        // the outcome's own; an outcome that is logged again has the same one: see [Report.Twice]
	Viewer string        // who did it
	Record string        // with which record
	Action string        // such as click
	Answer string        // the answer_id of the receipt the record came with; empty: not known
	At     millrace.Time // by the clock of the program that logged it
	Again  bool          // an earlier ledger had it, which may have lacked its answer
}

// MaxOutcomes is how many outcomes a Ledger holds. They take some 220 MB: see entry.
const MaxOutcomes = 2 << 20

// Skew is by how much the clocks of brokers and of programs that log outcomes may differ: an
// outcome may be dated up to Skew before the answer that it belongs to.
const Skew = time.Minute

// Place names one item of one answer.
type Place struct {
	Answer string // the answer's id
	Place  int    // the item's place in the answer, from 1
}

// Done is how often one action was done with an item, and when first.
type Done struct {
	Action string
	Count  int
	First  millrace.Time
}

// Ledger attributes each outcome to at most one item of one answer:
//
//   - an outcome that names an answer, to the record in that answer, if the answer went to
//     the viewer; if the record is there twice, by two timelines, to the first;
//   - any other, to the latest answer that showed the viewer the record, at most a window
//     before the outcome. If there is none, it may be the first answer up to Skew later,
//     since clocks differ.
//
// Add all outcomes, then Offer every answer, then call Settle or Acts. The order of the
// outcomes, and that of the answers, makes no difference.
//
// The ledger keeps hashes in place of names. There are many more outcomes than answers that
// have any, and names may be as long as those who log outcomes like.
type Ledger struct {
	window   time.Duration       // how long after an answer an outcome may belong to it without naming it
	of       string              // the experiment whose answers count in a report; empty: all do
	ends     bool                // the window applies also to outcomes that name their answer: see Acts
	seen     map[uint64]struct{} // settled outcomes, hashed with the answer that each belongs to
	named    map[uint64]int32    // by answer: the last of the entries that name it
	met      map[uint64]int32    // by viewer and record: the last of the entries that name no answer
	all      []entry             // the outcomes, in the order of Add
	earliest millrace.Time       // the time of the earliest outcome
	actions  []string            // the actions, by the numbers that entries have
	action   map[string]int32    // the number of each action
	owners   []owner             // answers to which an outcome belongs, or belonged for a while
	texts    map[string]string   // the texts of owners, each once: see shared
	report   [2]Report           // the report of outcomes that were in no ledger before, and that of the others
	notes    *[2]Notes           // where the outcomes of the same two kinds are noted; nil: nowhere
	came     []came              // settled outcomes that note will add to notes
}

// entry is an outcome and the item that it belongs to: 56 bytes without a pointer, and some
// 50 more in the maps.
type entry struct {
	same    uint64 // see sameAs
	viewer  uint64 // a hash, see hashOf
	record  uint64 // a hash too
	at      millrace.Time
	before  int32   // the entry before it in the list of named or met; none if it is the first
	action  int32   // the index in Ledger.actions
	owner   int32   // the index in Ledger.owners; none if it belongs to no answer
	place   int32   // the item's place in the answer, from 1
	team    int32   // the index in owner.teams of the team that drafted the item; none without one
	strange strange // why the outcome does not belong to the answer that it names
	again   bool    // see Outcome.Again
}

// none is in the place of an index if there is none.
const none = -1

// strange is why an outcome does not belong to the answer that it names; 0: no reason is
// known.
type strange uint8

const (
	notInIt   strange = 1 + iota // the answer did not show the record
	notTheirs                    // the answer was another viewer's
)

// maxSeen bounds how many outcomes a ledger remembers over a Reset, to recognise those that
// come again in another part of a topic. They take some 20 MB.
const maxSeen = 1 << 20

// seed is secret to the process, so that nobody can choose names with equal hashes.
var seed = maphash.MakeSeed()

func hashOf(name string) uint64 { return maphash.String(seed, name) }

// sameAs returns a hash that is the same each time an outcome is logged again. It covers
// more than the id, so that clients that write one id for everything are no repetitions.
func sameAs(o *Outcome) uint64 {
	return maphash.Comparable(seed, [...]string{o.ID, o.Viewer, o.Record, o.Action, o.Answer})
}

// shown returns one hash of two, such as those of a viewer and of a record that they were
// shown.
func shown(by, record uint64) uint64 {
	return by*0x9e3779b97f4a7c15 ^ bits.RotateLeft64(record, 32)*0xd6e8feb86659fd93
}

// NewLedger returns a ledger without outcomes. window is how long after an answer an outcome
// may belong to it without naming it.
func NewLedger(window time.Duration) *Ledger {
	l := &Ledger{window: window, seen: map[uint64]struct{}{}, named: map[uint64]int32{}, met: map[uint64]int32{}, action: map[string]int32{}, texts: map[string]string{}}
	l.Reset()
	return l
}

// Notes is a [Course] to which a ledger adds outcomes, and the time in which they were
// logged. An outcome dated before From counts as of From, and one dated after Until as of
// Until: its clock was wrong.
type Notes struct {
	Course
	From, Until millrace.Time
}

// Note has [Ledger.Acts] add outcomes to n[0] that were in no ledger before, and the others
// to n[1]. nil ends that.
func (l *Ledger) Note(n *[2]Notes) { l.notes = n }

// note adds the outcomes of came to the notes, in the order of their times.
func (l *Ledger) note() {
	slices.SortFunc(l.came, func(a, b came) int { return cmp.Compare(a.at, b.at) })
	for _, o := range l.came {
		n := &l.notes[0]
		if o.again {
			n = &l.notes[1]
		}
		at := min(o.at, n.Until)
		if n.add(max(at, n.From), o.wrong); !o.wrong {
			n.newest = max(n.newest, at)
		}
	}
	l.came = l.came[:0]
}

// Reset removes all outcomes, and keeps the memory. Outcomes that were settled and come
// again are still counted as [Report.Twice], until more than [maxSeen] are remembered: then
// Reset forgets those too.
func (l *Ledger) Reset() {
	if len(l.seen) > maxSeen {
		clear(l.seen)
	}
	clear(l.named)
	clear(l.met)
	clear(l.action)
	clear(l.texts)
	clear(l.owners)
	clear(l.actions)
	l.all, l.owners, l.actions, l.earliest, l.report = l.all[:0], l.owners[:0], l.actions[:0], math.MaxInt64, [2]Report{}
}

// Add adds an outcome. The error is a [*millrace.Error] if there are [MaxOutcomes] already.
func (l *Ledger) Add(o Outcome) error {
	if len(l.all) == MaxOutcomes {
		return &millrace.Error{
			Reason: millrace.ReasonTooLarge, Field: "outcomes", Detail: fmt.Sprintf("there are more than %d in this time", MaxOutcomes),
			WayOut: "export a shorter time, by --since and --until",
		}
	}
	l.earliest = min(l.earliest, o.At)
	action, known := l.action[o.Action]
	if !known {
		action = int32(len(l.actions))
		l.actions = append(l.actions, o.Action)
		l.action[o.Action] = action
	}
	e := entry{same: sameAs(&o), viewer: hashOf(o.Viewer), record: hashOf(o.Record), at: o.At, before: none, action: action, owner: none, again: o.Again}
	in, k := l.met, shown(e.viewer, e.record)
	if o.Answer != "" {
		in, k = l.named, hashOf(o.Answer)
	}
	if before, more := in[k]; more {
		e.before = before
	}
	in[k] = int32(len(l.all))
	l.all = append(l.all, e)
	return nil
}

// Len returns how many outcomes there are.
func (l *Ledger) Len() int { return len(l.all) }

// Earliest returns the time of the earliest outcome. There must be one.
func (l *Ledger) Earliest() millrace.Time { return l.earliest }

// Offer gives an answer the outcomes that fit it better than the answers that were offered
// before. An answer that is offered later may take them from it.
func (l *Ledger) Offer(r *exposure.Record) {
	viewer := hashOf(r.Viewer)
	take := l.taker(r)
	l.offerNamed(r, viewer, take)
	for i := range r.Items {
		it := &r.Items[i]
		if r.Viewer == "" { // answers without a viewer went to many different people
			break
		}
		for e := range l.entries(l.met, shown(viewer, hashOf(it.ID))) {
			if l.fits(e, r.Time) && (e.owner == none || l.nearer(e, r, it.Place)) {
				take(e, it)
			}
		}
	}
	if len(l.owners) > 2*len(l.all)+1000 {
		l.sweep()
	}
}

// taker returns a function that gives an outcome to an item of an answer.
func (l *Ledger) taker(r *exposure.Record) func(*entry, *exposure.Item) {
	owner := int32(none)
	return func(e *entry, it *exposure.Item) {
		if owner == none {
			owner = int32(len(l.owners))
			l.owners = append(l.owners, l.ownerOf(r))
		}
		if e.owner, e.place, e.team = owner, int32(it.Place), none; r.Interleaving != nil && it.Team >= 0 {
			e.team = int32(it.Team)
		}
	}
}

// offerNamed gives an answer the outcomes that name it, or notes why they are strange.
func (l *Ledger) offerNamed(r *exposure.Record, viewer uint64, take func(*entry, *exposure.Item)) {
	id := hashOf(r.ID)
	if _, some := l.named[id]; !some {
		return
	}
	items := make(map[uint64]*exposure.Item, len(r.Items)) // the first of each record
	for i := range r.Items {
		it := &r.Items[i]
		record := hashOf(it.ID)
		if first := items[record]; first == nil || it.Place < first.Place {
			items[record] = it
		}
	}
	for e := range l.entries(l.named, id) {
		it := items[e.record]
		switch {
		case l.ends && time.Duration(e.at-r.Time)*time.Millisecond > l.window:
		case e.viewer != viewer:
			e.strange = max(e.strange, l.strange(r, notTheirs))
		case it == nil:
			e.strange = max(e.strange, l.strange(r, notInIt))
		case e.owner == none || int32(it.Place) < e.place:
			take(e, it)
		}
	}
}

// strange returns why, or 0 if the outcomes of the answer do not count in the report.
func (l *Ledger) strange(r *exposure.Record, why strange) strange {
	if !l.counts(r.Experiments) {
		return 0
	}
	return why
}

// counts reports whether outcomes of an answer that had a part in these experiments count
// in the report.
func (l *Ledger) counts(of []exposure.Experiment) bool {
	return l.of == "" || slices.ContainsFunc(of, func(e exposure.Experiment) bool { return e.Experiment == l.of })
}

// entries yields the entries of one key of named or met, the last added first.
func (l *Ledger) entries(in map[uint64]int32, k uint64) func(func(*entry) bool) {
	return func(yield func(*entry) bool) {
		for i, ok := in[k]; ok && i != none; i = l.all[i].before {
			if !yield(&l.all[i]) {
				return
			}
		}
	}
}

// sweep removes the owners to which no outcome belongs any more, so that there are no more
// owners than outcomes.
func (l *Ledger) sweep() {
	now, kept := make(map[int32]int32, len(l.all)), l.owners[:0:0]
	for i := range l.all {
		e := &l.all[i]
		if e.owner == none {
			continue
		}
		to, moved := now[e.owner]
		if !moved {
			to = int32(len(kept))
			kept = append(kept, l.owners[e.owner])
			now[e.owner] = to
		}
		e.owner = to
	}
	l.owners = kept
}

// fits reports whether an outcome may belong to an answer of time t: the answer is at most
// the window older, and at most Skew newer.
func (l *Ledger) fits(e *entry, t millrace.Time) bool {
	after := time.Duration(e.at-t) * time.Millisecond
	return -Skew <= after && after <= l.window
}

// nearer reports whether the outcome e belongs to the answer r rather than to its present
// owner: to the latest answer before the outcome, or if there is none to the first one after
// it. Of two answers of the same time, it belongs to the one with the lesser id, so that the
// order of offers makes no difference.
func (l *Ledger) nearer(e *entry, r *exposure.Record, place int) bool {
	has := &l.owners[e.owner]
	before, had := r.Time <= e.at, has.at <= e.at
	switch {
	case before != had:
		return before
	case r.Time != has.at:
		return r.Time > has.at == before
	}
	return r.ID < has.id || r.ID == has.id && int32(place) < e.place
}

// Settle ends the offers. It returns what was done with each item to which an outcome
// belongs, by action in the order of the outcomes, and what became of all outcomes.
func (l *Ledger) Settle() (map[Place][]Done, Report) {
	done := map[Place][]Done{}
	for i := range l.all {
		if e := &l.all[i]; l.settle(e) {
			at := Place{l.owners[e.owner].id, int(e.place)}
			done[at] = count(done[at], l.actions[e.action], e.at)
		}
	}
	return done, l.report[0].Plus(l.report[1])
}

// settle counts in the report what became of an outcome. It reports whether the outcome
// belongs to an item, and is no repetition of a settled one.
func (l *Ledger) settle(e *entry) bool {
	told := &l.report[0]
	if e.again {
		told = &l.report[1]
	}
	same, belongs := e.same, e.owner != none
	if belongs {
		same = shown(same, hashOf(l.owners[e.owner].id))
	}
	if _, twice := l.seen[same]; twice {
		told.Twice++
		return false
	}
	l.seen[same] = struct{}{}
	right := belongs && l.counts(l.owners[e.owner].experiments)
	switch {
	case right:
		told.Attributed++
	case belongs:
		told.Nothing++
	case e.strange == notTheirs:
		told.Elsewhere++
	case e.strange == notInIt:
		told.Lacking++
	default:
		told.Nothing++
	}
	if wrong := !belongs && e.strange != 0; l.notes != nil && (right || wrong) {
		l.came = append(l.came, came{e.at, wrong, e.again})
	}
	return belongs
}

// count adds one action at a time to all.
func count(all []Done, action string, at millrace.Time) []Done {
	for i := range all {
		if d := &all[i]; d.Action == action {
			d.Count++
			d.First = min(d.First, at)
			return all
		}
	}
	return append(all, Done{action, 1, at})
}
