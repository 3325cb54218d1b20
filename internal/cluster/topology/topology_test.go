package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/partition"
)

func ids(n int) (out []millrace.NodeID) {
	for i := range n {
		out = append(out, millrace.NodeID(fmt.Sprintf("n%d", i)))
	}
	return out
}

func TestSpreadIsBalanced(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for r := 1; r <= 4; r++ {
			a, err := Spread(ids(n), r)
			if err != nil {
				t.Fatal(err)
			}
			want := min(r, n)
			least, most := partition.Count*want, 0
			for _, id := range ids(n) {
				hosted := a.Hosted(id)
				least, most = min(least, hosted.Len()), max(most, hosted.Len())
			}
			if most-least > want {
				t.Errorf("%d nodes, %d replicas: between %d and %d partitions a node", n, r, least, most)
			}
			for p, owners := range a.Replicas {
				if len(owners) != want {
					t.Fatalf("%d nodes, %d replicas: partition %d has %v", n, r, p, owners)
				}
			}
		}
	}
}

// Whoever is lost, the others take over about as much each.
func TestSpreadSharesEvenly(t *testing.T) {
	a, _ := Spread(ids(5), 2)
	lost := a.Hosted("n0")
	for _, id := range ids(5)[1:] {
		hosted := a.Hosted(id)
		shared := hosted.And(lost)
		if n := shared.Len(); n < 60 || n > 84 {
			t.Errorf("n0 and %s share %d partitions, want about 72", id, n)
		}
	}
}

func TestSet(t *testing.T) {
	var s Set
	want := []millrace.Partition{0, 63, 64, 700, 719}
	for _, p := range want {
		s.Add(p)
	}
	if got := slices.Collect(s.All()); !slices.Equal(got, want) || s.Len() != len(want) || !s.Has(64) || s.Has(65) {
		t.Fatalf("got %v", got)
	}
	back, err := decodeSet(s.Encode())
	if err != nil || back != s {
		t.Fatalf("decoded %v, %v", slices.Collect(back.All()), err)
	}
	all := All()
	rest := all.Minus(s)
	if both := rest.Or(s); both != all {
		t.Errorf("a set and the rest are %v", slices.Collect(both.All()))
	}
	if rest.Len() != partition.Count-len(want) || rest.Has(700) {
		t.Fatalf("rest has %d", rest.Len())
	}
	if _, err := decodeSet(make([]byte, 89)); err == nil {
		t.Fatal("89 bytes were taken for a set")
	}
}

func document(t *testing.T, a any) []byte {
	t.Helper()
	b, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// at is etcd's state with some keys of the map.
func at(values map[string][]byte) *keyspace.Snapshot {
	s := &keyspace.Snapshot{Cluster: 1, Revision: 1, Count: "720", Values: map[string]keyspace.Value{}}
	for k, v := range values {
		s.Values[k] = keyspace.Value{Data: v}
	}
	return s
}

func spread(t *testing.T, n int, epoch int64) Assignment {
	t.Helper()
	a, err := Spread(ids(n), 2)
	if err != nil {
		t.Fatal(err)
	}
	a.Epoch = epoch
	return a
}

// What is malformed changes nothing and says why.
func TestBadAssignmentsKeepTheLastGood(t *testing.T) {
	good := spread(t, 5, 7)
	other := spread(t, 6, 7)
	noOwner, twice, badID := spread(t, 5, 8), spread(t, 5, 8), spread(t, 5, 8)
	noOwner.Replicas[719] = nil
	twice.Replicas[3] = []millrace.NodeID{"n1", "n1"}
	badID.Replicas[0] = []millrace.NodeID{"../n1"}
	type doc struct {
		Epoch    int64               `json:"epoch"`
		Replicas [][]millrace.NodeID `json:"replicas"`
	}
	for name, c := range map[string]struct {
		body []byte
		want string
	}{
		"not JSON":         {[]byte("{"), "unexpected end"},
		"empty":            {nil, "unexpected end"},
		"719 partitions":   {document(t, doc{8, good.Replicas[:719]}), "719 partitions, not 720"},
		"partition 720":    {document(t, doc{8, append(good.Replicas[:], []millrace.NodeID{"n1"})}), "721 partitions, not 720"},
		"map of -1":        {[]byte(`{"epoch":8,"replicas":{"-1":["n1"]}}`), "cannot unmarshal object"},
		"no owner":         {document(t, noOwner), "partition 719 has no owner"},
		"owner twice":      {document(t, twice), `partition 3 has owner "n1" twice`},
		"bad id":           {document(t, badID), "is not an id"},
		"too large":        {append(document(t, spread(t, 5, 8)), make([]byte, 3<<19)...), "more than 1048576"},
		"older epoch":      {document(t, spread(t, 5, 6)), "older than 7; keeping 7"},
		"epoch 2^63-1":     {document(t, spread(t, 5, 1<<63-1)), "is above"},
		"epoch far ahead":  {document(t, spread(t, 5, 1008)), "more than 1000 above 7"},
		"too many owners":  {bytes.Replace(document(t, spread(t, 5, 8)), []byte(`["n0"`), []byte(`["n0"`+strings.Repeat(`,"x"`, 20)), 1), "more than 16"},
		"deep":             {bytes.Repeat([]byte("["), 1<<20), "exceeded max depth"},
		"a long past":      {bytes.Replace(document(t, spread(t, 5, 8)), []byte(`"epoch":8`), []byte(`"epoch":8,"past":[`+strings.Repeat(`{},`, 99)+`{}]`), 1), "past"},
		"epoch 0":          {document(t, spread(t, 5, 0)), "epoch 0 is below 1"},
		"same, other":      {document(t, other), "another assignment of epoch 7"},
		"shrinks by 2 / 5": {document(t, spread(t, 3, 8)), "from 5 to 3 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			old := NewMap(good, nil, nil)
			next, err := old.Next(at(map[string][]byte{"assignment": c.body}))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
			if !next.assignment.Equal(&good) {
				t.Error("the assignment changed")
			}
		})
	}
}

