package digest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// told is a trail of records: offsets and digests by turns.
func told(node millrace.NodeID, log string, pairs ...int64) Trail {
	t := &nodev1.Trail{Partition: 7, Answers: true, Log: log}
	for i := 0; i < len(pairs); i += 2 {
		t.ContentAt, t.Content = append(t.ContentAt, pairs[i]), append(t.Content, uint64(pairs[i+1]))
	}
	return Trail{Node: node, Trail: t}
}

// Who is wrong is who most of three or more differ from; what only two tell is
// not decided; replicas that were never at one offset, or are of different
// logs, or differed and do no more, are well.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name   string
		trails []Trail
		differ bool
		at     millrace.Offset
		agreed millrace.Offset
		wrong  []millrace.NodeID
	}{
		{"equal", []Trail{told("a", "l", 10, 1, 20, 2), told("b", "l", 10, 1, 20, 2)}, false, 0, 0, nil},
		{"never at one offset", []Trail{told("a", "l", 10, 1), told("b", "l", 11, 2)}, false, 0, 0, nil},
		{"two logs", []Trail{told("a", "l", 10, 1), told("b", "m", 10, 2)}, false, 0, 0, nil},
		{"no log", []Trail{told("a", "", 10, 1), told("b", "", 10, 2)}, false, 0, 0, nil},
		{"alone", []Trail{told("a", "l", 10, 1)}, false, 0, 0, nil},
		{"healed", []Trail{told("a", "l", 10, 1, 20, 2), told("b", "l", 10, 3, 20, 2)}, false, 0, 0, nil},
		{"of two", []Trail{told("a", "l", 10, 1, 20, 2), told("b", "l", 10, 1, 20, 3)}, true, 20, 10, nil},
		{"of three", []Trail{told("a", "l", 10, 1, 20, 2), told("b", "l", 10, 1, 20, 3), told("c", "l", 10, 1, 20, 2)}, true, 20, 10, []millrace.NodeID{"b"}},
		{"the third is behind", []Trail{told("a", "l", 10, 1, 20, 2), told("b", "l", 10, 1, 20, 3), told("c", "l", 10, 1)}, false, 0, 0, nil},
		{"three ways", []Trail{told("a", "l", 20, 2), told("b", "l", 20, 3), told("c", "l", 20, 4)}, true, 20, -1, nil},
		{"two against two", []Trail{told("a", "l", 20, 2), told("b", "l", 20, 3), told("c", "l", 20, 2), told("d", "l", 20, 3)}, true, 20, -1, nil},
		{"two of five", []Trail{told("a", "l", 20, 2), told("b", "l", 20, 3), told("c", "l", 20, 2), told("d", "l", 20, 4), told("e", "l", 20, 2)}, true, 20, -1, []millrace.NodeID{"b", "d"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := Judge(7, c.trails)
			if len(all) == 1 != c.differ || len(all) > 1 {
				t.Fatalf("%+v", all)
			}
			if c.differ {
				if d := all[0]; d.Offset != c.at || d.Agreed != c.agreed || !slices.Equal(d.Wrong, c.wrong) || (d.Right == "") != (len(c.wrong) == 0) {
					t.Errorf("%+v", d)
				}
			}
		})
	}
}

// node answers as a witness, and takes orders.
type node struct {
	nodev1.NodeServiceClient
	digest    uint64
	err       error
	condemned *[]string
	id        string
}

func (n node) WitnessPartition(context.Context, *nodev1.WitnessPartitionRequest, ...grpc.CallOption) (*nodev1.WitnessPartitionResponse, error) {
	return &nodev1.WitnessPartitionResponse{Digest: n.digest, Source: "the log"}, n.err
}

func (n node) CondemnPartition(_ context.Context, req *nodev1.CondemnPartitionRequest, _ ...grpc.CallOption) (*nodev1.CondemnPartitionResponse, error) {
	*n.condemned = append(*n.condemned, n.id+" for "+req.Peer)
	return &nodev1.CondemnPartitionResponse{}, nil
}

