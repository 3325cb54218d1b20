package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/partition"
)

// Restored is what [Client.Restore] brought back.
type Restored struct {
	Epoch     int64 // of the assignment
	Documents int
	Secrets   int
}

// ErrNothingLost refuses a restoration.
var ErrNothingLost = errors.New("cluster: etcd holds all that these directories know of; nothing is restored")

// Restore brings the state of a cluster back into an etcd that lost it, or that
// was restored from an older backup: out of directories in which processes of
// the cluster kept what was last good ([Config.Dir]), the newest of each thing.
// What etcd has been given since stays. Processes that keep the last good state
// take this for its sequel, and none takes it for anything else.
func (c *Client) Restore(ctx context.Context, dirs ...string) (r Restored, err error) {
	kept, err := readKept(dirs)
	if err != nil {
		return r, err
	}
	have, err := c.list(ctx, "")
	if err != nil {
		return r, err
	}
	if now := (origin{Revision: have.revision, Keyspace: have.keyspace}); now.Keyspace == kept.origin.Keyspace && now.compare(kept.origin) >= 0 ||
		now.Keyspace.Generation > kept.origin.Keyspace.Generation {
		return r, ErrNothingLost
	}
	for kind, docs := range kept.docs {
		d := &Documents{c: c, kind: kind}
		for _, doc := range docs.documents {
			if _, there := have.values[d.prefix()+doc.Name]; there {
				continue
			}
			if err := c.restoreBodies(ctx, kind, doc, dirs); err != nil {
				return r, fmt.Errorf("cluster: restore: %w", err)
			}
			if err := d.Put(ctx, doc.Name, []byte(doc.Body)); err != nil {
				return r, fmt.Errorf("cluster: restore: %w", err)
			}
			r.Documents++
		}
	}
	for name, secret := range kept.secrets {
		now, err := c.share(ctx, name, secret)
		if err != nil {
			return r, fmt.Errorf("cluster: restore: secret %s: %w", name, err)
		}
		if _, there := have.values["secrets/"+name]; !there && bytes.Equal(now, secret) {
			r.Secrets++
		}
	}
	// Last, since it is what makes everybody believe the rest.
	a, key := kept.assignment, mapPrefix+"assignment"
	old := have.values[key]
	if present, err := decodeAssignment(old.data); err == nil && present.Epoch > a.Epoch {
		a = *present // somebody has assigned since
	} else {
		a.Epoch++
	}
	body, err := json.Marshal(a)
	if err != nil {
		return r, fmt.Errorf("cluster: restore: %w", err)
	}
	next := newKeyspace(1 + max(kept.origin.Keyspace.Generation, have.keyspace.Generation))
	put, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(c.prefix+key), "=", old.version)).Then(
		clientv3.OpPut(c.partitionsKey(), strconv.Itoa(partition.Count)),
		clientv3.OpPut(c.keyspaceKey(), next.String()),
		clientv3.OpPut(c.prefix+key, string(body)),
	).Commit()
	if err != nil {
		return r, fmt.Errorf("cluster: restore: %w", err)
	}
	if !put.Succeeded {
		return r, fmt.Errorf("%w: somebody assigned at the same time", ErrEpoch)
	}
	r.Epoch = a.Epoch
	return r, nil
}

// kept is the newest that is known of a cluster.
type kept struct {
	origin     origin
	assignment Assignment
	docs       map[string]lastDocs // by kind
	secrets    map[string][]byte
}

func readKept(dirs []string) (kept, error) {
	k := kept{docs: map[string]lastDocs{}, secrets: map[string][]byte{}}
	for _, dir := range dirs {
		if err := k.read(dir); err != nil {
			return k, fmt.Errorf("cluster: restore: %w", err)
		}
	}
	if k.assignment.Epoch == 0 {
		return k, errors.New("cluster: restore: no directory is named")
	}
	return k, nil
}

func (k *kept) read(dir string) error {
	m, origin, err := (&Client{dir: dir}).loadMap()
	if err != nil {
		return err
	}
	if k.assignment.Epoch == 0 || origin.compare(k.origin) > 0 {
		k.origin, k.assignment = origin, m.Assignment()
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		file := filepath.Join(dir, f.Name())
		if name, ok := strings.CutPrefix(f.Name(), "secret-"); ok {
			if k.secrets[name], err = os.ReadFile(file); err != nil || len(k.secrets[name]) != secretBytes {
				return fmt.Errorf("%s is no secret: %v", file, err)
			}
		}
		kind, ok := strings.CutPrefix(strings.TrimSuffix(f.Name(), ".json"), "docs-")
		if !ok || !strings.HasSuffix(f.Name(), ".json") {
			continue
		}
		docs, err := readDocs(file)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if last, known := k.docs[kind]; !known || docs.origin.compare(last.origin) > 0 {
			k.docs[kind] = docs
		}
	}
	return nil
}

// compare orders what was heard of a cluster by age, oldest first.
func (o origin) compare(p origin) int {
	return cmp.Or(cmp.Compare(o.Keyspace.Generation, p.Keyspace.Generation), cmp.Compare(o.Revision, p.Revision))
}
