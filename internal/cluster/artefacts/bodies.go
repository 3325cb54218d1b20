package artefacts

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
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
)

// The bytes of an artefact's versions stand outside the watched prefix, under their
// checksum, in parts that a value of etcd can hold. They are written before the ledger that
// names them, so that a ledger never names bytes that were not written.

// bodiesPrefix comes after the cluster's prefix and before the kind, in the keys of bytes.
const bodiesPrefix = "bodies/"

// bodiesPrefix returns the prefix of the keys of all bytes of a name.
func (a *Kind) bodiesPrefix(name string) string {
	return a.c.Prefix() + bodiesPrefix + a.kind + "/" + name + "/"
}

// partKey returns the key of the i-th part, from 0, of a version's bytes.
func (a *Kind) partKey(name, sum string, i int) string {
	return fmt.Sprintf("%s%s/%03d", a.bodiesPrefix(name), sum, i)
}

// ErrNoBytes says that a ledger in etcd names a version whose bytes etcd does not have.
var ErrNoBytes = errors.New("cluster: etcd lacks the bytes of the version")

// BytesWayOut is the way out of [ErrNoBytes], for all who tell of it.
const BytesWayOut = "millrace cluster restore --data .. brings them from a data directory that has them"

// bare returns an [ErrNoBytes] for a version.
func (a *Kind) bare(v Version) error {
	return cluster.Refuse(ErrNoBytes, millrace.ReasonUnavailable, "", BytesWayOut, "the bytes of %s %s are not in etcd", a.singular(), v)
}

// PartsThere is how many parts etcd has of each version's bytes, by name/sum.
type PartsThere map[string]int

// Hold reports whether all parts of a version are there.
func (p PartsThere) Hold(name string, e ledger.Edition) bool {
	return p[name+"/"+e.Sum] >= documents.PartCount(e.Bytes)
}

// PartsThere counts the parts of a name's versions, if under is the name and a slash, or of
// all names, if under is empty.
func (a *Kind) PartsThere(ctx context.Context, under string) (PartsThere, error) {
	prefix := a.c.Prefix() + bodiesPrefix + a.kind + "/"
	ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	got, err := a.c.Etcd().Get(ctx, prefix+under, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, cluster.Away(err)
	}
	parts := PartsThere{}
	for _, kv := range got.Kvs {
		of := strings.TrimPrefix(string(kv.Key), prefix)
		parts[of[:max(0, strings.LastIndexByte(of, '/'))]]++
	}
	return parts, nil
}

// Bare returns the versions, in order of name, that ledgers name and whose bytes etcd does
// not have. It leaves out versions that came or went while it looked.
func (a *Kind) Bare(ctx context.Context) (all []Version, err error) {
	before, _ := a.state.Get()
	parts, err := a.PartsThere(ctx, "")
	if err == nil {
		err = a.Settle(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("cluster: bytes of %s: %w", a.kind, err)
	}
	now, _ := a.state.Get()
	for _, name := range slices.Sorted(maps.Keys(now)) {
		for _, e := range now[name].Versions {
			if names(before[name], e) && !parts.Hold(name, e) {
				all = append(all, Version{name, e.Version, e.Sum})
			}
		}
	}
	return all, nil
}

func tooLarge(name string, bytes int) error {
	return &millrace.Error{
		Reason: millrace.ReasonTooLarge,
		Detail: fmt.Sprintf("%s is %d bytes, not between 1 and %d", name, bytes, keyspace.MaxPartedBytes),
		WayOut: "make it smaller: of a model, fewer trees, leaves or golden rows",
	}
}

// Upload writes the parts of a version.
func (a *Kind) Upload(ctx context.Context, v Version, body []byte) error {
	for i := range documents.PartCount(len(body)) {
		part := body[i*keyspace.MaxDocumentBytes : min((i+1)*keyspace.MaxDocumentBytes, len(body))]
		call, cancel := context.WithTimeout(ctx, a.c.AskTime())
		_, err := a.c.Etcd().Put(call, a.partKey(v.Name, v.Sum, i), string(part))
		cancel()
		if err != nil {
			return fmt.Errorf("cluster: %s %s: %w", a.kind, v, a.c.Unanswered(err))
		}
	}
	return nil
}

// mend writes the parts of a version again if some are missing, as after a restoration from
// directories that lacked them, or if their checksum is wrong. The error is
// [cluster.ErrAway] if etcd does not answer.
func (a *Kind) mend(ctx context.Context, v Version, body []byte) error {
	if _, err := a.download(ctx, v, ledger.Edition{Version: v.Version, Sum: v.Sum, Bytes: len(body)}); err == nil || errors.Is(err, cluster.ErrAway) {
		return err
	}
	return a.Upload(ctx, v, body)
}

// sweep removes the bodies of a name that its ledger does not name, unless the ledger has
// changed since a revision. A publisher whose body is removed before its ledger is written
// finds that out and writes the body again. What cannot be removed stays for the next time.
func (a *Kind) sweep(ctx context.Context, name string, l *ledger.Ledger, revision int64) {
	prefix := a.bodiesPrefix(name)
	got, err := a.c.Etcd().Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return
	}
	gone := map[string]bool{}
	for _, kv := range got.Kvs {
		if sum, _, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), prefix), "/"); ok {
			_, named := l.Find(sum)
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
func (a *Kind) remove(ctx context.Context, name, sum string, revision int64) {
	_, _ = a.c.Etcd().Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(a.docs.Key(name)), "=", revision)).
		Then(clientv3.OpDelete(a.bodiesPrefix(name)+sum+"/", clientv3.WithPrefix())).Commit()
}

