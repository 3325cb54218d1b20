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

// LeaseSeconds is how long a node, or the holder of a claim, counts as alive after it was
// last heard.
const LeaseSeconds = 10

// acting says which process is in [Client.Alone], and what it does there.
type acting struct {
	Who   string    `json:"who"`
	Act   string    `json:"act"`
	Since time.Time `json:"since"`
}

func (c *Client) actingKey() string { return c.prefix + "acting" }

// aloneWait is how long [Client.Alone] waits for another process to end. To take a replica
// out takes less; to restart a node takes longer.
const aloneWait = 10 * time.Second

// Alone calls do while no other process of the cluster is in Alone. It is for acts that take
// replicas out of use: what such an act reads about other replicas stays true meanwhile. act
// says in words what is done. If another process is in Alone for longer than aloneWait, or
// etcd does not answer, do is not called. In the first case the error says which process that
// is and what it does. A process that dies in Alone loses its place after LeaseSeconds. The
// context of do ends when the lease may be over.
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

// busy returns the error that another process, as by says, is in Alone.
func busy(by []byte) error {
	var other acting
	_ = json.Unmarshal(by, &other) // without its name, if it cannot be read
	return &millrace.Error{
		Reason: millrace.ReasonUnavailable, Detail: fmt.Sprintf("%s has begun, at %s: %s; what takes replicas out is done by one at a time", audit.Shortened(other.Who), other.Since.Format(time.RFC3339), audit.Shortened(other.Act)),
		WayOut: fmt.Sprintf("try again when that is over, which millrace cluster history tells, or %d s after it has ended without a word", LeaseSeconds),
	}
}

// claim is a key in etcd that one process holds as long as its lease lives.
type claim struct {
	c        *Client
	key      string
	lease    clientv3.LeaseID
	revision int64         // of etcd, at which the key was created
	lost     chan struct{} // closed when the lease may be over
	stop     context.CancelFunc
}

// claim takes a key that nobody holds, with the value body. If another process holds it, the
// claim is nil, and the bytes are that process's value. A key without a lease, which no
// process can have written, is removed first.
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
		_, _ = c.etcd.Revoke(call, lease.ID) // if this fails, the lease expires
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

// Holds returns the condition of a transaction that is true while this process holds the
// claim.
func (h *claim) Holds() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.revision)
}

// keep closes h.lost when the claim may have ended: the lease is gone, or nothing was heard
// of it for LeaseSeconds by this process's clock, or ctx has ended.
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

// release gives up a claim.
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

// during calls do, whose context ends when the claim is lost, and then releases the claim.
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
	_ = h.release(context.WithoutCancel(ctx)) // if this fails, the lease expires
	return err
}
