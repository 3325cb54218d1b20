package topology

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/partition"
)

// The refusals of an assignment.
var (
	// ErrShrink refuses one that drops more than a fifth of the replicas or the nodes.
	ErrShrink = errors.New("cluster: the map shrinks by more than a fifth without allow_shrink")
	// ErrUnknownOwner refuses owners that have never registered.
	ErrUnknownOwner = errors.New("cluster: the map names nodes that have never registered")
)

// Assignment says which nodes host a replica of each partition. It is one document, and
// every change of it has a higher epoch.
type Assignment struct {
	Epoch    int64                              `json:"epoch"`
	Replicas [partition.Count][]millrace.NodeID `json:"replicas"`
	// Wanted is how many replicas each partition should have. Some have more
	// while they move. 0: as many as most partitions have.
	Wanted int `json:"wanted,omitempty"`
	// Drop names the partitions that each node is to delete from its disk. It hosted
	// them, and enough other nodes serve them. Without such an order a node keeps what it
	// does not host any more.
	Drop map[millrace.NodeID]Set `json:"drop,omitempty"`
	// AllowShrink lets this epoch drop more than a fifth of the replicas or of
	// the nodes. Otherwise that counts as a mistake and is refused.
	AllowShrink bool `json:"allow_shrink,omitempty"`
	// AllowUnknown lets this epoch name nodes that have never registered. Otherwise they
	// count as misspelt and are refused.
	AllowUnknown bool `json:"allow_unknown,omitempty"`
	// Past is the sizes of the last epochs, at most maxPast, oldest first, as
	// [steering.Assign] notes them. With them a watcher that missed some epochs judges
	// each step for ErrShrink, and not all steps together.
	Past []Step `json:"past,omitempty"`
}

// Step is the size of an epoch's assignment.
type Step struct {
	Epoch       int64 `json:"epoch"`
	Replicas    int   `json:"replicas"` // of all partitions together
	Nodes       int   `json:"nodes"`
	AllowShrink bool  `json:"allow_shrink,omitempty"`
}

const (
	maxEpoch     = 1 << 53 // above it JSON's numbers are not exact
	MaxEpochStep = 1000    // how far an epoch may be above the last one; so no mistake uses up all epochs
	maxPast      = 64      // steps in Assignment.Past
	MaxOwners    = 16      // nodes that host a partition, with those whose replica is to be removed
)

// Spread returns a first assignment, of epoch 1. Each partition has the given number of
// replicas, or one on each node if there are fewer nodes. Each node has the same number of
// partitions, give or take one for each replica. Any two nodes share about as many
// partitions as any other two, so that the load of a lost node falls on all others.
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
		// The first replicas go round the nodes in turn. Each further replica is at a
		// distance from the first that changes from round to round.
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

// hosted returns the partitions of each node that hosts any.
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

// Validate returns why a cannot be used, or nil. It checks the epoch (1 to 2^53), the owners
// of each partition (1 to MaxOwners valid ids, none twice, none that is to drop the
// partition), Wanted, Drop and Past.
func (a *Assignment) Validate() error {
	if a.Epoch < 1 {
		return fmt.Errorf("cluster: assignment: epoch %d is below 1", a.Epoch)
	}
	if a.Epoch > maxEpoch {
		return fmt.Errorf("cluster: assignment: epoch %d is above %d", a.Epoch, int64(maxEpoch))
	}
	if len(a.Past) > maxPast || !slices.IsSortedFunc(a.Past, func(x, y Step) int { return cmp.Compare(x.Epoch, y.Epoch) }) {
		return errors.New("cluster: assignment: its past is too long, or out of order")
	}
	for p, owners := range a.Replicas {
		if len(owners) == 0 {
			return fmt.Errorf("cluster: assignment: partition %d has no owner", p)
		}
		if len(owners) > MaxOwners {
			return fmt.Errorf("cluster: assignment: partition %d has %d owners, more than %d", p, len(owners), MaxOwners)
		}
		for i, id := range owners {
			if err := keyspace.ValidID(string(id)); err != nil {
				return fmt.Errorf("cluster: assignment: partition %d: %w", p, err)
			}
			if slices.Contains(owners[:i], id) {
				return fmt.Errorf("cluster: assignment: partition %d has owner %q twice", p, id)
			}
			if drop := a.Drop[id]; drop.Has(millrace.Partition(p)) {
				return fmt.Errorf("cluster: assignment: partition %d is to be dropped by %q, which hosts it", p, id)
			}
		}
	}
	if a.Wanted < 0 || a.Wanted > MaxOwners {
		return fmt.Errorf("cluster: assignment: %d replicas are wanted, which is not 0 to %d", a.Wanted, MaxOwners)
	}
	for id := range a.Drop {
		if err := keyspace.ValidID(string(id)); err != nil {
			return fmt.Errorf("cluster: assignment: what is to be dropped: %w", err)
		}
	}
	return nil
}

