package steer

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// What is not restored is told in words, and nothing of what only roles know.
func TestWhatIsNotRestoredIsTold(t *testing.T) {
	var out strings.Builder
	tellRestored(&out, &restoration.Restored{
		Dirs:  []restoration.KeptDir{{Dir: "b1", Written: time.Unix(1e9, 0)}},
		Empty: []string{"c1"},
		Documents: []restoration.Brought{
			{Document: "decisions 0-restored", Dir: "c1", Revision: 3},
			{Document: "definitions home", Dir: "b1", Revision: 31, Serves: "version 7"},
		},
		Bytes: []restoration.BroughtBytes{
			{Document: "definitions home", Versions: []string{"6", "7"}, Dir: "b1"},
			{Document: "models rate", Versions: []string{"1"}, Dir: "n1"},
		},
		Undone: []string{"definitions home 8"},
		Serves: map[string]restoration.Pointers{"experiments ranker": {Now: "version 2", Kept: "version 3"}},
		Stays:  []string{"condemned rate", "decisions 0-restored", "decisions fresher", "experiments ranker"},
		Unsure: []string{"decisions ranker"},
		Again:  []string{"definitions old", "decisions 0-restored"},
		Lost:   []restoration.Lost{{Version: "experiments late 1", Now: "no version"}, {Version: "experiments ranker 9", Now: "version 8"}},
		Lacks:  []string{"definitions home 5"},
	})
	const want = `b1: last written 2001-09-09T01:46:40Z
nothing is kept in c1: it is left out
feed home is restored from b1, as of revision 31: version 7 serves
feed home: the bytes of versions 6, 7 are restored from b1
model rate: the bytes of version 1 are restored from n1
feed home 8 was put into etcd since it lost state, and never served: it is not there any more; push or define it again if it is needed
what is condemned of model rate stays as etcd has it, which an index node, or model release or push, has written since: what was kept of it is not restored; look at it, and nodes condemn again what they meet
what was decided about experiment fresher, and who holds it, stays as etcd has it, which the coordinator that leads, or experiment hold or resume, has written since: what was kept of it is not restored; look at it, and let its ramp go on with millrace experiment resume if nobody is against it
document ranker stays as etcd has it, which somebody has written since: what was kept of it is not restored (version 2 serves, and by the directories version 3); look at it, and push or define again what it lacks
what was decided about experiment ranker, and who holds it, stays as etcd has it, and it cannot be told which is newer: what was kept of it is not restored; look at it, and let its ramp go on with millrace experiment resume if nobody is against it
feed old is in etcd again, and was removed after the backup: remove it again if it is not needed
document late 1 is lost: its bytes are in none of the directories, nor in etcd; nothing serves in its place: look at it, and push or define it again
document ranker 9 is lost: its bytes are in none of the directories, nor in etcd; version 8 serves in its place: look at it, and push or define it again
feed home 5: its bytes are in none of the directories, nor in etcd: push or define it again if it is needed
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

// Where bytes alone were lost the last line counts them, and says that nothing else is
// another.
func TestBytesAloneAreTold(t *testing.T) {
	r := &restoration.Restored{Epoch: 3, Bytes: []restoration.BroughtBytes{{Document: "definitions home", Versions: []string{"6", "7"}}, {Document: "models rate", Versions: []string{"1"}}}}
	if got := sumRestored(r); got != "assignment epoch 3, 0 documents, bytes of 3 versions, 0 secrets" {
		t.Error(got)
	}
	r.Alone = true
	if got := sumRestored(r); got != "etcd lacked bytes alone: those of 3 versions are restored; all else is as before, assignment epoch 3 and ramps too" {
		t.Error(got)
	}
	r.Dropped = 2
	if got := sumRestored(r); !strings.Contains(got, "are restored, 2 versions without any are dropped; all else") {
		t.Error(got)
	}
}

// A plan that was under way is in no directory. What it leaves is told where etcd has no
// plan, and which plan goes on where it has one.
func TestALostPlanIsTold(t *testing.T) {
	a := topology.Assignment{Epoch: 3, Wanted: 1}
	for p := range a.Replicas {
		a.Replicas[p] = []millrace.NodeID{"n1"}
	}
	a.Replicas[4] = []millrace.NodeID{"n1", "n2"}
	s := &coordinator.Steered{State: &steering.State{Map: topology.NewMap(a, nil, nil)}, Plan: &coordinator.Plan{ID: "x", Kind: coordinator.Add, Status: coordinator.Done}}
	var out strings.Builder
	tellPlan(&out, s, nil)
	s.Plan.Status = coordinator.Paused
	s.Intent.Nodes = map[millrace.NodeID]coordinator.Mark{"n4": {Draining: true}, "n3": {Draining: true}, "n5": {Added: true}}
	tellPlan(&out, s, nil)
	tellPlan(&out, nil, errors.New("etcd is away"))
	const want = `1 partitions have more than 1 replicas, and etcd has no plan that is under way: one was, and is lost, and nobody takes them away: 4: see to it with millrace cluster plan, and millrace cluster apply
drained are, as etcd has it, which may be older: []; drain others again (millrace node drain), or plans give them partitions
plan x (add) is paused as etcd has it, which may be older, and goes on from this assignment: look at it with millrace cluster status
drained are, as etcd has it, which may be older: [n3 n4]; drain others again (millrace node drain), or plans give them partitions
all is restored, and what becomes of a plan that was under way cannot be told: etcd is away: see millrace cluster status
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}
