package questions

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/partition"
)

// whole is a question of some entities that are asked alike.
func whole(t *testing.T, entities ...string) *Question {
	t.Helper()
	q := &Question{Query: &nodev1.QueryRequest{Limit: 7}}
	q.Whole()
	q.Groups[0].Query, q.Groups[0].Types = q.Query, 3
	if err := q.TakeEntities(entities); err != nil {
		t.Fatal(err)
	}
	return q
}

// decoded returns the entities of a request to a node, and fails if they are not in the order
// of their partitions.
func decoded(t *testing.T, b []byte) (all []string) {
	t.Helper()
	last := millrace.Partition(0)
	for len(b) > 0 {
		var e []byte
		e, b = partition.CutEntity(b)
		p := partition.Of(millrace.Entity(e))
		if p < last {
			t.Errorf("%s of partition %d comes after one of %d", e, p, last)
		}
		last = p
		all = append(all, string(e))
	}
	slices.Sort(all)
	return all
}

// Each entity is asked for once, at its partition, whether the question is divided or not; what
// is counted is what is sent.
func TestEntitiesByPartition(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		var names []string
		for range 1 + r.IntN(200) {
			names = append(names, fmt.Sprint("member:", r.IntN(100)))
		}
		distinct := slices.Compact(slices.Sorted(slices.Values(names)))
		one := whole(t, names...)
		two := &Question{Query: one.Query, Groups: []*Group{{Query: one.Query, Types: 3}, {Query: &nodev1.QueryRequest{}, Types: 3}}}
		for b := one.Groups[0].Encoded; len(b) > 0; {
			e, rest := partition.CutEntity(b)
			g := two.Groups[len(e)%2]
			g.Add(b[:len(b)-len(rest)])
			two.Want.Add(partition.Of(millrace.Entity(e)))
			b = rest
		}
		for _, g := range two.Groups {
			g.Close()
		}
		var some topology.Set
		var want []string
		for p := range millrace.Partition(partition.Count) {
			if r.IntN(2) == 0 {
				some.Add(p)
			}
		}
		for _, e := range distinct {
			if some.Has(partition.Of(millrace.Entity(e))) {
				want = append(want, e)
			}
		}
		for _, q := range []*Question{one, two} {
			var asked, all []string
			bytes := 0
			for _, g := range q.Groups {
				asked = append(asked, decoded(t, q.Ask(g, some, 1).Entities)...)
				all = append(all, decoded(t, q.Ask(g, topology.All(), 1).Entities)...)
				bytes += len(g.Encoded)
			}
			slices.Sort(asked)
			slices.Sort(all)
			var parts topology.Set
			for _, e := range all {
				parts.Add(partition.Of(millrace.Entity(e)))
			}
			if !slices.Equal(asked, want) || !slices.Equal(all, distinct) || q.Want != parts || q.Among(some) != len(want) || q.Asked() != 3*len(distinct) || q.Bytes() != bytes {
				t.Errorf("seed %d: %v, want %v; %d among them, %d timelines", seed, asked, want, q.Among(some), q.Asked())
			}
			timelines := 0
			for p := range some.All() {
				timelines += q.Timelines(p)
			}
			if timelines != 3*len(want) {
				t.Errorf("seed %d: %d timelines, want %d", seed, timelines, 3*len(want))
			}
		}
		if one.Distinct != len(distinct) || one.Groups[0].Distinct != len(distinct) {
			t.Errorf("%d are distinct, want %d", one.Distinct, len(distinct))
		}
		for p := range millrace.Partition(partition.Count) {
			var parts topology.Set
			parts.Add(p)
			var in []*Group
			for _, g := range two.Groups {
				if g.Timelines(p) > 0 {
					in = append(in, g)
				}
			}
			if got := two.GroupsIn(parts); !slices.Equal(got, in) {
				t.Fatalf("%d groups in %d, want %d", len(got), p, len(in))
			}
		}
	}
}

