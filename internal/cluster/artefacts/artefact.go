// Package artefacts watches named things in etcd, such as models. A name has immutable
// versions, and a pointer says which of them serves. Each name has a document, its ledger,
// with its versions, its pointer and its history. The bytes of a version, its body, stand
// apart from it, under their checksum.
package artefacts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
)

// Version names one immutable artefact of a kind: the same three always mean
// the same bytes.
type Version struct {
	Name    string
	Version string
	Sum     string // SHA-256 of the bytes, in hex
}

// String returns the version as people read it: likes 2.
func (v Version) String() string { return v.Name + " " + v.Version }

// Why a change is refused. A [millrace.Error] that says more wraps each.
var (
	ErrOtherBytes = errors.New("cluster: the version has other bytes")
	ErrNoVersion  = errors.New("cluster: no such version")
	// ErrNothingBefore is an [ErrNoVersion] too: no version that is still there served
	// before the present one, so nothing can be rolled back to.
	ErrNothingBefore = fmt.Errorf("%w that served before", ErrNoVersion)
	// ErrUnreadable says that what etcd has under the name is no ledger; see
	// [Kind.DropUnreadable].
	ErrUnreadable = errors.New("cluster: it cannot be read")
	ErrInUse      = errors.New("cluster: the version is in use")
	// ErrMoved says that somebody else changed the name, or its kind, at the same time.
	ErrMoved = errors.New("cluster: another version serves than was expected")
)

// Kind is the watched artefacts of one kind, such as models. Versions are
// immutable; the pointer of each name says which of them serves, and moves
// atomically. A Kind keeps the last good state, and the bodies that it has
// read, across outages and restarts, as a [documents.Kind] does. It is safe for
// concurrent use.
type Kind struct {
	c      *cluster.Client
	kind   string
	docs   *documents.Kind
	state  *keyspace.Latest[map[string]*ledger.Ledger] // last good ones by name, never changed once there
	heard  atomic.Int64                                // see [documents.Kind.Heard]
	never  func(Version) bool                          // see Spare; nil: no version
	last   func(Version, []ledger.Event) bool          // see Spare; nil: no version
	used   used
	unkept unkept
	log    *slog.Logger
}

// Watch watches the artefacts of a kind. It returns when [documents.Watch] does: once the
// ledgers have been read, from etcd or, while that is away, from disk.
func Watch(ctx context.Context, c *cluster.Client, kind string) (*Kind, error) {
	docs, err := documents.Watch(ctx, c, kind)
	if err != nil {
		return nil, err
	}
	a := &Kind{c: c, kind: kind, docs: docs, state: keyspace.NewLatest(map[string]*ledger.Ledger{}), log: c.Log().With("documents", kind)}
	a.loadUsed()
	c.Alarm(ctx, kind, a.state.FaultSince)
	docs.Each(ctx, a.follow)
	if c.Dir() != "" {
		c.Run(func() { a.keepServing(ctx) })
	}
	return a, nil
}

// Of returns the artefacts of a kind without watching them. Only [Kind.Upload] and
// [Kind.PartsThere] work on it.
func Of(c *cluster.Client, kind string) *Kind { return &Kind{c: c, kind: kind} }

// follow takes over the ledgers that have changed. Of a malformed one it keeps what was
// good before.
func (a *Kind) follow() {
	old, _ := a.state.Get()
	docs, heard, fault := a.docs.Heard()
	next := make(map[string]*ledger.Ledger, len(docs))
	var bad []error
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		doc, l := docs[name], old[name]
		if l == nil || l.At != doc.Version {
			l = a.take(doc, l)
		}
		next[name] = l
		if l.Bad != nil {
			bad = append(bad, fmt.Errorf("cluster: %s %s: %w", a.singular(), name, l.Bad))
		}
	}
	a.forget(old, next)
	a.heard.Store(heard)
	a.state.Set(next, errors.Join(fault, keyspace.Few(bad)))
}

