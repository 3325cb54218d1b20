package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Two maps are equal only if a reader could not tell them apart.
func TestMapsThatDifferAreNotEqual(t *testing.T) {
	full := func() *Map {
		id := millrace.NodeID("n0")
		m := NewMap(spread(t, 2, 3), []Node{{ID: id, Addr: "a:0"}}, map[millrace.NodeID]Set{id: setOf(1)})
		m.lag, m.past = map[millrace.NodeID]Lag{id: {Records: 1}}, map[millrace.NodeID]Node{id: {ID: id}}
		m.reports = map[millrace.NodeID][]Report{id: {{State: "stale"}}}
		m.lost = loss{by: []millrace.NodeID{id}, epoch: 2}
		return m
	}
	if m := full(); !m.Equal(m) || !m.Equal(full()) {
		t.Error("a map is not equal to itself, or to another of the same")
	}
	for what, change := range map[string]func(*Map){
		"epoch":                   func(m *Map) { m.assignment.Epoch++ },
		"wanted":                  func(m *Map) { m.assignment.Wanted++ },
		"drop":                    func(m *Map) { m.assignment.Drop = map[millrace.NodeID]Set{"x": setOf(1)} },
		"replicas":                func(m *Map) { m.assignment.Replicas[719] = []millrace.NodeID{"n1"} },
		"nodes":                   func(m *Map) { m.nodes["n0"] = Node{ID: "n0", Addr: "a:1"} },
		"alive":                   func(m *Map) { m.alive = nil },
		"ready":                   func(m *Map) { m.ready["n0"] = setOf(2) },
		"lag":                     func(m *Map) { m.lag["n0"] = Lag{Records: 2} },
		"past":                    func(m *Map) { m.past["n0"] = Node{ID: "n0", Addr: "a:1"} },
		"reports":                 func(m *Map) { m.reports["n0"] = nil },
		"who remembers":           func(m *Map) { m.lost.by = nil },
		"what they remember":      func(m *Map) { m.lost.epoch++ },
		"that etcd has gone back": func(m *Map) { m.lost.setback = &keyspace.Setback{} },
	} {
		m := full()
		change(m)
		if m.Equal(full()) || full().Equal(m) {
			t.Errorf("%s differs, and the maps are equal", what)
		}
	}
}

// What a node reports of itself decides whether it takes records in, and which replicas are
// out of service.
func TestWhatANodeReportsOfItself(t *testing.T) {
	a := spread(t, 1, 1)
	for p := range a.Replicas {
		if p > 9 {
			a.Replicas[p] = []millrace.NodeID{"n1"}
		}
	}
	for _, c := range []struct {
		r           Report
		dead        bool
		halted      string
		quarantined Set
	}{
		{r: Report{State: "ready", Reason: "paused"}, halted: "paused"},
		{r: Report{State: "catching_up", Reason: "paused"}, halted: "paused"},
		{r: Report{State: "ready", Reason: "disk_full"}, halted: "disk_full"},
		{r: Report{State: "stale", Reason: "store_failing"}, halted: "store_failing"},
		{r: Report{State: "catching_up", Reason: "disk_full"}},
		{r: Report{State: "stale", Reason: "kafka_away"}},
		{r: Report{State: "quarantined", Reason: "corrupt", Partitions: setOf(3, 9, 10)}, quarantined: setOf(3, 9)},
		{r: Report{State: "quarantined", Reason: "corrupt", Partitions: setOf(3), Warning: true}},
		{r: Report{State: "quarantined", Reason: "corrupt", Partitions: setOf(3)}, dead: true},
		{r: Report{State: "stale", Partitions: setOf(3)}},
	} {
		m := NewMap(a, []Node{{ID: "n0", Addr: "a:0"}}, nil)
		if c.dead {
			m = NewMap(a, nil, nil)
		}
		m.reports = map[millrace.NodeID][]Report{"n0": {{State: "stale", Reason: "first"}, c.r}}
		if m.Halted("n0") != c.halted || m.Paused("n0") != (c.halted == "paused") || m.Quarantined("n0") != c.quarantined {
			t.Errorf("%+v: halted %q, paused %v, quarantined %v", c.r, m.Halted("n0"), m.Paused("n0"), m.Quarantined("n0"))
		}
	}
}