// Entities are refused if there are none, too many, or one that is no name.
func TestEntitiesThatAreRefused(t *testing.T) {
	many := make([]string, limits.MaxEntities+1)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for name, c := range map[string]struct {
		entities []string
		reason   millrace.Reason
		field    string
	}{
		"none": {nil, millrace.ReasonInvalid, "entities"}, "no name": {[]string{"a", "a", ""}, millrace.ReasonInvalid, "entities[2]"}, "long": {[]string{strings.Repeat("x", millrace.MaxEntityBytes+1)}, millrace.ReasonInvalid, "entities[0]"},
		"many": {many, millrace.ReasonTooLarge, "entities"}, "as many as may be": {append(many[1:], many[1]), "", ""}, "as long as may be": {[]string{strings.Repeat("x", millrace.MaxEntityBytes)}, "", ""},
	} {
		q := &Question{Query: &nodev1.QueryRequest{}}
		q.Whole()
		var e *millrace.Error
		err := q.TakeEntities(c.entities)
		if errors.As(err, &e) != (c.field != "") || err != nil && (e.Reason != c.reason || e.Field != c.field) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node is asked with all that the question says, and what the group says in its place.
func TestAsk(t *testing.T) {
	all := &nodev1.QueryRequest{
		Types: []string{"a"}, FromMs: 1, ToMs: 2, AsOfMs: 3, Filter: "f", RequestFilter: "r", Model: "m", ModelVersion: "1", ModelSum: "s", Weights: "w", WeightsSum: "ws", Viewer: &feedv1.Viewer{}, Limit: 4, CapPerEntity: 5,
		DistinctObjects: true, Exclude: []uint64{6}, ServedKey: []byte{7}, Explain: true, Examine: "e", Above: []*nodev1.Item{{}}, Beside: []*nodev1.Model{{}}, Features: true, Measure: true, Shadow: []*nodev1.Model{{}},
	}
	q := &Question{Query: all, Groups: []*Group{{Query: all}}}
	want := proto.CloneOf(all)
	want.MaxBytes, want.GivesWay = 99, true
	if got := q.Ask(q.Groups[0], topology.All(), 99); !proto.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	all.Explain, q.Depth = false, 40
	want.Explain, want.Shadow, want.Limit = false, nil, 40
	if got := q.Ask(q.Groups[0], topology.All(), 99); !proto.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	own := &Group{Query: &nodev1.QueryRequest{Types: []string{"b"}, FromMs: 11, Filter: "g", Model: "n", ModelVersion: "2", ModelSum: "t", Weights: "v", WeightsSum: "vs", CapPerEntity: 15, ToMs: 100, Limit: 100}}
	got := q.Ask(own, topology.All(), 99)
	if of := own.Query; !slices.Equal(got.Types, of.Types) || got.FromMs != 11 || got.Filter != "g" || got.Model != "n" || got.ModelVersion != "2" || got.ModelSum != "t" || got.Weights != "v" || got.WeightsSum != "vs" || got.CapPerEntity != 15 || got.ToMs != 2 || got.Limit != 40 {
		t.Errorf("got %v", got)
	}
}

// What a question says of itself.
func TestQuestions(t *testing.T) {
	q := whole(t, "member:1", "member:2")
	if q.Deep() != 7 || q.Inquires() || q.Protocol(q.Groups[0]) != 0 {
		t.Errorf("%d deep, protocol %d", q.Deep(), q.Protocol(q.Groups[0]))
	}
	for most, fits := range map[int]bool{5: false, 6: true, 7: true} {
		if err := q.Affordable(most); (err == nil) != fits {
			t.Errorf("of %d: %v", most, err)
		}
	}
	for _, change := range []func(*Question){func(q *Question) { q.Aside = true }, func(q *Question) { q.Query.Examine = "r" }, func(q *Question) { q.Query.Above = make([]*nodev1.Item, 1) }} {
		q := whole(t, "a")
		if change(q); !q.Inquires() {
			t.Errorf("%+v does not inquire", q)
		}
	}
	q.Query.Exclude = []uint64{1}
	if got := q.Protocol(q.Groups[0]); got != 1 {
		t.Errorf("protocol %d of a later page", got)
	}
	if got := q.Protocol(&Group{Query: &nodev1.QueryRequest{Weights: "w"}}); got != 2 {
		t.Errorf("protocol %d of weights", got)
	}
	q.Loan = memory.New(1<<40, "answers").Borrow()
	for _, c := range []struct {
		bytes int64
		fits  bool
	}{{maxHeldBytes, true}, {1, false}, {-1, true}, {1, true}, {1, false}} {
		if err := q.Hold(c.bytes); (err == nil) != c.fits || err != nil && !strings.Contains(err.Error(), string(FewerItems)) {
			t.Errorf("%d more: %v", c.bytes, err)
		}
	}
}

// An answer by another model, version, pack or weights than asked for is none.
func TestAnsweredBy(t *testing.T) {
	of := func(name, version, sum, weights string) *nodev1.QueryResponse {
		return &nodev1.QueryResponse{Model: name, ModelVersion: version, ModelSum: sum, WeightsSum: weights}
	}
	pushed, builtIn := &Group{Query: &nodev1.QueryRequest{Model: "m", ModelVersion: "1", ModelSum: "s", WeightsSum: "w"}}, &Group{Query: &nodev1.QueryRequest{Model: "m"}}
	if v := pushed.Model(); v != (artefacts.Version{Name: "m", Version: "1", Sum: "s"}) {
		t.Errorf("%+v", v)
	}
	for _, c := range []struct {
		of   *Group
		resp *nodev1.QueryResponse
		good bool
	}{
		{pushed, of("m", "1", "s", "w"), true}, {pushed, of("n", "1", "s", "w"), false}, {pushed, of("m", "2", "s", "w"), false}, {pushed, of("m", "1", "t", "w"), false}, {pushed, of("m", "1", "s", "v"), false}, {pushed, of("m", "1", "s", ""), false},
		{builtIn, of("m", "9", "", ""), true}, {builtIn, of("n", "9", "", ""), false}, {builtIn, of("m", "9", "", "w"), false},
	} {
		var e *millrace.Error
		if err := c.of.AnsweredBy(c.resp); (err == nil) != c.good || err != nil && (!errors.As(err, &e) || e.Reason != millrace.ReasonNotHere || e.Field != "model") {
			t.Errorf("%v: %v", c.resp, err)
		}
	}
}
