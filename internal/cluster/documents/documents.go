// Package documents watches the documents of a cluster, which are in etcd, one kind at a
// time. Each process keeps the last good documents in memory and on disk, whatever becomes
// of etcd. A document that is too large for a value of etcd is stored in parts. Only the
// packages that watch a kind know what is in its documents.
package documents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
)

// Document is one document of a [Kind].
type Document struct {
	Name    string
	Body    string
	Version int64 // the revision of etcd that wrote it, which rises with every change; 0: it was written before a restoration of etcd
}

// Kind is the watched documents of one kind.
type Kind struct {
	c      *cluster.Client
	kind   string
	state  *keyspace.Latest[documents]
	read   atomic.Int64    // see ReadAt
	origin keyspace.Origin // the etcd and the revision that the documents are from; only Watch and its goroutine use it
	log    *slog.Logger

	generation atomic.Int64 // of origin; see Generation
}

// documents are all of a kind, as they were last good.
type documents struct {
	by       map[string]Document // by name
	revision int64               // the revision of etcd at which they were first found to be so
	heard    int64               // the revision of the newest change of the kind, even of a document that is left out
	unread   []string            // see Unread
}

// errSilent is the fault of documents from disk, before etcd has answered at all.
var errSilent = errors.New("it has not answered since this process started")

// Watch watches the documents of a kind, such as "feeds". It returns once
// they have been read, from etcd or, when etcd is away, from disk, and works
// until ctx or the client ends.
func Watch(ctx context.Context, c *cluster.Client, kind string) (*Kind, error) {
	if err := keyspace.ValidID(kind); err != nil {
		return nil, fmt.Errorf("cluster: documents: %w", err)
	}
	d := &Kind{c: c, kind: kind, state: keyspace.NewLatest(documents{}), log: c.Log().With("documents", kind)}
	c.Alarm(ctx, kind, d.state.FaultSince)
	first, known := make(chan struct{}), sync.Once{}
	kept, err := loadDocs(c, kind)
	if err == nil {
		d.state.Set(documents{by: kept.Documents, revision: kept.Origin.Revision}, nil)
		d.origin = kept.Origin
		d.generation.Store(d.origin.Keyspace.Generation)
		c.BeginFromDisk(kind, docsFile(c, kind))
	}
	onDisk := err == nil
	if onDisk && c.Silent() { // etcd did not answer just now: do not wait for it once more for each kind
		d.state.Set(documents{by: kept.Documents, revision: kept.Origin.Revision}, cluster.Away(errSilent))
		known.Do(func() { close(first) })
	}
	c.Run(func() {
		c.Follow(ctx, Prefix(d.kind), func(s *keyspace.Snapshot, err error) {
			whole, heard := s, newestOf(s)
			if err == nil {
				if err = d.join(ctx, s); err == nil {
					s.Forked, err = d.forked(ctx, s)
				}
				if err != nil {
					s = nil
				}
			}
			from := d.origin
			if d.apply(s, heard, err) || d.origin.Moved(from) {
				saveDocs(c, kind, LastGood{Origin: d.origin, Documents: d.Current()})
			}
			c.TellFromDisk(kind, from, d.Fault())
			if whole != nil {
				c.TellSetback(ctx, kind, whole, d.origin)
				c.TellRemembered(ctx, kind, NewestLacked(d.Current(), whole), keptBodies(c, kind, d.Current(), whole), d.origin, d.Fault())
				whole.Bytes = sizeOf(d.Current())
			}
			if err == nil || onDisk {
				known.Do(func() { close(first) })
			}
		})
	})
	if err := c.AwaitFirst(ctx, "documents "+kind, first); err != nil {
		return nil, err
	}
	return d, nil
}

// Of returns a kind that is not watched, to write its documents and compare them. Methods that
// return what was read, such as Current, must not be called on it.
func Of(c *cluster.Client, kind string) *Kind { return &Kind{c: c, kind: kind} }

// Prefix returns the prefix of the keys of a kind's documents, without the cluster's prefix,
// which stands before it.
func Prefix(kind string) string { return cluster.DocsPrefix + kind + "/" }

// Key returns the key of a document in etcd.
func (d *Kind) Key(name string) string { return d.c.Prefix() + Prefix(d.kind) + name }

// Current returns the last good documents, by name. The caller must not
// change them.
func (d *Kind) Current() map[string]Document { v, _ := d.state.Get(); return v.by }