// take reads a ledger that has changed. If it cannot be read it returns a copy of before
// with Bad set; before is nil if there was none.
func (a *Kind) take(doc documents.Document, before *ledger.Ledger) *ledger.Ledger {
	l, err := ledger.Parse(doc.Body)
	if err != nil {
		a.log.Error("an artefact is as it was before", "name", doc.Name, "err", err)
		l = &ledger.Ledger{}
		if before != nil {
			l = before.Clone()
		}
	}
	l.At, l.Bad = doc.Version, err
	return l
}

// GoesBy returns the kind, and which changes of it this process goes by. A name is in Not
// if the process uses another version than the one that serves, as Use told. A process that
// never calls Use counts as using what serves.
func (a *Kind) GoesBy() (string, cluster.Applied) {
	ledgers, fault := a.state.Get()
	if keyspace.PastLost(fault) {
		return a.kind, cluster.Applied{}
	}
	used := a.used.current()
	by := cluster.Applied{Revision: a.Revision()}
	for name, l := range ledgers {
		e, serves := l.Find(l.Serving)
		u, uses := used[name]
		if l.Bad != nil || used != nil && (uses != serves || uses && u != Version{name, e.Version, e.Sum}) {
			by.Not = append(by.Not, name)
		}
	}
	for name := range used {
		if ledgers[name] == nil {
			by.Not = append(by.Not, name)
		}
	}
	by.Not = cluster.NotGoneBy(by.Not)
	return a.kind, by
}

// Changed returns a channel that is closed at the next change of what the methods of a
// return. Take it before looking at that.
func (a *Kind) Changed() <-chan struct{} { return a.state.Changed() }

// Fault returns why the state may be older than what etcd holds, or nil; it is as
// [cluster.Watcher.Fault].
func (a *Kind) Fault() error { _, err := a.state.Get(); return err }

// Serving returns which version of each name serves.
func (a *Kind) Serving() map[string]Version {
	ledgers, _ := a.state.Get()
	out := make(map[string]Version, len(ledgers))
	for name, l := range ledgers {
		if e, ok := l.Find(l.Serving); ok {
			out[name] = Version{name, e.Version, e.Sum}
		}
	}
	return out
}

// Unread returns the names whose state in etcd cannot be read, for example because a later
// Millrace wrote it or because it is too large. If nothing is known of such a name from
// before, it is not known whether a version of it serves, nor which.
func (a *Kind) Unread() []string {
	names := slices.Clone(a.docs.Unread())
	ledgers, _ := a.state.Get()
	for name, l := range ledgers {
		if l.Bad != nil {
			names = append(names, name)
		}
	}
	return names
}

// Served returns which version of a name serves; ok is false if none does.
func (a *Kind) Served(name string) (Version, bool) {
	ledgers, _ := a.state.Get()
	l := ledgers[name]
	if l == nil {
		return Version{}, false
	}
	e, ok := l.Find(l.Serving)
	return Version{name, e.Version, e.Sum}, ok
}

