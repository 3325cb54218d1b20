package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// ErrLost refuses a change in an etcd that has lost state: processes keep what
// they had, and would not take it over.
var ErrLost = errors.New("cluster: etcd has lost state")

// MaxChanges is how often a change is tried while others change the same.
const MaxChanges = 20

// RestoreWayOut is the way out of [ErrLost], for all who tell of it.
const RestoreWayOut = "millrace cluster restore --data .., with the data directories of all brokers, coordinators and index nodes that you can reach; do not assign anew, which moves every partition"

// SetbackKey holds a [keyspace.Setback], while etcd has gone back.
func (c *Client) SetbackKey() string { return c.prefix + "setback" }

// TellSetback notes in etcd that it went back, as a watcher of what has found.
// What holds another cluster's state is not written to. It is called with each
// snapshot, and so tries again.
func (c *Client) TellSetback(ctx context.Context, what string, s *keyspace.Snapshot, o keyspace.Origin) {
	copied := s.Cluster != o.Cluster && o.Cluster != 0 // an etcd restored from a snapshot may have another id
	ours := s.Keyspace == o.Keyspace && o.Keyspace != (keyspace.Name{}) || s.Keyspace.Before(o.Keyspace)
	if c.readOnly || !ours || o.Back == 0 && !copied || s.Setback.Since(s.Keyspace, o.Keyspace) {
		return
	}
	var version int64
	if s.Setback != nil {
		version = s.Setback.Version
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	body, err := json.Marshal(keyspace.Setback{Of: what, At: s.Revision, When: time.Now().UTC().Truncate(time.Second), Generation: o.Keyspace.Generation})
	if err == nil {
		_, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.SetbackKey()), "=", version), clientv3.Compare(clientv3.Value(c.KeyspaceKey()), "=", s.Keyspace.String())).
			Then(clientv3.OpPut(c.SetbackKey(), string(body))).Commit()
	}
	if err != nil {
		c.log.Warn("that etcd went back is not told to others yet", "err", err)
	}
}

// Whole holds in a transaction while nobody has found that etcd went back.
func (c *Client) Whole() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(c.SetbackKey()), "=", 0)
}

// UnlessSetback returns the error of a transaction that failed since etcd went
// back: one whose conditions have [Client.Whole], and that reads the setback last
// if they fail.
func UnlessSetback(put *clientv3.TxnResponse) error {
	last := put.Responses[len(put.Responses)-1].Response.(*etcdserverpb.ResponseOp_ResponseRange)
	if b := keyspace.ParseSetback(last.ResponseRange.Kvs); b != nil {
		return LostState(b.String())
	}
	return nil
}

// Lost is an [ErrLost] if anything that this client watches tells that etcd has
// lost state, is older than it was, or another one.
func (c *Client) Lost() error {
	for _, a := range c.alarms.now() {
		if _, why := a.fault(); keyspace.PastLost(why) {
			return LostState(fmt.Sprintf("%s: %v", a.what, why))
		}
	}
	return nil
}

// LostState is an [ErrLost] that says why.
func LostState(why string) error {
	return Refuse(ErrLost, millrace.ReasonUnavailable, "etcd", RestoreWayOut, "etcd has lost state: %s", why)
}