// unwrite removes the body of a version whose publication failed after the body was
// written, if the ledger does not name it. Otherwise it would stay until somebody publishes
// under the name again. It removes nothing from an etcd that is to be restored. It does not
// use the publisher's context, which may have ended.
func (a *Kind) unwrite(name, sum string) {
	if a.c.Lost() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(a.c.Context(), a.c.AskTime())
	defer cancel()
	l, err := a.readRaw(ctx, name)
	if _, named := l.Find(sum); err == nil && l.Bad == nil && !named {
		a.remove(ctx, name, sum, l.At)
	}
}

// Body returns the bytes of a version, from disk if they are there and else
// from etcd, and has them written to disk. They have the checksum of the version.
func (a *Kind) Body(ctx context.Context, v Version) ([]byte, error) {
	ledgers, _ := a.state.Get()
	l := ledgers[v.Name]
	if l == nil {
		return nil, a.unknown(v.Name, v.Version)
	}
	e, ok := l.Find(v.Sum)
	if !ok || e.Version != v.Version {
		return nil, a.unknown(v.Name, v.Version)
	}
	if body, err := a.kept(e); err == nil {
		return body, nil
	}
	body, err := a.download(ctx, v, e)
	if errors.Is(err, cluster.ErrAway) || errors.Is(err, ErrNoBytes) {
		return nil, err // says enough: nothing is wrong with this version's bytes
	}
	if err != nil {
		return nil, fmt.Errorf("cluster: %s %s: %w", a.kind, v, err)
	}
	a.keep(v, e, body)
	return body, nil
}

// download reads the bytes of a version from etcd, and checks their length and checksum.
func (a *Kind) download(ctx context.Context, v Version, e ledger.Edition) ([]byte, error) {
	body := make([]byte, 0, e.Bytes)
	for i := range documents.PartCount(e.Bytes) {
		call, cancel := context.WithTimeout(ctx, max(a.c.FirstCall(), a.c.Wait()))
		got, err := a.c.Etcd().Get(call, a.partKey(v.Name, v.Sum, i))
		cancel()
		a.c.NoteSilence(err)
		if err != nil {
			return nil, a.c.Unanswered(err)
		}
		if len(got.Kvs) == 0 {
			return nil, a.bare(v)
		}
		body = append(body, got.Kvs[0].Value...)
	}
	if len(body) != e.Bytes || documents.Checksum(body) != e.Sum {
		return nil, errors.New("its bytes have another checksum than it says")
	}
	return body, nil
}

// file is where the bytes of a version are kept across restarts.
func (a *Kind) file(sum string) string { return documents.BodyFile(a.c.Dir(), a.kind, sum) }

// kept returns the bytes of a version that are on disk and whole.
func (a *Kind) kept(e ledger.Edition) ([]byte, error) {
	if a.c.Dir() == "" {
		return nil, os.ErrNotExist
	}
	return documents.ReadBody(a.file(e.Sum), e)
}

// unkept holds why bytes could not be written to disk, by their checksums.
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

// Unkept returns why the bytes of a version that was read could not be written to disk; nil
// if they could.
func (a *Kind) Unkept(v Version) error {
	a.unkept.Lock()
	defer a.unkept.Unlock()
	return a.unkept.why[v.Sum]
}

// keep writes the bytes of a version to disk, for when etcd is away. If that fails it is
// tried again later; the bytes are then downloaded again, so that they need not be held in
// memory meanwhile.
func (a *Kind) keep(v Version, e ledger.Edition, body []byte) {
	if a.c.Dir() == "" {
		return
	}
	file := a.file(e.Sum)
	a.c.WriteFile(file, func() (err error) {
		if ledgers, _ := a.state.Get(); !names(ledgers[v.Name], e) && !a.used.has(e.Sum) {
			a.unkept.note(e.Sum, nil)
			return nil // the version was dropped
		}
		if body == nil {
			body, err = a.download(a.c.Context(), v, e)
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

// names reports whether a ledger, which may be nil, has a version.
func names(l *ledger.Ledger, e ledger.Edition) bool {
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

// forget removes from disk the bytes of versions that old names and now does not, unless
// the process still uses them.
func (a *Kind) forget(old, now map[string]*ledger.Ledger) {
	if a.c.Dir() == "" {
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
