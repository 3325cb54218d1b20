package compare

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/internal/stats"
	"github.com/millrace/millrace/relevance/interleave"
)

// MaxCredited bounds the items of drafts that something was done with, each counted once
// for each action; what comes after them is counted as [Report.BeyondActs]. An
// item that is the only one of its answer takes some 200 bytes.
const MaxCredited = 5_000_000

// Draft compares two models that make the pages of a variant together: by turns,
// each picks its next best item. Each model is a team. What is compared is one
// action that viewers take with the items. Wins and losses are those of the second
// team.
//
// An impression is one answer, that is, one page. A draft may go over several
// pages; each is an impression of its own, since a viewer judges what a page
// shows. Impressions of one viewer depend on each other, and only viewers are
// independent. So impressions have no interval: one that took them for
// independent would be too narrow.
//
// What a viewer prefers over all impressions may change with the next one, and a
// confidence sequence over values that change is wrong more often than it says.
// So the interval counts for each viewer the team of the first drafted item with
// which the viewer took the action. Nothing that comes later changes that, and if
// viewers like both rankings equally, either team is as likely to have it.
type Draft struct {
	Variant, Action string
	Teams           []string         // the two models
	Impressions     interleave.Tally // impressions in which the action was taken
	Units           interleave.Tally // units that took it, by the wins of their impressions less the losses
	First           [2]int64         // units, by the team that has their first item
	stats.Effect                     // of First: the second, as a multiple of the first
}

// page is what a unit did, by one action, with an answer that was drafted.
type page struct {
	unit  int32 // did.number of the unit
	did   interleave.Impression
	first draw // the first item by a team
}

// draw is an item that a team drafted, and when the action was first taken with
// it. The zero value is none.
type draw struct {
	at    millrace.Time
	place int32 // in the answer, from 1
	team  interleave.Team
}

// before reports whether d, in an answer, comes before another draw, in another
// answer. Draws at the same time are ordered by place, and those of the same place
// by the ids of their answers. A draw that is none comes after all others.
func (d draw) before(answer string, other draw, in string) bool {
	if d.place == 0 || other.place == 0 {
		return other.place == 0 && d.place > 0
	}
	return cmp.Or(cmp.Compare(d.at, other.at), cmp.Compare(d.place, other.place), cmp.Compare(answer, in)) < 0
}

// CreditDrafts has the tally credit the teams of drafts with the acts that
// [Tally.Did] takes from now on. The order of the acts does not matter, nor does
// an act that comes twice. It is for acts that are read once, when all answers are
// there. A reader that attributes acts again while answers still come may first
// attribute an act to another answer, and it would count for both.
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

// credit counts an act, of a unit of arm a, with an item of a draft.
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

// drafted adds to the report a Draft for each action of an arm whose pages two models
// draft.
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
