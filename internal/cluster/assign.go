package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// ErrEpoch refuses an assignment: read the present one again and start over.
var ErrEpoch = errors.New("cluster: the assignment has moved")

// present is what etcd has of an assignment when another is to follow.
type present struct {
	assignment     *topology.Assignment // nil: none that is of use
	revision, last int64                // of the two keys that hold it
	known          map[millrace.NodeID]bool
}

// epoch is that of the assignment; 0: there is none.
func (p *present) epoch() int64 {
	if p.assignment == nil {
		return 0
	}
	return p.assignment.Epoch
}

func (c *Client) assignmentKey() string { return c.prefix + mapPrefix + "assignment" }
func (c *Client) lastKey() string       { return c.prefix + mapPrefix + "last" }

// present reads what watchers hold, as far as etcd can tell: of the assignment
// and the one that this package last wrote the higher epoch, but none that is
// malformed or so far ahead that no watcher takes it.
func (c *Client) present(ctx context.Context) (*present, error) {
	s, err := c.list(ctx, mapPrefix)
	if err != nil {
		return nil, err
	}
	return c.presentOf(s), nil
}

func (c *Client) presentOf(s *keyspace.Snapshot) *present {
	p := &present{revision: s.Values["assignment"].Version, last: s.Values["last"].Version, known: topology.NewMap(topology.Assignment{}, nil, nil).Known(s)}
	epoch := int64(0)
	for _, key := range []string{"last", "assignment"} {
		a, err := topology.DecodeAssignment(s.Values[key].Data)
		if err != nil || a.Epoch < epoch || key == "assignment" && a.Epoch > epoch+topology.MaxEpochStep {
			continue
		}
		p.assignment, epoch = a, a.Epoch
	}
	if p.assignment != nil {
		for _, id := range p.assignment.Nodes() {
			p.known[id] = true
		}
	}
	return p
}

// Assigned returns the present assignment; ok is false if there is none. A
// change of it is assigned with the next epoch.
func (c *Client) Assigned(ctx context.Context) (a topology.Assignment, ok bool, err error) {
	p, err := c.present(ctx)
	if err != nil || p.assignment == nil {
		return a, false, err
	}
	return *p.assignment, true, nil
}

// Assign replaces the assignment. a.Epoch must be above the present one, by at
// most 1,000 (the first one's at most 1,000); otherwise, or when somebody was
// faster, it gives [ErrEpoch]. [topology.ErrShrink] and [topology.ErrUnknownOwner] guard against
// mistakes.
func (c *Client) Assign(ctx context.Context, a topology.Assignment) error {
	if err := a.Validate(); err != nil {
		return err
	}
	p, err := c.present(ctx)
	if err != nil {
		return fmt.Errorf("cluster: assign: %w", err)
	}
	if err := p.accepts(&a); err != nil {
		return err
	}
	body, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("cluster: assign: %w", err)
	}
	noted, err := c.noted(audit.Entry{Act: "assign", On: "all partitions", Before: p.String(), After: assignmentText(&a)})
	if err != nil {
		return err
	}
	put, err := c.etcd.Txn(ctx).If(c.still(p)...).Then(append(c.assign(body), noted...)...).Commit()
	if err != nil {
		return fmt.Errorf("cluster: assign: %w", err)
	}
	if !put.Succeeded {
		return fmt.Errorf("%w: somebody else assigned at the same time", ErrEpoch)
	}
	c.trimHistory(ctx)
	return nil
}

// String returns the assignment as the history says it.
func (p *present) String() string {
	if p.assignment == nil {
		return "no assignment"
	}
	return assignmentText(p.assignment)
}

func assignmentText(a *topology.Assignment) string {
	return fmt.Sprintf("epoch %d: %d nodes, %d replicas", a.Epoch, len(a.Nodes()), a.Replication())
}

// still holds while nobody else assigns.
func (c *Client) still(p *present) []clientv3.Cmp {
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(c.assignmentKey()), "=", p.revision),
		clientv3.Compare(clientv3.ModRevision(c.lastKey()), "=", p.last),
	}
}

func (c *Client) assign(body []byte) []clientv3.Op {
	return []clientv3.Op{clientv3.OpPut(c.assignmentKey(), string(body)), clientv3.OpPut(c.lastKey(), string(body))}
}

// accepts judges the assignment that is to follow, and notes the past in it.
func (p *present) accepts(a *topology.Assignment) error {
	epoch := int64(0)
	if p.assignment != nil {
		epoch = p.assignment.Epoch
	}
	if a.Epoch <= epoch || a.Epoch > epoch+topology.MaxEpochStep {
		return fmt.Errorf("%w: it has epoch %d, so the next is %d and not %d", ErrEpoch, epoch, epoch+1, a.Epoch)
	}
	a.Past = nil
	if p.assignment != nil {
		p.assignment.Follow(a)
		if err := p.assignment.Shrinks(a); err != nil {
			return err
		}
	}
	return a.Unknown(p.known)
}
