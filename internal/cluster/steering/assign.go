package steering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// ErrEpoch is the error for an assignment with a wrong epoch. The caller must read the
// present assignment again and start over.
var ErrEpoch = errors.New("cluster: the assignment has moved")

// Present is the assignment that etcd has now, to which the next one is compared.
type Present struct {
	Assignment     *topology.Assignment     // nil: there is none that can be used
	epoch          int64                    // the highest that any watcher may have seen
	revision, last int64                    // etcd's revisions of the two keys that hold it: see assignmentKey
	known          map[millrace.NodeID]bool // the nodes that the next assignment may name
}

// Epoch returns the epoch that the next assignment must be above; 0 if there is none.
func (p *Present) Epoch() int64 { return p.epoch }

// assignmentKey and lastKey are the two keys that hold the assignment, with the same value.
// If the first is malformed, or was written without the checks of this package, the second
// still has the last good assignment.
func assignmentKey(c *cluster.Client) string { return c.Prefix() + cluster.MapPrefix + "assignment" }
func lastKey(c *cluster.Client) string       { return c.Prefix() + cluster.MapPrefix + "last" }

// ReadPresent reads the present assignment from etcd, as [topology.Present] judges the two
// keys that hold it.
func ReadPresent(ctx context.Context, c *cluster.Client) (*Present, error) {
	s, err := c.List(ctx, cluster.MapPrefix)
	if err != nil {
		return nil, err
	}
	return presentOf(s), nil
}

// presentOf returns the present assignment of a snapshot of the keys under
// cluster.MapPrefix.
func presentOf(s *keyspace.Snapshot) *Present {
	p := &Present{revision: s.Values["assignment"].Version, last: s.Values["last"].Version, known: topology.NewMap(topology.Assignment{}, nil, nil).Known(s)}
	if p.Assignment, p.epoch, _ = topology.Present(s); p.Assignment != nil { // the error is left to watchers, which log it
		for _, id := range p.Assignment.Nodes() {
			p.known[id] = true
		}
	}
	return p
}

// Assigned returns the present assignment; ok is false if there is none. Its epoch is the
// highest that any watcher may have seen, so a caller that changes the assignment gives it
// that epoch plus one.
func Assigned(ctx context.Context, c *cluster.Client) (a topology.Assignment, ok bool, err error) {
	p, err := ReadPresent(ctx, c)
	if err != nil || p.Assignment == nil {
		return a, false, err
	}
	a = *p.Assignment
	a.Epoch = p.epoch
	return a, true, nil
}

// Assign replaces the assignment. a.Epoch must be above the present one, by at
// most 1,000; the first one's must be at most 1,000. Otherwise, or if somebody else
// assigned at the same time, the error is [ErrEpoch]. To guard against mistakes, an
// assignment that drops more than a fifth of the replicas or nodes is refused with
// [topology.ErrShrink] unless a.AllowShrink is set, and one that names nodes that have never
// registered with [topology.ErrUnknownOwner] unless a.AllowUnknown is.
func Assign(ctx context.Context, c *cluster.Client, a topology.Assignment) error {
	p, err := ReadPresent(ctx, c)
	if err != nil {
		return fmt.Errorf("cluster: assign: %w", err)
	}
	put, err := assign(ctx, c, p, a)
	if err == nil && !put.Succeeded {
		return fmt.Errorf("%w: somebody else assigned at the same time", ErrEpoch)
	}
	return err
}

// AssignIf does what [Assign] does if agrees returns nil for the present [State]; else it
// assigns nothing, and returns the error of agrees. If that state changes before etcd writes
// the assignment, the error is [ErrRaced], and the caller should try again. While etcd has
// lost state, the error is [cluster.ErrLost], unless lost is true.
func AssignIf(ctx context.Context, c *cluster.Client, a topology.Assignment, lost bool, agrees func(*State) error) error {
	s, at, err := read(ctx, c)
	if err != nil {
		return err
	}
	conditions := []clientv3.Cmp{at.unchanged(c)}
	if !lost {
		if err := whole(c, s); err != nil {
			return err
		}
		conditions = append(conditions, c.Whole())
	}
	if err := agrees(s); err != nil {
		return err
	}
	put, err := assign(ctx, c, at.present, a, conditions...)
	if err != nil || put.Succeeded {
		return err
	}
	if err := cluster.UnlessSetback(put); err != nil && !lost {
		return err
	}
	return ErrRaced
}

// assign writes an assignment in the place of the present one. If the conditions do not
// hold, it writes nothing, and the response has the key of a setback: what the cluster
// notes when etcd went back to an older state.
func assign(ctx context.Context, c *cluster.Client, p *Present, a topology.Assignment, conditions ...clientv3.Cmp) (*clientv3.TxnResponse, error) {
	if err := a.Validate(); err != nil {
		return nil, err
	}
	if err := p.accepts(&a); err != nil {
		return nil, err
	}
	body, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("cluster: assign: %w", err)
	}
	noted, err := c.Noted(audit.Entry{Act: "assign", On: "all partitions", Before: p.String(), After: AssignmentText(&a)})
	if err != nil {
		return nil, err
	}
	put, err := c.Etcd().Txn(ctx).If(append(Still(c, p), conditions...)...).Then(append(AssignOps(c, body), noted...)...).Else(clientv3.OpGet(c.SetbackKey())).Commit()
	if err != nil {
		return nil, fmt.Errorf("cluster: assign: %w", c.PerhapsDone(err))
	}
	if put.Succeeded {
		c.TrimHistory(ctx)
	}
	return put, nil
}

// String returns the assignment as the history of the cluster names it.
func (p *Present) String() string {
	if p.Assignment == nil {
		return "no assignment"
	}
	return AssignmentText(p.Assignment)
}

// AssignmentText returns an assignment as the history of the cluster names it.
func AssignmentText(a *topology.Assignment) string {
	return fmt.Sprintf("epoch %d: %d nodes, %d replicas", a.Epoch, len(a.Nodes()), a.Replication())
}

// Still returns conditions of a transaction that hold as long as p is the present
// assignment.
func Still(c *cluster.Client, p *Present) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(assignmentKey(c)), "=", p.revision),
		clientv3.Compare(clientv3.ModRevision(lastKey(c)), "=", p.last),
	}
}

// AssignOps returns the operations that write an encoded assignment. They belong in a
// transaction with the conditions of [Still].
func AssignOps(c *cluster.Client, body []byte) []clientv3.Op {
	return []clientv3.Op{clientv3.OpPut(assignmentKey(c), string(body)), clientv3.OpPut(lastKey(c), string(body))}
}

// accepts refuses an assignment that must not follow the present one. It sets a.Past, what
// the assignment keeps of the assignments before it.
func (p *Present) accepts(a *topology.Assignment) error {
	if a.Epoch <= p.epoch || a.Epoch > p.epoch+topology.MaxEpochStep {
		return fmt.Errorf("%w: it has epoch %d, so the next is %d and not %d", ErrEpoch, p.epoch, p.epoch+1, a.Epoch)
	}
	a.Past = nil
	if p.Assignment != nil {
		p.Assignment.Follow(a)
		if err := p.Assignment.Shrinks(a); err != nil {
			return err
		}
	}
	return a.Unknown(p.known)
}
