package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// The bytes of an artefact's versions stand outside the watched prefix, in
// parts that a value of etcd can hold, under their checksum. They are written
// before the ledger that names them, and so a ledger never names what is not
// there.

// bodiesPrefix is before the kinds of all bytes.
const bodiesPrefix = "bodies/"

// bodiesPrefix is where all versions of a name are.
func (a *Artefacts) bodiesPrefix(name string) string {
	return a.c.prefix + bodiesPrefix + a.kind + "/" + name + "/"
}

func (a *Artefacts) partKey(name, sum string, i int) string {
	return fmt.Sprintf("%s%s/%03d", a.bodiesPrefix(name), sum, i)
}

// ErrNoBytes is of a version that is named in etcd, without its bytes.
var ErrNoBytes = errors.New("cluster: etcd lacks the bytes of the version")

// BytesWayOut is the way out of [ErrNoBytes], for all who tell of it.
const BytesWayOut = "millrace cluster restore --data .. brings them from a data directory that has them"

// bare refuses a version whose bytes are not there.
func (a *Artefacts) bare(v Version) error {
	return refuse(ErrNoBytes, millrace.ReasonUnavailable, "", BytesWayOut, "the bytes of %s %s are not in etcd", a.one(), v)
}

// partsThere is how many parts of versions etcd has, by name/sum.
type partsThere map[string]int

func (p partsThere) hold(name string, e edition) bool {
	return p[name+"/"+e.Sum] >= partCount(e.Bytes)
}

// partsThere counts the parts under NAME/; of all names if that is empty.
func (a *Artefacts) partsThere(ctx context.Context, under string) (partsThere, error) {
	prefix := a.c.prefix + bodiesPrefix + a.kind + "/"
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	got, err := a.c.etcd.Get(ctx, prefix+under, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, away(err)
	}
	parts := partsThere{}
	for _, kv := range got.Kvs {
		of := strings.TrimPrefix(string(kv.Key), prefix)
		parts[of[:max(0, strings.LastIndexByte(of, '/'))]]++
	}
	return parts, nil
}

// Bare returns the versions, in order, that are named in etcd without their bytes. What
// came or went while it looked is none.
func (a *Artefacts) Bare(ctx context.Context) (all []Version, err error) {
	before, _ := a.state.Get()
	parts, err := a.partsThere(ctx, "")
	if err == nil {
		err = a.Settle(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("cluster: bytes of %s: %w", a.kind, err)
	}
	now, _ := a.state.Get()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		for _, e := range now[name].Versions {
			if names(before[name], e) && !parts.hold(name, e) {
				all = append(all, Version{name, e.Version, e.Sum})
			}
		}
	}
	return all, nil
}

func tooLarge(name string, bytes int) error {
	return &millrace.Error{
		Reason: millrace.ReasonTooLarge,
		Detail: fmt.Sprintf("%s is %d bytes, not between 1 and %d", name, bytes, maxPartedBytes),
		WayOut: "make it smaller: of a model, fewer trees, leaves or golden rows",
	}
}

// upload writes the parts of a version.
func (a *Artefacts) upload(ctx context.Context, v Version, body []byte) error {
	for i := range partCount(len(body)) {
		part := body[i*keyspace.MaxDocumentBytes : min((i+1)*keyspace.MaxDocumentBytes, len(body))]
		if _, err := a.c.etcd.Put(ctx, a.partKey(v.Name, v.Sum, i), string(part)); err != nil {
			return fmt.Errorf("cluster: %s %s: %w", a.kind, v, err)
		}
	}
	return nil
}

// mend writes the parts of a version again if they are not all there, as after a
// restoration from directories that lacked them, or are others than they were.
func (a *Artefacts) mend(ctx context.Context, v Version, body []byte) error {
	if _, err := a.download(ctx, v, edition{v.Version, v.Sum, len(body)}); err == nil || errors.Is(err, ErrAway) {
		return err
	}
	return a.upload(ctx, v, body)
}

// sweep removes bodies that no ledger names, unless the ledger has changed
// since a revision. Who is still writing one finds it gone and writes it again.
// A failure leaves them for the next time.
func (a *Artefacts) sweep(ctx context.Context, name string, l *ledger, revision int64) {
	prefix := a.bodiesPrefix(name)
	got, err := a.c.etcd.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return
	}
	gone := map[string]bool{}
	for _, kv := range got.Kvs {
		if sum, _, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), prefix), "/"); ok {
			_, named := l.find(sum)
			gone[sum] = !named
		}
	}
	for sum, is := range gone {
		if is {
			a.remove(ctx, name, sum, revision)
		}
	}
}

// remove removes a body that no ledger names, unless the ledger has changed since a
// revision.
func (a *Artefacts) remove(ctx context.Context, name, sum string, revision int64) {
	_, _ = a.c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(a.docs.key(name)), "=", revision)).
		Then(clientv3.OpDelete(a.bodiesPrefix(name)+sum+"/", clientv3.WithPrefix())).Commit()
}

