package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// steerPrefix is where the documents of steering are.
const steerPrefix = "steer/"

// Steering is a cluster as it is steered, read at one revision: how it is, what
// is assigned, and the documents that say what is wanted and what is being done
// about it. What the documents mean is for the coordinator.
type Steering struct {
	Map        *topology.Map       // of all that is registered and told now
	Assignment topology.Assignment // to be changed; epoch 0: there is none
	Documents  map[string]string   // by name; to be changed; none is ever deleted, which would not be noticed
	Acts       []audit.Entry       // to be given: what is written down with the change
}

// ErrRaced says that somebody changed the same at the same time.
var ErrRaced = errors.New("cluster: somebody else changed the same at the same time")

// Steering reads how the cluster is steered.
func (c *Client) Steering(ctx context.Context) (*Steering, error) {
	s, _, err := c.readSteering(ctx)
	return s, err
}

// Steer reads how the cluster is steered and writes what change makes of it, the
// assignment under the next epoch, in one transaction, or nothing: with an error
// of change; with [ErrNotLeader] if lead is given and does not hold any more;
// with [ErrRaced], when it is to be tried again.
func (c *Client) Steer(ctx context.Context, lead *Lead, change func(*Steering) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	s, at, err := c.readSteering(ctx)
	if err != nil {
		return err
	}
	if err := c.mayLead(lead, s.Map); err != nil {
		return err
	}
	before, assigned := maps.Clone(s.Documents), s.Assignment.Clone()
	if err := change(s); err != nil {
		return err
	}
	ops, err := c.steerOps(before, s.Documents)
	if err != nil {
		return err
	}
	assigned.Epoch = s.Assignment.Epoch // it is given here
	if !assigned.Equal(&s.Assignment) {
		more, err := c.nextEpoch(at.present, s.Assignment)
		if err != nil {
			return err
		}
		ops = append(ops, more...)
	}
	if len(ops) == 0 {
		return nil
	}
	noted, err := c.noted(s.Acts...)
	if err != nil {
		return err
	}
	ops = append(ops, noted...)
	conditions := append(c.still(at.present), clientv3.Compare(clientv3.ModRevision(c.prefix+steerPrefix).WithPrefix(), "<", at.revision+1))
	if lead != nil {
		conditions = append(conditions, lead.holds(), c.whole())
	}
	put, err := c.etcd.Txn(ctx).If(conditions...).Then(ops...).Else(clientv3.OpGet(c.leaderKey()), clientv3.OpGet(c.setbackKey())).Commit()
	switch {
	case err != nil:
		return away(err)
	case put.Succeeded && len(noted) == 0:
		return nil
	case put.Succeeded:
		c.trimHistory(ctx)
		return nil
	}
	if lead == nil {
		return ErrRaced
	}
	if err := unlessSetback(put); err != nil {
		return err
	}
	if !lead.is(put.Responses[0].GetResponseRange().Kvs) {
		return ErrNotLeader
	}
	return ErrRaced
}

// mayLead refuses what a leader would write into an etcd that has lost state, by
// what it watches, or by what nodes remember. Persons are told where they plan.
func (c *Client) mayLead(lead *Lead, m *topology.Map) error {
	if lead == nil {
		return nil
	}
	if why := m.Lost(); why != "" {
		return lost(why)
	}
	return c.Lost()
}

// steeredAt is what a change is compared with when it is written.
type steeredAt struct {
	present  *present
	revision int64
}

func (c *Client) readSteering(ctx context.Context) (*Steering, steeredAt, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// Everything that a transaction compares is read before what is judged by
	// it, or at the same revision.
	docs, err := c.list(ctx, steerPrefix)
	if err != nil {
		return nil, steeredAt{}, err
	}
	if docs.Count == "" {
		return nil, steeredAt{}, keyspace.ErrGone
	}
	s, err := c.list(ctx, mapPrefix)
	if err != nil {
		return nil, steeredAt{}, err
	}
	p := c.presentOf(s)
	out := &Steering{Documents: map[string]string{}}
	if p.assignment != nil {
		out.Assignment = p.assignment.Clone()
		out.Assignment.AllowShrink, out.Assignment.AllowUnknown = false, false // which it said of itself alone
	}
	for name, v := range docs.Values {
		out.Documents[name] = string(v.Data)
	}
	// What is malformed of the nodes is as if they had not said it.
	out.Map, _ = topology.NewMap(out.Assignment.Clone(), nil, nil).Next(s)
	return out, steeredAt{p, docs.Revision}, nil
}

// steerOps returns what changes the documents.
func (c *Client) steerOps(before, after map[string]string) (ops []clientv3.Op, err error) {
	for name, body := range after {
		if err := keyspace.ValidID(name); err != nil {
			return nil, fmt.Errorf("cluster: steer: %w", err)
		}
		if len(body) > keyspace.MaxDocumentBytes {
			return nil, fmt.Errorf("cluster: steer: %s of %d bytes, more than %d", name, len(body), keyspace.MaxDocumentBytes)
		}
		if body != before[name] {
			ops = append(ops, clientv3.OpPut(c.prefix+steerPrefix+name, body))
		}
	}
	return ops, nil
}

// nextEpoch returns what writes an assignment as the next one.
func (c *Client) nextEpoch(p *present, a topology.Assignment) ([]clientv3.Op, error) {
	a.Epoch = 1
	if p.assignment != nil {
		a.Epoch = p.assignment.Epoch + 1
	}
	if err := errors.Join(a.Validate(), p.accepts(&a)); err != nil {
		return nil, err
	}
	body, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("cluster: steer: %w", err)
	}
	return c.assign(body), nil
}

// SteeringChanged returns when how the cluster is steered may have changed, or
// a node has told something new, or when ctx is done.
func (c *Client) SteeringChanged(ctx context.Context) {
	for resp := range c.etcd.Watch(clientv3.WithRequireLeader(ctx), c.prefix+steerPrefix, clientv3.WithPrefix()) {
		if resp.Err() != nil || len(resp.Events) > 0 {
			return
		}
	}
	<-ctx.Done()
}
