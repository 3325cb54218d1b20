package oracle

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/expr/celref"
)

// Verdict is what became of a record in the answer to a query, in one
// timeline. Except for Stage, a field is zero where it does not apply.
type Verdict struct {
	Stage   string          // as WhyResponse.stage of the feed's API says it
	Outcome celref.Outcome  // of the filter, if that dropped the record
	Score   float64         // if the record was scored
	Rank    int             // its place among all that were scored, from 1
	Place   int             // place in the answer, from 1, of the record or, if it was deduplicated, of its object's item
	Rivals  []millrace.Rank // what ranks above it and took its place, if it was below the cut, capped or deduplicated
	Also    bool            // the item of its object names it in Also
}

// Judge says what became of records in the answer to a query. Make it by [NewJudge].
type Judge struct {
	feed   *Feed
	q      Query
	ranked []Item
	answer Answer
}

// NewJudge returns the Judge of q's answer by f as it is now.
func NewJudge(f *Feed, q Query) *Judge {
	return &Judge{f, q, rank(&q, f.filter(&q, f.candidates(&q), &Stages{})), f.Query(q)}
}

// Why says what became of the record with an id in a timeline. Neither needs to exist, nor
// does the query need to ask for the timeline.
func (j *Judge) Why(t millrace.Timeline, id millrace.RecordID) Verdict {
	r, met := j.feed.timelines[t][id]
	switch {
	case !met:
		return Verdict{Stage: "never_ingested"}
	case r.Deleted:
		return Verdict{Stage: "deleted"}
	case !slices.Contains(j.q.Entities, t.Entity), len(j.q.Types) > 0 && !slices.Contains(j.q.Types, t.Type):
		return Verdict{Stage: "not_asked"}
	case r.Time < j.q.From || r.Time >= j.q.To:
		return Verdict{Stage: "outside_window"}
	}
	at := slices.IndexFunc(j.ranked, func(it Item) bool { return it.Timeline == t && it.ID == id })
	if at < 0 {
		return Verdict{Stage: "filtered", Outcome: j.filtered(t, r)}
	}
	return j.scored(j.ranked[at], Verdict{Score: j.ranked[at].Score, Rank: at + 1})
}

func (j *Judge) filtered(t millrace.Timeline, r millrace.Record) celref.Outcome {
	c := j.feed.candidate(t, r)
	return j.q.Filter(&c, &j.q.Viewer, j.q.AsOf)
}

// scored completes the verdict on an item that was scored.
func (j *Judge) scored(it Item, v Verdict) Verdict {
	items := j.answer.Items
	same := func(r millrace.Rank) bool { return r.ID == it.ID && r.Timeline == it.Timeline }
	if at := slices.IndexFunc(items, func(o Item) bool { return same(o.Rank) }); at >= 0 {
		v.Stage, v.Place = "shown", at+1
		return v
	}
	if n := len(items); n == j.q.Limit && compareRanks(items[n-1].Rank, it.Rank) < 0 {
		v.Stage, v.Rivals = "below_cut", []millrace.Rank{items[n-1].Rank}
		return v
	}
	var better []millrace.Rank
	for _, o := range j.ranked[:v.Rank-1] {
		if o.Entity == it.Entity {
			better = append(better, o.Rank)
		}
	}
	if n := j.q.capOf(it.Entity); n > 0 && len(better) >= n {
		v.Stage, v.Rivals = "capped", better[:n]
		return v
	}
	at := slices.IndexFunc(items, func(o Item) bool { return o.Object == it.Object })
	v.Stage, v.Place, v.Rivals = "deduplicated", at+1, []millrace.Rank{items[at].Rank}
	v.Also = slices.ContainsFunc(items[at].Also, same)
	return v
}

// Records returns every record that a timeline has, deleted ones included, in
// order of id.
func (f *Feed) Records(t millrace.Timeline) []millrace.Record {
	var all []millrace.Record
	for _, r := range f.timelines[t] {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b millrace.Record) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
