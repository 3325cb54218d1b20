package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
)

// ErrLost refuses a change in an etcd that has lost state: processes keep what
// they had, and would not take it over.
var ErrLost = errors.New("cluster: etcd has lost state")

// setback says that etcd went back to an older state. Whoever finds that writes
// it, by whatever it watches: so that all know, also those who watch nothing
// that is older than it was, and those who only look. A restoration removes it.
type setback struct {
	Of   string    `json:"of"` // what was newer: "map", or a kind of documents
	At   int64     `json:"at"` // etcd's revision when that was found: what is newer was written since
	When time.Time `json:"when"`
	// Generation is that of the keyspace from which it went back. One of a lower
	// generation than a process remembers came with the backup.
	Generation int64 `json:"generation,omitempty"`

	version int64 // the revision that wrote it
}

func (b *setback) String() string {
	return fmt.Sprintf("it went back to an older state: at %s a process remembered newer %s", b.When.Format(time.RFC3339), b.Of)
}

func (c *Client) setbackKey() string { return c.prefix + "setback" }

// setbackOf reads a setback; nil if there is none. One that is malformed is one.
func setbackOf(kvs []*mvccpb.KeyValue) *setback {
	if len(kvs) == 0 {
		return nil
	}
	var b setback
	if json.Unmarshal(kvs[0].Value, &b) != nil {
		b = setback{Of: "state"}
	}
	b.version = kvs[0].ModRevision
	return &b
}

// tellSetback notes in etcd that it went back, as a watcher of what has found.
// What holds another cluster's state is not written to. It is called with each
// snapshot, and so tries again.
func (c *Client) tellSetback(ctx context.Context, what string, s *snapshot, o origin) {
	copied := s.cluster != o.Cluster && o.Cluster != 0 // an etcd restored from a snapshot may have another id
	ours := s.keyspace == o.Keyspace && o.Keyspace != (keyspace{}) || s.keyspace.before(o.Keyspace)
	if c.readOnly || !ours || o.Back == 0 && !copied || s.setback.since(s.keyspace, o.Keyspace) {
		return
	}
	var version int64
	if s.setback != nil {
		version = s.setback.version
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	body, err := json.Marshal(setback{Of: what, At: s.revision, When: time.Now().UTC().Truncate(time.Second), Generation: o.Keyspace.Generation})
	if err == nil {
		_, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.setbackKey()), "=", version), clientv3.Compare(clientv3.Value(c.keyspaceKey()), "=", s.keyspace.String())).
			Then(clientv3.OpPut(c.setbackKey(), string(body))).Commit()
	}
	if err != nil {
		c.log.Warn("that etcd went back is not told to others yet", "err", err)
	}
}

// since reports whether a setback was found by somebody who remembers as much: etcd
// has one keyspace, and another is remembered. nil is none. One that does not say
// so was found by an older version, in the keyspace that etcd has.
func (b *setback) since(has, remembered keyspace) bool {
	return b != nil && cmp.Or(b.Generation, has.Generation) >= remembered.Generation
}

// whole holds in a transaction while nobody has found that etcd went back.
func (c *Client) whole() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(c.setbackKey()), "=", 0)
}

// unlessSetback returns the error of a transaction that failed since etcd went
// back: one whose conditions have [Client.whole], and that reads the setback last
// if they fail.
func unlessSetback(put *clientv3.TxnResponse) error {
	last := put.Responses[len(put.Responses)-1].Response.(*etcdserverpb.ResponseOp_ResponseRange)
	if b := setbackOf(last.ResponseRange.Kvs); b != nil {
		return lost(b.String())
	}
	return nil
}

// Lost is an [ErrLost] if anything that this client watches tells that etcd has
// lost state, is older than it was, or another one.
func (c *Client) Lost() error {
	for _, a := range c.alarms.now() {
		if _, why := a.fault(); pastLost(why) {
			return lost(fmt.Sprintf("%s: %v", a.what, why))
		}
	}
	return nil
}

func lost(why string) error {
	return refuse(ErrLost, millrace.ReasonUnavailable, "etcd", "restore it from what all brokers, coordinators and index nodes that you can reach kept of it", "etcd has lost state: %s", why)
}

// forked reports whether etcd's past is another than what is remembered: the
// newest document that is known here was never written there. Revisions do not tell
// once they have caught up, nor do documents that are gone or were written since.
// What etcd has compacted cannot be told.
func (d *Documents) forked(ctx context.Context, s *snapshot) (bool, error) {
	if d.origin.Back > 0 {
		return false, nil // as is known
	}
	return d.forkedFrom(ctx, d.Current(), d.origin, s)
}

// forkedFrom is forked of documents that somebody kept.
func (d *Documents) forkedFrom(ctx context.Context, docs map[string]Document, from origin, s *snapshot) (bool, error) {
	var newest Document
	for _, doc := range docs {
		if doc.Version > newest.Version {
			newest = doc
		}
	}
	now, there := s.values[newest.Name]
	switch {
	case newest.Version == 0 || s.keyspace != from.Keyspace:
		return false, nil
	case there && now.version == newest.Version:
		return !holdsBody(now.data, newest.Body), nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	got, err := d.c.etcd.Get(ctx, d.key(newest.Name), clientv3.WithRev(newest.Version), clientv3.WithKeysOnly())
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		return true, nil
	case errors.Is(err, rpctypes.ErrCompacted):
		return false, nil
	case err != nil:
		return false, away(err)
	}
	return len(got.Kvs) == 0 || got.Kvs[0].ModRevision != newest.Version, nil
}