// Before returns the versions of a name that served before the present one and
// are still there, the last one first, each once.
func (a *Kind) Before(name string) (all []Version) {
	ledgers, _ := a.state.Get()
	l := ledgers[name]
	if l == nil {
		return nil
	}
	for _, sum := range slices.Backward(l.Before) {
		e, ok := l.Find(sum)
		if v := (Version{name, e.Version, e.Sum}); ok && sum != l.Serving && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// Has reports whether a version is there.
func (a *Kind) Has(v Version) bool {
	ledgers, _ := a.state.Get()
	l := ledgers[v.Name]
	if l == nil {
		return false
	}
	e, ok := l.Find(v.Sum)
	return ok && e.Version == v.Version
}

// Gone returns when a name was dropped last, with what served then, as far as its history
// tells; zero: never.
func (a *Kind) Gone(name string) time.Time {
	ledgers, _ := a.state.Get()
	if l := ledgers[name]; l != nil {
		return l.Gone()
	}
	return time.Time{}
}

// All returns the versions of each name, in the order of their publication.
func (a *Kind) All() map[string][]Version {
	ledgers, _ := a.state.Get()
	out := make(map[string][]Version, len(ledgers))
	for name, l := range ledgers {
		for _, e := range l.Versions {
			out[name] = append(out[name], Version{name, e.Version, e.Sum})
		}
	}
	return out
}

// Names returns the names that have a version, sorted.
func (a *Kind) Names() []string { return slices.Sorted(maps.Keys(a.All())) }

// History returns the last changes of a name from etcd, oldest first.
func (a *Kind) History(ctx context.Context, name string) ([]ledger.Event, error) {
	l, err := a.read(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("cluster: history of %s %s: %w", a.singular(), name, err)
	}
	if len(l.History) == 0 {
		return nil, a.unknown(name, "")
	}
	return l.History, nil
}

// Histories returns the last changes of each name, oldest first, also of those that
// have no version any more.
func (a *Kind) Histories() map[string][]ledger.Event {
	ledgers, _ := a.state.Get()
	out := make(map[string][]ledger.Event, len(ledgers))
	for name, l := range ledgers {
		out[name] = l.History
	}
	return out
}

// Spare says which old versions [Kind.Publish] may remove to make room for a new one. It
// never removes one for which never returns true, nor the one that serves, nor the one that
// served before it. It removes one for which last returns true, given the history of its
// name, only after all others. Call Spare before Publish.
func (a *Kind) Spare(never func(Version) bool, last func(Version, []ledger.Event) bool) {
	a.never, a.last = never, last
}

// Publish stores a version with its bytes. Which version serves stays as it is. If there
// are too many versions it removes old ones: see [Kind.Spare]. A version of "" gets the
// next number. If the version is there already with these bytes, fresh is false and nothing
// changes; if it has other bytes the error is [ErrOtherBytes].
func (a *Kind) Publish(ctx context.Context, name, version string, body []byte, who string) (v Version, fresh bool, err error) {
	if version != "" {
		if err := ledger.CheckNewVersion(version); err != nil {
			return v, false, cluster.Refuse(err, millrace.ReasonInvalid, "version", "choose another", "%v", err)
		}
	}
	if len(body) == 0 || len(body) > keyspace.MaxPartedBytes {
		return v, false, tooLarge(name, len(body))
	}
	sum, wrote := documents.Checksum(body), false
	err = a.change(ctx, name, func(l *ledger.Ledger) (edit, error) {
		v, fresh = Version{name, version, sum}, false
		if version == "" {
			if n := len(l.Versions); n > 0 && l.Versions[n-1].Sum == sum {
				v.Version = l.Versions[n-1].Version
				return edit{stands: sum == l.Serving}, a.mend(ctx, v, body)
			}
			v.Version = l.NextNumber()
		}
		e, have := l.Find(sum)
		if have && version == "" { // the bytes of an older number
			v.Version = e.Version
			return edit{stands: sum == l.Serving}, a.mend(ctx, v, body)
		}
		if is := l.SumOf(v.Version); is != "" && is != sum || have && e.Version != v.Version {
			return unchanged, a.otherBytes(v, is, e)
		}
		if have {
			return edit{stands: sum == l.Serving}, a.mend(ctx, v, body)
		}
		wrote = true
		if err := a.Upload(ctx, v, body); err != nil {
			return unchanged, err
		}
		history := l.History
		l.Publish(ledger.Edition{Version: v.Version, Sum: sum, Bytes: len(body)}, func(e ledger.Edition) ledger.Care {
			switch v := (Version{name, e.Version, e.Sum}); {
			case a.never != nil && a.never(v):
				return ledger.Spared
			case a.last != nil && a.last(v, history):
				return ledger.Wanted
			}
			return ledger.Unneeded
		}, who)
		fresh = true
		return edit{made: true, needs: sum}, nil
	})
	if wrote && err != nil {
		a.unwrite(name, sum)
	}
	return v, fresh, err
}

// Retract removes a version that was published and is not to serve after all, with its
// bytes. A version that serves or has served stays, and that is no error: somebody else
// published the same bytes and wants them.
func (a *Kind) Retract(ctx context.Context, v Version, who string) error {
	return a.change(ctx, v.Name, func(l *ledger.Ledger) (edit, error) {
		e, ok := l.Find(v.Sum)
		if !ok || e.Version != v.Version || l.Serving == v.Sum || slices.Contains(l.Before, v.Sum) {
			return unchanged, nil
		}
		l.Drop(e, who)
		return edit{made: true, undo: true}, nil
	})
}

// otherBytes returns an [ErrOtherBytes] for a version v. Either v is known with the checksum
// is, or the bytes of v are known as the version have.
func (a *Kind) otherBytes(v Version, is string, have ledger.Edition) error {
	if is == "" || is == v.Sum {
		return cluster.Refuse(ErrOtherBytes, millrace.ReasonInvalid, "version", "publish it under that version", "%s %s has the bytes of version %s", a.singular(), v, have.Version)
	}
	return cluster.Refuse(ErrOtherBytes, millrace.ReasonInvalid, "version", "give it another version", "%s %s has the checksum %.12s, and this is %.12s: a version never changes", a.singular(), v, is, v.Sum)
}

// Serve lets a version serve. If expect is not nil and another version than *expect serves
// now, the error is [ErrMoved]; the zero Version expects that none serves.
func (a *Kind) Serve(ctx context.Context, v Version, expect *Version, who string) error {
	return a.change(ctx, v.Name, func(l *ledger.Ledger) (edit, error) {
		e, ok := l.Find(v.Sum)
		if !ok || e.Version != v.Version {
			return unchanged, a.unknown(v.Name, v.Version)
		}
		if expect != nil && expect.Sum != l.Serving {
			now, _ := l.Find(l.Serving)
			return unchanged, cluster.Refuse(ErrMoved, millrace.ReasonInvalid, "version", "look at its history and try again", "%s %s has changed meanwhile: %s serves now, in place of %s", a.singular(), v.Name, ledger.Named(now.Version), ledger.Named(expect.Version))
		}
		if l.Serving == e.Sum {
			return edit{stands: true}, nil
		}
		l.Serve(e, who)
		return edit{made: true, needs: e.Sum}, nil
	})
}

// Revision returns the revision in etcd of the newest change of any name that is known
// here, including names that were left out because they cannot be read.
func (a *Kind) Revision() int64 {
	ledgers, _ := a.state.Get()
	newest := a.heard.Load()
	for _, l := range ledgers {
		newest = max(newest, l.At)
	}
	return newest
}

// Settle returns nil once this watcher has all that etcd has now. It fails if that takes
// longer than a call of etcd may.
func (a *Kind) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.c.AskTime())
	defer cancel()
	got, err := a.c.Etcd().Get(ctx, a.docs.Key(""), append(clientv3.WithLastRev(), clientv3.WithKeysOnly())...)
	if err != nil {
		return a.c.Unanswered(err)
	}
	for len(got.Kvs) > 0 {
		changed := a.Changed()
		if a.Revision() >= got.Kvs[0].ModRevision {
			break
		}
		select {
		case <-ctx.Done():
			return a.c.Unanswered(ctx.Err())
		case <-changed:
		}
	}
	return nil
}

