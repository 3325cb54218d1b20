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

// used is the versions that a process goes by, by name. They may be older than
// what its ledgers say, which can be heard of before their bytes can be read, and
// so they are kept on disk with their bytes until the process goes by others.
type used struct {
	sync.Mutex
	versions map[string]Version
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

// current returns the versions that are used; nil: nobody has said.
func (u *used) current() map[string]Version {
	u.Lock()
	defer u.Unlock()
	return u.versions
}

func (a *Kind) usedFile() string { return filepath.Join(a.c.Dir(), "used-"+a.kind+".json") }

// loadUsed reads what Use kept.
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

// Use keeps on disk which versions the process goes by, all of which it has read.
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

// LastUsed returns the bytes of the versions that the last process went by, as far
// as they are on disk and whole.
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
