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

// ErrLost refuses a change while etcd has lost state. Processes go on with the state that
// they had, and would not take the change over.
var ErrLost = errors.New("cluster: etcd has lost state")

// MaxChanges is how many times a change is tried while others change the same key.
const MaxChanges = 20

// RestoreWayOut is the way out of [ErrLost] that errors and alarms name.
const RestoreWayOut = "millrace cluster restore --data .., with the data directories of all brokers, coordinators and index nodes that you can reach; do not assign anew, which moves every partition"

// SetbackKey returns the key of the [keyspace.Setback]. It exists while etcd is back at an
// older state than processes have seen.
func (c *Client) SetbackKey() string { return c.prefix + "setback" }

// TellSetback notes in etcd that etcd went back to an older state, if a watcher has found
// that. s is the watcher's snapshot, o the origin with which it compared s, and what the name
// of the state that it watches. TellSetback writes nothing into an etcd with the state of
// another cluster. It is called with each snapshot, so a failure is tried again.
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

// Whole returns the condition of a transaction that is true while nobody has noted that etcd
// went back.
func (c *Client) Whole() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(c.SetbackKey()), "=", 0)
}

// UnlessSetback returns an [ErrLost] if a transaction failed because etcd went back; nil if it
// failed for another reason. The transaction must have the condition [Client.Whole], and in
// its Else branch read the setback key last.
func UnlessSetback(put *clientv3.TxnResponse) error {
	last := put.Responses[len(put.Responses)-1].Response.(*etcdserverpb.ResponseOp_ResponseRange)
	if b := keyspace.ParseSetback(last.ResponseRange.Kvs); b != nil {
		return LostState(b.String())
	}
	return nil
}

// Lost returns an [ErrLost] if anything that this client watches shows that etcd has lost
// state, is older than it was, or is another one; else nil.
func (c *Client) Lost() error {
	for _, a := range c.alarms.now() {
		if _, why := a.fault(); keyspace.PastLost(why) {
			return LostState(fmt.Sprintf("%s: %v", a.what, why))
		}
	}
	return nil
}

// LostState returns an [ErrLost] that says why.
func LostState(why string) error {
	return Refuse(ErrLost, millrace.ReasonUnavailable, "etcd", RestoreWayOut, "etcd has lost state: %s", why)
}
