package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/line"
)

// remembered is the newest of each kind that any process keeps of what etcd has
// lost. Every process that keeps something newer raises it, so that a restoration
// from directories that lack it is refused. A restoration removes it.
type remembered struct {
	Keyspace keyspace        `json:"keyspace"`
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
func (c *Client) tellRemembered(ctx context.Context, kind string, k keep, o origin, fault error) {
	if c.readOnly || c.dir == "" || k.Revision == 0 || o.Keyspace == (keyspace{}) || !pastLost(fault) || o.Back == 0 && errors.Is(fault, errBack) {
		return
	}
	err := c.raiseRemembered(ctx, kind, k, o.Keyspace)
	if err != nil {
		c.log.Warn("what is kept here of what etcd has lost is not told to others yet", "of", kind, "err", err)
	}
}

func (c *Client) raiseRemembered(ctx context.Context, kind string, k keep, of keyspace) error {
	r, version, err := c.remembered(ctx)
	if err != nil || of.before(r.Keyspace) || r.Keyspace == of && r.Newest[kind].Revision >= k.Revision {
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

// newestLacked is the newest of documents that a snapshot does not have just so.
func newestLacked(docs map[string]Document, s *snapshot) (k keep) {
	for name, d := range docs {
		if d.Version > k.Revision && s.values[name].version != d.Version {
			k = keep{Name: name, Revision: d.Version}
		}
	}
	return k
}

// lacked tells what processes keep that is newer than all that the directories and etcd have.
func (k *kept) lacked(r remembered, have *snapshot, epoch int64) (all []string) {
	for _, kind := range slices.Sorted(maps.Keys(r.Newest)) {
		n := r.Newest[kind]
		by := line.Of(n.By)
		if kind == mapKind {
			if newest := max(k.assignment.Epoch, epoch); newest < n.Revision {
				all = append(all, fmt.Sprintf("assignment %d, which is kept in %s (here it is %d)", n.Revision, by, newest))
			}
			continue
		}
		now := have.of(kind)
		if now.keyspace == r.Keyspace && now.values[n.Name].version == n.Revision {
			continue
		}
		var newest int64 // what etcd has itself may be of those who were new when it had gone back
		for _, docs := range k.docs[kind] {
			if docs.origin.Keyspace == r.Keyspace {
				newest = max(newest, newestLacked(docs.documents, now).Revision)
			}
		}
		if newest < n.Revision {
			all = append(all, fmt.Sprintf("%s %s of revision %d, which is kept in %s", kind, line.Of(n.Name), n.Revision, by))
		}
	}
	return all
}

// refuseOlder refuses directories that are older than what processes keep.
func (k *kept) refuseOlder(r remembered, have *snapshot, epoch int64) error {
	const wayOut = "name the data directories of all brokers, coordinators and index nodes that you can reach"
	if b := have.setback; b != nil && b.Generation > k.keyspace.Generation {
		return refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", wayOut, "at %s a process remembered restoration %d of etcd, and these directories know of %d", b.When.Format(time.RFC3339), b.Generation-1, k.keyspace.Generation-1)
	}
	if k.keyspace.before(r.Keyspace) {
		return refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", wayOut, "a process remembers restoration %d of etcd, and these directories know of %d", r.Keyspace.Generation-1, k.keyspace.Generation-1)
	}
	if k.keyspace != r.Keyspace {
		return nil
	}
	if all := k.lacked(r, have, epoch); len(all) > 0 {
		return refuse(ErrOlderDirs, millrace.ReasonInvalid, "data", wayOut, "processes remember what is newer than all that is in these directories: %s", strings.Join(all, "; "))
	}
	return nil
}