// ServeAt lets a version serve if no artefact of the kind has changed since revision; else
// the error is [ErrMoved], since the caller decided by a state that is gone. If with is not
// nil, its document changes in the same transaction.
func (a *Kind) ServeAt(ctx context.Context, v Version, revision int64, with *With, who string) error {
	moved := cluster.Refuse(ErrMoved, millrace.ReasonInvalid, "version", "look at them and try again", "somebody else has changed the %s at the same time", a.kind)
	tried := false
	return a.change(ctx, v.Name, func(l *ledger.Ledger) (edit, error) {
		e, ok := l.Find(v.Sum)
		switch {
		case !ok || e.Version != v.Version:
			return unchanged, a.unknown(v.Name, v.Version)
		case tried || l.At > revision:
			return unchanged, moved
		}
		tried = true
		l.Serve(e, who)
		return edit{made: true, needs: e.Sum, since: revision, with: with}, nil
	})
}

// Rollback lets the version serve that served before the present one, and returns it. The
// error is [ErrNothingBefore] if there is none.
func (a *Kind) Rollback(ctx context.Context, name, who string) (v Version, err error) {
	err = a.change(ctx, name, func(l *ledger.Ledger) (edit, error) {
		if v, err = a.before(l, name); err != nil {
			return unchanged, err
		}
		l.Rollback(who)
		return edit{made: true, needs: v.Sum}, nil
	})
	return v, err
}

