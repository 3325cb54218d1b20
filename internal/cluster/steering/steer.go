// Package steering reads and changes how a cluster is steered: the assignment of
// partitions to nodes, and the coordinator's documents, which say what is wanted and what
// is being done about it. Both are in etcd, and one transaction changes both.
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

// steerPrefix is what the keys of the coordinator's documents begin with, after the
// cluster's prefix.
const steerPrefix = "steer/"

// State is how a cluster is and how it is steered. This package does not know what the
// documents mean; the coordinator does. [Change] gives a State to a function that changes
// it.
type State struct {
	Map        *topology.Map       // the nodes that are registered now, and what they report
	Assignment topology.Assignment // may be changed; epoch 0: there is none
	Documents  map[string]string   // by name; may be changed and added to, but a deletion has no effect
	Acts       []audit.Entry       // may be set: what is recorded in the history with the change
}

// ErrRaced is the error of a change that was not written, since somebody else changed the
// same at the same time. The caller should try again.
var ErrRaced = errors.New("cluster: somebody else changed the same at the same time")

// Read returns how the cluster is and how it is steered.
func Read(ctx context.Context, c *cluster.Client) (*State, error) {
	s, _, err := read(ctx, c)
	return s, err
}

// Change reads the state, calls change, and writes what change made of the state in one
// transaction. A changed assignment gets the next epoch. With an error nothing is written,
// unless the error says that it is not known whether the change was written. The error is
// one of these, among others:
//
//   - the error of change;
//   - [cluster.ErrNotLeader], if lead is not nil and its coordinator does not lead any more;
//   - [cluster.ErrLost], while etcd has lost state, by what etcd has or by what c watches;
//   - [ErrRaced], if the caller should try again.
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
	assigned.Epoch = s.Assignment.Epoch // an epoch that change sets counts for nothing
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

// steeredAt is when a state was read. A change of it is written only if nothing has changed
// since.
type steeredAt struct {
	present  *Present // the assignment at that time
	revision int64    // etcd's revision when the documents were read
}

// unchanged returns the condition of a transaction that nobody has changed a document since
// the state was read.
func (at steeredAt) unchanged(c *cluster.Client) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(c.Prefix()+steerPrefix).WithPrefix(), "<", at.revision+1)
}

// whole returns [cluster.ErrLost] while etcd has lost state, by what etcd has or by what c
// watches; else nil.
func whole(c *cluster.Client, s *State) error {
	if why := s.Map.Lost(); why != "" {
		return cluster.LostState(why)
	}
	return c.Lost()
}

// read is Read, and returns what a transaction must compare with as well.
func read(ctx context.Context, c *cluster.Client) (*State, steeredAt, error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTime())
	defer cancel()
	// A transaction compares the revision of the documents, so they are read before the
	// nodes. The assignment is read at the same revision as the nodes.
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
		out.Assignment.AllowShrink, out.Assignment.AllowUnknown = false, false // they allowed that assignment alone, and not the next one
	}
	for name, v := range docs.Values {
		out.Documents[name] = string(v.Data)
	}
	// What is malformed in the reports of nodes is ignored.
	out.Map, _ = topology.NewMap(out.Assignment.Clone(), nil, nil).Next(s)
	return out, steeredAt{p, docs.Revision}, nil
}

// documentOps returns the operations that write the documents that differ from before.
func documentOps(c *cluster.Client, before, after map[string]string) (ops []clientv3.Op, err error) {
	for name, body := range after {
		if was, had := before[name]; had && body == was { // documents that are not changed are not judged below
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

// nextEpoch returns the operations that write an assignment under the next epoch.
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

// Changed waits until a document may have changed, or ctx ends. It does not watch the
// assignment or what nodes report.
func Changed(ctx context.Context, c *cluster.Client) {
	for resp := range c.Etcd().Watch(clientv3.WithRequireLeader(ctx), c.Prefix()+steerPrefix, clientv3.WithPrefix()) {
		if resp.Err() != nil || len(resp.Events) > 0 {
			return
		}
	}
	<-ctx.Done()
}