// Name returns the name of the kind.
func (d *Kind) Name() string { return d.kind }

// Client returns the client by which the documents are watched.
func (d *Kind) Client() *cluster.Client { return d.c }

// AsOf returns the documents as Current does, the revision of etcd at which they were first
// found to be so, and the fault as Fault does.
func (d *Kind) AsOf() (docs map[string]Document, revision int64, fault error) {
	v, fault := d.state.Get()
	return v.by, v.revision, fault
}

// Heard returns the documents as Current does, the revision of the newest change of the
// kind in etcd, and the fault as Fault does. The newest change may be of a document that
// is left out of Current, such as one with a name that no document may have.
func (d *Kind) Heard() (docs map[string]Document, newest int64, fault error) {
	v, fault := d.state.Get()
	return v.by, v.heard, fault
}

// Unread returns the names of the documents that etcd has and that could not be read, such
// as one that is too large. Current has the previous version of each, if there was one.
func (d *Kind) Unread() []string { v, _ := d.state.Get(); return v.unread }

// newestOf returns the revision of the newest change in a snapshot; 0 if s is nil.
func newestOf(s *keyspace.Snapshot) (newest int64) {
	if s == nil {
		return 0
	}
	for _, v := range s.Values {
		if v.Version <= s.Revision { // a version above the revision was written before a restoration of etcd
			newest = max(newest, v.Version)
		}
	}
	return newest
}

// ReadAt returns the newest revision of etcd at which the documents were found to be as they
// are now.
func (d *Kind) ReadAt() int64 { return d.read.Load() }

// Generation counts the restorations of etcd that these documents have been through,
// from 1; 0 if that is not known. It rises before [cluster.Client.Lost] says that all is well.
func (d *Kind) Generation() int64 { return d.generation.Load() }

// Changed returns a channel that is closed at the next change, see
// [cluster.Watcher.Changed].
func (d *Kind) Changed() <-chan struct{} { return d.state.Changed() }

// Fault returns why the documents may not be those that etcd should have, see
// [cluster.Watcher.Fault].
func (d *Kind) Fault() error { _, err := d.state.Get(); return err }

// apply takes over a snapshot, and reports whether documents have changed. If etcd has lost
// state or has another past than is known here, it keeps the documents, since nobody deleted
// those that etcd lacks. newest is the snapshot's newest change. If fault is not nil, the
// snapshot could not be read and s is nil.
func (d *Kind) apply(s *keyspace.Snapshot, newest int64, fault error) (changed bool) {
	was, oldFault := d.state.Get()
	old, revision, heard, unread, good := was.by, was.revision, was.heard, was.unread, false
	next, from := old, d.origin.Keyspace
	if fault == nil {
		fault = d.origin.Judge(s)
	}
	if (fault == nil || errors.Is(fault, keyspace.ErrBack)) && from == s.Keyspace && (s.Forked || Older(old, s)) { // also if other processes have found already that etcd went back, since each process tells what it keeps
		fault = d.origin.WentBack(s)
	}
	if fault == nil {
		next, heard, unread = make(map[string]Document, len(s.Values)), newest, s.Unread
		var out []error // for the documents that are left out
		for _, name := range slices.Sorted(maps.Keys(s.Values)) {
			v := s.Values[name]
			if err := keyspace.ValidID(name); err != nil { // Millrace did not write it, and names become labels, file names and lines of text
				out = append(out, fmt.Errorf("cluster: a document of %s is left out: %w; remove its key: etcdctl del %q", d.kind, err, d.Key(name)))
				continue
			}
			if v.Version > s.Revision { // written before a restoration of etcd
				v.Version = 0
			}
			next[name] = Document{Name: name, Body: string(v.Data), Version: v.Version}
		}
		fault = errors.Join(s.Fault, keyspace.Few(out))
		good = fault == nil
		if s.Keyspace.Generation > from.Generation && from.Generation > 0 {
			d.tellGivenUp(old, next)
		}
	}
	if good {
		revision = s.Revision
		defer d.read.Store(revision)
	}
	d.generation.Store(d.origin.Keyspace.Generation)
	changed = !maps.Equal(next, old)
	if !changed && heard == was.heard && keyspace.SameFault(fault, oldFault) {
		return false
	}
	if fault != nil && !keyspace.SameFault(fault, oldFault) {
		d.log.Error("serving the last good documents", "fault", fault)
	}
	d.state.Set(documents{next, revision, heard, unread}, fault)
	return changed
}