func TestGoodAssignmentsAreTaken(t *testing.T) {
	meant := spread(t, 3, 8)
	meant.AllowShrink = true
	for name, a := range map[string]Assignment{
		"next epoch": spread(t, 6, 8), "shrinks by 1 / 5": spread(t, 4, 8), "shrinks by 1 / 5 later": spread(t, 4, 9),
		"override": meant, "a thousand epochs later": spread(t, 5, 1007),
	} {
		old := NewMap(spread(t, 5, 7), []Node{{ID: "n5", Addr: "a:5"}}, nil)
		next, err := old.Next(at(map[string][]byte{"assignment": document(t, a)}))
		if err != nil || next.Epoch() != a.Epoch {
			t.Errorf("%s: epoch %d, %v", name, next.Epoch(), err)
		}
	}
}

// However many epochs a jump passes over, it is judged by what it does.
func TestAJumpOverEpochsIsJudged(t *testing.T) {
	held := spread(t, 5, 7)
	unknown := spread(t, 6, 9)
	for name, c := range map[string]struct {
		a    Assignment
		want error
	}{
		"two epochs, 2 / 5 of the nodes":  {spread(t, 3, 9), ErrShrink},
		"nine epochs, 4 / 5 of the nodes": {spread(t, 1, 16), ErrShrink},
		"two epochs, an unknown node":     {unknown, ErrUnknownOwner},
	} {
		next, err := NewMap(held, nil, nil).Next(at(map[string][]byte{"assignment": document(t, c.a)}))
		if !errors.Is(err, c.want) || !next.assignment.Equal(&held) {
			t.Errorf("%s: epoch %d, %v", name, next.Epoch(), err)
		}
	}
	// A watcher that missed allowed steps judges each, as if it had been there.
	steps := []Assignment{held, spread(t, 4, 8), spread(t, 4, 9), spread(t, 4, 10)}
	steps[3].Replicas = steps[2].Replicas
	for p := range steps[3].Replicas {
		if p%6 == 0 {
			steps[3].Replicas[p] = steps[3].Replicas[p][:1]
		}
	}
	for i := range steps[1:] {
		steps[i].Follow(&steps[i+1])
	}
	last := steps[3]
	if next, err := NewMap(held, nil, nil).Next(at(map[string][]byte{"assignment": document(t, last)})); err != nil || next.Epoch() != 10 {
		t.Errorf("allowed steps: epoch %d, %v", next.Epoch(), err)
	}
	last.Past = last.Past[1:] // which says nothing of what is held
	far := spread(t, 3, 10)
	far.Past = last.Past
	if _, err := NewMap(held, nil, nil).Next(at(map[string][]byte{"assignment": document(t, far)})); !errors.Is(err, ErrShrink) {
		t.Errorf("steps that do not begin at what is held: %v", err)
	}
}

