package disk

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// fileSystem is the file system as Pebble sees it. Pebble ends the process when it cannot
// write its manifest. So a table, whose write may fail, is refused while there is still some
// room, and all other files may use the room of the ballast when the disk is full.
type fileSystem struct {
	vfs.FS
	d *Disk
}

// tablePause is how long a failure of a table waits if there was another one that long ago or
// less: Pebble tries again at once, as long as the disk fails.
const tablePause = 250 * time.Millisecond

// table returns err, the outcome of work on a table.
func (d *Disk) table(err error) error {
	if err == nil {
		return nil
	}
	now := time.Now()
	if last := d.failed.Swap(&now); last == nil || now.Sub(*last) > tablePause {
		return err
	}
	select {
	case <-time.After(tablePause):
	case <-d.c.Done:
		select {
		case <-d.ended: // Pebble is not closed, and goes on
			time.Sleep(tablePause)
		default:
		}
	}
	ended := time.Now()
	d.failed.Store(&ended)
	return err
}

// tableFile is a file of Pebble's that holds rows.
type tableFile struct {
	vfs.File
	d *Disk
}

// Write writes all of b, or returns an error.
func (f tableFile) Write(b []byte) (n int, err error) {
	n, err = f.File.Write(b)
	return n, f.d.table(err)
}

// Sync puts the file on disk.
func (f tableFile) Sync() error { return f.d.table(f.File.Sync()) }

// SyncData puts the file's data on disk.
func (f tableFile) SyncData() error { return f.d.table(f.File.SyncData()) }

// Create creates a file. It refuses a table if less than an eighth of Config.MinFree is free.
//
// It also syncs the directory of a manifest. Pebble syncs it only together with the marker
// file that names the manifest, and a crash in between may keep the marker and lose the
// manifest: then the store cannot be opened.
func (fs fileSystem) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasSuffix(name, ".sst") {
		if err := fs.d.Room(fs.d.c.MinFree / 8); err != nil {
			return nil, fs.d.table(err)
		}
		f, err := fs.FS.Create(name, c)
		if err != nil {
			return nil, fs.d.table(err)
		}
		return tableFile{f, fs.d}, nil
	}
	if !fs.kept(name) {
		return fs.create(name)
	}
	var f vfs.File
	err := fs.d.patiently(func() (err error) {
		f, err = fs.create(name)
		return err
	})
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(fs.PathBase(name), "MANIFEST-") {
		if err := fs.d.patiently(func() error { return SyncDir(fs.FS, fs.PathDir(name)) }); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return &patientFile{File: f, fs: fs, name: name}, nil
}

// create creates a file that may spend the ballast.
func (fs fileSystem) create(name string) (vfs.File, error) {
	var f vfs.File
	err := fs.d.ballast.spend(func() (err error) {
		f, err = fs.FS.Create(name, vfs.WriteCategoryUnspecified)
		return err
	})
	if err != nil {
		return nil, err
	}
	return spendingFile{f, fs.d.ballast}, nil
}

// Unwrap returns the file system below.
func (fs fileSystem) Unwrap() vfs.FS { return fs.FS }

// spendingFile is a file whose writes may spend the ballast.
type spendingFile struct {
	vfs.File
	ballast *ballast
}

// Write writes all of b, or returns an error.
func (f spendingFile) Write(b []byte) (n int, err error) {
	err = f.ballast.spend(func() error {
		w, err := f.File.Write(b[n:])
		n += w
		return err
	})
	return n, err
}

// Sync puts the file on disk.
func (f spendingFile) Sync() error { return f.ballast.spend(f.File.Sync) }

// SyncData puts the file's data on disk.
func (f spendingFile) SyncData() error { return f.ballast.spend(f.File.SyncData) }

// ballast is a file that takes up space until it is needed more elsewhere.
type ballast struct {
	mu   sync.Mutex // held while it is written or removed
	fs   vfs.FS
	path string
	want int64 // its size, in bytes; 0: there is no ballast
}

const (
	// maxBallastBytes is room for a manifest of a hundred thousand files.
	maxBallastBytes = 16 << 20
	// openBytes is many times what Pebble writes when it opens.
	openBytes = 64 << 10
)

func newBallast(c Config) *ballast {
	b := &ballast{fs: c.FS, path: c.FS.PathJoin(c.Dir, "BALLAST"), want: min(max(c.MinFree, 0)/16, maxBallastBytes)}
	if _, err := c.FS.GetDiskUsage(c.Dir); errors.Is(err, vfs.ErrUnsupported) {
		b.want = 0
	}
	return b
}

// size returns how many bytes of the ballast are there.
func (b *ballast) size() int64 {
	info, err := b.fs.Stat(b.path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// hold fills the ballast up to what is wanted, or as far as there is space.
func (b *ballast) hold() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fill()
}

// fill is hold with mu held.
func (b *ballast) fill() error {
	if b.size() >= b.want {
		return nil
	}
	f, err := b.fs.OpenReadWrite(b.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	var key [32]byte
	noise := make([]byte, 64<<10) // random, since a file system may compress
	rand.NewChaCha8(key).Read(noise)
	for at := b.size(); at < b.want && err == nil; {
		var n int
		n, err = f.WriteAt(noise[:min(b.want-at, int64(len(noise)))], at)
		at += int64(n)
	}
	return errors.Join(err, f.Close())
}

// spend calls do. If do meets a full disk, spend removes the ballast, calls do again, and
// fills the ballast with what space is left.
func (b *ballast) spend(do func() error) error {
	err := do()
	if b.want == 0 || !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if removed := b.fs.Remove(b.path); removed != nil {
		return err
	}
	err = do()
	b.fill() // as far as there is space: RoomToOpen checks what it lacks
	return err
}

// RoomToOpen returns an error if Pebble would have no space for a manifest when it opens, in
// the ballast or beside it.
func (d *Disk) RoomToOpen() error {
	if d.ballast.want == 0 {
		return nil
	}
	return d.Room(max(0, min(openBytes, d.ballast.want)-d.ballast.size()))
}
