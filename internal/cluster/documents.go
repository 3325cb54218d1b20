package cluster

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
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Document is one of [Documents].
type Document struct {
	Name    string
	Body    string
	Version int64 // rises with every change
}

// Documents is the watched documents of one kind.
type Documents struct {
	c      *Client
	kind   string
	state  *keyspace.Latest[documents]
	read   atomic.Int64 // etcd's revision when they were last found to be as they are
	origin keyspace.Origin
	log    *slog.Logger

	generation atomic.Int64 // of origin, for everybody
}

// documents are all of a kind, as they were last good.
type documents struct {
	by       map[string]Document // by name
	revision int64               // of etcd, when they were first found to be so
}

var errSilent = errors.New("it has not answered since this process started")

// Documents watches the documents of a kind, such as "feeds". It returns once
// they have been read, from etcd or, when etcd is away, from disk, and works
// until ctx or the client ends.
func (c *Client) Documents(ctx context.Context, kind string) (*Documents, error) {
	if err := keyspace.ValidID(kind); err != nil {
		return nil, fmt.Errorf("cluster: documents: %w", err)
	}
	d := &Documents{c: c, kind: kind, state: keyspace.NewLatest(documents{}), log: c.log.With("documents", kind)}
	c.alarm(ctx, kind, d.state.FaultSince)
	first, known := make(chan struct{}), sync.Once{}
	kept, err := c.loadDocs(kind)
	if err == nil {
		d.state.Set(documents{kept.documents, kept.origin.Revision}, nil)
		d.origin = kept.origin
		d.generation.Store(d.origin.Keyspace.Generation)
		c.beginFromDisk(kind, c.docsFile(kind))
	}
	onDisk := err == nil
	if onDisk && c.isSilent() { // to wait for it again is to wait behind all who read something else
		d.state.Set(documents{kept.documents, kept.origin.Revision}, away(errSilent))
		known.Do(func() { close(first) })
	}
	c.run(func() {
		c.follow(ctx, prefixOfDocs(d.kind), func(s *keyspace.Snapshot, err error) {
			whole := s
			if err == nil {
				if err = d.join(ctx, s); err == nil {
					s.Forked, err = d.forked(ctx, s)
				}
				if err != nil {
					s = nil
				}
			}
			from := d.origin
			if d.apply(s, err) || d.origin.Moved(from) {
				c.saveDocs(kind, lastDocs{origin: d.origin, documents: d.Current()})
			}
			c.tellFromDisk(kind, from, d.Fault())
			if whole != nil {
				c.tellSetback(ctx, kind, whole, d.origin)
				c.tellRemembered(ctx, kind, newestLacked(d.Current(), whole), c.keptBodies(kind, d.Current(), whole), d.origin, d.Fault())
				whole.Bytes = sizeOf(d.Current())
			}
			if err == nil || onDisk {
				known.Do(func() { close(first) })
			}
		})
	})
	if err := c.first(ctx, "documents "+kind, first); err != nil {
		return nil, err
	}
	return d, nil
}

// docsOf are the documents of a kind, not watched: to write and compare them.
func docsOf(c *Client, kind string) *Documents { return &Documents{c: c, kind: kind} }

// prefixOfDocs is where the documents of a kind are, behind the cluster's prefix.
func prefixOfDocs(kind string) string { return docsPrefix + kind + "/" }

func (d *Documents) key(name string) string { return d.c.prefix + prefixOfDocs(d.kind) + name }

// Current returns the last good documents, by name. The caller must not
// change them.
func (d *Documents) Current() map[string]Document { v, _ := d.state.Get(); return v.by }

// name is of the kind.
func (d *Documents) name() string { return d.kind }

// Client is what the documents are watched by.
func (d *Documents) Client() *Client { return d.c }

// asOf is Current, the revision of etcd when it was first found to be so, and Fault.
func (d *Documents) asOf() (docs map[string]Document, revision int64, fault error) {
	v, fault := d.state.Get()
	return v.by, v.revision, fault
}

// readAt is the revision of etcd when the documents were last found to be as they are.
func (d *Documents) readAt() int64 { return d.read.Load() }

// Generation counts the restorations of etcd that these documents have been through,
// from 1; 0 if that is not known. It rises before [Client.Lost] says that all is well.
func (d *Documents) Generation() int64 { return d.generation.Load() }

// Changed is as [Watcher.Changed].
func (d *Documents) Changed() <-chan struct{} { return d.state.Changed() }