// A watcher that was away for more epochs than a past has follows a drain, which
// takes a quarter of the replicas step by step, and is still told of a step that
// shrinks by more and is not said to be meant.
func TestAWatcherThatWasAwayForLongFollowsADrain(t *testing.T) {
	held := spread(t, 4, 7)
	now := held.Clone()
	step := func(change func(*Assignment)) {
		next := now.Clone()
		next.Epoch++
		next.AllowShrink = false
		change(&next)
		now.Follow(&next)
		now = next
	}
	const steps = 70
	for i := range steps {
		step(func(a *Assignment) {
			a.AllowShrink = true
			for p := range a.Replicas {
				if owners := a.Replicas[p]; p%steps == i && slices.Contains(owners, "n3") {
					a.Replicas[p] = slices.DeleteFunc(owners, func(id millrace.NodeID) bool { return id == "n3" })
				}
			}
		})
	}
	step(func(*Assignment) {})
	hosted := now.Hosted("n3")
	if hosted.Len() > 0 || len(now.Past) != maxPast {
		t.Fatalf("n3 hosts %d, and the past has %d steps", hosted.Len(), len(now.Past))
	}
	next, err := NewMap(held, nil, nil).Next(at(map[string][]byte{"assignment": document(t, now)}))
	if err != nil || next.Epoch() != held.Epoch+steps+1 {
		t.Errorf("a drain: epoch %d, %v", next.Epoch(), err)
	}
	step(func(a *Assignment) {
		for p := range a.Replicas {
			a.Replicas[p] = []millrace.NodeID{"n0"}
		}
	})
	next, err = NewMap(held, nil, nil).Next(at(map[string][]byte{"assignment": document(t, now)}))
	if !errors.Is(err, ErrShrink) || !next.assignment.Equal(&held) {
		t.Errorf("a step that is not said to be meant: epoch %d, %v", next.Epoch(), err)
	}
}

// No epoch ends all change: one far ahead is refused, whatever is held.
func TestAnEpochFarAheadIsRefused(t *testing.T) {
	for _, held := range []int64{0, 1, 7} {
		m := NewMap(Assignment{}, nil, nil)
		if held > 0 {
			m = NewMap(spread(t, 5, held), nil, nil)
		}
		for _, epoch := range []int64{held + 1001, 1 << 53, 1<<53 + 1, 1<<63 - 1} {
			next, err := m.Next(at(map[string][]byte{"assignment": document(t, spread(t, 5, epoch))}))
			if err == nil || next.Epoch() != held {
				t.Errorf("held %d, found %d: %v", held, epoch, err)
			}
		}
	}
	for epoch, good := range map[int64]bool{MaxEpochStep: true, MaxEpochStep + 1: false} { // the first, without a last
		if a, got, err := Present(at(map[string][]byte{"assignment": document(t, spread(t, 5, epoch))})); (err == nil) != good || good && (got != epoch || a.Epoch != epoch) {
			t.Errorf("the first of epoch %d: %d, %v", epoch, got, err)
		}
	}
	// A new process believes what this package wrote.
	body := document(t, spread(t, 5, 5000))
	next, err := NewMap(Assignment{}, nil, nil).Next(at(map[string][]byte{"assignment": body, "last": body, "known/n0": nil, "known/n1": nil, "known/n2": nil, "known/n3": nil, "known/n4": nil}))
	if err != nil || next.Epoch() != 5000 {
		t.Errorf("epoch %d, %v", next.Epoch(), err)
	}
}