// A partition lacks replicas while fewer are alive and ready than are wanted of it.
func TestBelow(t *testing.T) {
	a := spread(t, 3, 1)
	a.Replicas[5] = ids(3) // one more than the others
	nodes := []Node{{ID: "n0"}, {ID: "n1"}, {ID: "n2"}}
	for _, c := range []struct {
		wanted int
		alive  []Node
		ready  []millrace.NodeID
		want   bool
	}{
		{0, nodes, ids(3), false}, {0, nodes, ids(2), true}, {2, nodes, ids(2), false},
		{2, nodes[:2], ids(3), false}, {2, nodes[1:2], ids(3), true}, {2, nodes, ids(1), true}, {1, nodes[:1], ids(1), false},
	} {
		a.Wanted = c.wanted
		ready := map[millrace.NodeID]Set{}
		for _, id := range c.ready {
			ready[id] = setOf(5)
		}
		m := NewMap(a, c.alive, ready)
		if m.Below(5) != c.want || !m.Below(6) || m.Wanted() != max(c.wanted, 2-c.wanted) {
			t.Errorf("%+v: below is %v", c, m.Below(5))
		}
		h := m.Health(nil)
		if in := h.Below.Has(5) || h.Unserved.Has(5); in != c.want {
			t.Errorf("%+v: the health says %v", c, in)
		}
	}
}

// How many replicas are wanted is what most partitions have; of two as common, the first.
func TestReplication(t *testing.T) {
	of := func(counts ...int) (a Assignment) {
		for p := range a.Replicas {
			a.Replicas[p] = ids(counts[p%len(counts)])
		}
		return a
	}
	for _, c := range []struct {
		a    Assignment
		want int
	}{{of(2), 2}, {of(1, 3, 3), 3}, {of(3, 1), 3}, {of(1, 3), 1}, {of(MaxOwners + 1), MaxOwners}, {Assignment{}, 0}, {Assignment{Wanted: 4}, 4}} {
		if got := c.a.Replication(); got != c.want {
			t.Errorf("%d replicas are wanted, want %d", got, c.want)
		}
	}
}

// A node that was registered once is gone, whoever remembers it, and not one that never was.
func TestNodesThatAreGone(t *testing.T) {
	a := spread(t, 1, 1)
	a.AllowUnknown = true
	never := NewMap(a, nil, nil)
	known := NewMap(a, nil, nil)
	known.past = map[millrace.NodeID]Node{"n0": {ID: "n0", Addr: "a:0"}}
	lost := NewMap(a, nil, nil)
	lost.nodes["n0"] = Node{ID: "n0", Addr: "a:1"}
	seen := map[millrace.NodeID]time.Time{"n0": time.Unix(1e9, 0).UTC()}
	for _, c := range []struct {
		m           *Map
		seen        map[millrace.NodeID]time.Time
		addr, fault string
	}{
		{never, nil, "", "n0 has never registered, and is assigned 720 partitions"},
		{never, seen, "", "n0 is gone, last heard 2001-09-09T01:46:40Z, with 720 partitions"},
		{known, nil, "a:0", "n0 is gone, with 720 partitions"},
		{known, seen, "a:0", "n0 is gone, last heard 2001-09-09T01:46:40Z, with 720 partitions"},
		{lost, seen, "a:1", "n0 is gone, last heard 2001-09-09T01:46:40Z, with 720 partitions"},
	} {
		h := c.m.Health(c.seen)
		if len(h.Nodes) != 1 || h.Nodes[0].ID != "n0" || h.Nodes[0].Addr != c.addr || !slices.Contains(h.Faults(), c.fault) {
			t.Errorf("%+v: %q", h.Nodes, h.Faults())
		}
	}
	if got := (Health{}).Faults(); !slices.Equal(got, []string{"the cluster has no assignment"}) {
		t.Errorf("without an assignment: %q", got)
	}
	if got := (Health{Lost: true, lost: loss{by: ids(1), epoch: 7}}).Faults(); len(got) != 1 || !strings.HasPrefix(got[0], `etcd has lost the assignment: ["n0"] remember assignment 7`) {
		t.Errorf("with a lost one: %q", got)
	}
}