// Fault is as [Watcher.Fault].
func (d *Documents) Fault() error { _, err := d.state.Get(); return err }

// apply takes a snapshot over unless etcd has lost or changed its past: what
// it lacks then was not deleted by anybody.
func (d *Documents) apply(s *keyspace.Snapshot, fault error) (changed bool) {
	was, oldFault := d.state.Get()
	old, revision, good := was.by, was.revision, false
	next, from := old, d.origin.Keyspace
	if fault == nil {
		fault = d.origin.Judge(s)
	}
	if (fault == nil || errors.Is(fault, keyspace.ErrBack)) && from == s.Keyspace && (s.Forked || older(old, s)) { // also where others have found it: each says what it keeps
		fault = d.origin.WentBack(s)
	}
	if fault == nil {
		next = make(map[string]Document, len(s.Values))
		fault = s.Fault
		for name, v := range s.Values {
			if err := keyspace.ValidID(name); err != nil { // nobody here wrote it, and names become labels, files and lines
				fault = errors.Join(fault, fmt.Errorf("cluster: a document of %s is left out: %w", d.kind, err))
				continue
			}
			if v.Version > s.Revision { // kept from before a restoration
				v.Version = 0
			}
			next[name] = Document{Name: name, Body: string(v.Data), Version: v.Version}
		}
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
	if !changed && keyspace.SameFault(fault, oldFault) {
		return false
	}
	if fault != nil && !keyspace.SameFault(fault, oldFault) {
		d.log.Error("serving the last good documents", "fault", fault)
	}
	d.state.Set(documents{next, revision}, fault)
	return changed
}

// tellGivenUp logs which documents a restoration has otherwise than they were kept here.
// An artefact of which it has all changes is none.
func (d *Documents) tellGivenUp(old, next map[string]Document) {
	for name, was := range old {
		now, there := next[name]
		if there && now.Body == was.Body {
			continue
		}
		about := []any{"name", name, "revision", was.Version}
		if kept, has := ledgers(was.Body, now.Body); kept != nil && len(kept.History) > 0 {
			last := kept.History[len(kept.History)-1]
			if has != nil && slices.ContainsFunc(has.History, last.same) {
				continue
			}
			about = append(about, "serves", kept.serves(), "changed", last.When.Format(time.RFC3339), "by", last.Who)
		}
		d.log.Warn("giving up what was kept: etcd was restored without it", about...)
	}
}

// Put writes a document of at most 32 MiB. Readers find it whole, or the one
// before.
func (d *Documents) Put(ctx context.Context, name string, body []byte) error {
	if err := keyspace.ValidID(name); err != nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: err.Error(), WayOut: "choose another name"}
	}
	if _, err := d.put(ctx, name, body); err != nil {
		return fmt.Errorf("cluster: put %s %s: %w", d.kind, name, err)
	}
	return nil
}

// put writes a document if the conditions hold, and reports whether they did.
func (d *Documents) put(ctx context.Context, name string, body []byte, conditions ...clientv3.Cmp) (bool, error) {
	if len(body) > keyspace.MaxDocumentBytes {
		return d.putParts(ctx, name, body, conditions)
	}
	put, err := d.c.etcd.Txn(ctx).If(conditions...).Then(clientv3.OpPut(d.key(name), string(body)), clientv3.OpDelete(d.partsPrefix(name), clientv3.WithPrefix())).Commit()
	return err == nil && put.Succeeded, err
}

// Delete removes a document; one that is not there is no error.
func (d *Documents) Delete(ctx context.Context, name string) error {
	_, err := d.c.etcd.Txn(ctx).Then(clientv3.OpDelete(d.key(name)), clientv3.OpDelete(d.partsPrefix(name), clientv3.WithPrefix())).Commit()
	if err != nil {
		return fmt.Errorf("cluster: delete %s %s: %w", d.kind, name, err)
	}
	return nil
}

// Change replaces a document, of one piece, by what the function makes of it, ""
// being none; it is asked again after others have changed the same. An error of
// the function changes nothing.
func (d *Documents) Change(ctx context.Context, name string, by func(body string) (string, error)) error {
	return d.ChangeAs(ctx, nil, name, by)
}

