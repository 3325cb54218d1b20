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

// ErrEpoch refuses an assignment: read the present one again and start over.
var ErrEpoch = errors.New("cluster: the assignment has moved")

// Present is what etcd has of an assignment when another is to follow.
type Present struct {
	Assignment     *topology.Assignment // nil: none that is of use
	epoch          int64                // the highest that anybody may have
	revision, last int64                // of the two keys that hold it
	known          map[millrace.NodeID]bool
}

// Epoch is the one that the next assignment is above; 0: there is none.
func (p *Present) Epoch() int64 { return p.epoch }

func assignmentKey(c *cluster.Client) string { return c.Prefix() + cluster.MapPrefix + "assignment" }
func lastKey(c *cluster.Client) string       { return c.Prefix() + cluster.MapPrefix + "last" }

// ReadPresent reads what watchers hold, as [topology.Present] judges it.
func ReadPresent(ctx context.Context, c *cluster.Client) (*Present, error) {
	s, err := c.List(ctx, cluster.MapPrefix)
	if err != nil {
		return nil, err
	}
	return presentOf(s), nil
}

func presentOf(s *keyspace.Snapshot) *Present {
	p := &Present{revision: s.Values["assignment"].Version, last: s.Values["last"].Version, known: topology.NewMap(topology.Assignment{}, nil, nil).Known(s)}
	if p.Assignment, p.epoch, _ = topology.Present(s); p.Assignment != nil { // watchers tell what is wrong
		for _, id := range p.Assignment.Nodes() {
			p.known[id] = true
		}
	}
	return p
}

// Assigned returns the present assignment; ok is false if there is none. A
// change of it is assigned with the epoch after its own, which is the highest that anybody
// may have.
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
// most 1,000 (the first one's at most 1,000); otherwise, or when somebody was
// faster, it gives [ErrEpoch]. [topology.ErrShrink] and [topology.ErrUnknownOwner] guard against
// mistakes.
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

// AssignIf is [Assign] if agrees has nothing against it as the cluster is steered, and
// that is so still when etcd writes it; else it gives [ErrRaced], and is to be tried
// again. While etcd has lost state it gives [cluster.ErrLost], unless lost lets it.
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

// assign writes an assignment behind the present one. Where the conditions do not hold
// the response has what etcd says of a setback.
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

// String returns the assignment as the history says it.
func (p *Present) String() string {
	if p.Assignment == nil {
		return "no assignment"
	}
	return AssignmentText(p.Assignment)
}

// AssignmentText is an assignment as the history says it.
func AssignmentText(a *topology.Assignment) string {
	return fmt.Sprintf("epoch %d: %d nodes, %d replicas", a.Epoch, len(a.Nodes()), a.Replication())
}

// Still holds while nobody else assigns.
func Still(c *cluster.Client, p *Present) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(assignmentKey(c)), "=", p.revision),
		clientv3.Compare(clientv3.ModRevision(lastKey(c)), "=", p.last),
	}
}

// AssignOps writes an encoded assignment, under the conditions of [Still].
func AssignOps(c *cluster.Client, body []byte) []clientv3.Op {
	return []clientv3.Op{clientv3.OpPut(assignmentKey(c), string(body)), clientv3.OpPut(lastKey(c), string(body))}
}

// accepts judges the assignment that is to follow, and notes the past in it.
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
