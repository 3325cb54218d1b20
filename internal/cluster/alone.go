package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/wait"
)

// LeaseSeconds is how long a silent node, or who holds a claim, counts as alive.
const LeaseSeconds = 10

// acting is who does what alone.
type acting struct {
	Who   string    `json:"who"`
	Act   string    `json:"act"`
	Since time.Time `json:"since"`
}

func (c *Client) actingKey() string { return c.prefix + "acting" }

// aloneWait is how long [Client.Alone] waits for another to end: as long as it
// takes to take a replica out, but not as long as to restart a node.
const aloneWait = 10 * time.Second

// Alone calls do, and no other process of the cluster is in Alone meanwhile: what do
// sees of the cluster is so still when it changes it. Somebody who ends without a
// word is given up after a lease. Who has to wait for longer than some seconds is
// refused, and told who does what; so is who cannot ask etcd. The context of do ends
// with the lease.
func (c *Client) Alone(ctx context.Context, act string, do func(ctx context.Context) error) error {
	body, err := json.Marshal(acting{c.who, act, time.Now().UTC().Truncate(time.Second)})
	if err != nil {
		return err
	}
	for end := time.Now().Add(aloneWait); ; {
		held, other, err := c.claim(ctx, c.actingKey(), string(body))
		switch {
		case err != nil:
			return err
		case held != nil:
			return held.during(ctx, do)
		case time.Now().After(end):
			return busy(other)
		}
		if err := wait.For(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

func busy(by []byte) error {
	var other acting
	_ = json.Unmarshal(by, &other) // whoever it is
	return &millrace.Error{
		Reason: millrace.ReasonUnavailable, Detail: fmt.Sprintf("%s has begun, at %s: %s; what takes replicas out is done by one at a time", audit.Shortened(other.Who), other.Since.Format(time.RFC3339), audit.Shortened(other.Act)),
		WayOut: fmt.Sprintf("try again when that is over, which millrace cluster history tells, or %d s after it has ended without a word", LeaseSeconds),
	}
}

// claim is a key that one process holds, as long as its lease lives.
type claim struct {
	c        *Client
	key      string
	lease    clientv3.LeaseID
	revision int64         // that created the key
	lost     chan struct{} // closed when the lease may be over
	stop     context.CancelFunc
}

// claim takes a key that nobody holds, or returns what its holder says.
func (c *Client) claim(ctx context.Context, key, body string) (*claim, []byte, error) {
	call, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	lease, err := c.etcd.Grant(call, LeaseSeconds)
	if err != nil {
		return nil, nil, Away(err)
	}
	put, err := c.etcd.Txn(call).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, body, clientv3.WithLease(lease.ID))).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil || !put.Succeeded {
		_, _ = c.etcd.Revoke(call, lease.ID) // or it ends by itself
	}
	if err != nil {
		return nil, nil, Away(err)
	}
	if !put.Succeeded {
		by := put.Responses[0].GetResponseRange().Kvs[0]
		if by.Lease != 0 {
			return nil, by.Value, nil
		}
		c.log.Warn("removing a claim that has no lease: nobody who runs has written it, and it would never end", "key", key, "by", strconv.Quote(string(by.Value[:min(len(by.Value), 200)])))
		if _, err := c.etcd.Txn(call).If(clientv3.Compare(clientv3.ModRevision(key), "=", by.ModRevision)).Then(clientv3.OpDelete(key)).Commit(); err != nil {
			return nil, nil, Away(err)
		}
		return c.claim(ctx, key, body)
	}
	run, stop := context.WithCancel(c.ctx)
	h := &claim{c: c, key: key, lease: lease.ID, revision: put.Header.Revision, lost: make(chan struct{}), stop: stop}
	alive, err := c.etcd.KeepAlive(run, lease.ID)
	if err != nil {
		stop()
		return nil, nil, Away(err)
	}
	c.Run(func() { h.keep(run, alive) })
	return h, nil, nil
}

// Holds is true in a transaction while the claim is this process's.
func (h *claim) Holds() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.revision)
}

// keep notices the end of a claim: by the lease, or by this process's own clock.
func (h *claim) keep(ctx context.Context, alive <-chan *clientv3.LeaseKeepAliveResponse) {
	defer close(h.lost)
	for {
		late := time.NewTimer(LeaseSeconds * time.Second)
		select {
		case <-ctx.Done():
		case <-late.C:
		case _, ok := <-alive:
			late.Stop()
			if ok {
				continue
			}
		}
		late.Stop()
		return
	}
}

// release gives a claim up.
func (h *claim) release(ctx context.Context) error {
	h.stop()
	<-h.lost
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	if _, err := h.c.etcd.Revoke(ctx, h.lease); err != nil {
		return Away(err)
	}
	return nil
}

// during calls do while the claim holds, and releases it.
func (h *claim) during(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-done:
		case <-h.lost:
			cancel(fmt.Errorf("%w: it was not heard for %d s, and others may act by now", ErrAway, LeaseSeconds))
		}
	}()
	err := do(ctx)
	_ = h.release(context.WithoutCancel(ctx)) // or it ends by its lease
	return err
}
