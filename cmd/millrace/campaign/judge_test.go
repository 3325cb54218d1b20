//go:build linux

package campaign

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// TestTheJudge plants faults in answers and in the log. A campaign that finds
// nothing shows something only if its judge would have found these.
func TestTheJudge(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(*planted)
		want  string // "" is a right answer
	}{
		"nothing":                       {func(*planted) {}, ""},
		"an item is missing":            {func(p *planted) { p.resp.Items = p.resp.Items[1:] }, "wrong"},
		"an item is there twice":        {func(p *planted) { p.resp.Items = append(p.resp.Items, p.resp.Items[0]) }, "wrong"},
		"two items are swapped":         {func(p *planted) { slices.Reverse(p.resp.Items) }, "wrong"},
		"a score is another":            {func(p *planted) { p.resp.Items[0].Score++ }, "wrong"},
		"an older version is shown":     {func(p *planted) { p.resp.Receipt.Applied[0].Content[0] = 1 }, "wrong"},
		"the receipt lacks a partition": {func(p *planted) { p.resp.Receipt.Applied = nil }, "wrong"},
		"the receipt has one twice":     {func(p *planted) { p.resp.Receipt.Applied = append(p.resp.Receipt.Applied, p.resp.Receipt.Applied[0]) }, "wrong"},
		"the receipt is ahead of all":   {func(p *planted) { p.asker.lost = true; p.resp.Receipt.Applied[0].Content[0] = 1000 }, "wrong"},
		"an input is not in the log":    {func(p *planted) { p.send("late", 1); p.age(staleAfter + time.Second) }, "stale"},
		"a new input is not in the log": {func(p *planted) { p.send("late", 1) }, ""},
		"it is old, and says so": {func(p *planted) {
			p.send("late", 1)
			p.age(staleAfter + time.Second)
			p.resp.Coverage.TimelinesBehind = 1
		}, ""},
		"it is old, and missing":         {func(p *planted) { p.send("late", 1); p.age(staleAfter + time.Second); p.miss() }, ""},
		"the log has an input twice":     {func(p *planted) { p.log("r1", 1, 1) }, "doubled"},
		"the log has what nobody sent":   {func(p *planted) { p.log("nobody", 1, 77) }, "doubled"},
		"the load's producer sent twice": {func(p *planted) { p.log("r1", 1, 99) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlanted(t)
			c.plant(p)
			p.asker.judge(t.Context(), answer{p.q, time.Now(), p.resp})
			if c.want == "" && len(p.found) > 0 || c.want != "" && !slices.Contains(p.found, c.want) {
				t.Errorf("the judge finds %q, want %q", p.found, c.want)
			}
		})
	}
}

// planted is a log of a few records of one member, and the right answer to a
// question for them.
type planted struct {
	t      *testing.T
	truth  *truth
	asker  *asker
	offset int64
	q      oracle.Question
	resp   *feedv1.GetFeedResponse
	found  []string
}

const planter = "member:1"

func newPlanted(t *testing.T) *planted {
	t.Helper()
	p := &planted{t: t}
	told := func(kind, _ string) { p.found = append(p.found, kind) }
	var err error
	if p.truth, err = newTruth([kafka.Streams]string{"timeline", "features"}, told); err != nil {
		t.Fatal(err)
	}
	p.asker = newAsker(t, p.truth, 1, nil, told)
	for i, id := range []string{"r1", "r2", "r3"} {
		p.send(id, 1)
		p.log(id, 1, int64(i+1))
	}
	p.send("r1", 2)
	p.log("r1", 2, 4)
	p.age(time.Minute)
	p.q = oracle.Question{From: millrace.MinTime, To: millrace.MaxTime, Model: "recency", Limit: 10, Entities: []millrace.Entity{planter}}
	feed := oracle.New()
	before := [kafka.Streams]int64{p.offset, 0}
	p.truth.fold(feed, planter, before)
	query, err := p.asker.eval.Load().Query(p.q)
	if err != nil {
		t.Fatal(err)
	}
	p.resp = &feedv1.GetFeedResponse{Coverage: &feedv1.Coverage{}, Receipt: &feedv1.Receipt{Applied: []*feedv1.Applied{{
		Node: "node-1", Partitions: []int32{int32(partition.Of(planter))}, Content: []int64{p.offset}, Features: []int64{0},
	}}}}
	for _, it := range feed.Query(query).Items {
		p.resp.Items = append(p.resp.Items, &feedv1.Item{
			Id: string(it.ID), Entity: string(it.Entity), Type: string(it.Type), Time: timestamppb.New(it.Time.Std()), Object: string(it.Object), Score: it.Score,
		})
	}
	return p
}

