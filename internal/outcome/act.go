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
	Item        Place
	Action      string
	At          millrace.Time         // first
	Shown       millrace.Time         // of the answer
	Experiments []exposure.Experiment // of the answer
	Drafted     string                // the experiment whose draft the answer is; empty: none
	Teams       []string              // models that drafted the answer
	Team        int                   // that drafted the item, of these; -1: nobody
}

// owner is what an act has of its answer.
type owner struct {
	at          millrace.Time
	experiments []exposure.Experiment
	drafted     string
	teams       []string
	team        map[int]int // by place; none: nobody
}

func ownerOf(r *exposure.Record) *owner {
	o := &owner{at: r.Time, experiments: slices.Clone(r.Experiments)}
	if d := r.Interleaving; d != nil {
		o.drafted, o.teams, o.team = d.Experiment, d.Teams, map[int]int{}
		for i := range r.Items {
			if it := &r.Items[i]; it.Team >= 0 {
				o.team[it.Place] = it.Team
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
	var all []Act
	for p, actions := range done {
		o := owners[p.Answer]
		team, drafted := o.team[p.Place]
		if !drafted {
			team = -1
		}
		for _, d := range actions {
			if time.Duration(d.First-o.at)*time.Millisecond > l.window {
				continue
			}
			all = append(all, Act{p, d.Action, d.First, o.at, o.experiments, o.drafted, o.teams, team})
		}
	}
	slices.SortFunc(all, func(a, b Act) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Item.Answer, b.Item.Answer), cmp.Compare(a.Item.Place, b.Item.Place), cmp.Compare(a.Action, b.Action))
	})
	return all, nil
}