// RollsBackTo returns the version that Rollback would let serve.
func (a *Kind) RollsBackTo(ctx context.Context, name string) (Version, error) {
	l, err := a.read(ctx, name)
	if err != nil {
		return Version{}, fmt.Errorf("cluster: %s %s: %w", a.singular(), name, err)
	}
	return a.before(l, name)
}

// before returns the version that served before the present one.
func (a *Kind) before(l *ledger.Ledger, name string) (Version, error) {
	if len(l.Before) == 0 {
		return Version{}, cluster.Refuse(ErrNothingBefore, millrace.ReasonInvalid, "name", "let another version serve", "no version of %s %s that is still there served before", a.singular(), name)
	}
	e, _ := l.Find(l.Before[len(l.Before)-1])
	return Version{name, e.Version, e.Sum}, nil
}

// Drop removes a version and its bytes. The error is [ErrInUse] if uses, which may be nil,
// names somebody that needs the version, or if the version serves and the name has others.
// Once the last version is dropped the name may be used for something else.
func (a *Kind) Drop(ctx context.Context, v Version, uses func(v Version, serves bool) []string, who string) error {
	return a.change(ctx, v.Name, func(l *ledger.Ledger) (edit, error) {
		e, err := a.droppable(l, v, uses)
		if err != nil {
			return unchanged, err
		}
		l.Drop(e, who)
		return edit{made: true}, nil
	})
}

// MayDrop returns how many bytes Drop would remove, or why it would not.
func (a *Kind) MayDrop(ctx context.Context, v Version, uses func(v Version, serves bool) []string) (int, error) {
	l, err := a.read(ctx, v.Name)
	if err != nil {
		return 0, fmt.Errorf("cluster: %s %s: %w", a.singular(), v, err)
	}
	e, err := a.droppable(l, v, uses)
	return e.Bytes, err
}

// droppable returns a version as the ledger has it, or as an error why it must stay.
func (a *Kind) droppable(l *ledger.Ledger, v Version, uses func(v Version, serves bool) []string) (ledger.Edition, error) {
	e, ok := l.Find(v.Sum)
	if !ok || e.Version != v.Version {
		return e, a.unknown(v.Name, v.Version)
	}
	serves := l.Serving == e.Sum
	if uses != nil {
		if by := uses(v, serves); len(by) > 0 {
			return e, cluster.Refuse(ErrInUse, millrace.ReasonInvalid, "version", "let these use another first", "%s %s is in use by %s", a.singular(), v, strings.Join(by, ", "))
		}
	}
	if serves && len(l.Versions) > 1 {
		return e, cluster.Refuse(ErrInUse, millrace.ReasonInvalid, "version", "serve another version first, or roll back", "%s %s serves", a.singular(), v)
	}
	return e, nil
}

// unknown returns an [ErrNoVersion] for a version, or for the name if that is unknown or
// version is "".
func (a *Kind) unknown(name, version string) error {
	ledgers, _ := a.state.Get()
	if version == "" || ledgers[name] == nil {
		return cluster.Refuse(ErrNoVersion, millrace.ReasonUnknown, "name", "name one of the list", "there is no %s %.100q", a.singular(), name)
	}
	return cluster.Refuse(ErrNoVersion, millrace.ReasonUnknown, "version", "name one of the list", "%s %s has no version %.100q with these bytes", a.singular(), name, version)
}

// singular returns what one artefact of the kind is called, such as model.
func (a *Kind) singular() string { return strings.TrimSuffix(a.kind, "s") }

