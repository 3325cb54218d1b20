package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// remembered is the newest of each kind that any process keeps of what etcd has
// lost. Every process that keeps something newer raises it, so that a restoration
// from directories that lack it is refused. A restoration removes it.
type remembered struct {
	Keyspace keyspace.Name   `json:"keyspace"`
	Newest   map[string]keep `json:"newest"` // by kind of documents, and of the map
}

// keep is what a process keeps.
type keep struct {
	Name string `json:"name,omitempty"` // of the document
	// Revision wrote the document. Of the map it is the assignment's epoch.
	Revision int64  `json:"revision"`
	By       string `json:"by"` // host:directory
}

// mapKind is the map's in what is remembered.
const mapKind = "map"

func (c *Client) rememberedKey() string { return c.prefix + "remembered" }

// remembered reads what processes have said that they keep, and which revision wrote
// it. What cannot be read is as nothing: it is written again.
func (c *Client) remembered(ctx context.Context) (r remembered, version int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	got, err := c.etcd.Get(ctx, c.rememberedKey())
	if err != nil {
		return r, 0, away(err)
	}
	for _, kv := range got.Kvs {
		if json.Unmarshal(kv.Value, &r) != nil {
			r = remembered{}
		}
		version = kv.ModRevision
	}
	return r, version, nil
}

// tellRemembered says in etcd what this process keeps, where that is newer than what
// others have said. It is called with each snapshot, and so tries again. What has a
// fault only since others have found one knows no better.
func (c *Client) tellRemembered(ctx context.Context, kind string, k keep, o keyspace.Origin, fault error) {
	if c.readOnly || c.dir == "" || k.Revision == 0 || o.Keyspace == (keyspace.Name{}) || !keyspace.PastLost(fault) || o.Back == 0 && errors.Is(fault, keyspace.ErrBack) {
		return
	}
	err := c.raiseRemembered(ctx, kind, k, o.Keyspace)
	if err != nil {
		c.log.Warn("what is kept here of what etcd has lost is not told to others yet", "of", kind, "err", err)
	}
}

func (c *Client) raiseRemembered(ctx context.Context, kind string, k keep, of keyspace.Name) error {
	r, version, err := c.remembered(ctx)
	if err != nil || of.Before(r.Keyspace) || r.Keyspace == of && r.Newest[kind].Revision >= k.Revision {
		return err
	}
	if r.Keyspace != of || r.Newest == nil {
		r = remembered{Keyspace: of, Newest: map[string]keep{}}
	}
	host, _ := os.Hostname()
	k.By = host + ":" + c.dir
	r.Newest[kind] = k
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err = c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.rememberedKey()), "=", version)).Then(clientv3.OpPut(c.rememberedKey(), string(body))).Commit(); err != nil {
		return away(err)
	}
	return nil
}
