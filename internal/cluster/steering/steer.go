// Package steering reads and changes how a cluster is steered: the assignment of
// partitions to nodes, and the documents of the coordinator, in one transaction.
package steering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// steerPrefix is where the documents of steering are.
const steerPrefix = "steer/"

// State is a cluster as it is steered, read at one revision: how it is, what
// is assigned, and the documents that say what is wanted and what is being done
// about it. What the documents mean is for the coordinator.
type State struct {
	Map        *topology.Map       // of all that is registered and told now
	Assignment topology.Assignment // to be changed; epoch 0: there is none
	Documents  map[string]string   // by name; to be changed; none is ever deleted, which would not be noticed
	Acts       []audit.Entry       // to be given: what is written down with the change
}

// ErrRaced says that somebody changed the same at the same time.
var ErrRaced = errors.New("cluster: somebody else changed the same at the same time")

// Read reads how the cluster is steered.
func Read(ctx context.Context, c *cluster.Client) (*State, error) {
	s, _, err := read(ctx, c)
	return s, err
}

// Change reads how the cluster is steered and writes what change makes of it, the
// assignment under the next epoch, in one transaction, or nothing: with an error
// of change; with [cluster.ErrNotLeader] if lead is given and does not hold any more;
// with [cluster.ErrLost] while etcd has lost state, by what it says or by what c watches;
// with [ErrRaced], when it is to be tried again.
func Change(ctx context.Context, c *cluster.Client, lead *cluster.Lead, change func(*State) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*c.AskTime())
	defer cancel()
	s, at, err := read(ctx, c)
	if err != nil {
		return err
	}
	if err := whole(c, s); err != nil {
		return err
	}
	before, assigned := maps.Clone(s.Documents), s.Assignment.Clone()
	if err := change(s); err != nil {
		return err
	}
	ops, err := documentOps(c, before, s.Documents)
	if err != nil {
		return err
	}
	assigned.Epoch = s.Assignment.Epoch // it is given here
	if !assigned.Equal(&s.Assignment) {
		more, err := nextEpoch(c, at.present, s.Assignment)
		if err != nil {
			return err
		}
		ops = append(ops, more...)
	}
	if len(ops) == 0 {
		return nil
	}
	noted, err := c.Noted(s.Acts...)
	if err != nil {
		return err
	}
	ops = append(ops, noted...)
	conditions := append(Still(c, at.present), at.unchanged(c), c.Whole())
	if lead != nil {
		conditions = append(conditions, lead.Holds())
	}
	put, err := c.Etcd().Txn(ctx).If(conditions...).Then(ops...).Else(clientv3.OpGet(c.LeaderKey()), clientv3.OpGet(c.SetbackKey())).Commit()
	switch {
	case err != nil:
		return c.PerhapsDone(cluster.Away(err))
	case put.Succeeded && len(noted) == 0:
		return nil
	case put.Succeeded:
		c.TrimHistory(ctx)
		return nil
	}
	if err := cluster.UnlessSetback(put); err != nil {
		return err
	}
	if lead != nil && !lead.Is(put.Responses[0].GetResponseRange().Kvs) {
		return cluster.ErrNotLeader
	}
	return ErrRaced
}

// steeredAt is what a change is compared with when it is written.
type steeredAt struct {
	present  *Present
	revision int64
}

// unchanged holds while nobody else changes the documents.
func (at steeredAt) unchanged(c *cluster.Client) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(c.Prefix()+steerPrefix).WithPrefix(), "<", at.revision+1)
}

// whole is [cluster.ErrLost] while etcd has lost state, by what it says or by what c
// watches.
func whole(c *cluster.Client, s *State) error {
	if why := s.Map.Lost(); why != "" {
		return cluster.LostState(why)
	}
	return c.Lost()
}

func read(ctx context.Context, c *cluster.Client) (*State, steeredAt, error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTime())
	defer cancel()
	// Everything that a transaction compares is read before what is judged by
	// it, or at the same revision.
	docs, err := c.List(ctx, steerPrefix)
	if err != nil {
		return nil, steeredAt{}, err
	}
	if docs.Count == "" {
		return nil, steeredAt{}, keyspace.ErrGone
	}
	s, err := c.List(ctx, cluster.MapPrefix)
	if err != nil {
		return nil, steeredAt{}, err
	}
	p := presentOf(s)
	out := &State{Documents: map[string]string{}}
	if p.Assignment != nil {
		out.Assignment = p.Assignment.Clone()
		out.Assignment.AllowShrink, out.Assignment.AllowUnknown = false, false // which it said of itself alone
	}
	for name, v := range docs.Values {
		out.Documents[name] = string(v.Data)
	}
	// What is malformed of the nodes is as if they had not said it.
	out.Map, _ = topology.NewMap(out.Assignment.Clone(), nil, nil).Next(s)
	return out, steeredAt{p, docs.Revision}, nil
}

// documentOps returns what changes the documents.
func documentOps(c *cluster.Client, before, after map[string]string) (ops []clientv3.Op, err error) {
	for name, body := range after {
		if was, had := before[name]; had && body == was { // or somebody else's, whatever it is
			continue
		}
		if err := keyspace.ValidID(name); err != nil {
			return nil, fmt.Errorf("cluster: steer: %w", err)
		}
		if len(body) > keyspace.MaxDocumentBytes {
			return nil, fmt.Errorf("cluster: steer: %s of %d bytes, more than %d", name, len(body), keyspace.MaxDocumentBytes)
		}
		ops = append(ops, clientv3.OpPut(c.Prefix()+steerPrefix+name, body))
	}
	return ops, nil
}

// nextEpoch returns what writes an assignment as the next one.
func nextEpoch(c *cluster.Client, p *Present, a topology.Assignment) ([]clientv3.Op, error) {
	a.Epoch = p.epoch + 1
	if err := errors.Join(a.Validate(), p.accepts(&a)); err != nil {
		return nil, err
	}
	body, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("cluster: steer: %w", err)
	}
	return AssignOps(c, body), nil
}

// Changed returns when a document of steering may have changed, or when ctx is done.
// What is assigned, and what nodes tell, it does not watch.
func Changed(ctx context.Context, c *cluster.Client) {
	for resp := range c.Etcd().Watch(clientv3.WithRequireLeader(ctx), c.Prefix()+steerPrefix, clientv3.WithPrefix()) {
		if resp.Err() != nil || len(resp.Events) > 0 {
			return
		}
	}
	<-ctx.Done()
}
