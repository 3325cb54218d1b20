package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	leaseSeconds = 10 // how long a silent node counts as alive
	leftSeconds  = 60 // how long a node that left is remembered as such
)

// Membership is a node's registration, kept alive in the background.
type Membership struct {
	c    *Client
	node Node
	stop context.CancelFunc
	done chan struct{} // closed when run has returned

	mu struct {
		sync.Mutex // held while talking to etcd, so that tellings stay in order
		lease      clientv3.LeaseID
		ready      Set
		lag        Lag
		models     string // see SetModels; "": none
		untold     bool   // ready or lag is newer than what etcd has
	}
}

// Join registers a node under a lease of a few seconds and keeps it
// registered: after an outage of etcd, or of the node, it registers anew by
// itself. It returns once the node is registered.
func (c *Client) Join(ctx context.Context, n Node) (*Membership, error) {
	if err := validID(string(n.ID)); err != nil {
		return nil, fmt.Errorf("cluster: join: %w", err)
	}
	if n.Addr == "" {
		return nil, fmt.Errorf("cluster: join %s: no address", n.ID)
	}
	run, stop := context.WithCancel(c.ctx)
	m := &Membership{c: c, node: n, stop: stop, done: make(chan struct{})}
	registered := make(chan struct{})
	c.wg.Go(func() { m.run(run, registered) })
	select {
	case <-registered:
		return m, nil
	case <-ctx.Done():
		stop()
		<-m.done
		return nil, fmt.Errorf("cluster: join %s: %w", n.ID, ctx.Err())
	}
}

// run holds the registration until ctx ends; it closes registered the first
// time it has it.
func (m *Membership) run(ctx context.Context, registered chan struct{}) {
	defer close(m.done)
	for first := true; ctx.Err() == nil; {
		alive, err := m.register(ctx)
		if err != nil {
			m.c.log.Warn("registering the node failed; trying again", "node", m.node.ID, "err", err)
			_ = wait(ctx, retryAfter)
			continue
		}
		m.c.log.Info("node registered", "node", m.node.ID, "addr", m.node.Addr)
		if first {
			first = false
			close(registered)
		}
		for range alive { // a sign of life every few seconds, until the lease is lost
			m.retell(ctx)
		}
	}
}

// register takes a new lease and writes the node's keys under it.
func (m *Membership) register(ctx context.Context) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := m.c.etcd.Grant(call, leaseSeconds)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(m.node)
	if err != nil {
		return nil, err
	}
	if _, err := m.c.etcd.Txn(call).Then(append(m.state(lease.ID),
		clientv3.OpPut(m.key("nodes"), string(body), clientv3.WithLease(lease.ID)),
		clientv3.OpDelete(m.key("left")),
	)...).Commit(); err != nil {
		return nil, err
	}
	m.mu.lease, m.mu.untold = lease.ID, false
	return m.c.etcd.KeepAlive(ctx, lease.ID)
}

// state writes what the node says of itself.
func (m *Membership) state(lease clientv3.LeaseID) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpPut(m.key("ready"), string(m.mu.ready.encode()), clientv3.WithLease(lease)), m.models(lease)}
	if m.mu.lag == (Lag{}) {
		return append(ops, clientv3.OpDelete(m.key("lag")))
	}
	return append(ops, clientv3.OpPut(m.key("lag"), string(m.mu.lag.encode()), clientv3.WithLease(lease)))
}

func (m *Membership) key(kind string) string {
	return m.c.prefix + mapPrefix + kind + "/" + string(m.node.ID)
}

// SetReady tells which partitions the node is caught up on. An error means
// that it has not been told yet; the membership goes on trying.
func (m *Membership) SetReady(ctx context.Context, ready Set) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.ready = ready
	return m.tellLocked(ctx)
}

// SetLag tells how far the node is behind the log, otherwise as SetReady.
func (m *Membership) SetLag(ctx context.Context, lag Lag) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.lag = lag
	return m.tellLocked(ctx)
}

func (m *Membership) retell(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.untold {
		_ = m.tellLocked(ctx)
	}
}

func (m *Membership) tellLocked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := m.c.etcd.Txn(ctx).Then(m.state(m.mu.lease)...).Commit()
	m.mu.untold = err != nil
	if err != nil {
		return fmt.Errorf("cluster: state of %s: %w", m.node.ID, err)
	}
	return nil
}

// Leave says that the node is going on purpose, so that nobody tries it as a
// last resort, and ends the membership.
func (m *Membership) Leave(ctx context.Context) error {
	m.stop()
	<-m.done
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	memory, err := m.c.etcd.Grant(ctx, leftSeconds)
	if err == nil {
		_, err = m.c.etcd.Txn(ctx).Then(
			clientv3.OpPut(m.key("left"), "", clientv3.WithLease(memory.ID)),
			clientv3.OpDelete(m.key("nodes")),
			clientv3.OpDelete(m.key("ready")),
			clientv3.OpDelete(m.key("lag")),
			clientv3.OpDelete(m.key("models")),
		).Commit()
	}
	if err != nil {
		return fmt.Errorf("cluster: leave %s: %w", m.node.ID, err)
	}
	_, _ = m.c.etcd.Revoke(ctx, m.mu.lease) // it holds no key any more
	return nil
}
