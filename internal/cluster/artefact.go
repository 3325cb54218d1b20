package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
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

// Change is what an [Event] did.
type Change string

// The changes of an artefact.
const (
	Published  Change = "put"
	Served     Change = "serve"
	RolledBack Change = "rollback"
	Dropped    Change = "drop"
	Failed     Change = "condemn" // see [Condemned.Condemn]; Who is the node, and why
	Released   Change = "release" // it was condemned, or nodes died of it; see [Condemned.Release]
)

// Event is a change of an artefact.
type Event struct {
	What    Change    `json:"what"`
	Version string    `json:"version"`
	Sum     string    `json:"sum"`
	Who     string    `json:"who"`
	When    time.Time `json:"when"`
}

// The refusals of changes; each comes in a [millrace.Error] that says more.
var (
	ErrOtherBytes = errors.New("cluster: the version has other bytes")
	ErrNoVersion  = errors.New("cluster: no such version")
	// ErrNothingBefore is an [ErrNoVersion] of what cannot be rolled back.
	ErrNothingBefore = fmt.Errorf("%w that served before", ErrNoVersion)
	// ErrUnreadable is that what etcd has is no ledger; see [Artefacts.DropUnreadable].
	ErrUnreadable = errors.New("cluster: it cannot be read")
	ErrInUse      = errors.New("cluster: the version is in use")
	ErrMoved      = errors.New("cluster: another version serves than was expected")
)

// refusal is a typed refusal that a caller can act on.
type refusal struct{ says, is error }

func (r refusal) Error() string   { return r.says.Error() }
func (r refusal) Unwrap() []error { return []error{r.says, r.is} }

func refuse(is error, reason millrace.Reason, field, wayOut, format string, args ...any) error {
	return refusal{&millrace.Error{Reason: reason, Field: field, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}, is}
}

// Artefacts is the watched artefacts of one kind, such as models. Versions are
// immutable; a pointer of each name says which of them serves, and moves
// atomically. Readers keep the last good state, and what bodies they have
// read, across outages and restarts, as those of [Documents] do.
type Artefacts struct {
	c      *Client
	kind   string
	docs   *Documents
	state  *keyspace.Latest[map[string]*ledger] // last good ones, never changed once there
	never  func(Version) bool                   // removed to make room; nil: none
	last   func(Version, []Event) bool          // nil: none
	used   used
	unkept unkept
	log    *slog.Logger
}

// Artefacts watches the artefacts of a kind. It returns as
// [Client.Documents] does.
func (c *Client) Artefacts(ctx context.Context, kind string) (*Artefacts, error) {
	docs, err := c.Documents(ctx, kind)
	if err != nil {
		return nil, err
	}
	a := &Artefacts{c: c, kind: kind, docs: docs, state: keyspace.NewLatest(map[string]*ledger{}), log: docs.log}
	a.loadUsed()
	c.alarms.add(ctx, kind, a.state.FaultSince)
	docs.each(ctx, a.follow)
	if c.dir != "" {
		c.run(func() { a.keepServing(ctx) })
	}
	return a, nil
}

// follow takes over the ledgers that have changed. One that is malformed stays
// as it was.
func (a *Artefacts) follow() {
	old, _ := a.state.Get()
	docs, fault := a.docs.Current(), a.docs.Fault()
	next := make(map[string]*ledger, len(docs))
	for name, doc := range docs {
		l := old[name]
		if l == nil || l.at != doc.Version {
			l = a.take(doc, l)
		}
		next[name] = l
		if l.bad != nil {
			fault = errors.Join(fault, fmt.Errorf("cluster: %s %s: %w", a.one(), name, l.bad))
		}
	}
	a.forget(old, next)
	a.state.Set(next, fault)
}

// take reads a ledger that has changed, from what it was before if it can't.
func (a *Artefacts) take(doc Document, before *ledger) *ledger {
	l, err := parseLedger(doc.Body)
	if err != nil {
		a.log.Error("an artefact is as it was before", "name", doc.Name, "err", err)
		l = &ledger{}
		if before != nil {
			l = before.clone()
		}
	}
	l.at, l.bad = doc.Version, err
	return l
}