// With is a change of a document that is made together with a change of an artefact: both
// in one transaction, or neither.
type With struct {
	Documents *documents.Kind
	Name      string
	By        func(body string) (string, error) // as of [documents.Kind.Change]
}

// edit is what was done to a ledger.
type edit struct {
	made  bool   // the ledger has changed and is to be written
	needs string // the sum of the version whose bytes must be there; "": none
	since int64  // the revision after which nothing of the kind may have changed; 0: anything may
	with  *With  // what changes too; nil: nothing
	moves bool   // processes have to go by something else than before
	undo  bool   // it takes back a version that never served, so that no process went by it
	// stands says that nothing changes because what was asked for is so already. Some
	// process may not have heard of it yet, so it counts as written by this client.
	stands bool
}

var unchanged edit

// change replaces a name's ledger by what the function makes of it. The function may be
// called several times, with newer ledgers, while others change the name too. change
// returns once this watcher has the change.
func (a *Kind) change(ctx context.Context, name string, by func(l *ledger.Ledger) (edit, error)) error {
	if err := keyspace.ValidID(name); err != nil {
		return cluster.Refuse(err, millrace.ReasonInvalid, "name", "choose another name", "%v", err)
	}
	var needs Version // whose bytes must be there
	for range cluster.MaxChanges {
		l, err := a.read(ctx, name)
		if err != nil {
			return fmt.Errorf("cluster: %s %s: %w", a.singular(), name, err)
		}
		next := l.Clone()
		did, err := by(next)
		if did.stands && err == nil {
			a.c.NoteWritten(a.kind, name, l.At)
		}
		if !did.made || err != nil {
			return err
		}
		did.moves = !did.undo && (next.Serving != l.Serving || len(next.Versions) < len(l.Versions))
		at, err := a.commit(ctx, name, next, did)
		if err != nil {
			return fmt.Errorf("cluster: %s %s: %w", a.singular(), name, err)
		}
		if at > 0 {
			a.await(ctx, name, at)
			return nil
		}
		e, _ := next.Find(did.needs)
		needs = Version{name, e.Version, e.Sum}
	}
	if bare, err := a.Bare(ctx); err == nil && slices.Contains(bare, needs) {
		return a.bare(needs)
	}
	return fmt.Errorf("cluster: %s %s: others change it all the time; publish it again", a.singular(), name)
}

// read returns a name's ledger as etcd has it, an empty one if there is none. The error is
// [ErrUnreadable] if it is malformed.
func (a *Kind) read(ctx context.Context, name string) (*ledger.Ledger, error) {
	l, err := a.readRaw(ctx, name)
	if l.Bad != nil {
		return l, cluster.Refuse(ErrUnreadable, millrace.ReasonInvalid, "", "drop it, and publish again what it should have", "%v", l.Bad)
	}
	return l, err
}

// readRaw is read, but a malformed ledger is no error: it comes empty, with Bad set.
func (a *Kind) readRaw(ctx context.Context, name string) (*ledger.Ledger, error) {
	ctx, cancel := context.WithTimeout(ctx, a.c.AskTime())
	defer cancel()
	got, err := a.c.Etcd().Get(ctx, a.docs.Key(name))
	if err != nil || len(got.Kvs) == 0 {
		return &ledger.Ledger{}, a.c.Unanswered(err)
	}
	l, err := ledger.Parse(string(got.Kvs[0].Value))
	if err != nil {
		l = &ledger.Ledger{Bad: err}
	}
	l.At = got.Kvs[0].ModRevision
	return l, nil
}

// Unreadable returns why what etcd has under a name cannot be read as a ledger, or nil if it
// can. While it cannot, the last good version serves, if there was one.
func (a *Kind) Unreadable(ctx context.Context, name string) (why, err error) {
	if keyspace.ValidID(name) != nil {
		return nil, nil
	}
	l, err := a.readRaw(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", a.singular(), name, err)
	}
	return l.Bad, nil
}

