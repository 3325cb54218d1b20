package fanout

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/partition"
)

// maxAlso is how many further candidates about the same object an item names at most.
const maxAlso = 3

// Ranked is a candidate as a node returned it.
type Ranked struct {
	Item *nodev1.Item
	From *Part
}

func (a Ranked) compare(b Ranked) int {
	if c := millrace.CompareScores(a.Item.GetScore(), b.Item.GetScore()); c != 0 { // scores mostly differ, and then no rank need be made
		return c
	}
	return RankOf(a.Item).Compare(RankOf(b.Item))
}

// Entry is an item of the answer.
type Entry struct {
	millrace.Rank
	Ranked
	Also []Ranked // worse-ranked candidates about the same object, at most maxAlso

	// Both are set only in an answer that interleaves two rankings. Ranking is the number of
	// the ranking that the item is from. Team is the same number if clicks on the item count
	// for that ranking, else interleave.Nobody.
	Ranking, Team int
}

// Merge returns the best limit candidates of the parts, in rank order: the same as one
// machine would that had all partitions (ARCHITECTURE.md, "Exact semantics"). With
// distinct, only the best candidate about each object is an entry. It completes the
// items of the parts in place: an empty Object becomes the item's id.
func Merge(parts []Part, limit int, distinct bool) []Entry {
	all := candidatesOf(parts, distinct)
	slices.SortFunc(all, Ranked.compare)
	if !distinct {
		entries := make([]Entry, min(limit, len(all)))
		for i := range entries {
			entries[i] = Entry{Rank: RankOf(all[i].Item), Ranked: all[i]}
		}
		return entries
	}
	// all is in rank order, so the first candidate about an object is its best. A further
	// one goes under "also" only until the answer is full: what comes later ranks below
	// the answer's last item.
	entries := make([]Entry, 0, min(limit, len(all)))
	at := make(map[string]int, min(limit, len(all)))
	for _, c := range all {
		i, met := at[c.Item.GetObject()]
		switch {
		case !met && len(entries) < limit:
			at[c.Item.GetObject()] = len(entries)
			entries = append(entries, Entry{Rank: RankOf(c.Item), Ranked: c})
		case met && len(entries[i].Also) < maxAlso && len(entries) < limit:
			entries[i].Also = append(entries[i].Also, c)
		}
	}
	return entries
}

// candidatesOf returns every candidate of the parts, with those under "also" if answers
// have distinct objects. It leaves out what a node says of a partition that another part
// covers.
func candidatesOf(parts []Part, distinct bool) []Ranked {
	n := 0
	for _, pt := range parts {
		n += len(pt.Resp.GetItems())
	}
	all := make([]Ranked, 0, n+n/4) // room for some under "also"
	for i := range parts {
		pt := &parts[i]
		add := func(it *nodev1.Item) {
			if it.Object == "" { // the record is about itself
				it.Object = it.Id
			}
			if pt.Covered.Has(partition.Of(millrace.Entity(it.GetEntity()))) {
				all = append(all, Ranked{it, pt})
			}
		}
		for _, it := range pt.Resp.GetItems() {
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

// RankOf returns the rank of an item that a node returned.
func RankOf(it *nodev1.Item) millrace.Rank {
	return millrace.Rank{
		Score: it.GetScore(), Time: millrace.Time(it.GetTimeMs()), ID: millrace.RecordID(it.GetId()),
		Timeline: millrace.Timeline{Entity: millrace.Entity(it.GetEntity()), Type: millrace.ContentType(it.GetType())},
	}
}

// Beside returns the parts as ranked by the i-th of the further models that the question
// named (QueryRequest.beside: a shadow, or the second ranking of a page that interleaves
// two), and the version of that model. The error says why some part has no such ranking,
// or that nodes ranked by different versions.
func Beside(parts []Part, i int) (ranked []Part, version string, err error) {
	for at, pt := range parts {
		all := pt.Resp.GetBeside()
		switch {
		case i >= len(all):
			return nil, "", fmt.Errorf("node %s is of an older version of Millrace, which ranks by one model alone", pt.Node)
		case all[i].GetError() != "":
			return nil, "", fmt.Errorf("model %s on node %s: %s", all[i].GetModel(), pt.Node, all[i].GetError())
		case at > 0 && all[i].GetModelVersion() != version:
			return nil, "", fmt.Errorf("model %s is of version %s on one node, and of %s on %s", all[i].GetModel(), version, all[i].GetModelVersion(), pt.Node)
		}
		version = all[i].GetModelVersion()
		ranked = append(ranked, Part{Node: pt.Node, Group: pt.Group, Covered: pt.Covered, Resp: &nodev1.QueryResponse{Items: all[i].GetItems()}})
	}
	return ranked, version, nil
}