// tellGivenUp logs the documents that a restoration of etcd did not bring back, or brought
// back with another body than was kept here. It leaves out ledgers whose restored history
// has the last change that is known here, since those are newer. (A ledger is the record of
// the versions of an artefact, such as a model.)
func (d *Kind) tellGivenUp(old, next map[string]Document) {
	for name, was := range old {
		now, there := next[name]
		if there && now.Body == was.Body {
			continue
		}
		about := []any{"name", name, "revision", was.Version}
		if kept, has := ledger.ParseBoth(was.Body, now.Body); kept != nil && len(kept.History) > 0 {
			last := kept.History[len(kept.History)-1]
			if has != nil && slices.ContainsFunc(has.History, last.Same) {
				continue
			}
			about = append(about, "serves", kept.Serves(), "changed", last.When.Format(time.RFC3339), "by", last.Who)
		}
		d.log.Warn("giving up what was kept: etcd was restored without it", about...)
	}
}

// PutIf writes a document of at most [keyspace.MaxPartedBytes] (32 MiB) if the conditions
// hold, and reports whether they did. Readers find either the whole document or the one
// before.
func (d *Kind) PutIf(ctx context.Context, name string, body []byte, conditions ...clientv3.Cmp) (bool, error) {
	if len(body) > keyspace.MaxDocumentBytes {
		return d.putParts(ctx, name, body, conditions)
	}
	ctx, cancel := context.WithTimeout(ctx, d.c.AskTime())
	defer cancel()
	put, err := d.c.Etcd().Txn(ctx).If(conditions...).Then(clientv3.OpPut(d.Key(name), string(body)), clientv3.OpDelete(d.partsPrefix(name), clientv3.WithPrefix())).Commit()
	return err == nil && put.Succeeded, d.c.PerhapsDone(err)
}

// Delete removes a document; one that is not there is no error.
func (d *Kind) Delete(ctx context.Context, name string) error {
	_, err := d.c.Etcd().Txn(ctx).Then(clientv3.OpDelete(d.Key(name)), clientv3.OpDelete(d.partsPrefix(name), clientv3.WithPrefix())).Commit()
	if err != nil {
		return fmt.Errorf("cluster: delete %s %s: %w", d.kind, name, err)
	}
	return nil
}

// Change replaces the body of a document that is not stored in parts by what the function by
// makes of it; "" stands for no document. by is called again if others change the document
// at the same time. If by returns an error, nothing changes.
func (d *Kind) Change(ctx context.Context, name string, by func(body string) (string, error)) error {
	return d.ChangeAs(ctx, nil, name, by)
}