// What was written past the checks of an assignment is judged by the last one that was
// written as it should be, also by a process that had none; the next epoch is above both.
func TestAnAssignmentPastAllChecks(t *testing.T) {
	last := spread(t, 3, 20)
	with := func(change func(*Assignment)) []byte {
		a := last.Clone()
		a.Epoch += 5
		change(&a)
		return document(t, a)
	}
	all := func(id millrace.NodeID) func(*Assignment) {
		return func(a *Assignment) {
			for p := range a.Replicas {
				a.Replicas[p] = []millrace.NodeID{id}
			}
		}
	}
	for _, c := range []struct {
		name  string
		body  []byte
		epoch int64 // the highest that anybody may have
		taken bool
	}{
		{"as it should be", document(t, last), 20, true},
		{"a later one of the same", with(func(*Assignment) {}), 25, true},
		{"all on one node", with(all("n1")), 25, false},
		{"all on one node, and that is meant", with(func(a *Assignment) { all("n1")(a); a.AllowShrink = true }), 25, true},
		{"on nodes that nobody knows", with(func(a *Assignment) { all("ghost")(a); a.AllowShrink = true }), 25, false},
		{"an epoch that goes back", with(func(a *Assignment) { a.Epoch = 7 }), 20, false},
		{"another of the same epoch", with(func(a *Assignment) { all("n1")(a); a.Epoch = 20 }), 20, false},
		{"an epoch far ahead", with(func(a *Assignment) { a.Epoch = 5000 }), 20, false},
		{"none", []byte("{"), 20, false},
	} {
		s := at(map[string][]byte{"assignment": c.body, "last": document(t, last), "known/n0": nil, "known/n1": nil, "known/n2": nil})
		a, epoch, fault := Present(s)
		if a == nil || epoch != c.epoch || (fault == nil) != c.taken || !c.taken && !a.Equal(&last) {
			t.Errorf("%s: epoch %d, %v", c.name, epoch, fault)
		}
		m, err := NewMap(Assignment{}, nil, nil).Next(s)
		if (err == nil) != c.taken || !c.taken && !m.assignment.hosts(&last) {
			t.Errorf("%s, to a new process: epoch %d, %v", c.name, m.Epoch(), err)
		}
	}
}

// Owners nobody knows are told, and refused where there is anything better.
func TestUnknownOwnersAreTold(t *testing.T) {
	a := spread(t, 2, 1)
	first, err := NewMap(Assignment{}, nil, nil).Next(at(map[string][]byte{"assignment": document(t, a)}))
	if !errors.Is(err, ErrUnknownOwner) || first.Epoch() != 1 {
		t.Fatalf("the first assignment: epoch %d, %v", first.Epoch(), err)
	}
	a.AllowUnknown = true
	if first, err = NewMap(Assignment{}, nil, nil).Next(at(map[string][]byte{"assignment": document(t, a)})); err != nil || first.Epoch() != 1 {
		t.Fatalf("said to be meant: epoch %d, %v", first.Epoch(), err)
	}
	for key, known := range map[string]bool{"nodes/n2": true, "known/n2": true, "left/n2": false, "known/n3": false} {
		next, err := first.Next(at(map[string][]byte{"assignment": document(t, spread(t, 3, 2)), key: []byte(`{"id":"n2","addr":"a:1"}`)}))
		if known != (err == nil) || known != (next.Epoch() == 2) {
			t.Errorf("with %s: epoch %d, %v", key, next.Epoch(), err)
		}
	}
}

// No document costs much before it is refused (P20).
func TestRefusedDocumentsAreCheap(t *testing.T) {
	for name, body := range map[string]string{
		"deep arrays":   strings.Repeat("[", keyspace.MaxDocumentBytes),
		"deep objects":  strings.Repeat(`{"replicas":`, 80_000),
		"no owners":     `{"epoch":2,"replicas":[` + strings.Repeat("[],", 340_000) + `[]]}`,
		"many owners":   `{"epoch":2,"replicas":[[` + strings.Repeat(`"",`, 340_000) + `""]]}`,
		"a long past":   `{"epoch":2,"past":[` + strings.Repeat("{},", 340_000) + `{}]}`,
		"same fields":   `{"epoch":2` + strings.Repeat(`,"past":[{},{},{},{}]`, 49_000) + `}`,
		"a long number": `{"epoch":` + strings.Repeat("9", keyspace.MaxDocumentBytes-20) + `}`,
	} {
		if len(body) > keyspace.MaxDocumentBytes {
			t.Fatalf("%s has %d bytes", name, len(body))
		}
		for kind, decode := range map[string]func([]byte) error{
			"assignment":   func(b []byte) error { _, err := DecodeAssignment(b); return err },
			"registration": func(b []byte) error { _, err := DecodeRegistration("n1", b); return err },
			"lag":          func(b []byte) error { _, err := decodeLag(b); return err },
			"reports":      func(b []byte) error { _, err := decodeReports(b); return err },
			"map on disk":  func(b []byte) error { _, _, err := decodeMap(b); return err },
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := decode([]byte(body))
			runtime.ReadMemStats(&after)
			if spent := after.TotalAlloc - before.TotalAlloc; err == nil || spent > 64<<20 {
				t.Errorf("%s as %s: %v, after %d MiB", name, kind, err, spent>>20)
			}
		}
	}
}

