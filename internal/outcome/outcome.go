// Package outcome joins what viewers did with what they were shown: clicks,
// likes, hides and the like (Outcome) with the answers that brokers told of
// (exposure.Record).
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
	ID     string // see [Report.Twice]
	Viewer string
	Record string
	Action string        // such as click
	Answer string        // the answer_id of the receipt the record came with; empty: nobody knows
	At     millrace.Time // by the clock of who logged it
	Again  bool          // it was in a ledger before, of a reading that may have lacked its answer
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
//
// Of names it keeps hashes, since there are many more outcomes than answers that
// have any, and who logs them chooses how long names are.
type Ledger struct {
	window   time.Duration
	of       string              // the experiment whose answers count in a report; empty: all do
	ends     bool                // the window also where an outcome names its answer
	seen     map[uint64]struct{} // outcomes, each with the answer that it belongs to
	named    map[uint64]int32    // by answer: the last of its entries
	met      map[uint64]int32    // by viewer and record: the same
	all      []entry
	earliest millrace.Time
	actions  []string
	action   map[string]int32
	owners   []owner           // answers that have an outcome, or had
	texts    map[string]string // what many owners share
	report   [2]Report         // of outcomes that were in no ledger before, and of others
	notes    *[2]Notes         // of the same two; nil: nobody asks
	came     []came            // that are to be noted
}

// entry is an outcome and the item that has it: 56 bytes without a pointer, and some
// 50 more in the maps.
type entry struct {
	same    uint64 // of its id and all else by which it may be told twice
	viewer  uint64
	record  uint64
	at      millrace.Time
	before  int32 // entry of the same answer, or of the same viewer and record; none: -1
	action  int32
	owner   int32 // none: nobody
	place   int32
	team    int32
	strange strange
	again   bool
}

const none = -1

// strange is why an outcome does not belong to the answer that it names.
type strange uint8

const (
	notInIt   strange = 1 + iota // the answer did not show the record
	notTheirs                    // it was another viewer's
)

// maxSeen is about how many outcomes are known again that came once more, in another part of
// a topic: some 20 MB.
const maxSeen = 1 << 20

// seed is a secret of the process: nobody can look for names of one hash.
var seed = maphash.MakeSeed()

func hashOf(name string) uint64 { return maphash.String(seed, name) }

// sameAs is one number for all times that an outcome is told. Of clients that write
// one id for all that viewers do none is a repetition of another.
func sameAs(o *Outcome) uint64 {
	return maphash.Comparable(seed, [...]string{o.ID, o.Viewer, o.Record, o.Action, o.Answer})
}

// shown stands for a record beside who it was shown to.
func shown(by, record uint64) uint64 {
	return by*0x9e3779b97f4a7c15 ^ bits.RotateLeft64(record, 32)*0xd6e8feb86659fd93
}

// NewLedger returns a ledger without outcomes.
func NewLedger(window time.Duration) *Ledger {
	l := &Ledger{window: window, seen: map[uint64]struct{}{}, named: map[uint64]int32{}, met: map[uint64]int32{}, action: map[string]int32{}, texts: map[string]string{}}
	l.Reset()
	return l
}

// Notes is where a ledger notes how outcomes came along. One whose time is before From
// counts as of From, since it has come after that, whatever its clock said, and one of after
// Until as of Until.
type Notes struct {
	Course
	From, Until millrace.Time
}

// Note has [Ledger.Acts] note how outcomes came along that were in no ledger before, and how
// others did.
func (l *Ledger) Note(n *[2]Notes) { l.notes = n }

// note hands over what has come, in the order of its time.
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

// Reset forgets all outcomes, and keeps the memory. What comes once more of them is
// told all the same, of the last million or so.
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

// Add takes an outcome. The error is a [*millrace.Error]: there are too many.
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

// Earliest returns when the first outcome was. There must be one.
func (l *Ledger) Earliest() millrace.Time { return l.earliest }

// Offer lets an answer have the outcomes that are its own. An answer that comes
// later may take them.
func (l *Ledger) Offer(r *exposure.Record) {
	viewer := hashOf(r.Viewer)
	take := l.taker(r)
	l.offerNamed(r, viewer, take)
	for i := range r.Items {
		it := &r.Items[i]
		if r.Viewer == "" { // so many may be nobody
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

// taker gives outcomes to items of an answer.
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

// offerNamed offers an answer to the outcomes that name it.
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

// strange leaves out what is strange of answers that do not count.
func (l *Ledger) strange(r *exposure.Record, why strange) strange {
	if !l.counts(r.Experiments) {
		return 0
	}
	return why
}

// counts reports whether the outcomes of an answer count in a report.
func (l *Ledger) counts(of []exposure.Experiment) bool {
	return l.of == "" || slices.ContainsFunc(of, func(e exposure.Experiment) bool { return e.Experiment == l.of })
}

// entries are those of one key.
func (l *Ledger) entries(in map[uint64]int32, k uint64) func(func(*entry) bool) {
	return func(yield func(*entry) bool) {
		for i, ok := in[k]; ok && i != none; i = l.all[i].before {
			if !yield(&l.all[i]) {
				return
			}
		}
	}
}

// sweep forgets answers from which others have taken all, so that there are no more
// than outcomes.
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

// fits reports whether an answer came early enough for an outcome, and not too
// early.
func (l *Ledger) fits(e *entry, t millrace.Time) bool {
	after := time.Duration(e.at-t) * time.Millisecond
	return -Skew <= after && after <= l.window
}

// nearer reports whether an answer is to have the outcome that another has. Of
// two at once, the one with the lesser id has it, however they come.
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

// Settle ends the offers and returns what became of each item that something
// did, in the order of the outcomes.
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

// settle counts what became of an outcome, and reports whether an item has it that
// has not had it before.
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