// ChangeAs is Change by a leader: it returns [cluster.ErrNotLeader] if lead no longer leads.
// A nil lead is no condition.
func (d *Kind) ChangeAs(ctx context.Context, lead *cluster.Lead, name string, by func(body string) (string, error)) error {
	for range cluster.MaxChanges {
		if done, err := d.tryChange(ctx, lead, name, by); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("cluster: %s %s: others change it all the time; try again", d.kind, name)
}

// tryChange tries a change once. It reports false if somebody else has changed the document
// meanwhile, so that it must be tried again.
func (d *Kind) tryChange(ctx context.Context, lead *cluster.Lead, name string, by func(body string) (string, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	same, changes, err := d.Prepare(ctx, name, by)
	if err != nil || changes == nil {
		return true, err
	}
	if err := d.c.Lost(); err != nil {
		return false, fmt.Errorf("cluster: %s %s: %w", d.kind, name, err)
	}
	conditions := []clientv3.Cmp{same, d.c.Whole()}
	if lead != nil {
		conditions = append(conditions, lead.Holds())
	}
	put, err := d.c.Etcd().Txn(ctx).If(conditions...).Then(changes...).Else(clientv3.OpGet(d.c.LeaderKey()), clientv3.OpGet(d.c.SetbackKey())).Commit()
	if err != nil {
		return false, fmt.Errorf("cluster: %s %s: %w", d.kind, name, d.c.PerhapsDone(cluster.Away(err)))
	}
	if put.Succeeded {
		return true, nil
	}
	if err := cluster.UnlessSetback(put); err != nil {
		return false, fmt.Errorf("cluster: %s %s: %w", d.kind, name, err)
	}
	if lead != nil && !lead.Is(put.Responses[0].GetResponseRange().Kvs) {
		return false, cluster.ErrNotLeader
	}
	return false, nil
}

// Prepare reads a document, and returns the condition that nobody else has changed it since,
// and the operations that change it as by says; nil if by changes nothing.
func (d *Kind) Prepare(ctx context.Context, name string, by func(body string) (string, error)) (same clientv3.Cmp, changes []clientv3.Op, err error) {
	if err := keyspace.ValidID(name); err != nil {
		return same, nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: err.Error(), WayOut: "choose another name"}
	}
	got, err := d.c.Etcd().Get(ctx, d.Key(name))
	if err != nil {
		return same, nil, fmt.Errorf("cluster: %s %s: %w", d.kind, name, cluster.Away(err))
	}
	body, revision := "", int64(0)
	if len(got.Kvs) > 0 {
		body, revision = string(got.Kvs[0].Value), got.Kvs[0].ModRevision
	}
	same = clientv3.Compare(clientv3.ModRevision(d.Key(name)), "=", revision)
	next, err := by(body)
	if err != nil || next == body {
		return same, nil, err
	}
	op := clientv3.OpDelete(d.Key(name))
	if next != "" {
		op = clientv3.OpPut(d.Key(name), next)
	}
	return same, []clientv3.Op{op, clientv3.OpDelete(d.partsPrefix(name), clientv3.WithPrefix())}, nil // also delete the parts of a document that was larger
}

// Each calls follow now, and whenever the documents have changed, until ctx or
// the client ends.
func (d *Kind) Each(ctx context.Context, follow func()) {
	changed := d.Changed()
	follow()
	d.c.Run(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.c.Context().Done():
				return
			case <-changed:
			}
			changed = d.Changed()
			follow()
		}
	})
}

// Older reports whether a document has an older version in s than in old. No write can cause
// that. So etcd went back to an earlier state, and its revisions have caught up since.
func Older(old map[string]Document, s *keyspace.Snapshot) bool {
	for name, v := range s.Values {
		if v.Version < old[name].Version {
			return true
		}
	}
	return false
}

// forked reports whether etcd has another past than is known here: whether the newest
// document that is known here was never written to this etcd. Once etcd's revisions have
// caught up, they alone do not tell. If etcd has compacted the revision that wrote the
// document, forked cannot tell, and returns false.
func (d *Kind) forked(ctx context.Context, s *keyspace.Snapshot) (bool, error) {
	if d.origin.Back > 0 {
		return false, nil // that etcd went back is known already
	}
	return d.ForkedFrom(ctx, d.Current(), d.origin, s)
}

// ForkedFrom reports what forked does, for documents that were kept elsewhere, with their
// origin.
func (d *Kind) ForkedFrom(ctx context.Context, docs map[string]Document, from keyspace.Origin, s *keyspace.Snapshot) (bool, error) {
	var newest Document
	for _, doc := range docs {
		if doc.Version > newest.Version {
			newest = doc
		}
	}
	now, there := s.Values[newest.Name]
	switch {
	case newest.Version == 0 || s.Keyspace != from.Keyspace:
		return false, nil
	case there && now.Version == newest.Version:
		return !HoldsBody(now.Data, newest.Body), nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.c.AskTime())
	defer cancel()
	got, err := d.c.Etcd().Get(ctx, d.Key(newest.Name), clientv3.WithRev(newest.Version), clientv3.WithKeysOnly())
	switch {
	case errors.Is(err, rpctypes.ErrFutureRev):
		return true, nil
	case errors.Is(err, rpctypes.ErrCompacted):
		return false, nil
	case err != nil:
		return false, cluster.Away(err)
	}
	return len(got.Kvs) == 0 || got.Kvs[0].ModRevision != newest.Version, nil
}

// sizeOf returns the bytes of the names and bodies of documents.
func sizeOf(docs map[string]Document) (bytes int) {
	for name, d := range docs {
		bytes += len(name) + len(d.Body)
	}
	return bytes
}

// NewestLacked returns the newest of those documents that a snapshot does not have in the
// same version; the zero value if there is none.
func NewestLacked(docs map[string]Document, s *keyspace.Snapshot) (k cluster.Kept) {
	for name, d := range docs {
		if d.Version > k.Revision && s.Values[name].Version != d.Version {
			k = cluster.Kept{Name: name, Revision: d.Version}
		}
	}
	return k
}
