package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Remembered is the newest of each kind that any process keeps of what etcd has
// lost. Every process that keeps something newer raises it, so that a restoration
// from directories that lack it is refused. A restoration removes it.
type Remembered struct {
	Keyspace keyspace.Name   `json:"keyspace"`
	Newest   map[string]Kept `json:"newest"` // by kind of documents, and of the map
	// Bodies says by checksum which host:directory keeps the bytes of a version that
	// serves according to a document that etcd has lost.
	Bodies map[string]string `json:"bodies,omitempty"`
}

// Kept is what a process keeps.
type Kept struct {
	Name string `json:"name,omitempty"` // of the document
	// Revision wrote the document. Of the map it is the assignment's epoch.
	Revision int64  `json:"revision"`
	By       string `json:"by"` // host:directory
}

// MapKind is the key of the map in [Remembered].Newest.
const MapKind = "map"

// RememberedKey holds a [Remembered], while processes keep what etcd has lost.
func (c *Client) RememberedKey() string { return c.prefix + "remembered" }

// Remembered reads what processes have said that they keep, and which revision wrote
// it. What cannot be read is as nothing: it is written again.
func (c *Client) Remembered(ctx context.Context) (r Remembered, version int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTime())
	defer cancel()
	got, err := c.etcd.Get(ctx, c.RememberedKey())
	if err != nil {
		return r, 0, Away(err)
	}
	for _, kv := range got.Kvs {
		if json.Unmarshal(kv.Value, &r) != nil {
			r = Remembered{}
		}
		version = kv.ModRevision
	}
	return r, version, nil
}

// TellRemembered says in etcd what this process keeps, where that is newer than what
// others have said. It is called with each snapshot, and so tries again. A process
// that has not itself seen etcd go back, and reports ErrBack because others have seen
// it, keeps nothing newer than etcd, and says nothing.
func (c *Client) TellRemembered(ctx context.Context, kind string, k Kept, bodies []string, o keyspace.Origin, fault error) {
	if c.readOnly || c.dir == "" || k.Revision == 0 || o.Keyspace == (keyspace.Name{}) || !keyspace.PastLost(fault) || o.Back == 0 && errors.Is(fault, keyspace.ErrBack) {
		return
	}
	host, _ := os.Hostname()
	k.By = host + ":" + c.dir
	told, err := false, error(nil)
	for range MaxChanges { // others tell theirs at the same time
		if told, err = c.raiseRemembered(ctx, kind, k, bodies, o.Keyspace); told || err != nil {
			break
		}
	}
	if !told {
		c.log.Warn("what is kept here of what etcd has lost is not told to others yet", "of", kind, "err", err)
	}
}

// raiseRemembered reports whether etcd has what is kept here, or something newer.
func (c *Client) raiseRemembered(ctx context.Context, kind string, k Kept, bodies []string, of keyspace.Name) (told bool, err error) {
	r, version, err := c.Remembered(ctx)
	if err != nil || of.Before(r.Keyspace) {
		return err == nil, err
	}
	if r.Keyspace != of || r.Newest == nil {
		r = Remembered{Keyspace: of, Newest: map[string]Kept{}, Bodies: r.Bodies}
	}
	if !r.raise(kind, k, bodies) {
		return true, nil
	}
	body, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	put, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.RememberedKey()), "=", version)).Then(clientv3.OpPut(c.RememberedKey(), string(body))).Commit()
	if err != nil {
		return false, Away(err)
	}
	return put.Succeeded, nil
}

// raise notes what a process keeps, and reports whether nobody has said so yet.
func (r *Remembered) raise(kind string, k Kept, bodies []string) (raised bool) {
	if r.Newest[kind].Revision < k.Revision {
		r.Newest[kind], raised = k, true
	}
	for _, sum := range bodies {
		if r.Bodies[sum] != "" {
			continue
		}
		if r.Bodies == nil {
			r.Bodies = map[string]string{}
		}
		r.Bodies[sum], raised = k.By, true
	}
	return raised
}
