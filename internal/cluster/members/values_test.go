package members

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Admissions are told in order, whole where they fit; else first without what records lack,
// then with shorter reasons, and then only the first of them.
func TestEncodeAdmitted(t *testing.T) {
	of := func(n, reason, lacks int) (all []Admission) {
		for i := range n {
			a := Admission{Name: fmt.Sprintf("m%05d", n-1-i), Version: "1", Sum: strings.Repeat("a", 64), Refused: strings.Repeat("r", reason), Unkept: strings.Repeat("u", reason)}
			if lacks > 0 {
				a.Lacks = []Lack{{Type: "post", Records: 5, Fields: []string{strings.Repeat("f", lacks)}}}
			}
			all = append(all, a)
		}
		return all
	}
	for _, c := range []struct {
		in     []Admission
		kept   int // how many are told
		reason int // the bytes of each reason
		lacks  bool
	}{
		{of(3, 5, 9), 3, 5, true}, {of(3, maxRefusedBytes, 9), 3, maxRefusedBytes, true}, {of(3, maxRefusedBytes+1, 9), 3, maxRefusedBytes + len(" ..."), true},
		{of(10, 5, 8000), 10, 5, false}, {of(52, 501, 200), 52, maxRefusedBytes + len(" ..."), false}, {of(100, 501, 0), 100, 250 + len(" ..."), false},
	} {
		before := fmt.Sprint(c.in)
		body := encodeAdmitted(c.in)
		got, err := decodeAdmitted([]byte(body))
		if err != nil || len(got) != c.kept || len(body) > maxAdmittedBytes || len(got[0].Refused) != c.reason || len(got[0].Unkept) != c.reason || (got[0].Lacks != nil) != c.lacks {
			t.Errorf("%d of %d are told, in %d bytes, with reasons of %d and %d, %v", len(got), len(c.in), len(body), len(got[0].Refused), len(got[0].Unkept), err)
		}
		if !slices.IsSortedFunc(got, func(a, b Admission) int { return strings.Compare(a.Name, b.Name) }) {
			t.Error("they are not in order")
		}
		if !c.lacks && c.in[0].Lacks == nil && fmt.Sprint(c.in) != before {
			t.Error("the caller's were changed")
		}
	}
	many := of(2000, 300, 0)
	got, err := decodeAdmitted([]byte(encodeAdmitted(many)))
	if err != nil || len(got) < 300 || len(got) > 1000 || got[0].Name != "m00000" || got[len(got)-1].Name != fmt.Sprintf("m%05d", len(got)-1) || len(got[0].Refused) < 16 {
		t.Errorf("of 2000, %d are told, %v", len(got), err)
	}
	three := []Admission{{Name: "a", Version: "2", Sum: "x"}, {Name: "a", Version: "1", Sum: "z"}, {Name: "a", Version: "1", Sum: "y"}}
	if got, _ := decodeAdmitted([]byte(encodeAdmitted(three))); got[0].Sum != "y" || got[1].Sum != "z" || got[2].Sum != "x" {
		t.Errorf("in order: %+v", got)
	}
	for n, good := range map[int]bool{maxAdmittedBytes: true, maxAdmittedBytes + 1: false} {
		if _, err := decodeAdmitted([]byte("[]" + strings.Repeat(" ", n-2))); (err == nil) != good {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	v := artefacts.Version{Name: "n", Version: "1", Sum: "s"}
	for _, a := range []Admission{{Name: "x", Version: "1", Sum: "s"}, {Name: "n", Version: "x", Sum: "s"}, {Name: "n", Version: "1", Sum: "x"}} {
		if a.Of(v) || !(Admission{Name: "n", Version: "1", Sum: "s"}).Of(v) {
			t.Errorf("%+v is of %v", a, v)
		}
	}
}

// Stats are read as they are told, but for numbers that no replica has, and refused where
// they contradict themselves.
func TestStatsAreReadAsTold(t *testing.T) {
	s := NodeStats{DiskBytes: 9, FreeBytes: 8, KeptBytes: 7, MemoryBytes: 6, Partitions: map[millrace.Partition]PartitionStats{3: {1, 2, 3.456, 0.5}, 700: {5, 6, 7, 8}}}
	s.Held.Add(5)
	want := s
	want.Partitions = maps.Clone(s.Partitions)
	want.Partitions[3] = PartitionStats{1, 2, 3.46, 0.5} // three digits
	if got, err := decodeStats(s.encode()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	odd := NodeStats{DiskBytes: -1, FreeBytes: -1, KeptBytes: -1, MemoryBytes: -1, Partitions: map[millrace.Partition]PartitionStats{0: {-1, -1, math.NaN(), -1}, 1: {1, 1, math.Inf(1), math.Inf(-1)}}}
	got, err := decodeStats(odd.encode())
	if err != nil || !reflect.DeepEqual(got, NodeStats{Partitions: map[millrace.Partition]PartitionStats{0: {}, 1: {1, 1, 0, 0}}}) {
		t.Errorf("%+v, %v", got, err)
	}
	const one = `{"partitions":"3","bytes":[1],"records":[1],"ingest":[1],"load":[1]`
	for body, good := range map[string]bool{
		one + `}`: true, `{}`: true, `[]`: false, one + `,"disk":-1}`: false, one + `,"free":-1}`: false, one + `,"kept":-1}`: false, one + `,"memory":-1}`: false,
		strings.Replace(one, `"bytes":[1]`, `"bytes":[]`, 1) + `}`: false, strings.Replace(one, `"records":[1]`, `"records":[]`, 1) + `}`: false,
		strings.Replace(one, `"ingest":[1]`, `"ingest":[1,2]`, 1) + `}`: false, strings.Replace(one, `"load":[1]`, `"load":[]`, 1) + `}`: false,
		strings.Replace(one, `"bytes":[1]`, `"bytes":[-1]`, 1) + `}`: false, strings.Replace(one, `"records":[1]`, `"records":[-1]`, 1) + `}`: false,
		strings.Replace(one, `"ingest":[1]`, `"ingest":[-1]`, 1) + `}`: false, strings.Replace(one, `"load":[1]`, `"load":[-1]`, 1) + `}`: false,
		strings.Replace(one, `"bytes":[1]`, `"bytes":[0]`, 1) + `}`: true,
		`{}` + strings.Repeat(" ", maxStatsBytes-2):                 true, `{}` + strings.Repeat(" ", maxStatsBytes-1): false,
	} {
		if _, err := decodeStats([]byte(body)); (err == nil) != good {
			t.Errorf("%.80s: %v", body, err)
		}
	}
}

// Stats are near others if the machine is the same and nothing has moved by more than a tenth.
func TestNear(t *testing.T) {
	of := func(change func(*NodeStats, *PartitionStats)) *NodeStats {
		s := NodeStats{DiskBytes: 100, FreeBytes: 100, KeptBytes: 10, MemoryBytes: 50}
		p := PartitionStats{Bytes: 100, Records: 100, Ingest: 100, Load: 100}
		change(&s, &p)
		s.Partitions = map[millrace.Partition]PartitionStats{1: p}
		return &s
	}
	was := of(func(*NodeStats, *PartitionStats) {})
	for name, c := range map[string]struct {
		change func(*NodeStats, *PartitionStats)
		near   bool
	}{
		"the same":          {func(*NodeStats, *PartitionStats) {}, true},
		"records":           {func(_ *NodeStats, p *PartitionStats) { p.Records = 9999 }, true},
		"a tenth of bytes":  {func(_ *NodeStats, p *PartitionStats) { p.Bytes = 110 }, true},
		"more bytes":        {func(_ *NodeStats, p *PartitionStats) { p.Bytes = 111 }, false},
		"fewer bytes":       {func(_ *NodeStats, p *PartitionStats) { p.Bytes = 89 }, false},
		"a tenth of ingest": {func(_ *NodeStats, p *PartitionStats) { p.Ingest = 90 }, true},
		"more ingest":       {func(_ *NodeStats, p *PartitionStats) { p.Ingest = 111 }, false},
		"more load":         {func(_ *NodeStats, p *PartitionStats) { p.Load = 111 }, false},
		"a tenth is free":   {func(s *NodeStats, _ *PartitionStats) { s.FreeBytes = 110 }, true},
		"more is free":      {func(s *NodeStats, _ *PartitionStats) { s.FreeBytes = 111 }, false},
		"another disk":      {func(s *NodeStats, _ *PartitionStats) { s.DiskBytes++ }, false},
		"more is kept free": {func(s *NodeStats, _ *PartitionStats) { s.KeptBytes++ }, false},
		"more memory":       {func(s *NodeStats, _ *PartitionStats) { s.MemoryBytes++ }, false},
		"another held":      {func(s *NodeStats, _ *PartitionStats) { s.Held.Add(1) }, false},
	} {
		if got := was.Near(of(c.change)); got != c.near {
			t.Errorf("%s: %v", name, got)
		}
	}
	other := of(func(*NodeStats, *PartitionStats) {})
	other.Partitions = map[millrace.Partition]PartitionStats{2: {Bytes: 100, Ingest: 100, Load: 100}}
	more := of(func(*NodeStats, *PartitionStats) {})
	more.Partitions[2] = PartitionStats{}
	if was.Near(other) || was.Near(more) || more.Near(was) {
		t.Error("other partitions are near")
	}
}

// Whose registration may be replaced: one's own, one without a lease, what is none, and that
// of the process before in the same place, as long as this one has not been registered.
func TestMayReplace(t *testing.T) {
	node := func(instance, place string) string {
		return fmt.Sprintf(`{"id":"n1","addr":"there:1","instance":%q,"place":%q}`, instance, place)
	}
	for _, c := range []struct {
		name  string
		body  string
		lease int64
		once  bool
		want  string // in the refusal
	}{
		{"its own", node("other", "there"), 7, true, ""}, {"without a lease", node("other", "there"), 0, true, ""}, {"what is none", "{", 8, true, ""},
		{"the process before", node("me", "here"), 8, false, ""}, {"another after this one", node("me", "here"), 8, true, "is a copy of this one's: stop one"},
		{"a copy, after this one", node("me", "there"), 8, true, "is a copy of this one's: stop one"}, {"another", node("other", "here"), 8, false, "stop one of the two"}, {"another of the same place", node("other", "here"), 8, true, "stop one of the two"},
	} {
		m := &Membership{node: topology.Node{ID: "n1", Instance: "me", Place: "here"}, own: map[clientv3.LeaseID]bool{7: true}, once: c.once}
		err := m.mayReplace(t.Context(), &mvccpb.KeyValue{Value: []byte(c.body), Lease: c.lease})
		refused, ok := err.(*millrace.Error)
		if ok != (c.want != "") || !ok && err != nil || ok && (!strings.Contains(refused.WayOut, c.want) || refused.Field != "id" || !strings.Contains(refused.Detail, "registered as n1, at there:1") || strings.Contains(refused.WayOut, "copy") != strings.Contains(c.want, "copy")) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// What a node says is noted by kind, the last of each, and its keys are below the map, but for
// its stats.
func TestWhatANodeSays(t *testing.T) {
	m := &Membership{c: &cluster.Client{}, node: topology.Node{ID: "n1"}, news: make(chan struct{}, 1)}
	m.mu.said = map[string]string{}
	ready := topology.All()
	m.SetAnswering(ready, topology.Lag{})
	m.SetReports(nil)
	m.SetModels([]Admission{{Name: "m"}})
	m.SetStats(NodeStats{DiskBytes: 5})
	m.SetStats(NodeStats{DiskBytes: 6})
	said := m.said()
	if said["ready"] != string(ready.Encode()) || said["lag"] != "" || said["state"] != "" || !strings.Contains(said["models"], `"m"`) || !strings.Contains(said[statsKind], `"disk":6`) || len(m.news) != 1 {
		t.Errorf("%q", said)
	}
	said["ready"] = "x"
	if m.said()["ready"] == "x" {
		t.Error("what is returned is not a copy")
	}
	for kind, want := range map[string]string{"ready": "map/ready/n1", statsKind: "stats/n1"} {
		if got := m.key(kind); got != want {
			t.Errorf("%s is at %s", kind, got)
		}
	}
	if toldAt("", 5) != (told{}) || toldAt("x", 5) != (told{"x", 5}) || revisionOf(nil) != 0 || revisionOf([]*mvccpb.KeyValue{{ModRevision: 7}}) != 7 {
		t.Error("what etcd has is noted otherwise")
	}
	if d := silentFor; d != 5*time.Second {
		t.Errorf("silent after %v", d)
	}
}

// A node that can never be registered is refused at once.
func TestJoinRefuses(t *testing.T) {
	for field, n := range map[string]topology.Node{"id": {ID: "../x", Addr: "a:1"}, "addr": {ID: "n1"}, "weight": {ID: "n1", Addr: "a:1", Weight: 1000}} {
		_, err := Join(t.Context(), nil, n)
		if e, ok := err.(*millrace.Error); !ok || e.Field != field || e.WayOut == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}