// DropUnreadable replaces a ledger that cannot be read by one that has no versions, and
// whose history says so. The bytes of all versions of the name are removed. It does nothing
// if the ledger can be read.
func (a *Kind) DropUnreadable(ctx context.Context, name, who string) error {
	l, err := a.readRaw(ctx, name)
	if err != nil {
		return fmt.Errorf("cluster: %s %s: %w", a.singular(), name, err)
	}
	if l.Bad == nil {
		return nil // somebody has mended it
	}
	next := &ledger.Ledger{At: l.At}
	next.Note(ledger.Dropped, ledger.Edition{}, who+": it could not be read: "+l.Bad.Error())
	at, err := a.commit(ctx, name, next, edit{made: true, moves: true})
	switch {
	case err != nil:
		return fmt.Errorf("cluster: %s %s: %w", a.singular(), name, err)
	case at == 0:
		return cluster.Refuse(ErrMoved, millrace.ReasonInvalid, "name", "look at it and try again", "somebody else has changed %s of the %s at the same time", name, a.kind)
	}
	a.await(ctx, name, at)
	return nil
}

// commit writes a ledger if nobody has written it since it was read and if the
// bytes of the version that it needs are there. Then it removes the bytes that no version
// of the ledger names. It returns the new revision; 0 if it was not written.
func (a *Kind) commit(ctx context.Context, name string, l *ledger.Ledger, did edit) (int64, error) {
	body, err := l.Encode()
	if err != nil {
		return 0, err
	}
	if err := a.c.Lost(); err != nil {
		return 0, err
	}
	conditions := []clientv3.Cmp{a.c.Whole(), clientv3.Compare(clientv3.ModRevision(a.docs.Key(name)), "=", l.At)}
	if did.since > 0 {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(a.docs.Key("")).WithPrefix(), "<", did.since+1))
	}
	if e, ok := l.Find(did.needs); ok {
		for i := range documents.PartCount(e.Bytes) {
			conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(a.partKey(name, did.needs, i)), ">", 0))
		}
	}
	steady, _ := ctx.Value(steadilyKey{}).(*steadily)
	if steady != nil {
		conditions = append(conditions, steady.unchangedBut(a, name)...)
	}
	changes := []clientv3.Op{clientv3.OpPut(a.docs.Key(name), body)}
	withs := false
	if w := did.with; w != nil {
		same, with, err := w.Documents.Prepare(ctx, w.Name, w.By)
		if err != nil {
			return 0, err
		}
		conditions, changes, withs = append(conditions, same), append(changes, with...), with != nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.c.AskTime())
	defer cancel()
	put, err := a.c.Etcd().Txn(ctx).If(conditions...).Then(changes...).Else(clientv3.OpGet(a.c.SetbackKey())).Commit()
	if err != nil {
		return 0, a.c.PerhapsDone(err)
	}
	if !put.Succeeded {
		err = cluster.UnlessSetback(put)
	}
	if err == nil && !put.Succeeded && steady != nil {
		var still *clientv3.TxnResponse
		if still, err = a.c.Etcd().Txn(ctx).If(steady.unchangedBut(a, name)...).Commit(); err == nil && !still.Succeeded {
			err = errUnsteady
		}
	}
	if err != nil || !put.Succeeded {
		return 0, a.c.Unanswered(err)
	}
	if did.moves {
		a.c.NoteWritten(a.kind, name, put.Header.Revision)
	}
	if withs {
		a.c.NoteWritten(did.with.Documents.Name(), did.with.Name, put.Header.Revision)
	}
	a.sweep(ctx, name, l, put.Header.Revision)
	return put.Header.Revision, nil
}

// await returns when this watcher has what a revision wrote, or something newer, at the
// latest after [cluster.CallTimeout]. The change is made in any case.
func (a *Kind) await(ctx context.Context, name string, revision int64) {
	ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	for {
		changed := a.Changed()
		if ledgers, _ := a.state.Get(); ledgers[name] != nil && ledgers[name].At >= revision {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-a.c.Context().Done():
			return
		case <-changed:
		}
	}
}
