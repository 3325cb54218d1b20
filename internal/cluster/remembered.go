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
	// Bodies says of versions that serve by what etcd has lost who keeps their bytes,
	// by sum: host:directory.
	Bodies map[string]string `json:"bodies,omitempty"`
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
func (c *Client) tellRemembered(ctx context.Context, kind string, k keep, bodies []string, o keyspace.Origin, fault error) {
	if c.readOnly || c.dir == "" || k.Revision == 0 || o.Keyspace == (keyspace.Name{}) || !keyspace.PastLost(fault) || o.Back == 0 && errors.Is(fault, keyspace.ErrBack) {
		return
	}
	host, _ := os.Hostname()
	k.By = host + ":" + c.dir
	told, err := false, error(nil)
	for range maxChanges { // others tell theirs at the same time
		if told, err = c.raiseRemembered(ctx, kind, k, bodies, o.Keyspace); told || err != nil {
			break
		}
	}
	if !told {
		c.log.Warn("what is kept here of what etcd has lost is not told to others yet", "of", kind, "err", err)
	}
}

// raiseRemembered reports whether etcd has what is kept here, or something newer.
func (c *Client) raiseRemembered(ctx context.Context, kind string, k keep, bodies []string, of keyspace.Name) (told bool, err error) {
	r, version, err := c.remembered(ctx)
	if err != nil || of.Before(r.Keyspace) {
		return err == nil, err
	}
	if r.Keyspace != of || r.Newest == nil {
		r = remembered{Keyspace: of, Newest: map[string]keep{}, Bodies: r.Bodies}
	}
	if !r.raise(kind, k, bodies) {
		return true, nil
	}
	body, err := json.Marshal(r)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	put, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.rememberedKey()), "=", version)).Then(clientv3.OpPut(c.rememberedKey(), string(body))).Commit()
	if err != nil {
		return false, away(err)
	}
	return put.Succeeded, nil
}

// raise notes what a process keeps, and reports whether nobody has said so yet.
func (r *remembered) raise(kind string, k keep, bodies []string) (raised bool) {
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
