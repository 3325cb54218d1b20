package topology

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/partition"
)

// healthOf is the health of a cluster of which etcd holds some keys.
func healthOf(t *testing.T, a Assignment, keys map[string][]byte) Health {
	t.Helper()
	keys["assignment"] = document(t, a)
	s := at(keys)
	s.Keyspace = keyspace.Name{Generation: 2, ID: "b"}
	m, err := NewMap(Assignment{}, nil, nil).Next(s)
	if err != nil {
		t.Fatal(err)
	}
	return m.Health(map[millrace.NodeID]time.Time{"n1": time.Unix(1e9, 0).UTC()})
}

func node(id string) []byte { return []byte(`{"id":"` + id + `","addr":"a:` + id[1:] + `"}`) }

// What is missing is found by what the assignment says, not by who is there.
func TestHealthIsJudgedByTheAssignment(t *testing.T) {
	a := spread(t, 4, 1)
	a.AllowUnknown = true
	full := All()
	own := func(id millrace.NodeID) []byte { s := a.Hosted(id); return s.Encode() }
	report := Report{State: "quarantined", Reason: "log_begins_later", Detail: "it begins at 7", Since: time.Unix(2e9, 0).UTC()}
	hosted := a.Hosted("n3")
	for p := range hosted.All() {
		if report.Partitions.Len() < 12 {
			report.Partitions.Add(p)
		}
	}
	lagging := Lag{Seconds: 40}
	lagging.Behind.Add(0)
	ready := hosted.Minus(report.Partitions)
	h := healthOf(t, a, map[string][]byte{
		"nodes/n0": node("n0"), "ready/n0": own("n0"), "lag/n0": lagging.Encode(),
		"known/n1": node("n1"), // gone
		"nodes/n3": node("n3"), "ready/n3": ready.Encode(), "state/n3": EncodeReports([]Report{report}),
		"nodes/n9": node("n9"), "ready/n9": full.Encode(), // not assigned anything
	})
	for i, want := range []struct {
		id    millrace.NodeID
		state string
		addr  string
		ready int
	}{{"n0", NodeAlive, "a:0", 360}, {"n1", NodeGone, "a:1", 0}, {"n2", NodeNever, "", 0}, {"n3", NodeAlive, "a:3", 348}, {"n9", NodeAlive, "a:9", 0}} {
		if n := h.Nodes[i]; n.ID != want.id || n.State != want.state || n.Addr != want.addr || n.Ready.Len() != want.ready {
			t.Errorf("node %d is %s %s at %q with %d ready, want %+v", i, n.ID, n.State, n.Addr, n.Ready.Len(), want)
		}
	}
	unserved := 0
	for p, owners := range a.Replicas {
		serving := slices.Contains(owners, "n0") || slices.Contains(owners, "n3") && !report.Partitions.Has(millrace.Partition(p))
		if !serving {
			unserved++
		}
		if h.Unserved.Has(millrace.Partition(p)) == serving {
			t.Fatalf("partition %d of %v: unserved is %v", p, owners, !serving)
		}
	}
	if h.Replicas != 2 || h.Unserved.Len() != unserved || unserved < 100 || h.Below.Len()+h.Unserved.Len() < 500 {
		t.Errorf("%d replicas wanted, %d unserved of %d, %d below", h.Replicas, h.Unserved.Len(), unserved, h.Below.Len())
	}
	faults := strings.Join(h.Faults(), "\n")
	for _, want := range []string{
		fmt.Sprintf("%d of 720 partitions have no ready replica: ", unserved), fmt.Sprintf("%d of 720 partitions have fewer than 2 ready replicas: ", h.Below.Len()), "n1 is gone, last heard 2001-09-09T01:46:40Z, with 360 partitions",
		"n2 has never registered, and is assigned 360", "n3: 12 partitions are quarantined: log_begins_later: it begins at 7, since 2033-05-18T03:33:20Z", "n0: 1 partitions are 40 s behind",
	} {
		if !strings.Contains(faults, want) {
			t.Errorf("the faults lack %q:\n%s", want, faults)
		}
	}
	if strings.Contains(faults, "n9") || len(h.Faults()) != 6 {
		t.Errorf("%d faults:\n%s", len(h.Faults()), faults)
	}

	all := map[string][]byte{}
	for _, id := range []string{"n0", "n1", "n2", "n3"} {
		all["nodes/"+id], all["ready/"+id] = node(id), own(millrace.NodeID(id))
	}
	moved := Report{State: "draining", Reason: "moved", Partitions: All(), Since: time.Unix(2e9, 0)}
	moved.Partitions = moved.Partitions.Minus(a.Hosted("n0")) // others host it, and serve it
	all["state/n0"] = EncodeReports([]Report{moved})
	if h := healthOf(t, a, all); len(h.Faults()) != 0 || h.Unserved.Len()+h.Below.Len() != 0 {
		t.Errorf("all is well, but %q", h.Faults())
	}
}

