package outcome

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// Act is an action that a viewer did with an item of an answer. If they did it several
// times, it is one Act.
type Act struct {
	Item        Place // the item, and its answer
	Action      string
	At          millrace.Time         // when they first did it
	Shown       millrace.Time         // the time of the answer
	Experiments []exposure.Experiment // the experiments that had a part in the answer
	Drafted     string                // the experiment that had the answer drafted; empty: the answer is no draft
	Teams       []string              // the models that drafted the answer
	Team        int                   // the index in Teams of the one that drafted the item; -1: none did
}

// owner is what the ledger keeps of an answer to which outcomes belong.
type owner struct {
	id          string
	at          millrace.Time
	experiments []exposure.Experiment
	drafted     string
	teams       []string
}

// ownerOf copies what the ledger keeps of an answer.
func (l *Ledger) ownerOf(r *exposure.Record) owner {
	o := owner{id: r.ID, at: r.Time, experiments: slices.Clone(r.Experiments)}
	for i := range o.experiments { // all texts but the unit are the same few in many answers
		e := &o.experiments[i]
		e.Layer, e.Experiment, e.Variant, e.Checksum = l.shared(e.Layer), l.shared(e.Experiment), l.shared(e.Variant), l.shared(e.Checksum)
	}
	if d := r.Interleaving; d != nil {
		o.drafted, o.teams = l.shared(d.Experiment), slices.Clone(d.Teams)
		for i, team := range o.teams {
			o.teams[i] = l.shared(team)
		}
	}
	return o
}

// shared returns the one copy of a text that all owners share.
func (l *Ledger) shared(text string) string {
	if one, known := l.texts[text]; known {
		return one
	}
	l.texts[text] = text
	return text
}

// Acts joins the outcomes with answers, and calls take for each act, in the order of the
// times of acts. It calls offer once, with a function that offer must call for every answer.
// What was done longer than the window after its answer is left out, even if it names the
// answer. So other outcomes in the ledger make no difference.
//
// told is what became of the outcomes: told[0] of those that were in no ledger before, and
// told[1] of the others. of is the name of an experiment, or empty. If it is not empty, an
// outcome that belongs to an answer in which this experiment had no part counts in told as
// one that belongs to nothing. The error is that of offer.
func (l *Ledger) Acts(of string, offer func(take func(*exposure.Record)) error, take func(*Act)) (told [2]Report, err error) {
	l.of, l.ends = of, true
	if err := offer(l.Offer); err != nil {
		return told, err
	}
	var did []int32
	for i := range l.all {
		if l.settle(&l.all[i]) {
			did = append(did, int32(i))
		}
	}
	l.note()
	same := func(i, j int32) int {
		a, b := &l.all[i], &l.all[j]
		return cmp.Or(cmp.Compare(l.owners[a.owner].id, l.owners[b.owner].id), cmp.Compare(a.place, b.place), cmp.Compare(l.actions[a.action], l.actions[b.action]))
	}
	slices.SortFunc(did, func(i, j int32) int { return cmp.Or(same(i, j), cmp.Compare(l.all[i].at, l.all[j].at)) })
	did = slices.CompactFunc(did, func(i, j int32) bool { return same(i, j) == 0 })
	slices.SortFunc(did, func(i, j int32) int { return cmp.Or(cmp.Compare(l.all[i].at, l.all[j].at), same(i, j)) })
	for _, i := range did {
		e := &l.all[i]
		o := &l.owners[e.owner]
		take(&Act{Place{o.id, int(e.place)}, l.actions[e.action], e.at, o.at, o.experiments, o.drafted, o.teams, int(e.team)})
	}
	return l.report, nil
}
