package disk

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble cannot go on, or panics in a goroutine of its own, when it cannot write its manifest
// or sync a directory. So such a call does not return while the disk fails, or is full in
// spite of the ballast. It waits in the file system and is tried again until it works, and
// the store's callers are told (see Stuck). Pebble does not hold the locks of readers
// meanwhile. An offline store serves nobody, so it does not wait but ends.

// mayGo are errors of the disk that may go away.
var mayGo = []error{syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS}

// ofDisk reports whether an error is one of mayGo.
func ofDisk(err error) bool {
	return slices.ContainsFunc(mayGo, func(e error) bool { return errors.Is(err, e) })
}

// patience is the pause before a call that the disk failed is tried again.
const patience = 250 * time.Millisecond

// patiently calls do, which Pebble cannot do without, again as long as the disk fails. It
// never returns if the store ends or is closed meanwhile; so Close of a store does not wait
// for it.
func (d *Disk) patiently(do func() error) error {
	for {
		err := do()
		if !ofDisk(err) {
			if d.stalled.Swap(nil) != nil {
				d.c.Log.Info("store: the disk works again: ingest goes on")
			}
			return err
		}
		if d.c.Offline || !d.opened.Load() && !errors.Is(err, syscall.EIO) {
			d.End(err)
		}
		if d.stalled.Swap(&err) == nil {
			d.c.Log.Error("store: the disk fails: ingest waits, reads go on", "err", err)
		}
		d.c.Stalls(err)
		select {
		case <-time.After(patience):
		case <-d.c.Done:
			select {}
		}
	}
}

// patientFile is a manifest or a marker. Its whole contents are kept in memory. A sync that
// failed must not be tried again on the same file, since the system may have dropped what it
// could not write. Instead the whole file is written anew, and moved to the place of the old
// one.
type patientFile struct {
	vfs.File
	fs    fileSystem
	name  string
	kept  []byte
	wrong bool // File may lack something of kept
}

// Write writes all of b, or returns an error.
func (f *patientFile) Write(b []byte) (int, error) {
	f.kept = append(f.kept, b...)
	return len(b), f.do(func() error { _, err := f.File.Write(b); return err })
}

// Sync puts the file on disk.
func (f *patientFile) Sync() error { return f.do(f.File.Sync) }

// SyncData puts the file's data on disk.
func (f *patientFile) SyncData() error { return f.do(f.File.SyncData) }

// SyncTo does nothing, which is allowed: Sync follows.
func (f *patientFile) SyncTo(int64) (fullSync bool, err error) { return false, nil }

// do calls op, or writes the file anew if op, or an earlier one, met a failing disk.
func (f *patientFile) do(op func() error) error {
	if !f.wrong {
		err := op()
		if !ofDisk(err) {
			return err
		}
		f.wrong = true
	}
	return f.fs.d.patiently(f.anew)
}

// anew writes a new file with all that is kept, syncs it, and moves it to the file's place.
func (f *patientFile) anew() error {
	again, err := f.fs.create(f.name + ".again")
	if err != nil {
		return err
	}
	_, err = again.Write(slices.Clone(f.kept)) // Pebble's file systems may change the slice
	if err = errors.Join(err, again.Sync()); err == nil {
		err = f.fs.FS.Rename(f.name+".again", f.name)
	}
	if err == nil {
		err = SyncDir(f.fs.FS, f.fs.PathDir(f.name))
	}
	if err != nil {
		return errors.Join(err, again.Close())
	}
	_ = f.File.Close() // it has nothing that again lacks
	f.File, f.wrong = again, false
	return nil
}

// patientDir is a directory whose sync waits for the disk. Unlike that of a file, a sync of a
// directory may be tried again: it ends a transaction of the file system's journal, and a
// journal that failed goes on failing until the file system is mounted again.
type patientDir struct {
	vfs.File
	d *Disk
}

// Sync puts the directory on disk.
func (p patientDir) Sync() error { return p.d.patiently(p.File.Sync) }

// OpenDir opens a directory.
func (fs fileSystem) OpenDir(name string) (vfs.File, error) {
	d, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return patientDir{d, fs.d}, nil
}

// kept reports whether a file is one that Pebble cannot do without: a manifest or a marker.
func (fs fileSystem) kept(name string) bool {
	base := fs.PathBase(name)
	return strings.HasPrefix(base, "MANIFEST-") || strings.HasPrefix(base, "marker.")
}
