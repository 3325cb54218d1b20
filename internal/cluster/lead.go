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

// ErrNotLeader refuses a write of a leader whose leadership has ended: another process may
// lead by now.
var ErrNotLeader = errors.New("cluster: this process does not lead any more")

// Leader describes the coordinator that leads.
type Leader struct {
	Name  string    `json:"name"`
	Addr  string    `json:"addr,omitempty"` // of its admin port
	Since time.Time `json:"since"`
}

// Lead is the leadership of one process. etcd itself accepts what the process writes by
// [steering.Change] only while the leadership holds. So a leader that was frozen and wakes
// up too late changes nothing.
type Lead struct{ *claim }

// LeaderKey returns the key of the [Leader]. It exists while one leads.
func (c *Client) LeaderKey() string { return c.prefix + "leader" }

// Lead waits until this process leads. It waits for etcd, and for the end of another's
// leadership, as long as that takes. The error says that ctx or the client has ended.
func (c *Client) Lead(ctx context.Context, who Leader) (*Lead, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(c.ctx, cancel)()
	defer cancel()
	waits := keyspace.NewLatest(false) // its fault is why this process cannot come to lead
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

// tryLead takes the leadership if nobody has it. Else the Lead is nil, and the Leader is the
// one that has it.
func (c *Client) tryLead(ctx context.Context, who Leader) (*Lead, Leader, error) {
	who.Since = time.Now().UTC().Truncate(time.Millisecond)
	body, err := json.Marshal(who)
	if err != nil {
		return nil, Leader{}, err
	}
	held, by, err := c.claim(ctx, c.LeaderKey(), string(body))
	if held == nil {
		var other Leader
		_ = json.Unmarshal(by, &other) // without its name, if it cannot be read
		return nil, other, err
	}
	return &Lead{held}, Leader{}, nil
}

// awaitLeaderless waits until the leader's key is deleted, or c.relist has passed.
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

// Lost returns a channel that is closed when the leadership may have ended.
func (l *Lead) Lost() <-chan struct{} { return l.lost }

// Is reports whether kvs, what a transaction read at the leader's key, is this leadership.
func (l *Lead) Is(kvs []*mvccpb.KeyValue) bool {
	return len(kvs) > 0 && kvs[0].CreateRevision == l.revision
}

// Resign ends the leadership, so that another process can lead at once.
func (l *Lead) Resign(ctx context.Context) { _ = l.release(ctx) } // if this fails, the lease ends it

// Leader returns the coordinator that leads; ok is false while none does.
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
