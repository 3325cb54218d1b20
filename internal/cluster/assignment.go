package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// Assignment says which nodes host a replica of each partition. It is one
// document; every change of it has the next epoch.
type Assignment struct {
	Epoch    int64                              `json:"epoch"`
	Replicas [partition.Count][]millrace.NodeID `json:"replicas"`
	// AllowShrink lets this epoch drop more than a fifth of the replicas or of
	// the nodes, which is otherwise taken for a mistake and refused.
	AllowShrink bool `json:"allow_shrink,omitempty"`
	// AllowUnknown lets this epoch name nodes that have never registered, which
	// are otherwise taken for misspelt and refused.
	AllowUnknown bool `json:"allow_unknown,omitempty"`
}

// Spread returns a first assignment, of epoch 1, that gives each partition
// the wanted number of replicas (or one on each node, if there are fewer) and
// each node the same number of partitions, give or take one a replica. Nodes in
// every pair share about as many, so that the load of a lost
// node falls on all others.
func Spread(nodes []millrace.NodeID, replicas int) (Assignment, error) {
	ids := slices.Clone(nodes)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) == 0 || replicas < 1 {
		return Assignment{}, errors.New("cluster: spread wants at least one node and one replica")
	}
	a := Assignment{Epoch: 1}
	n := len(ids)
	for p := range a.Replicas {
		// The first replica goes round the nodes; each further one keeps a
		// distance that changes from round to round.
		round := p / n
		for r := range min(replicas, n) {
			at := p % n
			if r > 0 {
				at = (p + 1 + (round+r-1)%(n-1)) % n
			}
			a.Replicas[p] = append(a.Replicas[p], ids[at])
		}
	}
	return a, a.Validate()
}

// Hosted returns the partitions that a node hosts.
func (a *Assignment) Hosted(id millrace.NodeID) Set { return a.hosted()[id] }

func (a *Assignment) hosted() map[millrace.NodeID]Set {
	sets := map[millrace.NodeID]Set{}
	for p, owners := range a.Replicas {
		for _, id := range owners {
			s := sets[id]
			s.Add(millrace.Partition(p))
			sets[id] = s
		}
	}
	return sets
}

// Nodes returns the nodes that host anything, sorted.
func (a *Assignment) Nodes() []millrace.NodeID {
	return slices.Sorted(maps.Keys(a.hosted()))
}

// Validate reports what makes a unusable: an epoch below 1, a partition
// without an owner or with one twice, an id that is not one.
func (a *Assignment) Validate() error {
	if a.Epoch < 1 {
		return fmt.Errorf("cluster: assignment: epoch %d is below 1", a.Epoch)
	}
	for p, owners := range a.Replicas {
		if len(owners) == 0 {
			return fmt.Errorf("cluster: assignment: partition %d has no owner", p)
		}
		for i, id := range owners {
			if err := validID(string(id)); err != nil {
				return fmt.Errorf("cluster: assignment: partition %d: %w", p, err)
			}
			if slices.Contains(owners[:i], id) {
				return fmt.Errorf("cluster: assignment: partition %d has owner %q twice", p, id)
			}
		}
	}
	return nil
}

func (a *Assignment) equal(b *Assignment) bool {
	return a.Epoch == b.Epoch && slices.EqualFunc(a.Replicas[:], b.Replicas[:], slices.Equal[[]millrace.NodeID])
}

// shrinks reports whether next drops more than a fifth of a's replicas or
// nodes.
func (a *Assignment) shrinks(next *Assignment) error {
	count := func(a *Assignment) (n int) {
		for _, owners := range a.Replicas {
			n += len(owners)
		}
		return n
	}
	for _, c := range []struct {
		what     string
		old, new int
	}{{"replicas", count(a), count(next)}, {"nodes", len(a.Nodes()), len(next.Nodes())}} {
		if c.new*5 < c.old*4 {
			return fmt.Errorf("%w: from %d to %d %s", ErrShrink, c.old, c.new, c.what)
		}
	}
	return nil
}

// maxDocumentBytes bounds what is accepted from etcd, whose own limit is
// 1.5 MiB.
const maxDocumentBytes = 1 << 20

// decodeAssignment is strict where a mistake would lose partitions: exactly
// 720 of them, each with an owner.
func decodeAssignment(b []byte) (*Assignment, error) {
	if len(b) > maxDocumentBytes {
		return nil, fmt.Errorf("cluster: assignment of %d bytes, more than %d", len(b), maxDocumentBytes)
	}
	var doc struct {
		Epoch       int64               `json:"epoch"`
		Replicas    [][]millrace.NodeID `json:"replicas"`
		AllowShrink bool                `json:"allow_shrink"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("cluster: assignment: %w", err)
	}
	if len(doc.Replicas) != partition.Count {
		return nil, fmt.Errorf("cluster: assignment has %d partitions, not %d", len(doc.Replicas), partition.Count)
	}
	a := &Assignment{Epoch: doc.Epoch, AllowShrink: doc.AllowShrink}
	copy(a.Replicas[:], doc.Replicas)
	return a, a.Validate()
}