// line is a record whose time follows from its version, so that an older one
// shows.
func (p *planted) line(id string, version int64) (body []byte, env schemas.Envelope) {
	at := version*1_000_000 + int64(id[len(id)-1])
	body, env, err := encode(schemas.Activity(), fmt.Appendf(nil, `{"id":%q,"actor":%q,"verb":"post","created_at":%d,"version":%d}`, id, planter, at, version))
	if err != nil {
		p.t.Fatal(err)
	}
	return body, env
}

// send has an input acknowledged now.
func (p *planted) send(id string, version int64) {
	_, env := p.line(id, version)
	p.truth.send(content, env)()
}

// log appends a record to the log, which came from an offset of its input.
func (p *planted) log(id string, version, from int64) {
	body, _ := p.line(id, version)
	r := outgoing(kafka.ToStream("timeline", planter, schemas.Frame(schemas.Activity().Fingerprint(), body), kafka.Source{Topic: "activity", Offset: millrace.Offset(from)}))
	r.Offset = p.offset
	p.offset++
	p.truth.mu.Lock()
	defer p.truth.mu.Unlock()
	p.truth.take(r)
}

// age makes everything that was acknowledged older.
func (p *planted) age(by time.Duration) {
	for _, sent := range p.truth.mu.of[planter] {
		sent.acked = sent.acked.Add(-by)
	}
}

// miss says that the answer lacks the partition.
func (p *planted) miss() {
	p.resp.Items, p.resp.Receipt.Applied = nil, nil
	p.resp.Coverage.Missing = []*feedv1.Missing{{Partition: int32(partition.Of(planter)), Timelines: 1, Reason: "behind"}}
}

// TestTheScheduleIsTheSeeds: a seed gives the same faults again.
func TestTheScheduleIsTheSeeds(t *testing.T) {
	a, b, other := newSchedule(1), newSchedule(1), newSchedule(2)
	same := true
	for range 300 {
		x, y, z := a.next().String(), b.next().String(), other.next().String()
		if x != y {
			t.Fatalf("%s and %s from one seed", x, y)
		}
		same = same && x == z
	}
	if same {
		t.Error("another seed gives the same faults")
	}
}

// TestFaultsThatBreakNothingDoNotCount: a process that has ended cannot be killed or
// frozen, and a log whose records are young is not trimmed.
func TestFaultsThatBreakNothingDoNotCount(t *testing.T) {
	w := &world{t: t, ctx: t.Context(), history: &history{t: t, began: time.Now()}}
	sleeper := func(name string) *process {
		p := &process{name: name, args: []string{"sleep", "1h"}, log: filepath.Join(t.TempDir(), "log"), told: func(name, how string) { t.Errorf("%s: %s", name, how) }}
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.kill(syscall.SIGKILL) })
		return p
	}
	w.partitioners = []*process{sleeper("partitioner-1"), sleeper("partitioner-2")}
	w.etcd = sleeper("etcd")
	one, both := freeze("one frozen", "partitioner-1"), freeze("both frozen", "partitioner-1", "partitioner-2")
	broke := func(want int, faults ...fault) {
		t.Helper()
		if got := w.breakAll(round{faults: faults}); got != want {
			t.Errorf("%d of %v count, want %d", got, round{faults: faults}, want)
		}
		for _, f := range faults {
			if f.end != nil && f.of != "etcd" {
				if err := f.end(w); err != nil {
					t.Errorf("%s: %v", f.what, err)
				}
			}
		}
	}
	broke(3, one, both, etcdFrozen(nil))
	broke(0, trimmed(nil))
	w.process("partitioner-1").kill(syscall.SIGKILL)
	broke(1, one, both)
	w.process("partitioner-2").kill(syscall.SIGKILL)
	broke(0, one, both)
	broke(1, etcdKilled(nil), etcdKilled(nil), etcdFrozen(nil))
}

