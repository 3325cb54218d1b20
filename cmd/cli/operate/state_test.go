package operate

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Of replicas the one counts that is ready and furthest.
func TestMergedReplicas(t *testing.T) {
	told := func(node, state string, at int64, counted bool, types ...*nodev1.TypeState) toldState {
		return toldState{millrace.NodeID(node), &nodev1.ReadStateResponse{At: &nodev1.ReplicaAt{State: state, Content: at}, Counted: counted, Types: types}}
	}
	order := []toldState{
		told("b", "ready", 9, true), told("a", "ready", 8, true), told("c", "ready", 8, true), told("d", "stale", 99, true), told("e", "ready", 99, false),
	}
	for i, a := range order {
		for j, b := range order {
			if i != j && a.better(b) != (i < j) {
				t.Errorf("%s is better than %s: %v", a.node, b.node, i > j)
			}
		}
	}
}

// Records may lie in the future, which is said: an age of 0 would look as if they came now.
func TestNewestOfTheFuture(t *testing.T) {
	now := time.Now()
	for want, at := range map[string]time.Time{"in 22h0m0s": now.Add(22 * time.Hour), "3m0s": now.Add(-3 * time.Minute), "0s": now} {
		if line := (typeShown{newest: millrace.TimeOf(at)}).line(now); !strings.Contains(string(line), "\t"+want+"\t") {
			t.Errorf("%q lacks %q", line, want)
		}
	}
}