// ChangeAs is Change by a leader: it gives [ErrNotLeader] once that does not hold
// any more. nil: by anybody.
func (d *Documents) ChangeAs(ctx context.Context, lead *Lead, name string, by func(body string) (string, error)) error {
	for range maxChanges {
		if done, err := d.tryChange(ctx, lead, name, by); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("cluster: %s %s: others change it all the time; try again", d.kind, name)
}

// tryChange reports whether etcd has what it should, which it has not where
// somebody else made another change meanwhile.
func (d *Documents) tryChange(ctx context.Context, lead *Lead, name string, by func(body string) (string, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	same, change, err := d.prepare(ctx, name, by)
	if err != nil || change == nil {
		return true, err
	}
	if err := d.c.Lost(); err != nil {
		return false, fmt.Errorf("cluster: %s %s: %w", d.kind, name, err)
	}
	conditions := []clientv3.Cmp{same, d.c.whole()}
	if lead != nil {
		conditions = append(conditions, lead.holds())
	}
	put, err := d.c.etcd.Txn(ctx).If(conditions...).Then(*change).Else(clientv3.OpGet(d.c.leaderKey()), clientv3.OpGet(d.c.setbackKey())).Commit()
	if err != nil {
		return false, fmt.Errorf("cluster: %s %s: %w", d.kind, name, away(err))
	}
	if put.Succeeded {
		return true, nil
	}
	if err := unlessSetback(put); err != nil {
		return false, fmt.Errorf("cluster: %s %s: %w", d.kind, name, err)
	}
	if lead != nil && !lead.is(put.Responses[0].GetResponseRange().Kvs) {
		return false, ErrNotLeader
	}
	return false, nil
}

// prepare reads a document and returns what changes it, nil for no change, and
// the condition that nobody else has changed it.
func (d *Documents) prepare(ctx context.Context, name string, by func(body string) (string, error)) (same clientv3.Cmp, change *clientv3.Op, err error) {
	if err := keyspace.ValidID(name); err != nil {
		return same, nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: err.Error(), WayOut: "choose another name"}
	}
	got, err := d.c.etcd.Get(ctx, d.key(name))
	if err != nil {
		return same, nil, fmt.Errorf("cluster: %s %s: %w", d.kind, name, away(err))
	}
	body, revision := "", int64(0)
	if len(got.Kvs) > 0 {
		body, revision = string(got.Kvs[0].Value), got.Kvs[0].ModRevision
	}
	same = clientv3.Compare(clientv3.ModRevision(d.key(name)), "=", revision)
	next, err := by(body)
	if err != nil || next == body {
		return same, nil, err
	}
	op := clientv3.OpDelete(d.key(name))
	if next != "" {
		op = clientv3.OpPut(d.key(name), next)
	}
	return same, &op, nil
}

// each calls follow now, and whenever the documents have changed, until ctx or
// the client ends.
func (d *Documents) each(ctx context.Context, follow func()) {
	changed := d.Changed()
	follow()
	d.c.run(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-d.c.ctx.Done():
				return
			case <-changed:
			}
			changed = d.Changed()
			follow()
		}
	})
}

// older reports whether a document is older than it has been, which no later
// write can make it: etcd went back, and its revisions have caught up since.
func older(old map[string]Document, s *keyspace.Snapshot) bool {
	for name, v := range s.Values {
		if v.Version < old[name].Version {
			return true
		}
	}
	return false
}

// forked reports whether etcd's past is another than what is remembered: the
// newest document that is known here was never written there. Revisions do not tell
// once they have caught up, nor do documents that are gone or were written since.
// What etcd has compacted cannot be told.
func (d *Documents) forked(ctx context.Context, s *keyspace.Snapshot) (bool, error) {
	if d.origin.Back > 0 {
		return false, nil // as is known
	}
	return d.forkedFrom(ctx, d.Current(), d.origin, s)
}

// forkedFrom is forked of documents that somebody kept.
func (d *Documents) forkedFrom(ctx context.Context, docs map[string]Document, from keyspace.Origin, s *keyspace.Snapshot) (bool, error) {
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
		return !holdsBody(now.Data, newest.Body), nil
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

func sizeOf(docs map[string]Document) (bytes int) {
	for name, d := range docs {
		bytes += len(name) + len(d.Body)
	}
	return bytes
}

// newestLacked is the newest of documents that a snapshot does not have just so.
func newestLacked(docs map[string]Document, s *keyspace.Snapshot) (k keep) {
	for name, d := range docs {
		if d.Version > k.Revision && s.Values[name].Version != d.Version {
			k = keep{Name: name, Revision: d.Version}
		}
	}
	return k
}
