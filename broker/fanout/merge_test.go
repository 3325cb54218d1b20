package fanout

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// A merge is what one machine would show of all that count: the best of each object, and
// further ones below it as long as the answer has room. Here that is worked out item by item.
func TestMergeIsOneMachines(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 7))
		parts := make([]Part, 3)
		owner := func(e string) int { return int(partition.Of(millrace.Entity(e))) % len(parts) }
		for p := range millrace.Partition(partition.Count) {
			parts[int(p)%len(parts)].Covered.Add(p)
		}
		item := func() *nodev1.Item {
			it := &nodev1.Item{Id: fmt.Sprint("r", r.IntN(50)), Entity: fmt.Sprint("member:", r.IntN(9)), Type: "post", Score: float64(r.IntN(3)), TimeMs: int64(r.IntN(3))}
			if r.IntN(2) == 0 {
				it.Object = fmt.Sprint("o", r.IntN(6))
			}
			return it
		}
		distinct, limit := r.IntN(2) == 0, r.IntN(12)
		type candidate struct {
			millrace.Rank
			object string
		}
		var all []candidate
		for i := range parts {
			parts[i].Resp = &nodev1.QueryResponse{}
			for range r.IntN(12) {
				it := item()
				object := cmp.Or(it.Object, it.Id)
				for range r.IntN(3) {
					also := item()
					it.Also = append(it.Also, also)
					if distinct && owner(also.Entity) == i {
						all = append(all, candidate{RankOf(also), object})
					}
				}
				parts[i].Resp.Items = append(parts[i].Resp.Items, it)
				if owner(it.Entity) == i {
					all = append(all, candidate{RankOf(it), object})
				}
			}
		}
		slices.SortStableFunc(all, func(a, b candidate) int { return a.Compare(b.Rank) })
		type shown struct {
			rank millrace.Rank
			also []millrace.Rank
		}
		var want []shown
		place := map[string]int{}
		for _, c := range all {
			at, met := place[c.object]
			switch full := len(want) == limit; {
			case full:
			case distinct && met && len(want[at].also) < 3:
				want[at].also = append(want[at].also, c.Rank)
			case !distinct || !met:
				place[c.object] = len(want)
				want = append(want, shown{rank: c.Rank})
			}
		}
		got := Merge(parts, limit, distinct)
		if len(got) != len(want) {
			t.Fatalf("seed %d: %d items, want %d", seed, len(got), len(want))
		}
		for i, e := range got {
			var also []millrace.Rank
			for _, a := range e.Also {
				also = append(also, RankOf(a.Item))
			}
			if e.Rank != want[i].rank || RankOf(e.Item) != e.Rank || !slices.Equal(also, want[i].also) {
				t.Fatalf("seed %d: at %d %v with %v, want %v", seed, i, e.Rank, also, want[i])
			}
		}
	}
}

// A ranking beside the answer's is there if every part has it, by one version.
func TestBeside(t *testing.T) {
	part := func(node millrace.NodeID, rankings ...*nodev1.Ranking) Part {
		return Part{Node: node, Covered: topology.All(), Resp: &nodev1.QueryResponse{Beside: rankings}}
	}
	of := func(version string) *nodev1.Ranking {
		return &nodev1.Ranking{Model: "m", ModelVersion: version, Items: []*nodev1.Item{{Id: "r" + version}}}
	}
	for name, c := range map[string]struct {
		parts []Part
		fault string
	}{
		"there":        {[]Part{part("n0", of("9"), of("1")), part("n1", of("8"), of("1"))}, ""},
		"not there":    {[]Part{part("n0", of("9"), of("1")), part("n1", of("1"))}, "node n1 is of an older version"},
		"failed":       {[]Part{part("n0", of("9"), &nodev1.Ranking{Model: "m", Error: "it panicked"})}, "model m on node n0: it panicked"},
		"two versions": {[]Part{part("n0", of("9"), of("1")), part("n1", of("9"), of("2"))}, "model m is of version 1 on one node, and of 2 on n1"},
	} {
		ranked, version, err := Beside(c.parts, 1)
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (version != "1" || len(ranked) != 2 || ranked[1].Node != "n1" || ranked[1].Resp.Items[0].Id != "r1" || ranked[0].Covered != topology.All()) {
			t.Errorf("%s: %+v, %s", name, ranked, version)
		}
	}
}