// What etcd has lost is told with a few of the nodes that remember it, or with the setback
// that one has noted.
func TestLoss(t *testing.T) {
	for _, c := range []struct {
		l    loss
		want string
	}{
		{loss{}, ""},
		{loss{by: ids(5), epoch: 2}, `["n0" "n1" "n2" "n3" "n4"] remember assignment 2, `},
		{loss{by: ids(6)}, `["n0" "n1" "n2" "n3" "n4"] and 1 more remember assignment 0, `},
		{loss{setback: &keyspace.Setback{Of: "feeds"}}, "it went back to an older state: at 0001-01-01T00:00:00Z a process remembered newer feeds"},
	} {
		m := NewMap(Assignment{}, nil, nil)
		m.lost = c.l
		if got := m.Lost(); !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	l := loss{epoch: 5}
	for _, epoch := range []int64{3, 9, 4} {
		l.add(Registration{Node: Node{ID: "n0"}, Memory: keyspace.Memory{Epoch: epoch}})
	}
	if l.epoch != 9 || len(l.by) != 3 {
		t.Errorf("%+v, want the highest epoch of three", l)
	}
}

// Nodes with a full disk are told, and whether anything else is wrong: a node that is gone,
// or a fault of another kind. A mere warning is not.
func TestFull(t *testing.T) {
	full, other := Report{State: "ready", Reason: DiskFullReason}, Report{State: "stale", Reason: "kafka_away"}
	warning := other
	warning.Warning = true
	for _, c := range []struct {
		state string
		of    []Report
		full  bool
		alone bool
	}{
		{NodeAlive, nil, false, true}, {NodeAlive, []Report{full}, true, true}, {NodeAlive, []Report{full, warning}, true, true},
		{NodeAlive, []Report{full, other}, true, false}, {NodeAlive, []Report{other}, false, false}, {NodeGone, []Report{full}, true, false},
	} {
		got, alone := Health{Nodes: []NodeHealth{{Node: Node{ID: "n0"}, State: c.state, Reports: c.of}}}.Full()
		if (len(got) == 1 && got[0] == "n0") != c.full || len(got) > 1 || alone != c.alone {
			t.Errorf("%s, %+v: %v, alone %v", c.state, c.of, got, alone)
		}
	}
}

// What a node reports is put into words: that it answers and takes in nothing new, why, and
// since when.
func TestReportsInWords(t *testing.T) {
	n := NodeHealth{Node: Node{ID: "n0"}, State: NodeAlive, Hosts: setOf(0, 1, 2), Ready: setOf(0, 1, 2)}
	since := time.Unix(1e9, 0).UTC()
	for _, c := range []struct {
		r       Report
		want    string
		warning bool
	}{
		{Report{State: "ready", Reason: "paused", Partitions: setOf(0)}, "n0: 1 partitions are ready, and take in nothing new: paused: 0", false},
		{Report{State: "ready", Partitions: setOf(0)}, "n0: 1 partitions are ready: 0", false},
		{Report{State: "stale", Reason: "kafka_away", Detail: "no answer", Since: since, Partitions: setOf(1, 2)}, "n0: 2 partitions are stale: kafka_away: no answer, since 2001-09-09T01:46:40Z: 1-2", false},
		{Report{State: "ready", Reason: "disk_filling", Partitions: setOf(0), Warning: true}, "n0: 1 partitions are ready: disk_filling: 0", true},
		{Report{State: "draining", Reason: "moved", Partitions: setOf(2, 9)}, "n0: 1 partitions are draining: moved: 2", false},
		{Report{State: "draining", Reason: "moved", Partitions: setOf(9)}, "", false},
		{Report{State: "stale"}, "", false},
	} {
		n.Reports = n.told([]Report{c.r})
		h := Health{Epoch: 1, Nodes: []NodeHealth{n}}
		got, none := h.Faults(), h.Warnings()
		if c.warning {
			got, none = none, got
		}
		if len(none) > 0 || strings.Join(got, "\n") != c.want || len(n.Reports) == 0 != (c.r.State == "draining" && c.want == "") {
			t.Errorf("%+v: %q and %q, want %q", c.r, got, none, c.want)
		}
	}
	n.Ready, n.Reports = setOf(0), []Report{{State: "restoring", Partitions: setOf(1)}, {State: "quarantined", Partitions: setOf(2)}}
	if got := n.faults(setOf(1)); len(got) != 1 || !strings.Contains(got[0], "quarantined: 2") {
		t.Errorf("a replica that moves is being made, and another is quarantined: %q", got)
	}
	if got := (Health{Epoch: 1, Lost: true, lost: loss{by: ids(1)}}).Faults(); len(got) != 1 || !strings.HasPrefix(got[0], "etcd has lost state: ") {
		t.Errorf("state is lost: %q", got)
	}
}

// The bounds of an assignment, at their exact values.
func TestBoundsOfAnAssignment(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Assignment)
		want   string
	}{
		{"as it is", func(*Assignment) {}, ""},
		{"epoch 2^53", func(a *Assignment) { a.Epoch = 1 << 53 }, ""},
		{"epoch 2^53 + 1", func(a *Assignment) { a.Epoch = 1<<53 + 1 }, "is above"},
		{"a past of 64", func(a *Assignment) { a.Past = make([]Step, 64) }, ""},
		{"a past of 65", func(a *Assignment) { a.Past = make([]Step, 65) }, "its past"},
		{"a past that goes back", func(a *Assignment) { a.Past = []Step{{Epoch: 2}, {Epoch: 1}} }, "its past"},
		{"16 owners", func(a *Assignment) { a.Replicas[0] = ids(16) }, ""},
		{"17 owners", func(a *Assignment) { a.Replicas[0] = ids(17) }, "more than 16"},
		{"16 wanted", func(a *Assignment) { a.Wanted = 16 }, ""},
		{"17 wanted", func(a *Assignment) { a.Wanted = 17 }, "17 replicas are wanted"},
		{"-1 wanted", func(a *Assignment) { a.Wanted = -1 }, "-1 replicas are wanted"},
		{"a drop by no node", func(a *Assignment) { a.Drop = map[millrace.NodeID]Set{"../x": {}} }, "what is to be dropped"},
	} {
		a := spread(t, 3, 8)
		c.change(&a)
		if err := a.Validate(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	for _, c := range []struct {
		nodes    []millrace.NodeID
		replicas int
	}{{nil, 1}, {ids(1), 0}, {ids(1), -1}, {[]millrace.NodeID{"../x"}, 1}} {
		if _, err := Spread(c.nodes, c.replicas); err == nil {
			t.Errorf("%v are given %d replicas", c.nodes, c.replicas)
		}
	}
	twice, err := Spread([]millrace.NodeID{"b", "a", "b"}, 2)
	if once, _ := Spread([]millrace.NodeID{"a", "b"}, 2); err != nil || !twice.Equal(&once) {
		t.Errorf("a node that is named twice changes the assignment: %v", err)
	}
	if _, err := DecodeAssignment(append(document(t, twice), make([]byte, keyspace.MaxDocumentBytes)...)[:keyspace.MaxDocumentBytes]); err == nil || strings.Contains(err.Error(), "more than") {
		t.Errorf("as many bytes as may be: %v", err)
	}
}

// A fifth may go in a step, of the replicas and of the nodes, and no more.
func TestAFifthMayGo(t *testing.T) {
	for _, c := range []struct {
		from, to Step
		want     string
	}{
		{Step{Replicas: 10, Nodes: 5}, Step{Replicas: 8, Nodes: 4}, ""},
		{Step{Replicas: 10, Nodes: 5}, Step{Replicas: 7, Nodes: 5, Epoch: 3}, "from 10 to 7 replicas, in epoch 3"},
		{Step{Replicas: 10, Nodes: 5}, Step{Replicas: 10, Nodes: 3, Epoch: 3}, "from 5 to 3 nodes, in epoch 3"},
	} {
		if err := c.from.shrinks(c.to); errors.Is(err, ErrShrink) != (c.want != "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%+v to %+v: %v", c.from, c.to, err)
		}
	}
	a := spread(t, 6, 1)
	if err := a.Unknown(map[millrace.NodeID]bool{}); !errors.Is(err, ErrUnknownOwner) || !strings.HasSuffix(err.Error(), `["n0" "n1" "n2" "n3" "n4"]`) {
		t.Errorf("%v", err)
	}
	// Each step is judged, and not all together.
	held, next := spread(t, 10, 1), spread(t, 7, 3)
	if err := held.Shrinks(&next); !errors.Is(err, ErrShrink) {
		t.Errorf("three of ten: %v", err)
	}
	between := spread(t, 8, 2)
	held.Follow(&between)
	between.Follow(&next)
	if err := held.Shrinks(&next); err != nil {
		t.Errorf("two of ten, then one of eight: %v", err)
	}
	// A past of which all is newer than what is held counts only where it is full.
	held, next = spread(t, 5, 1), spread(t, 5, 99)
	for i := range maxPast {
		next.Past = append(next.Past, Step{Epoch: int64(i + 2), Replicas: 144, Nodes: 1})
	}
	if err := held.Shrinks(&next); err != nil {
		t.Errorf("a full past: %v", err)
	}
	next.Past[maxPast-1] = Step{Epoch: 98, Replicas: 100, Nodes: 1}
	if err := held.Shrinks(&next); !errors.Is(err, ErrShrink) {
		t.Errorf("a step of a full past: %v", err)
	}
	next.Past = next.Past[1:]
	if err := held.Shrinks(&next); err != nil {
		t.Errorf("the same, where it is not full: %v", err)
	}
	held.Epoch, next.Past = 2, append([]Step{{Epoch: 2}}, next.Past...)
	if err := held.Shrinks(&next); err != nil {
		t.Errorf("another assignment of the epoch at which a full past begins: %v", err)
	}
}

