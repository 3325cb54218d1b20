package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Remembered is a document in etcd about state that etcd has lost and processes still have in
// their data directories: the newest of each kind. Every process that has something newer
// writes that into it. So a restoration from directories that lack the newest state is
// refused. A restoration removes the document.
type Remembered struct {
	Keyspace keyspace.Name   `json:"keyspace"`
	Newest   map[string]Kept `json:"newest"` // by kind of documents, or MapKind
	// Bodies says who keeps the bytes of versions that serve according to documents that
	// etcd has lost: a host:directory by checksum of the bytes.
	Bodies map[string]string `json:"bodies,omitempty"`
}

// Kept is the newest state of a kind in a process's data directory.
type Kept struct {
	Name string `json:"name,omitempty"` // of the newest document
	// Revision is that of etcd at which the document was written; for the map it is the
	// epoch of the assignment.
	Revision int64  `json:"revision"`
	By       string `json:"by"` // host:directory
}

// MapKind is the key of the map in [Remembered].Newest.
const MapKind = "map"

// RememberedKey returns the key of the [Remembered] document. It exists while processes have
// state that etcd has lost.
func (c *Client) RememberedKey() string { return c.prefix + "remembered" }

// Remembered reads the [Remembered] document, and the revision at which it was written; zero
// if there is none. A document that cannot be parsed counts as empty, and is written anew.
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

// TellRemembered writes into [Remembered] what this process has on disk of a kind, if that is
// newer than what is there and fault says that etcd has lost state. It is called with each
// snapshot, so a failure is tried again. A process that reports ErrBack only because others
// saw etcd go back (o.Back is 0) has nothing newer than etcd, and writes nothing.
func (c *Client) TellRemembered(ctx context.Context, kind string, k Kept, bodies []string, o keyspace.Origin, fault error) {
	if c.readOnly || c.dir == "" || k.Revision == 0 || o.Keyspace == (keyspace.Name{}) || !keyspace.PastLost(fault) || o.Back == 0 && errors.Is(fault, keyspace.ErrBack) {
		return
	}
	host, _ := os.Hostname()
	k.By = host + ":" + c.dir
	told, err := false, error(nil)
	for range MaxChanges { // others write at the same time
		if told, err = c.raiseRemembered(ctx, kind, k, bodies, o.Keyspace); told || err != nil {
			break
		}
	}
	if !told {
		c.log.Warn("what is kept here of what etcd has lost is not told to others yet", "of", kind, "err", err)
	}
}

// raiseRemembered tries once to write k and bodies into [Remembered]. told says that they are
// there now, or something newer is.
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

// raise adds what a process has, and reports whether that changed anything.
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
