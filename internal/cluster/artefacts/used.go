package artefacts

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
)

// used is the versions that a process uses, by name. They may be older than those that
// serve by its ledgers, since a ledger can be there before the bytes can be read. So they
// stay on disk, with their bytes, until the process uses others.
type used struct {
	sync.Mutex
	versions map[string]Version // nil: Use was never called
}

func (u *used) has(sum string) bool {
	u.Lock()
	defer u.Unlock()
	for _, v := range u.versions {
		if v.Sum == sum {
			return true
		}
	}
	return false
}

// current returns the versions that are used; nil if Use was never called.
func (u *used) current() map[string]Version {
	u.Lock()
	defer u.Unlock()
	return u.versions
}

func (a *Kind) usedFile() string { return filepath.Join(a.c.Dir(), "used-"+a.kind+".json") }

// loadUsed reads what Use of an earlier process kept.
func (a *Kind) loadUsed() {
	if a.c.Dir() == "" {
		return
	}
	body, err := datadir.Read(a.usedFile(), documents.MaxFileBytes)
	if os.IsNotExist(err) {
		return
	}
	var kept map[string]Version
	if err == nil {
		err = json.Unmarshal(body, &kept)
	}
	if err != nil {
		a.log.Error("what was last good is not known", "err", err)
		return
	}
	for name, v := range kept {
		if v.Name != name || ledger.CheckVersion(v.Version) != nil || !ledger.IsSum(v.Sum) { // a sum becomes a file's name
			delete(kept, name)
		}
	}
	a.used.versions = kept
}

// Use says which versions the process uses from now on, by name, and keeps that on disk.
// The process must have read the bytes of all of them. Bytes that nothing needs any more
// are removed from disk.
func (a *Kind) Use(versions map[string]Version) {
	a.used.Lock()
	before := a.used.versions
	a.used.versions = maps.Clone(versions)
	a.used.Unlock()
	if a.c.Dir() == "" || maps.Equal(before, versions) {
		return
	}
	a.c.SaveFile(a.usedFile(), versions)
	ledgers, _ := a.state.Get()
	for _, v := range before {
		if l := ledgers[v.Name]; !a.used.has(v.Sum) && (l == nil || !slices.ContainsFunc(l.Versions, func(e ledger.Edition) bool { return e.Sum == v.Sum })) {
			_ = os.Remove(a.file(v.Sum))
		}
	}
}

// LastUsed returns the bytes of the versions that the process used last, as far as they are
// on disk and whole. Before Use is called these are the versions of the process before this
// one.
func (a *Kind) LastUsed() map[Version][]byte {
	a.used.Lock()
	defer a.used.Unlock()
	all := map[Version][]byte{}
	for _, v := range a.used.versions {
		if body, err := datadir.Read(a.file(v.Sum), keyspace.MaxPartedBytes); err == nil && documents.Checksum(body) == v.Sum {
			all[v] = body
		}
	}
	return all
}