// TestTheReaderSkipsWhatIsNoRecord: values that no reader may take are not the
// log's.
func TestTheReaderSkipsWhatIsNoRecord(t *testing.T) {
	p := newPlanted(t)
	p.truth.mu.Lock()
	p.truth.take(&kgo.Record{Topic: "timeline", Partition: int32(partition.Of(planter)), Offset: p.offset, Key: []byte(planter), Value: []byte("no record")})
	p.truth.mu.Unlock()
	if err := p.truth.reached(context.Background(), content, partition.Of(planter), p.offset+1); err != nil || len(p.found) > 0 {
		t.Errorf("%v, found %v", err, p.found)
	}
}

// TestTheObserver plants what no plan may do in what etcd says of replicas.
func TestTheObserver(t *testing.T) {
	was := []millrace.NodeID{"a", "b"}
	for name, c := range map[string]struct {
		owners, alive, ready, broken []millrace.NodeID
		fewer                        bool
	}{
		"nothing":                   {was, was, was, nil, false},
		"one more":                  {[]millrace.NodeID{"a", "b", "c"}, []millrace.NodeID{"a", "b", "c"}, was, nil, false},
		"another":                   {[]millrace.NodeID{"a", "c"}, []millrace.NodeID{"a", "c"}, []millrace.NodeID{"a", "c"}, nil, false},
		"another that is not ready": {[]millrace.NodeID{"a", "c"}, []millrace.NodeID{"a", "b", "c"}, was, nil, true},
		"one is not ready":          {was, was, was[:1], nil, true},
		"one is gone":               {was, was[:1], was, nil, true},
		"one is broken by the test": {was, was[:1], was[:1], was[1:], false},
		"another is broken":         {was, was[:1], was[:1], []millrace.NodeID{"c"}, true},
		"one is broken, and not assigned any more":        {was[:1], was[:1], was[:1], was[1:], true},
		"one is broken, and the other goes too early":     {[]millrace.NodeID{"b", "c"}, []millrace.NodeID{"a", "c"}, was[:1], was[1:], true},
		"one is broken, and the other goes for one ready": {[]millrace.NodeID{"b", "c"}, []millrace.NodeID{"a", "c"}, []millrace.NodeID{"a", "c"}, was[1:], false},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			o := &observer{told: func(kind, _ string) { found = append(found, kind) }}
			o.look(mapOf(was, nil, nil)) // before a plan
			o.begin(mapOf(was, was, was))
			o.breaks(c.broken...)
			o.look(mapOf(c.owners, c.alive, c.ready))
			if slices.Contains(found, "fewer") != c.fewer {
				t.Errorf("the observer finds %q", found)
			}
		})
	}
}

// mapOf is a cluster whose partitions are all on the same nodes.
func mapOf(owners, alive, ready []millrace.NodeID) *topology.Map {
	a := topology.Assignment{Epoch: 1}
	for p := range a.Replicas {
		a.Replicas[p] = owners
	}
	var members []topology.Node
	for _, id := range alive {
		members = append(members, topology.Node{ID: id})
	}
	sets := map[millrace.NodeID]topology.Set{}
	for _, id := range ready {
		sets[id] = topology.All()
	}
	return topology.NewMap(a, members, sets)
}
