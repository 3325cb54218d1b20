package broker

import (
	"slices"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/partition"
)

// maxAlso is how many further candidates of its object an item names.
const maxAlso = 3

// ranked is a candidate as a node returned it.
type ranked struct {
	item *nodev1.Item
	from *part
}

func (a ranked) compare(b ranked) int {
	if c := millrace.CompareScores(a.item.GetScore(), b.item.GetScore()); c != 0 { // as it mostly is
		return c
	}
	return rankOf(a.item).Compare(rankOf(b.item))
}

// entry is an item of the answer.
type entry struct {
	millrace.Rank
	ranked
	also []ranked

	// Of a drafted answer: whose ranking it is of, and who drafted it.
	ranking, team int
}

// merge makes the answer of one machine out of the parts, by the rules of
// ARCHITECTURE.md, "Exact semantics".
func merge(parts []part, limit int, distinct bool) []entry {
	all := candidatesOf(parts, distinct)
	slices.SortFunc(all, ranked.compare)
	if !distinct {
		entries := make([]entry, min(limit, len(all)))
		for i := range entries {
			entries[i] = entry{Rank: rankOf(all[i].item), ranked: all[i]}
		}
		return entries
	}
	// All is in rank order, so the first of an object is its best, and
	// whatever comes before the object that fills the answer ranks above the
	// answer's last item.
	entries := make([]entry, 0, min(limit, len(all)))
	at := make(map[string]int, min(limit, len(all)))
	for _, c := range all {
		i, met := at[c.item.GetObject()]
		switch {
		case !met && len(entries) < limit:
			at[c.item.GetObject()] = len(entries)
			entries = append(entries, entry{Rank: rankOf(c.item), ranked: c})
		case met && len(entries[i].also) < maxAlso && len(entries) < limit:
			entries[i].also = append(entries[i].also, c)
		}
	}
	return entries
}

// candidatesOf returns every candidate of the parts, those under "also"
// included. What a node says of a partition that another part covers is left
// out.
func candidatesOf(parts []part, distinct bool) []ranked {
	n := 0
	for _, pt := range parts {
		n += len(pt.resp.GetItems())
	}
	all := make([]ranked, 0, n+n/4) // and some also
	for i := range parts {
		pt := &parts[i]
		add := func(it *nodev1.Item) {
			if it.Object == "" { // about itself
				it.Object = it.Id
			}
			if pt.covered.Has(partition.Of(millrace.Entity(it.GetEntity()))) {
				all = append(all, ranked{it, pt})
			}
		}
		for _, it := range pt.resp.GetItems() {
			add(it)
			if !distinct {
				continue
			}
			for _, also := range it.GetAlso() {
				also.Object = it.Object
				add(also)
			}
		}
	}
	return all
}

func rankOf(it *nodev1.Item) millrace.Rank {
	return millrace.Rank{
		Score: it.GetScore(), Time: millrace.Time(it.GetTimeMs()), ID: millrace.RecordID(it.GetId()),
		Timeline: millrace.Timeline{Entity: millrace.Entity(it.GetEntity()), Type: millrace.ContentType(it.GetType())},
	}
}
