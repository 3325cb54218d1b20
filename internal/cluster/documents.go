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

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
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
	state  *latest[documents]
	read   atomic.Int64 // etcd's revision when they were last found to be as they are
	origin origin
	log    *slog.Logger

	generation atomic.Int64 // of origin, for everybody
}

// documents are all of a kind, as they were last good.
type documents struct {
	by       map[string]Document // by name
	revision int64               // of etcd, when they were first found to be so
}

// docsPrefix is where all documents are.
const docsPrefix = "docs/"

var errSilent = errors.New("it has not answered since this process started")

// Documents watches the documents of a kind, such as "feeds". It returns once
// they have been read, from etcd or, when etcd is away, from disk, and works
// until ctx or the client ends.
func (c *Client) Documents(ctx context.Context, kind string) (*Documents, error) {
	if err := validID(kind); err != nil {
		return nil, fmt.Errorf("cluster: documents: %w", err)
	}
	d := &Documents{c: c, kind: kind, state: newLatest(documents{}), log: c.log.With("documents", kind)}
	c.alarms.add(ctx, kind, d.state.faultSince)
	first, known := make(chan struct{}), sync.Once{}
	kept, err := c.loadDocs(kind)
	if err == nil {
		d.state.set(documents{kept.documents, kept.origin.Revision}, nil)
		d.origin = kept.origin
		d.generation.Store(d.origin.Keyspace.Generation)
		c.fromDisk.begin(kind, c.docsFile(kind))
	}
	onDisk := err == nil
	if onDisk && c.silent.Load() { // to wait for it again is to wait behind all who read something else
		d.state.set(documents{kept.documents, kept.origin.Revision}, away(errSilent))
		known.Do(func() { close(first) })
	}
	c.wg.Go(func() {
		c.follow(ctx, d.prefix(), func(s *snapshot, err error) {
			whole := s
			if err == nil {
				if err = d.join(ctx, s); err == nil {
					s.forked, err = d.forked(ctx, s)
				}
				if err != nil {
					s = nil
				}
			}
			from := d.origin
			if d.apply(s, err) || d.origin.moved(from) {
				c.saveDocs(kind, lastDocs{origin: d.origin, documents: d.Current()})
			}
			c.tellFromDisk(kind, from, d.Fault())
			if whole != nil {
				c.tellSetback(ctx, kind, whole, d.origin)
				c.tellRemembered(ctx, kind, newestLacked(d.Current(), whole), d.origin, d.Fault())
				whole.bytes = sizeOf(d.Current())
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

func (d *Documents) prefix() string { return docsPrefix + d.kind + "/" }

func (d *Documents) key(name string) string { return d.c.prefix + d.prefix() + name }

// Current returns the last good documents, by name. The caller must not
// change them.
func (d *Documents) Current() map[string]Document { v, _ := d.state.get(); return v.by }

// Generation counts the restorations of etcd that these documents have been through,
// from 1; 0 if that is not known. It rises before [Client.Lost] says that all is well.
func (d *Documents) Generation() int64 { return d.generation.Load() }

// Changed is as [Watcher.Changed].
func (d *Documents) Changed() <-chan struct{} { return d.state.changed() }

// Fault is as [Watcher.Fault].
func (d *Documents) Fault() error { _, err := d.state.get(); return err }

// apply takes a snapshot over unless etcd has lost or changed its past: what
// it lacks then was not deleted by anybody.
func (d *Documents) apply(s *snapshot, fault error) (changed bool) {
	was, oldFault := d.state.get()
	old, revision, good := was.by, was.revision, false
	next, from := old, d.origin.Keyspace
	if fault == nil {
		fault = d.origin.judge(s)
	}
	if (fault == nil || errors.Is(fault, errBack)) && from == s.keyspace && (s.forked || older(old, s)) { // also where others have found it: each says what it keeps
		fault = d.origin.wentBack(s)
	}
	if fault == nil {
		next = make(map[string]Document, len(s.values))
		fault = s.fault
		for name, v := range s.values {
			if err := validID(name); err != nil { // nobody here wrote it, and names become labels, files and lines
				fault = errors.Join(fault, fmt.Errorf("cluster: a document of %s is left out: %w", d.kind, err))
				continue
			}
			if v.version > s.revision { // kept from before a restoration
				v.version = 0
			}
			next[name] = Document{Name: name, Body: string(v.data), Version: v.version}
		}
		good = fault == nil
		if s.keyspace.Generation > from.Generation && from.Generation > 0 {
			d.tellGivenUp(old, next)
		}
	}
	if good {
		revision = s.revision
		defer d.read.Store(revision)
	}
	d.generation.Store(d.origin.Keyspace.Generation)
	changed = !maps.Equal(next, old)
	if !changed && sameFault(fault, oldFault) {
		return false
	}
	if fault != nil && !sameFault(fault, oldFault) {
		d.log.Error("serving the last good documents", "fault", fault)
	}
	d.state.set(documents{next, revision}, fault)
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

// older reports whether a document is older than it has been, which no later
// write can make it: etcd went back, and its revisions have caught up since.
func older(old map[string]Document, s *snapshot) bool {
	for name, v := range s.values {
		if v.version < old[name].Version {
			return true
		}
	}
	return false
}

// Put writes a document of at most 32 MiB. Readers find it whole, or the one
// before.
func (d *Documents) Put(ctx context.Context, name string, body []byte) error {
	if err := validID(name); err != nil {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: err.Error(), WayOut: "choose another name"}
	}
	if _, err := d.put(ctx, name, body); err != nil {
		return fmt.Errorf("cluster: put %s %s: %w", d.kind, name, err)
	}
	return nil
}

// put writes a document if the conditions hold, and reports whether they did.
func (d *Documents) put(ctx context.Context, name string, body []byte, conditions ...clientv3.Cmp) (bool, error) {
	if len(body) > maxDocumentBytes {
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
	if err := validID(name); err != nil {
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

// With is a change of a document that is made with one of an artefact: both in
// one transaction, or neither.
type With struct {
	Documents *Documents
	Name      string
	By        func(body string) (string, error) // as of [Documents.Change]
}

// each calls follow now, and whenever the documents have changed, until ctx or
// the client ends.
func (d *Documents) each(ctx context.Context, follow func()) {
	changed := d.Changed()
	follow()
	d.c.wg.Go(func() {
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