// The bounds of a registration, and what it must say.
func TestRegistrations(t *testing.T) {
	long := func(n int) string {
		return `{"id":"n0","addr":"a:0","zone":"` + strings.Repeat("z", n-len(`{"id":"n0","addr":"a:0","zone":""}`)) + `"}`
	}
	for body, good := range map[string]bool{
		`{"id":"n0","addr":"a:0"}`: true, `{"id":"n1","addr":"a:0"}`: false, `{"id":"n0"}`: false, `[]`: false, `{"id":"n0","addr":"a:0","start":"x"}`: false,
		`{"id":"n0","addr":"a:0","weight":0.01}`: true, `{"id":"n0","addr":"a:0","weight":0.009}`: false, `{"id":"n0","addr":"a:0","weight":-1}`: false,
		`{"id":"n0","addr":"a:0","weight":100}`: true, `{"id":"n0","addr":"a:0","weight":101}`: false, `{"id":"n0","addr":"a:0","weight":0}`: true,
		long(4096): true, long(4097): false,
	} {
		if r, err := DecodeRegistration("n0", []byte(body)); (err == nil) != good || good && r.Addr != "a:0" {
			t.Errorf("%.60s: %+v, %v", body, r.Node, err)
		}
	}
	if _, err := DecodeRegistration("../x", []byte(`{"id":"../x","addr":"a:0"}`)); err == nil {
		t.Error("an id that is none is registered")
	}
	if CheckID("n0") != nil || CheckID("../x") == nil {
		t.Error("ids are checked otherwise")
	}
}