// unwrite removes a body of a publication that was refused after it was written, if no
// ledger names it: it may be that nobody publishes under the name again, and so sweeps.
// In an etcd that is to be restored nothing is removed. Whoever published may be gone.
func (a *Artefacts) unwrite(name, sum string) {
	if a.c.Lost() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(a.c.ctx, a.c.askTime())
	defer cancel()
	l, err := a.readRaw(ctx, name)
	if _, named := l.find(sum); err == nil && l.bad == nil && !named {
		a.remove(ctx, name, sum, l.at)
	}
}

// Body returns the bytes of a version, from disk if they are there and else
// from etcd. They have the checksum that the version says.
func (a *Artefacts) Body(ctx context.Context, v Version) ([]byte, error) {
	ledgers, _ := a.state.Get()
	l := ledgers[v.Name]
	if l == nil {
		return nil, a.unknown(v.Name, v.Version)
	}
	e, ok := l.find(v.Sum)
	if !ok || e.Version != v.Version {
		return nil, a.unknown(v.Name, v.Version)
	}
	if body, err := a.kept(e); err == nil {
		return body, nil
	}
	body, err := a.download(ctx, v, e)
	if errors.Is(err, ErrAway) || errors.Is(err, ErrNoBytes) {
		return nil, err // it is not to blame
	}
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", a.kind, v, err)
	}
	a.keep(v, e, body)
	return body, nil
}

func (a *Artefacts) download(ctx context.Context, v Version, e edition) ([]byte, error) {
	body := make([]byte, 0, e.Bytes)
	for i := range partCount(e.Bytes) {
		call, cancel := context.WithTimeout(ctx, max(a.c.firstCall(), a.c.wait))
		got, err := a.c.etcd.Get(call, a.partKey(v.Name, v.Sum, i))
		cancel()
		a.c.noteSilence(err)
		if err != nil {
			return nil, a.c.unanswered(err)
		}
		if len(got.Kvs) == 0 {
			return nil, a.bare(v)
		}
		body = append(body, got.Kvs[0].Value...)
	}
	if len(body) != e.Bytes || checksum(body) != e.Sum {
		return nil, errors.New("its bytes have another checksum than it says")
	}
	return body, nil
}

// file is where the bytes of a version are kept across restarts.
func (a *Artefacts) file(sum string) string { return bodyFile(a.c.dir, a.kind, sum) }

// kept returns the bytes of a version that are on disk and whole.
func (a *Artefacts) kept(e edition) ([]byte, error) {
	if a.c.dir == "" {
		return nil, os.ErrNotExist
	}
	return readBody(a.file(e.Sum), e)
}

func readBody(file string, e edition) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() != int64(e.Bytes) {
		return nil, fmt.Errorf("%s has %d bytes, not %d", file, info.Size(), e.Bytes)
	}
	body, err := os.ReadFile(file)
	if err == nil && checksum(body) != e.Sum {
		err = fmt.Errorf("%s has another checksum", file)
	}
	return body, err
}

// unkept is why bytes are not on disk, by their sums.
type unkept struct {
	sync.Mutex
	why map[string]error
}

func (u *unkept) note(sum string, err error) {
	u.Lock()
	defer u.Unlock()
	if delete(u.why, sum); err != nil {
		if u.why == nil {
			u.why = map[string]error{}
		}
		u.why[sum] = err
	}
}

// Unkept returns why the bytes of a version, which were read, are not on disk for
// when etcd is away; nil if they are.
func (a *Artefacts) Unkept(v Version) error {
	a.unkept.Lock()
	defer a.unkept.Unlock()
	return a.unkept.why[v.Sum]
}

// keep writes the bytes of a version to disk, for when etcd is away. Where that
// fails they are downloaded again for the next time, rather than held.
func (a *Artefacts) keep(v Version, e edition, body []byte) {
	if a.c.dir == "" {
		return
	}
	file := a.file(e.Sum)
	a.c.write(file, func() (err error) {
		if ledgers, _ := a.state.Get(); !names(ledgers[v.Name], e) && !a.used.has(e.Sum) {
			a.unkept.note(e.Sum, nil)
			return nil // it was dropped
		}
		if body == nil {
			body, err = a.download(a.c.ctx, v, e)
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(file), 0o755)
		}
		if err == nil {
			err = writeWhole(file, body)
		}
		body = nil
		a.unkept.note(e.Sum, err)
		return err
	})
}

// names reports whether a ledger has a version.
func names(l *ledger, e edition) bool {
	return l != nil && slices.Contains(l.Versions, e)
}

// writeWhole writes a file beside its place and moves it there: several
// watchers of one process may do so at the same time.
func writeWhole(file string, body []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), "new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// forget removes from disk what was dropped, unless the process still goes by it.
func (a *Artefacts) forget(old, now map[string]*ledger) {
	if a.c.dir == "" {
		return
	}
	has := map[string]bool{}
	for _, l := range now {
		for _, e := range l.Versions {
			has[e.Sum] = true
		}
	}
	for _, l := range old {
		for _, e := range l.Versions {
			if !has[e.Sum] && !a.used.has(e.Sum) {
				_ = os.Remove(a.file(e.Sum))
			}
		}
	}
}
