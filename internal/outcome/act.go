package outcome

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// Act is an action that a viewer did with an item of an answer, at least once.
type Act struct {
	Item        Place
	Action      string
	At          millrace.Time         // first
	Shown       millrace.Time         // of the answer
	Experiments []exposure.Experiment // of the answer
	Drafted     string                // the experiment whose draft the answer is; empty: none
	Teams       []string              // models that drafted the answer
	Team        int                   // that drafted the item, of these; -1: nobody
}

// owner is an answer, and what acts have of it.
type owner struct {
	id          string
	at          millrace.Time
	experiments []exposure.Experiment
	drafted     string
	teams       []string
}

func (l *Ledger) ownerOf(r *exposure.Record) owner {
	o := owner{id: r.ID, at: r.Time, experiments: slices.Clone(r.Experiments)}
	for i := range o.experiments { // of the same few, but for the unit
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

func (l *Ledger) shared(text string) string {
	if one, known := l.texts[text]; known {
		return one
	}
	l.texts[text] = text
	return text
}

// Acts finds what outcomes did with what answers showed: offer is given what
// takes each answer. What was done longer than a window after its answer is
// left out, also where it names the answer, so that whatever else is in the
// ledger makes no difference. The acts are taken in the order of their times. Told is what
// became of outcomes that were in no ledger before, and of others: of those that belong to an
// answer, or name one, only answers count that an experiment had a part in; empty: all.
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