// What a node remembers and etcd lacks has been lost; what a restoration has
// replaced has not.
func TestHealthTellsALossFromANewCluster(t *testing.T) {
	for body, want := range map[string]bool{
		`{"id":"n0","addr":"a:0"}`:                            false,
		`{"id":"n0","addr":"a:0","keyspace":"2 b","epoch":1}`: false,
		`{"id":"n0","addr":"a:0","keyspace":"1 a","epoch":1}`: false,
		`{"id":"n0","addr":"a:0","keyspace":"2 x","epoch":1}`: true,
		`{"id":"n0","addr":"a:0","keyspace":"3 c"}`:           true,
		`{"id":"n0","addr":"a:0","keyspace":"2 b","epoch":9}`: true,
	} {
		if h := healthOf(t, spread(t, 1, 1), map[string][]byte{"nodes/n0": []byte(body)}); h.Lost != want || want != strings.Contains(strings.Join(h.Faults(), " "), `["n0"] remember assignment `) {
			t.Errorf("%s: lost is %v", body, h.Lost)
		}
	}
}

func TestSetString(t *testing.T) {
	var s, gaps Set
	for _, p := range []millrace.Partition{0, 1, 2, 5, 718, 719} {
		s.Add(p)
	}
	for p := range millrace.Partition(partition.Count) {
		if p%2 == 0 {
			gaps.Add(p)
		}
	}
	all, none := All(), Set{}
	for got, want := range map[string]string{s.String(): "0-2,5,718-719", all.String(): "0-719", none.String(): "", gaps.String(): "0,2,4,6,8,10,12,14,16,18,..."} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Replicas beyond those that are wanted are looked after, and are no fault. Where nobody
// says how many are wanted, all are.
func TestSurplusReplicasAreTold(t *testing.T) {
	a := spread(t, 3, 1)
	a.AllowUnknown, a.Wanted = true, 2
	hosts := a.Replicas[7]
	for _, id := range []millrace.NodeID{"n0", "n1", "n2"} {
		if !slices.Contains(hosts, id) {
			a.Replicas[7] = append(slices.Clone(hosts), id)
		}
	}
	h := healthOf(t, a, map[string][]byte{})
	if w := h.Warnings(); len(w) != 1 || !strings.HasPrefix(w[0], "1 of 720 partitions have more than 2 replicas, and no plan is under way that takes any away: 7: ") {
		t.Errorf("%q", w)
	}
	a.Wanted = 0
	if h := healthOf(t, a, map[string][]byte{}); h.Surplus.Len() > 0 || h.Warnings() != nil {
		t.Errorf("%q", h.Warnings())
	}
}

func setOf(ps ...millrace.Partition) (s Set) {
	for _, p := range ps {
		s.Add(p)
	}
	return s
}

// A replica that is on its way to a partition that moves is no fault while as many others as
// are wanted are ready; it is where one of those is not, and one that is quarantined is.
func TestWhatMovesIsNoFault(t *testing.T) {
	a := spread(t, 2, 2)
	a.AllowUnknown, a.Wanted = true, 2
	for p := range 3 {
		a.Replicas[p] = append(a.Replicas[p], "n2")
	}
	all := All()
	but2 := all.Minus(setOf(2))
	keys := func(n0 Set, reports ...Report) map[string][]byte {
		return map[string][]byte{
			"nodes/n0": node("n0"), "ready/n0": n0.Encode(), "nodes/n1": node("n1"), "ready/n1": all.Encode(),
			"nodes/n2": node("n2"), "state/n2": EncodeReports(reports),
		}
	}
	coming := Report{State: "catching_up", Reason: "behind", Partitions: setOf(0, 1)} // of 2 it says nothing
	for _, c := range []struct {
		name    string
		keys    map[string][]byte
		moving  Set
		faults  int
		contain string
	}{
		{"nobody moves it", keys(all, coming), Set{}, 2, "catching_up"},
		{"moves", keys(all, coming), setOf(0, 1, 2), 0, ""},
		{"one of two is not ready", keys(but2, coming), setOf(0, 1, 2), 3, "n2: 1 partitions are not ready: 2"},
		{"quarantined", keys(all, coming, Report{State: "quarantined", Reason: "corrupt", Partitions: setOf(2)}), setOf(0, 1, 2), 1, "n2: 1 partitions are quarantined: corrupt"},
	} {
		h := healthOf(t, a, c.keys)
		h.Moving = c.moving
		got := h.Faults()
		if len(got) != c.faults || !strings.Contains(strings.Join(got, "\n"), c.contain) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// A node that does not know how far it is behind, as after a start without Kafka, is not
// said to be 0 s behind.
func TestALagThatIsNotKnownIsTold(t *testing.T) {
	var lag Lag
	if far := lag.Far(); far != "0 s" {
		t.Errorf("a node that keeps up is %q behind", far)
	}
	lag.Behind.Add(17)
	for seconds, want := range map[float64]struct{ far, fault string }{
		40: {"40 s", "n0: 1 partitions are 40 s behind the log"},
		0:  {"not known", "n0: 1 partitions are behind the log, and it is not known how far"},
	} {
		lag.Seconds = seconds
		h := healthOf(t, spread(t, 1, 1), map[string][]byte{"nodes/n0": node("n0"), "ready/n0": func() []byte { s := All(); return s.Encode() }(), "lag/n0": lag.Encode()})
		if far := h.Nodes[0].Lag.Far(); far != want.far || !slices.Contains(h.Faults(), want.fault) {
			t.Errorf("%v s: %q, %q", seconds, far, h.Faults())
		}
	}
}
