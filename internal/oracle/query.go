package oracle

import (
	"cmp"
	"math"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/expr/celref"
)

// Query is a question; ARCHITECTURE.md, "Exact semantics", defines its parts.
type Query struct {
	Entities []millrace.Entity      // duplicates count once
	Types    []millrace.ContentType // empty: every type met
	From, To millrace.Time          // from <= time < to
	AsOf     millrace.Time
	Filter   Filter // nil keeps everything
	Score    Score
	Viewer   millrace.Viewer
	Limit    int
	Cap      int                     // best candidates kept of each entity; 0 keeps all
	Caps     map[millrace.Entity]int // what counts in place of Cap for some entities
	Distinct bool                    // deduplicate: rank objects rather than records
}

// Answer is what a feed shows: items best first, and how many candidates each
// stage saw.
type Answer struct {
	Items  []Item
	Stages Stages
}

// Item is a candidate that made it into the answer.
type Item struct {
	millrace.Rank
	Object millrace.Object
	Also   []millrace.Rank // further candidates of the object, best first; none unless Distinct
	Record millrace.Record
}

// Stages counts candidates. Candidates are those in the window; False, Null, Error and NaN
// were dropped by the filter, by its outcome; Scored are the rest; Capped are those of them
// that the cap dropped.
type Stages struct {
	Candidates, False, Null, Error, NaN, Scored, Capped int
}

// Query answers q.
func (f *Feed) Query(q Query) Answer {
	var a Answer
	kept := f.filter(&q, f.candidates(&q), &a.Stages)
	ranked := rank(&q, kept)
	a.Stages.Scored = len(ranked)
	capped := capEntities(ranked, &q)
	a.Stages.Capped = len(ranked) - len(capped)
	if q.Distinct {
		a.Items = topObjects(capped, q.Limit)
	} else {
		a.Items = capped[:min(q.Limit, len(capped))]
	}
	return a
}

// candidates returns the live records of the asked timelines in the window.
func (f *Feed) candidates(q *Query) []Candidate {
	var all []Candidate
	for _, t := range f.keys(q) {
		for _, r := range f.Live(t) {
			if q.From <= r.Time && r.Time < q.To {
				all = append(all, f.candidate(t, r))
			}
		}
	}
	return all
}

// keys returns the timelines that q asks for and that exist, each once.
func (f *Feed) keys(q *Query) []millrace.Timeline {
	entities, types := map[millrace.Entity]bool{}, map[millrace.ContentType]bool{}
	for _, e := range q.Entities {
		entities[e] = true
	}
	for _, t := range q.Types {
		types[t] = true
	}
	var keys []millrace.Timeline
	for t := range f.timelines {
		if entities[t.Entity] && (len(types) == 0 || types[t.Type]) {
			keys = append(keys, t)
		}
	}
	return keys
}

func (f *Feed) filter(q *Query, all []Candidate, s *Stages) []Candidate {
	s.Candidates = len(all)
	if q.Filter == nil {
		return all
	}
	var kept []Candidate
	for i := range all {
		switch q.Filter(&all[i], &q.Viewer, q.AsOf) {
		case celref.True:
			kept = append(kept, all[i])
		case celref.False:
			s.False++
		case celref.Null:
			s.Null++
		case celref.Error:
			s.Error++
		case celref.NaN:
			s.NaN++
		}
	}
	return kept
}

// rank scores the candidates and sorts them best first.
func rank(q *Query, kept []Candidate) []Item {
	items := make([]Item, len(kept))
	for i := range kept {
		c := &kept[i]
		items[i] = Item{
			Rank:   millrace.Rank{Score: q.Score(c, &q.Viewer, q.AsOf), Time: c.Time, ID: c.ID, Timeline: c.Timeline},
			Object: c.Object,
			Record: c.Record,
		}
	}
	sortItems(items)
	return items
}

func sortItems(items []Item) {
	slices.SortFunc(items, func(a, b Item) int { return compareRanks(a.Rank, b.Rank) })
}

// compareRanks is the order of an answer, best first: negative if a ranks above b. It does
// not use millrace.Rank.Compare, so that a fault of that shows, too.
func compareRanks(a, b millrace.Rank) int {
	an, bn := math.IsNaN(a.Score), math.IsNaN(b.Score)
	switch {
	case an && !bn:
		return 1
	case bn && !an:
		return -1
	case !an && a.Score != b.Score:
		if a.Score > b.Score {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.ID, b.ID), compareTimelines(a.Timeline, b.Timeline))
}

// capOf returns how many candidates are kept of an entity; 0 keeps all.
func (q *Query) capOf(e millrace.Entity) int {
	if n, own := q.Caps[e]; own {
		return n
	}
	return q.Cap
}

// capEntities keeps the best items of each entity.
func capEntities(ranked []Item, q *Query) []Item {
	var kept []Item
	seen := map[millrace.Entity]int{}
	for _, it := range ranked {
		n := q.capOf(it.Entity)
		if seen[it.Entity]++; n == 0 || seen[it.Entity] <= n {
			kept = append(kept, it)
		}
	}
	return kept
}

// maxAlso is how many further records of its object an item names at most.
const maxAlso = 3

// topObjects keeps the best item of each of the best n objects. In Also it gives it the
// next items of its object, up to maxAlso, that rank above the last item kept. If there are
// fewer than n objects, these may rank anywhere.
func topObjects(ranked []Item, n int) []Item {
	var top []Item
	place := map[millrace.Object]int{}
	for _, it := range ranked {
		at, seen := place[it.Object]
		switch {
		case !seen && len(top) == n:
			continue
		case !seen:
			place[it.Object] = len(top)
			top = append(top, it)
		case len(top[at].Also) < maxAlso && !full(top, n, it):
			top[at].Also = append(top[at].Also, it.Rank)
		}
	}
	return top
}

// full reports whether top has n items and item it ranks below the last of them.
func full(top []Item, n int, it Item) bool {
	return len(top) == n && compareRanks(it.Rank, top[n-1].Rank) > 0
}