// goesBy tells of a process that says what it uses by that, and else by what serves.
func (a *Artefacts) goesBy() (string, Applied) {
	ledgers, fault := a.state.Get()
	if keyspace.PastLost(fault) {
		return a.kind, Applied{}
	}
	used := a.used.now()
	var by Applied
	for name, l := range ledgers {
		by.Revision = max(by.Revision, l.at)
		e, serves := l.find(l.Serving)
		u, uses := used[name]
		if l.bad != nil || used != nil && (uses != serves || uses && u != Version{name, e.Version, e.Sum}) {
			by.Not = append(by.Not, name)
		}
	}
	for name := range used {
		if ledgers[name] == nil {
			by.Not = append(by.Not, name)
		}
	}
	by.Not = notGoneBy(by.Not)
	return a.kind, by
}

// Changed is as [Watcher.Changed].
func (a *Artefacts) Changed() <-chan struct{} { return a.state.Changed() }

// Fault is as [Watcher.Fault].
func (a *Artefacts) Fault() error { _, err := a.state.Get(); return err }

// Serving returns which version of each name serves.
func (a *Artefacts) Serving() map[string]Version {
	ledgers, _ := a.state.Get()
	out := make(map[string]Version, len(ledgers))
	for name, l := range ledgers {
		if e, ok := l.find(l.Serving); ok {
			out[name] = Version{name, e.Version, e.Sum}
		}
	}
	return out
}

// Served returns which version of a name serves.
func (a *Artefacts) Served(name string) (Version, bool) {
	ledgers, _ := a.state.Get()
	l := ledgers[name]
	if l == nil {
		return Version{}, false
	}
	e, ok := l.find(l.Serving)
	return Version{name, e.Version, e.Sum}, ok
}

