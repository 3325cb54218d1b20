package outcome

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
)

// Act is an action that a viewer did with an item of an answer, at least once.
type Act struct {
	Action      string
	At          millrace.Time         // first
	Experiments []exposure.Experiment // of the answer
	Drafted     string                // the experiment whose draft the answer is; empty: none
	Team        string                // the model that drafted the item; empty: nobody
}

// owner is what an act has of its answer.
type owner struct {
	at          millrace.Time
	experiments []exposure.Experiment
	drafted     string
	teams       map[int]string // by place
}

func ownerOf(r *exposure.Record) *owner {
	o := &owner{at: r.Time, experiments: slices.Clone(r.Experiments)}
	if d := r.Interleaving; d != nil {
		o.drafted, o.teams = d.Experiment, map[int]string{}
		for i := range r.Items {
			if it := &r.Items[i]; it.Team >= 0 {
				o.teams[it.Place] = d.Teams[it.Team]
			}
		}
	}
	return o
}

// Acts finds what outcomes did with what answers showed: offer is given what
// takes each answer. What was done longer than a window after its answer is
// left out, also where it names the answer, so that whatever else is in the
// ledger makes no difference. The acts are in the order of their times.
func (l *Ledger) Acts(offer func(take func(*exposure.Record)) error) ([]Act, error) {
	owners := map[string]*owner{}
	if err := offer(func(r *exposure.Record) {
		if l.Offer(r) {
			owners[r.ID] = ownerOf(r)
		}
	}); err != nil {
		return nil, err
	}
	done, _ := l.Settle()
	type placed struct {
		Act
		Place
	}
	var all []placed
	for p, actions := range done {
		o := owners[p.Answer]
		for _, d := range actions {
			if time.Duration(d.First-o.at)*time.Millisecond > l.window {
				continue
			}
			all = append(all, placed{Act{d.Action, d.First, o.experiments, o.drafted, o.teams[p.Place]}, p})
		}
	}
	slices.SortFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Answer, b.Answer), cmp.Compare(a.Place.Place, b.Place.Place), cmp.Compare(a.Action, b.Action))
	})
	acts := make([]Act, len(all))
	for i := range all {
		acts[i] = all[i].Act
	}
	return acts, nil
}
