package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/wait"
)

// ErrNotLeader refuses what a leader writes whose time is over: another may
// lead by now.
var ErrNotLeader = errors.New("cluster: this process does not lead any more")

// Leader is who leads a cluster's coordinators.
type Leader struct {
	Name  string    `json:"name"`
	Addr  string    `json:"addr,omitempty"` // of its admin port
	Since time.Time `json:"since"`
}

// Lead is the leadership of one process. What it writes by [steering.Change] is
// compared with it by etcd itself, so that a leader that was frozen and wakes
// changes nothing.
type Lead struct{ *claim }

// LeaderKey holds a [Leader], while one leads.
func (c *Client) LeaderKey() string { return c.prefix + "leader" }

// Lead returns once this process leads, or when ctx or the client ends. It
// waits for etcd, and for whoever leads, as long as it takes.
func (c *Client) Lead(ctx context.Context, who Leader) (*Lead, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(c.ctx, cancel)()
	defer cancel()
	waits := keyspace.NewLatest(false) // its fault: why nobody can lead, as far as this process knows
	defer c.Alarm(ctx, "leader", waits.FaultSince)()
	var told string
	for {
		l, other, err := c.tryLead(ctx, who)
		waits.Set(l != nil, err)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("cluster: lead: %w", ctx.Err())
		case l != nil:
			c.log.Info("leading the cluster's coordinators", "name", who.Name)
			return l, nil
		case err != nil && err.Error() != told:
			told = err.Error()
			c.log.Warn("waiting to lead", "err", err)
		case err == nil && other.Name != told:
			told = other.Name
			c.log.Info("another coordinator leads; waiting", "leader", other.Name, "addr", other.Addr)
		}
		if err != nil {
			_ = wait.For(ctx, RetryAfter)
			continue
		}
		c.awaitLeaderless(ctx)
	}
}

// tryLead takes the leadership, or returns who has it.
func (c *Client) tryLead(ctx context.Context, who Leader) (*Lead, Leader, error) {
	who.Since = time.Now().UTC().Truncate(time.Millisecond)
	body, err := json.Marshal(who)
	if err != nil {
		return nil, Leader{}, err
	}
	held, by, err := c.claim(ctx, c.LeaderKey(), string(body))
	if held == nil {
		var other Leader
		_ = json.Unmarshal(by, &other) // whoever it is leads
		return nil, other, err
	}
	return &Lead{held}, Leader{}, nil
}

// awaitLeaderless returns when the leader's key is deleted, or after
// relistEvery.
func (c *Client) awaitLeaderless(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.relist)
	defer cancel()
	for resp := range c.etcd.Watch(clientv3.WithRequireLeader(ctx), c.LeaderKey()) {
		if resp.Err() != nil {
			break
		}
		for _, e := range resp.Events {
			if e.Type == clientv3.EventTypeDelete {
				return
			}
		}
	}
	<-ctx.Done()
}

// Lost is closed when the leadership may have ended.
func (l *Lead) Lost() <-chan struct{} { return l.lost }

// Is reports whether what a transaction read of the leader's key is this one.
func (l *Lead) Is(kvs []*mvccpb.KeyValue) bool {
	return len(kvs) > 0 && kvs[0].CreateRevision == l.revision
}

// Resign ends the leadership, so that another process leads at once.
func (l *Lead) Resign(ctx context.Context) { _ = l.release(ctx) } // or the lease ends it

// Leader returns who leads; ok is false while nobody does.
func (c *Client) Leader(ctx context.Context) (who Leader, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	got, err := c.etcd.Get(ctx, c.LeaderKey())
	if err != nil {
		return who, false, Away(err)
	}
	if len(got.Kvs) == 0 {
		return who, false, nil
	}
	if err := json.Unmarshal(got.Kvs[0].Value, &who); err != nil {
		return who, false, fmt.Errorf("cluster: the leader's key: %w", err)
	}
	return who, true, nil
}
