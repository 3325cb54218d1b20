package cluster_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// TestAdmittedModels: each node's answer is heard, bounded, and gone with it.
func TestAdmittedModels(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	heard, err := members.WatchAdmitted(ctx, c)
	check(t, err)
	m, err := members.Join(ctx, c, topology.Node{ID: "n1", Addr: "a:1"})
	check(t, err)
	likes := members.Admission{Name: "likes", Version: "2", Sum: "ab", Cost: 12}
	m.SetModels([]members.Admission{likes, {Name: "bad", Version: "1", Sum: "cd", Refused: "no schema x"}})
	await(t, "n1 is heard", heard.Changed, func() bool { return len(heard.Current()["n1"]) == 2 })
	got := heard.Current()["n1"]
	if got[0].Refused != "no schema x" || !reflect.DeepEqual(got[1], likes) || !got[1].Of(artefacts.Version{Name: "likes", Version: "2", Sum: "ab"}) {
		t.Fatalf("heard %v", got)
	}
	var many []members.Admission
	for i := range 1000 {
		many = append(many, members.Admission{Name: fmt.Sprintf("m%03d", i), Version: "1", Sum: strings.Repeat("a", 64), Refused: strings.Repeat("é", 5000)})
	}
	m.SetModels(many)
	await(t, "the many are heard", heard.Changed, func() bool { return len(heard.Current()["n1"]) > 100 })
	if heard.Fault() != nil {
		t.Fatal(heard.Fault())
	}
	check(t, m.Leave(ctx))
	await(t, "n1 is gone", heard.Changed, func() bool { _, ok := heard.Current()["n1"]; return !ok })
}