// A lag is read up to its bound.
func TestBoundOfALag(t *testing.T) {
	l := Lag{Behind: setOf(3), Seconds: 2.5, Records: 7}
	for n, good := range map[int]bool{maxLagBytes: true, maxLagBytes + 1: false} {
		body := append(l.Encode(), strings.Repeat(" ", n-len(l.Encode()))...)
		if got, err := decodeLag(body); (err == nil) != good || good && got != l {
			t.Errorf("%d bytes: %+v, %v", n, got, err)
		}
	}
	for _, bad := range []string{`{"behind":"AA=="}`, strings.Replace(string(l.Encode()), "7", `"x"`, 1)} {
		if _, err := decodeLag([]byte(bad)); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a lag that is no number is told")
		}
	}()
	(&Lag{Seconds: math.NaN()}).Encode()
}

// A map that is kept on disk is read again with what it needs: of a node that is none, or a
// set that is none, nothing is read.
func TestAKeptMap(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := LoadMap(""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
	if _, _, err := LoadMap(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	from := keyspace.Origin{Cluster: 1, Revision: 2, Keyspace: keyspace.Name{Generation: 3, ID: "a"}}
	m := NewMap(spread(t, 3, 4), []Node{{ID: "n1", Addr: "a:1", Zone: "z"}, {ID: "n0", Addr: "a:0"}}, map[millrace.NodeID]Set{"n0": setOf(3, 719)})
	if err := os.WriteFile(datadir.MapFile(dir), document(t, m.Kept(from)), 0o600); err != nil {
		t.Fatal(err)
	}
	got, origin, err := LoadMap(dir)
	if err != nil || origin != from || !slices.Equal(got.Nodes(), m.Nodes()) || got.Alive("n0") || got.Ready("n0") != setOf(3, 719) || !got.assignment.Equal(&m.assignment) {
		t.Errorf("read as %+v of %+v, %v", got.Nodes(), origin, err)
	}
	a, good := string(document(t, m.assignment)), func(more string) string {
		return `{"assignment":` + string(document(t, m.assignment)) + more + `}`
	}
	for body, want := range map[string]string{
		good(""): "", good(`,"nodes":[{"id":"n0"}]`): "is not a node", good(`,"nodes":[{"id":"../x","addr":"a:1"}]`): "is not a node",
		good(`,"ready":{"n0":"AA=="}`): "ready of n0", `{"assignment":{}}`: "0 partitions", "[": "last good map",
	} {
		if _, _, err := decodeMap([]byte(body)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s...: %v, want %q", body, err, want)
		}
	}
	file := filepath.Join(dir, "assignment")
	for body, good := range map[string]bool{a: true, good(""): true, "[]": false, `{"assignment":{}}`: false} {
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadAssignment(file); (err == nil) != good || good && !got.Equal(&m.assignment) {
			t.Errorf("%.60s: epoch %d, %v", body, got.Epoch, err)
		}
	}
	if _, err := ReadAssignment(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// Long texts are cut between two characters, and times that JSON cannot say are left out.
func TestWhatIsCutOfReports(t *testing.T) {
	for _, c := range []struct {
		text  string
		bytes int
		want  string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"aé", 3, "aé"}, {"aéb", 3, "aé"}, {"é", 1, ""}, {"a\xffb", 3, "a?b"}} {
		if got := short(c.text, c.bytes); got != c.want {
			t.Errorf("%q within %d: %q, want %q", c.text, c.bytes, got, c.want)
		}
	}
	utc := func(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 999, time.UTC) }
	for at, want := range map[time.Time]time.Time{
		utc(-1): {}, utc(10000): {}, utc(0): utc(0).Truncate(time.Second), utc(9999): utc(9999).Truncate(time.Second),
		time.Unix(1e9, 5).In(time.FixedZone("", 3600)): time.Unix(1e9, 0).UTC(),
	} {
		if got := whole(at); got != want {
			t.Errorf("%v is told as %v, want %v", at, got, want)
		}
	}
	fits := []Report{{State: strings.Repeat("s", 40), Reason: strings.Repeat("r", 40), Detail: strings.Repeat("d", 300), Seconds: 7, Warning: true, Since: time.Unix(1e9, 0).UTC()}}
	for _, no := range []float64{math.NaN(), math.Inf(1)} {
		if got, err := decodeReports(EncodeReports([]Report{{State: "stale", Seconds: no}})); err != nil || got[0].Seconds != 0 {
			t.Errorf("%v seconds are %v, %v", no, got, err)
		}
	}
	if got, err := decodeReports(EncodeReports(fits)); err != nil || !slices.Equal(got, fits) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, field := range []string{"state", "reason", "detail"} {
		var doc []map[string]any
		if err := json.Unmarshal(EncodeReports(fits), &doc); err != nil {
			t.Fatal(err)
		}
		doc[0][field] = fmt.Sprint(doc[0][field], "x")
		if _, err := decodeReports(document(t, doc)); err == nil {
			t.Errorf("a %s of one byte more is read", field)
		}
	}
	body := EncodeReports(fits)
	for n, good := range map[int]bool{maxReportsBytes: true, maxReportsBytes + 1: false} {
		if _, err := decodeReports(append(slices.Clone(body), strings.Repeat(" ", n-len(body))...)); (err == nil) != good {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// Reports are merged by state and reason, with the first detail, the earliest time, and the
// longest delay. What does not fit besides is one report of others.
func TestMergedReports(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	var in []Report
	for i := range maxMerged + 2 {
		in = append(in, Report{State: "stale", Reason: fmt.Sprint("r", i), Detail: fmt.Sprint("d", i), Partitions: setOf(millrace.Partition(i)), Since: at(50 - int64(i)), Seconds: float64(i)})
	}
	in = append(in, Report{State: "stale", Reason: "r3", Detail: "later", Partitions: setOf(100), Since: at(99), Seconds: 1}, Report{State: "ready", Reason: "r3", Partitions: setOf(101), Since: at(1), Seconds: 99})
	out := mergeReports(in)
	if len(out) != maxMerged+1 {
		t.Fatalf("%d reports, want %d", len(out), maxMerged+1)
	}
	for i, want := range map[int]Report{
		2:         in[2],
		3:         {State: "stale", Reason: "r3", Detail: "d3", Partitions: setOf(3, 100), Since: at(47), Seconds: 3},
		maxMerged: {State: "stale", Reason: "others", Partitions: setOf(maxMerged, maxMerged+1, 101), Since: at(1), Seconds: 99},
	} {
		if out[i] != want {
			t.Errorf("%d: %+v, want %+v", i, out[i], want)
		}
	}
	// They are merged where they would be too long, and only there.
	many := slices.Repeat([]Report{{State: "stale", Reason: "r", Partitions: setOf(1)}}, 2)
	if got, err := decodeReports(EncodeReports(many)); err != nil || len(got) != 2 {
		t.Errorf("%d reports, %v: they fit", len(got), err)
	}
}

// Sets: what is taken out is gone, ten ranges are shown whole, and texts read back.
func TestSetTexts(t *testing.T) {
	var s Set
	for p := range millrace.Partition(20) {
		if p%2 == 0 {
			s.Add(p)
		}
	}
	if got := s.String(); got != "0,2,4,6,8,10,12,14,16,18" {
		t.Errorf("ten ranges are %q", got)
	}
	s.Remove(4)
	if s.Has(4) || s.Len() != 9 {
		t.Errorf("with 4 taken out: %s", s.Ranges())
	}
	for text, want := range map[string]Set{"": {}, "0-3,7": setOf(0, 1, 2, 3, 7), " 5 , 719": setOf(5, 719), "3-3": setOf(3)} {
		got := setOf(1)
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is read as %s, %v", text, got.Ranges(), err)
		}
	}
	for p := range s.All() {
		if p == 2 {
			break // All may be left early
		}
	}
}

// The next map keeps what it has of what cannot be read, and takes over what can: the reports
// and lags of nodes, who was there before, and who remembers more than etcd has.
func TestNextTakesOverAllKinds(t *testing.T) {
	lag := Lag{Behind: setOf(1), Records: 3}
	s := at(map[string][]byte{
		"assignment": document(t, spread(t, 2, 3)), "nodes/n0": node("n0"), "nodes/n1": []byte(`{"id":"n1","addr":"a:1","epoch":9}`),
		"known/n7": node("n7"), "known/n8": []byte("{"), "lag/n0": lag.Encode(), "state/n0": EncodeReports([]Report{{State: "stale"}}), "other/x": nil,
	})
	s.Setback = &keyspace.Setback{Of: "map"}
	m, err := NewMap(Assignment{}, nil, nil).Next(s)
	if err != nil {
		t.Fatal(err)
	}
	past, known := m.Past("n7")
	if _, bad := m.Past("n8"); !known || past.Addr != "a:7" || bad || m.Lag("n0") != lag || len(m.Reports("n0")) != 1 || len(m.Nodes()) != 2 || m.Nodes()[0].ID != "n0" {
		t.Errorf("%+v of before, lag %+v, reports %v, nodes %v", past, m.Lag("n0"), m.Reports("n0"), m.Nodes())
	}
	if m.lost.setback != s.Setback || !slices.Equal(m.lost.by, []millrace.NodeID{"n1"}) || m.lost.epoch != 9 || m.Epoch() != 3 || m.Hosted("n0") == (Set{}) {
		t.Errorf("lost %+v, epoch %d", m.lost, m.Epoch())
	}
	// The same assignment again, and none at all: the map stays as it is.
	again, err := m.Next(s)
	if err != nil || !again.Equal(m) {
		t.Errorf("the same again: %v", err)
	}
	without := at(nil)
	gone, err := m.Next(without)
	if err == nil || !strings.Contains(err.Error(), "lost the assignment; keeping epoch 3") || gone.Epoch() != 3 || gone.Hosted("n0") != m.Hosted("n0") {
		t.Errorf("the assignment is lost: epoch %d, %v", gone.Epoch(), err)
	}
	if first, err := NewMap(Assignment{}, nil, nil).Next(without); err != nil || first.Epoch() != 0 {
		t.Errorf("there is none yet: epoch %d, %v", first.Epoch(), err)
	}
	// A fault does not hide that the assignment has changed back.
	s.Values["assignment"] = keyspace.Value{Data: []byte("{")}
	broken, err := m.Next(s)
	if err == nil {
		t.Error("a broken assignment is no fault")
	}
	if _, err := broken.Next(s); err == nil {
		t.Error("a broken assignment is a fault only once")
	}
	fault := (*KeyFault)(nil)
	_, err = m.Next(at(map[string][]byte{"nodes/n0": nil}))
	if !errors.As(err, &fault) || fault.Key != "nodes/n0" || !strings.HasPrefix(fault.Error(), "cluster: nodes/n0: ") || errors.Unwrap(fault) == nil {
		t.Errorf("%v", err)
	}
}

// Known are the nodes of the map, those that host, and those that etcd has or had.
func TestKnownNodes(t *testing.T) {
	m := NewMap(spread(t, 2, 1), []Node{{ID: "spare"}}, nil)
	got := m.Known(at(map[string][]byte{"nodes/a": nil, "known/b": nil, "ready/c": nil, "left/d": nil}))
	if want := []millrace.NodeID{"a", "b", "n0", "n1", "spare"}; !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A dead backup node keeps nothing, and one that answers and is ready is preferred, whichever
// comes first.
func TestKeeperLives(t *testing.T) {
	m := NewMap(spread(t, 2, 1), []Node{{ID: "n0"}, {ID: "z", Keeps: "0-719"}}, nil)
	delete(m.alive, "z")
	if id, ok := m.Keeper(3); !ok || id != "n0" {
		t.Errorf("%q keeps, %v", id, ok)
	}
	if keeperRank(1, "n0") == keeperRank(2, "n0") || keeperRank(1, "n0") == keeperRank(1, "n1") {
		t.Error("the rank does not differ by partition and node")
	}
}