// Before returns the versions of a name that served before the present one and
// are still there, the last one first, each once.
func (a *Artefacts) Before(name string) (all []Version) {
	ledgers, _ := a.state.Get()
	l := ledgers[name]
	if l == nil {
		return nil
	}
	for _, sum := range slices.Backward(l.Before) {
		e, ok := l.find(sum)
		if v := (Version{name, e.Version, e.Sum}); ok && sum != l.Serving && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// Has reports whether a version is there.
func (a *Artefacts) Has(v Version) bool {
	ledgers, _ := a.state.Get()
	l := ledgers[v.Name]
	if l == nil {
		return false
	}
	e, ok := l.find(v.Sum)
	return ok && e.Version == v.Version
}

// All returns the versions of each name, in the order of their publication.
func (a *Artefacts) All() map[string][]Version {
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
func (a *Artefacts) Names() []string { return slices.Sorted(maps.Keys(a.All())) }

// History returns the last changes of a name from etcd, oldest first.
func (a *Artefacts) History(ctx context.Context, name string) ([]Event, error) {
	l, err := a.read(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("cluster: history of %s %s: %w", a.one(), name, err)
	}
	if len(l.History) == 0 {
		return nil, a.unknown(name, "")
	}
	return l.History, nil
}

// Histories returns the last changes of each name, oldest first, also of those that
// have no version any more.
func (a *Artefacts) Histories() map[string][]Event {
	ledgers, _ := a.state.Get()
	out := make(map[string][]Event, len(ledgers))
	for name, l := range ledgers {
		out[name] = l.History
	}
	return out
}

// Spare has room for what is published made of some versions never, besides the one
// that serves and the one before it, and of some, by their name's history, last.
// Call it before [Artefacts.Publish].
func (a *Artefacts) Spare(never func(Version) bool, last func(Version, []Event) bool) {
	a.never, a.last = never, last
}

// Publish stores a version, in place of the oldest if there are too many, and lets
// nothing else serve. A version of "" is the next number. With the bytes that the version has already, fresh is false and
// nothing changes; with others it gives [ErrOtherBytes].
func (a *Artefacts) Publish(ctx context.Context, name, version string, body []byte, who string) (v Version, fresh bool, err error) {
	if version != "" {
		if err := checkNewVersion(version); err != nil {
			return v, false, refuse(err, millrace.ReasonInvalid, "version", "choose another", "%v", err)
		}
	}
	if len(body) == 0 || len(body) > maxPartedBytes {
		return v, false, tooLarge(name, len(body))
	}
	sum, wrote := checksum(body), false
	err = a.change(ctx, name, func(l *ledger) (edit, error) {
		v, fresh = Version{name, version, sum}, false
		if version == "" {
			if n := len(l.Versions); n > 0 && l.Versions[n-1].Sum == sum {
				v.Version = l.Versions[n-1].Version
				return edit{stands: sum == l.Serving}, a.mend(ctx, v, body)
			}
			v.Version = l.nextNumber()
		}
		e, have := l.find(sum)
		if have && version == "" { // the bytes of an older number
			v.Version = e.Version
			return edit{stands: sum == l.Serving}, a.mend(ctx, v, body)
		}
		if is := l.sumOf(v.Version); is != "" && is != sum || have && e.Version != v.Version {
			return unchanged, a.otherBytes(v, is, e)
		}
		if have {
			return edit{stands: sum == l.Serving}, a.mend(ctx, v, body)
		}
		wrote = true
		if err := a.upload(ctx, v, body); err != nil {
			return unchanged, err
		}
		history := l.History
		l.publish(edition{v.Version, sum, len(body)}, func(e edition) care {
			switch v := (Version{name, e.Version, e.Sum}); {
			case a.never != nil && a.never(v):
				return spared
			case a.last != nil && a.last(v, history):
				return wanted
			}
			return unneeded
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
// bytes. One that serves, or did before, stays: somebody else wanted the same.
func (a *Artefacts) Retract(ctx context.Context, v Version, who string) error {
	return a.change(ctx, v.Name, func(l *ledger) (edit, error) {
		e, ok := l.find(v.Sum)
		if !ok || e.Version != v.Version || l.Serving == v.Sum || slices.Contains(l.Before, v.Sum) {
			return unchanged, nil
		}
		l.drop(e, who)
		return edit{made: true}, nil
	})
}

func (a *Artefacts) otherBytes(v Version, is string, have edition) error {
	if is == "" || is == v.Sum {
		return refuse(ErrOtherBytes, millrace.ReasonInvalid, "version", "publish it under that version", "%s %s has the bytes of version %s", a.one(), v, have.Version)
	}
	return refuse(ErrOtherBytes, millrace.ReasonInvalid, "version", "give it another version", "%s %s has the checksum %.12s, and this is %.12s: a version never changes", a.one(), v, is, v.Sum)
}

// Serve lets a version serve. If expect is not nil, it gives [ErrMoved] when
// another version than that serves now; the zero Version is none.
func (a *Artefacts) Serve(ctx context.Context, v Version, expect *Version, who string) error {
	return a.change(ctx, v.Name, func(l *ledger) (edit, error) {
		e, ok := l.find(v.Sum)
		if !ok || e.Version != v.Version {
			return unchanged, a.unknown(v.Name, v.Version)
		}
		if expect != nil && expect.Sum != l.Serving {
			now, _ := l.find(l.Serving)
			return unchanged, refuse(ErrMoved, millrace.ReasonInvalid, "version", "look at its history and try again", "%s %s has changed meanwhile: %s serves now, in place of %s", a.one(), v.Name, named(now.Version), named(expect.Version))
		}
		if l.Serving == e.Sum {
			return edit{stands: true}, nil
		}
		l.serve(e, who)
		return edit{made: true, needs: e.Sum}, nil
	})
}

// Revision returns the newest change of any name that is known here.
func (a *Artefacts) Revision() (newest int64) {
	ledgers, _ := a.state.Get()
	for _, l := range ledgers {
		newest = max(newest, l.at)
	}
	return newest
}

// Settle returns once this watcher has all that etcd has now.
func (a *Artefacts) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.c.askTime())
	defer cancel()
	got, err := a.c.etcd.Get(ctx, a.docs.key(""), append(clientv3.WithLastRev(), clientv3.WithKeysOnly())...)
	if err != nil {
		return a.c.unanswered(err)
	}
	for len(got.Kvs) > 0 {
		changed := a.Changed()
		if a.Revision() >= got.Kvs[0].ModRevision {
			break
		}
		select {
		case <-ctx.Done():
			return a.c.unanswered(ctx.Err())
		case <-changed:
		}
	}
	return nil
}

// ServeAt lets a version serve if no artefact of the kind has changed since
// revision; else it gives [ErrMoved]: what was looked at is no longer so. With,
// which may be nil, changes too.
func (a *Artefacts) ServeAt(ctx context.Context, v Version, revision int64, with *With, who string) error {
	moved := refuse(ErrMoved, millrace.ReasonInvalid, "version", "look at them and try again", "somebody else has changed the %s at the same time", a.kind)
	tried := false
	return a.change(ctx, v.Name, func(l *ledger) (edit, error) {
		e, ok := l.find(v.Sum)
		switch {
		case !ok || e.Version != v.Version:
			return unchanged, a.unknown(v.Name, v.Version)
		case tried || l.at > revision:
			return unchanged, moved
		}
		tried = true
		l.serve(e, who)
		return edit{made: true, needs: e.Sum, since: revision, with: with}, nil
	})
}

// Rollback lets the version serve that served before the present one, and
// returns it.
func (a *Artefacts) Rollback(ctx context.Context, name, who string) (v Version, err error) {
	err = a.change(ctx, name, func(l *ledger) (edit, error) {
		if v, err = a.before(l, name); err != nil {
			return unchanged, err
		}
		l.rollback(who)
		return edit{made: true, needs: v.Sum}, nil
	})
	return v, err
}

// RollsBackTo returns the version that Rollback would let serve.
func (a *Artefacts) RollsBackTo(ctx context.Context, name string) (Version, error) {
	l, err := a.read(ctx, name)
	if err != nil {
		return Version{}, fmt.Errorf("cluster: %s %s: %w", a.one(), name, err)
	}
	return a.before(l, name)
}

// before returns the version that served before the present one.
func (a *Artefacts) before(l *ledger, name string) (Version, error) {
	if len(l.Before) == 0 {
		return Version{}, refuse(ErrNothingBefore, millrace.ReasonInvalid, "name", "let another version serve", "no version of %s %s that is still there served before", a.one(), name)
	}
	e, _ := l.find(l.Before[len(l.Before)-1])
	return Version{name, e.Version, e.Sum}, nil
}

// Drop removes a version and its bytes. It gives [ErrInUse] where uses, which
// may be nil, names somebody that needs it, and where the version serves while
// there are others. After the last one the name is free.
func (a *Artefacts) Drop(ctx context.Context, v Version, uses func(v Version, serves bool) []string, who string) error {
	return a.change(ctx, v.Name, func(l *ledger) (edit, error) {
		e, err := a.droppable(l, v, uses)
		if err != nil {
			return unchanged, err
		}
		l.drop(e, who)
		return edit{made: true}, nil
	})
}

// MayDrop returns how many bytes Drop would remove, or why it would not.
func (a *Artefacts) MayDrop(ctx context.Context, v Version, uses func(v Version, serves bool) []string) (int, error) {
	l, err := a.read(ctx, v.Name)
	if err != nil {
		return 0, fmt.Errorf("cluster: %s %s: %w", a.one(), v, err)
	}
	e, err := a.droppable(l, v, uses)
	return e.Bytes, err
}

// droppable returns what a ledger has of a version, or why that stays.
func (a *Artefacts) droppable(l *ledger, v Version, uses func(v Version, serves bool) []string) (edition, error) {
	e, ok := l.find(v.Sum)
	if !ok || e.Version != v.Version {
		return e, a.unknown(v.Name, v.Version)
	}
	serves := l.Serving == e.Sum
	if uses != nil {
		if by := uses(v, serves); len(by) > 0 {
			return e, refuse(ErrInUse, millrace.ReasonInvalid, "version", "let these use another first", "%s %s is in use by %s", a.one(), v, strings.Join(by, ", "))
		}
	}
	if serves && len(l.Versions) > 1 {
		return e, refuse(ErrInUse, millrace.ReasonInvalid, "version", "serve another version first, or roll back", "%s %s serves", a.one(), v)
	}
	return e, nil
}

func (a *Artefacts) unknown(name, version string) error {
	ledgers, _ := a.state.Get()
	if version == "" || ledgers[name] == nil {
		return refuse(ErrNoVersion, millrace.ReasonUnknown, "name", "name one of the list", "there is no %s %.100q", a.one(), name)
	}
	return refuse(ErrNoVersion, millrace.ReasonUnknown, "version", "name one of the list", "%s %s has no version %.100q with these bytes", a.one(), name, version)
}

// one is what an artefact of the kind is called.
func (a *Artefacts) one() string { return strings.TrimSuffix(a.kind, "s") }

// named names a version that may be none.
func named(version string) string {
	if version == "" {
		return "no version"
	}
	return "version " + version
}

// edit is what was done to a ledger.
type edit struct {
	made  bool
	needs string // the sum of the version whose bytes must be there; "": none
	since int64  // the revision after which nothing of the kind may have changed; 0: anything may
	with  *With  // what changes too; nil: nothing
	moves bool   // processes are to go by something else than before
	// stands is of what is to serve, and did before, perhaps unheard.
	stands bool
}

var unchanged edit

// maxChanges is how often a change is tried while others change the same.
const maxChanges = 20

// change replaces a name's ledger by what the function makes of it. It returns once
// this watcher has the change too.
func (a *Artefacts) change(ctx context.Context, name string, by func(l *ledger) (edit, error)) error {
	if err := keyspace.ValidID(name); err != nil {
		return refuse(err, millrace.ReasonInvalid, "name", "choose another name", "%v", err)
	}
	var needs Version // whose bytes must be there
	for range maxChanges {
		l, err := a.read(ctx, name)
		if err != nil {
			return fmt.Errorf("cluster: %s %s: %w", a.one(), name, err)
		}
		next := l.clone()
		did, err := by(next)
		if did.stands && err == nil {
			a.c.noteWritten(a.kind, name, l.at)
		}
		if !did.made || err != nil {
			return err
		}
		did.moves = next.Serving != l.Serving || len(next.Versions) < len(l.Versions)
		at, err := a.commit(ctx, name, next, did)
		if err != nil {
			return fmt.Errorf("cluster: %s %s: %w", a.one(), name, err)
		}
		if at > 0 {
			a.await(ctx, name, at)
			return nil
		}
		e, _ := next.find(did.needs)
		needs = Version{name, e.Version, e.Sum}
	}
	if bare, err := a.Bare(ctx); err == nil && slices.Contains(bare, needs) {
		return a.bare(needs)
	}
	return fmt.Errorf("cluster: %s %s: others change it all the time; publish it again", a.one(), name)
}

// read returns a name's ledger as etcd has it, an empty one if there is none.
func (a *Artefacts) read(ctx context.Context, name string) (*ledger, error) {
	l, err := a.readRaw(ctx, name)
	if l.bad != nil {
		return l, refuse(ErrUnreadable, millrace.ReasonInvalid, "", "drop it, and publish again what it should have", "%v", l.bad)
	}
	return l, err
}

// readRaw is read, but of one that cannot be read it tells why by bad.
func (a *Artefacts) readRaw(ctx context.Context, name string) (*ledger, error) {
	ctx, cancel := context.WithTimeout(ctx, a.c.askTime())
	defer cancel()
	got, err := a.c.etcd.Get(ctx, a.docs.key(name))
	if err != nil || len(got.Kvs) == 0 {
		return &ledger{}, a.c.unanswered(err)
	}
	l, err := parseLedger(string(got.Kvs[0].Value))
	if err != nil {
		l = &ledger{bad: err}
	}
	l.at = got.Kvs[0].ModRevision
	return l, nil
}

// Unreadable returns why what etcd has under a name cannot be read as its versions,
// so that the last good ones serve, if there were any; nil if it can be read.
func (a *Artefacts) Unreadable(ctx context.Context, name string) (why, err error) {
	if keyspace.ValidID(name) != nil {
		return nil, nil
	}
	l, err := a.readRaw(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", a.one(), name, err)
	}
	return l.bad, nil
}

// DropUnreadable removes what cannot be read, and says so in the history. The name
// is free then, and the bytes of its versions are gone.
func (a *Artefacts) DropUnreadable(ctx context.Context, name, who string) error {
	l, err := a.readRaw(ctx, name)
	if err != nil {
		return fmt.Errorf("cluster: %s %s: %w", a.one(), name, err)
	}
	if l.bad == nil {
		return nil // somebody has mended it
	}
	next := &ledger{at: l.at}
	next.note(Dropped, edition{}, who+": it could not be read: "+l.bad.Error())
	at, err := a.commit(ctx, name, next, edit{made: true, moves: true})
	switch {
	case err != nil:
		return fmt.Errorf("cluster: %s %s: %w", a.one(), name, err)
	case at == 0:
		return refuse(ErrMoved, millrace.ReasonInvalid, "name", "look at it and try again", "somebody else has changed %s of the %s at the same time", name, a.kind)
	}
	a.await(ctx, name, at)
	return nil
}

// commit writes a ledger if nobody has written it since it was read and if the
// bytes of the version it needs are there, and removes the bytes of no
// version. It returns the new revision; 0 if it was not written.
func (a *Artefacts) commit(ctx context.Context, name string, l *ledger, did edit) (int64, error) {
	body, err := l.encode()
	if err != nil {
		return 0, err
	}
	if err := a.c.Lost(); err != nil {
		return 0, err
	}
	conditions := []clientv3.Cmp{a.c.whole(), clientv3.Compare(clientv3.ModRevision(a.docs.key(name)), "=", l.at)}
	if did.since > 0 {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(a.docs.key("")).WithPrefix(), "<", did.since+1))
	}
	if e, ok := l.find(did.needs); ok {
		for i := range partCount(e.Bytes) {
			conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(a.partKey(name, did.needs, i)), ">", 0))
		}
	}
	steady, _ := ctx.Value(steadilyKey{}).(*steadily)
	if steady != nil {
		conditions = append(conditions, steady.unchangedBut(a, name)...)
	}
	changes := []clientv3.Op{clientv3.OpPut(a.docs.key(name), body)}
	withs := false
	if w := did.with; w != nil {
		same, change, err := w.Documents.prepare(ctx, w.Name, w.By)
		if err != nil {
			return 0, err
		}
		if conditions = append(conditions, same); change != nil {
			changes = append(changes, *change)
			withs = true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, a.c.askTime())
	defer cancel()
	put, err := a.c.etcd.Txn(ctx).If(conditions...).Then(changes...).Else(clientv3.OpGet(a.c.setbackKey())).Commit()
	if err == nil && !put.Succeeded {
		err = unlessSetback(put)
	}
	if err == nil && !put.Succeeded && steady != nil {
		var still *clientv3.TxnResponse
		if still, err = a.c.etcd.Txn(ctx).If(steady.unchangedBut(a, name)...).Commit(); err == nil && !still.Succeeded {
			err = errUnsteady
		}
	}
	if err != nil || !put.Succeeded {
		return 0, a.c.unanswered(err)
	}
	if did.moves {
		a.c.noteWritten(a.kind, name, put.Header.Revision)
	}
	if withs {
		a.c.noteWritten(did.with.Documents.kind, did.with.Name, put.Header.Revision)
	}
	a.sweep(ctx, name, l, put.Header.Revision)
	return put.Header.Revision, nil
}

// await returns when this watcher has what a revision wrote, or something
// newer; at the latest when etcd has been silent for too long. The change is
// made in any case.
func (a *Artefacts) await(ctx context.Context, name string, revision int64) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for {
		changed := a.Changed()
		if ledgers, _ := a.state.Get(); ledgers[name] != nil && ledgers[name].at >= revision {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-a.c.ctx.Done():
			return
		case <-changed:
		}
	}
}