// Equal reports whether both have the same Epoch, Wanted, Drop and Replicas.
func (a *Assignment) Equal(b *Assignment) bool {
	return a.Epoch == b.Epoch && a.Wanted == b.Wanted && maps.Equal(a.Drop, b.Drop) && a.hosts(b)
}

// hosts reports whether both have the same Replicas, in the same order.
func (a *Assignment) hosts(b *Assignment) bool {
	return slices.EqualFunc(a.Replicas[:], b.Replicas[:], slices.Equal[[]millrace.NodeID])
}

// Clone returns a copy that shares nothing with a but its past.
func (a *Assignment) Clone() Assignment {
	c := *a
	for p, owners := range a.Replicas {
		c.Replicas[p] = slices.Clone(owners)
	}
	c.Drop = maps.Clone(a.Drop)
	return c
}

// step returns the size of a.
func (a *Assignment) step() Step {
	s := Step{Epoch: a.Epoch, AllowShrink: a.AllowShrink, Nodes: len(a.hosted())}
	for _, owners := range a.Replicas {
		s.Replicas += len(owners)
	}
	return s
}

// Follow sets the Past of next, the assignment that comes after a: the Past of a, and a.
func (a *Assignment) Follow(next *Assignment) {
	past := append(slices.Clone(a.Past), a.step())
	next.Past = past[max(0, len(past)-maxPast):]
}

// Shrinks returns [ErrShrink] if some step from a to next drops more than a fifth of the
// replicas or of the nodes, and the step's epoch does not allow that. The steps are those in
// next.Past after a. If a is older than everything in a full Past, they are the whole Past.
// If a is missing for another reason, there is a single step, from a to next.
func (a *Assignment) Shrinks(next *Assignment) error {
	from, way := a.step(), []Step(nil)
	if i := slices.Index(next.Past, from); i >= 0 {
		way = next.Past[i+1:]
	} else if len(next.Past) == maxPast && a.Epoch < next.Past[0].Epoch {
		// A drain alone has more epochs than Past has room for. Those between were
		// judged when they were written.
		from, way = next.Past[0], next.Past[1:]
	}
	for _, to := range append(slices.Clone(way), next.step()) {
		if err := from.shrinks(to); err != nil && !to.AllowShrink {
			return err
		}
		from = to
	}
	return nil
}

// shrinks returns [ErrShrink] if next drops more than a fifth of s.
func (s Step) shrinks(next Step) error {
	switch {
	case next.Replicas*5 < s.Replicas*4:
		return fmt.Errorf("%w: from %d to %d replicas, in epoch %d", ErrShrink, s.Replicas, next.Replicas, next.Epoch)
	case next.Nodes*5 < s.Nodes*4:
		return fmt.Errorf("%w: from %d to %d nodes, in epoch %d", ErrShrink, s.Nodes, next.Nodes, next.Epoch)
	}
	return nil
}

// Unknown returns [ErrUnknownOwner] if some owners are not in known, unless a.AllowUnknown is
// set.
func (a *Assignment) Unknown(known map[millrace.NodeID]bool) error {
	var names []millrace.NodeID
	for _, id := range a.Nodes() {
		if !known[id] {
			names = append(names, id)
		}
	}
	if len(names) == 0 || a.AllowUnknown {
		return nil
	}
	return fmt.Errorf("%w: %q", ErrUnknownOwner, names[:min(len(names), maxListed)])
}

// maxListed is how many names an error lists at most.
const maxListed = 5

// DecodeAssignment decodes and validates an assignment. There must be exactly 720 partitions,
// each with an owner, since a mistake would lose partitions.
func DecodeAssignment(b []byte) (*Assignment, error) {
	if len(b) > keyspace.MaxDocumentBytes {
		return nil, fmt.Errorf("cluster: assignment of %d bytes, more than %d", len(b), keyspace.MaxDocumentBytes)
	}
	var doc struct {
		Epoch        int64                   `json:"epoch"`
		Replicas     [][]millrace.NodeID     `json:"replicas"`
		Wanted       int                     `json:"wanted"`
		Drop         map[millrace.NodeID]Set `json:"drop"`
		AllowShrink  bool                    `json:"allow_shrink"`
		AllowUnknown bool                    `json:"allow_unknown"`
		Past         []Step                  `json:"past"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("cluster: assignment: %w", err)
	}
	if len(doc.Replicas) != partition.Count {
		return nil, fmt.Errorf("cluster: assignment has %d partitions, not %d", len(doc.Replicas), partition.Count)
	}
	a := &Assignment{Epoch: doc.Epoch, Wanted: doc.Wanted, Drop: doc.Drop, AllowShrink: doc.AllowShrink, AllowUnknown: doc.AllowUnknown, Past: doc.Past}
	copy(a.Replicas[:], doc.Replicas)
	return a, a.Validate()
}