// Of two a witness decides. Where there is none, or it agrees with neither, and
// where the replica is the last that answers, nobody is taken out.
func TestOnlyWhoIsWrongIsTakenOut(t *testing.T) {
	for _, c := range []struct {
		name   string
		digest uint64
		err    error
		ready  []millrace.NodeID
		want   string
		fails  string
	}{
		{"b is wrong", 2, nil, []millrace.NodeID{"a", "b"}, "b for a", ""},
		{"a is wrong", 3, nil, []millrace.NodeID{"a", "b"}, "a for b", ""},
		{"neither is right", 4, nil, []millrace.NodeID{"a", "b"}, "", "none of them"},
		{"no witness", 0, errors.New("the log has lost its beginning"), []millrace.NodeID{"a", "b"}, "", "lost its beginning"},
		{"the last that answers", 2, nil, []millrace.NodeID{"b"}, "", "no other replica"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var condemned []string
			dial := func(n topology.Node) (nodev1.NodeServiceClient, error) {
				return node{digest: c.digest, err: c.err, condemned: &condemned, id: string(n.ID)}, nil
			}
			d := Judge(7, []Trail{told("a", "l", 20, 2), told("b", "l", 20, 3)})[0]
			m := mapOf(t, c.ready)
			err := Witness(t.Context(), m, dial, &d)
			for _, id := range d.Wrong {
				err = errors.Join(err, Condemn(t.Context(), m, dial, &d, id))
			}
			if (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v", err)
			}
			if got := strings.Join(condemned, ", "); got != c.want {
				t.Errorf("condemned %q, want %q", got, c.want)
			}
		})
	}
}

// A replica whose digest is that of nothing is known to be wrong, unlike one whose digest is
// not known.
func TestAnEmptyReplicaIsNoOtherThatAnswers(t *testing.T) {
	a, err := topology.Spread([]millrace.NodeID{"a", "b", "c"}, 3)
	if err != nil {
		t.Fatal(err)
	}
	ready := map[millrace.NodeID]topology.Set{"b": topology.All(), "c": topology.All()}
	m := topology.NewMap(a, []topology.Node{{ID: "a", Addr: "a:1"}, {ID: "b", Addr: "b:1"}, {ID: "c", Addr: "c:1"}}, ready)
	for name, c := range map[string]struct {
		digests map[millrace.NodeID]uint64
		fails   bool
	}{
		"c has nothing":      {map[millrace.NodeID]uint64{"a": 2, "b": 3, "c": 0}, true},
		"c is not known":     {map[millrace.NodeID]uint64{"a": 2, "b": 3}, false},
		"c is right":         {map[millrace.NodeID]uint64{"a": 2, "b": 3, "c": 2}, false},
		"c is wrong as b is": {map[millrace.NodeID]uint64{"a": 2, "b": 3, "c": 3}, true},
	} {
		var condemned []string
		dial := func(n topology.Node) (nodev1.NodeServiceClient, error) {
			return node{condemned: &condemned, id: string(n.ID)}, nil
		}
		d := Difference{Partition: 7, Digests: c.digests, Right: "a", Wrong: []millrace.NodeID{"b"}}
		if err := Condemn(t.Context(), m, dial, &d, "b"); (err != nil) != c.fails || (len(condemned) == 0) != c.fails {
			t.Errorf("%s: %v; condemned: %q", name, err, condemned)
		}
	}
}

// What a node has that does not answer is unseen, all else is not.
func TestCompareTellsWhatItDidNotSee(t *testing.T) {
	a, err := topology.Spread([]millrace.NodeID{"a", "b"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m := topology.NewMap(a, []topology.Node{{ID: "a"}, {ID: "b"}, {ID: "keeper", Keeps: "17-18"}}, nil)
	kept, err := topology.ParseSet("17-18")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ unseen topology.Set }{
		"":       {},
		"b":      {unseen: m.Hosted("b")},
		"keeper": {unseen: kept},
	} {
		_, unseen, err := Compare(t.Context(), m, func(n topology.Node) (nodev1.NodeServiceClient, error) {
			return asked{mute: string(n.ID) == name}, nil
		})
		if unseen != c.unseen || (err != nil) != (name != "") {
			t.Errorf("%q is mute: %v are unseen, want %v; %v", name, &unseen, &c.unseen, err)
		}
	}
}

// asked is a node that has nothing, or does not answer.
type asked struct {
	nodev1.NodeServiceClient
	mute bool
}

func (a asked) Digests(context.Context, *nodev1.DigestsRequest, ...grpc.CallOption) (*nodev1.DigestsResponse, error) {
	if a.mute {
		return nil, errors.New("no answer")
	}
	return &nodev1.DigestsResponse{}, nil
}

// mapOf is a map of two nodes, which host everything.
func mapOf(t *testing.T, ready []millrace.NodeID) *topology.Map {
	t.Helper()
	a, err := topology.Spread([]millrace.NodeID{"a", "b"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	is := map[millrace.NodeID]topology.Set{}
	for _, id := range ready {
		is[id] = topology.All()
	}
	return topology.NewMap(a, []topology.Node{{ID: "a", Addr: "a:1"}, {ID: "b", Addr: "b:1"}}, is)
}
