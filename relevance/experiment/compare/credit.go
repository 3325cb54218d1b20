package compare

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/interleave"
)

// MaxCredited bounds the items of drafts that something was done with, each once
// for each action; what comes after them is counted as [Report.BeyondActs]. An
// item that is the only one of its answer takes some 200 bytes.
const MaxCredited = 5_000_000

// Draft is how two models do that draft the pages of a variant, by what viewers
// did an action with. What is won is won by the second.
//
// An impression is an answer, and so one page: the pages of one draft are
// impressions of their own, since a viewer judges what a page shows. Those of a
// viewer depend on each other. The unit of chance is the viewer, so impressions
// have no interval: one made of them as if they were independent would be sure
// too soon.
//
// What a viewer prefers, over all impressions, may change with the next one. A
// sequence over values that change is wrong more often than it says: a viewer
// who comes back is drawn anew, as often as the sequence is looked at. So the
// interval is of each viewer's first item by a team, which nothing that comes
// later changes: of two rankings that are liked equally, either is as likely to
// have it.
type Draft struct {
	Variant, Action string
	Teams           []string
	Impressions     interleave.Tally // in which it was done
	Units           interleave.Tally // who did it, by the wins of their impressions less the losses
	First           [2]int64         // units, by the team that has their first item
	stats.Effect                     // of First: the second, as a multiple of the first
}

// page is what a unit did, by one action, with an answer that was drafted.
type page struct {
	unit  int32 // of Tally.did
	did   interleave.Impression
	first draw
}

// draw is an item that a team drafted, and when something was done with it
// first. The zero value is none.
type draw struct {
	at    millrace.Time
	place int32 // from 1
	team  interleave.Team
}

// before reports whether a draw comes before another, which may be none. Those
// at one time go by their places, and these by their answers.
func (d draw) before(answer string, other draw, in string) bool {
	if d.place == 0 || other.place == 0 {
		return other.place == 0 && d.place > 0
	}
	return cmp.Or(cmp.Compare(d.at, other.at), cmp.Compare(d.place, other.place), cmp.Compare(answer, in)) < 0
}

// CreditDrafts has the tally credit the teams of drafts with what [Tally.Did]
// takes from now on, whatever order it comes in, and though it comes twice. It
// is for acts that are read once: of acts that are read again as they come, an
// outcome whose answer was written late may have been another answer's before,
// and would count for both.
func (t *Tally) CreditDrafts() {
	for i := range t.arms {
		if a := &t.arms[i]; len(a.drafts) == 2 && a.pages == nil {
			a.pages = make([]map[string]page, len(t.actions))
			for k := range a.pages {
				a.pages[k] = map[string]page{}
			}
		}
	}
}

// credit takes an act with an item of a draft.
func (t *Tally) credit(a *arm, action int, unit int32, act *outcome.Act) {
	if !slices.Equal(act.Teams, a.drafts) {
		t.report.OtherTeams++
		return
	}
	pages, of := a.pages[action], act.Item.Answer
	p, d := pages[of], draw{act.At, int32(act.Item.Place), interleave.Team(act.Team)}
	if !p.did.Has(d.place) {
		if t.credited == t.most {
			t.report.BeyondActs++
			return
		}
		t.credited++
		p.unit = unit
		p.did.Add(interleave.Click{Place: d.place, Team: d.team})
	}
	if d.team != interleave.Nobody && d.before(of, p.first, of) {
		p.first = d
	}
	pages[of] = p
}

// drafted tells how the models do that draft an arm's pages.
func (t *Tally) drafted(r *Report, s stats.Sequence, a *arm) error {
	type viewer struct {
		won   int // impressions, less those lost
		first draw
		in    string
	}
	for k, pages := range a.pages {
		d := Draft{Variant: a.Variant, Action: t.actions[k], Teams: a.drafts}
		viewers := map[int32]viewer{}
		for answer, p := range pages {
			won := p.did.Credit().Preference(1, 0)
			d.Impressions.Add(won)
			v := viewers[p.unit]
			if v.won += won; p.first.before(answer, v.first, v.in) {
				v.first, v.in = p.first, answer
			}
			viewers[p.unit] = v
		}
		for _, v := range viewers {
			d.Units.Add(v.won)
			if v.first.place > 0 {
				d.First[v.first.team]++
			}
		}
		var err error
		if d.Effect, err = s.RateRatio(d.First[0], d.First[1], 0.5); err != nil {
			return err
		}
		r.Drafts = append(r.Drafts, d)
	}
	return nil
}