// Maps are not equal that differ in what is said of a lost etcd, or of nodes that are
// gone.
func TestWhatIsLostIsSeen(t *testing.T) {
	m := NewMap(Assignment{}, nil, nil)
	by, past := *m, *m
	by.lost.by, past.past = []millrace.NodeID{"n1"}, map[millrace.NodeID]Node{"n1": {ID: "n1"}}
	for what, o := range map[string]*Map{"what nodes remember": &by, "who was there": &past} {
		if m.Equal(o) || o.Equal(m) || !o.Equal(o) {
			t.Errorf("a map that differs in %s is the same", what)
		}
	}
}

// A node whose lease ended stays known while it hosts; one that left does not.
func TestLostNodesStayKnown(t *testing.T) {
	ready := map[millrace.NodeID]Set{"n0": All(), "n1": All()}
	m := NewMap(spread(t, 2, 1), []Node{{ID: "n0", Addr: "a:1"}, {ID: "n1", Addr: "a:2"}, {ID: "spare", Addr: "a:3"}}, ready)
	body := document(t, spread(t, 2, 1))

	lost, err := m.Next(at(map[string][]byte{"assignment": body}))
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := lost.Node("n0"); !ok || n.Addr != "a:1" || lost.Alive("n0") || lost.Ready("n0") != All() {
		t.Errorf("n0 is %+v, alive %v", n, lost.Alive("n0"))
	}
	if _, ok := lost.Node("spare"); ok {
		t.Error("a lost node that hosts nothing is still known")
	}

	left, err := lost.Next(at(map[string][]byte{"assignment": body, "left/n0": {}}))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := left.Node("n0"); ok {
		t.Error("a node that left is still known")
	}
}

func TestBadNodesAreLeftOut(t *testing.T) {
	full := All()
	next, err := NewMap(Assignment{}, nil, nil).Next(at(map[string][]byte{
		"nodes/n0": []byte(`{"id":"n0","addr":"a:1"}`), "nodes/n1": []byte(`{"id":"n0","addr":"a:1"}`), "nodes/n2": []byte(`[]`),
		"ready/n0": full.Encode(), "ready/n1": []byte("short"), "lag/n0": []byte("{}"),
	}))
	if err == nil || len(next.Nodes()) != 1 || !next.Alive("n0") || len(next.ready) != 1 || len(next.lag) != 0 {
		t.Fatalf("nodes %v, error %v", next.Nodes(), err)
	}
}

func FuzzDecodeAssignment(f *testing.F) {
	good, _ := Spread(ids(3), 2)
	b, _ := json.Marshal(good)
	for _, seed := range [][]byte{b, nil, []byte("{}"), []byte(`{"epoch":1,"replicas":[[]]}`), []byte(`{"epoch":1e99}`)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := DecodeAssignment(b)
		if err != nil {
			return
		}
		back, err := DecodeAssignment(document(t, a))
		if err != nil || !back.Equal(a) {
			t.Fatalf("written and read again: %v", err)
		}
	})
}

func FuzzDecodeMap(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"assignment":null}`, `{"nodes":[{"id":"n"}]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, _, err := decodeMap(b); err == nil && m.Epoch() < 1 {
			t.Fatal("a map without an epoch")
		}
	})
}

func FuzzDecodeLag(f *testing.F) {
	l := Lag{Behind: All(), Seconds: 1e9, Records: 1}
	for _, seed := range []string{"", "{}", `{"behind":"AA=="}`, string(l.Encode())} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeLag(b)
		if err != nil {
			return
		}
		if back, err := decodeLag(l.Encode()); err != nil || back != l {
			t.Fatalf("written and read again: %v, %v", back, err)
		}
	})
}
