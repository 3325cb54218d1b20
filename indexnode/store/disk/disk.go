// Package disk is the disk as Pebble, the storage engine, sees it. It keeps room for the
// writes that Pebble cannot do without, and where such a write fails it waits until the disk
// works again. Callers of the store are told about a full or failing disk; Pebble is not.
package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config says whose disk it is.
type Config struct {
	FS      vfs.FS
	Dir     string // the store's
	MinFree int64  // free bytes below which the store takes nothing more in; negative: no limit
	Full    error  // the error that errors for lack of space wrap
	Offline bool   // the store ends where another store would wait for the disk
	Log     *slog.Logger
	Done    <-chan struct{} // closed when the store is closed
	// Stalls is called each time that a call of Pebble's fails because of the disk, before
	// the call is tried again.
	Stalls func(error)
}

// Disk is the disk of a store, and whether the store can still use it.
type Disk struct {
	c       Config
	ballast *ballast
	opened  atomic.Bool               // Pebble is open
	stalled atomic.Pointer[error]     // why Pebble waits for the disk; see patiently
	failed  atomic.Pointer[time.Time] // when a table failed last; see table

	ending  sync.Once
	ended   chan struct{} // closed when the store has ended; see End
	endedBy error         // set before ended is closed
}

// New returns the disk of a store whose directory exists.
func New(c Config) *Disk {
	return &Disk{c: c, ballast: newBallast(c), ended: make(chan struct{})}
}

// FS is the file system for Pebble.
func (d *Disk) FS() vfs.FS { return fileSystem{d.c.FS, d} }

// Opened says that Pebble is open. While Pebble opens, its calls wait only for a disk that
// fails with EIO. From now on they wait for a disk that is full or read-only, too.
func (d *Disk) Opened() { d.opened.Store(true) }

// Hold writes the ballast, or what of it is missing: a file that takes up space until Pebble
// needs the space. An error is only logged.
func (d *Disk) Hold() {
	if err := d.ballast.hold(); err != nil {
		d.c.Log.Warn("store: the ballast for a full disk is not whole", "bytes", d.ballast.size(), "err", err)
	}
}

// Room returns nil if the disk has at least so many bytes free, if there is no limit, or if
// the file system cannot tell. If there are fewer, the error wraps Config.Full.
func (d *Disk) Room(least int64) error {
	if d.c.MinFree < 0 {
		return nil
	}
	u, err := d.c.FS.GetDiskUsage(d.c.Dir)
	if errors.Is(err, vfs.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("store: free space of %s: %w", d.c.Dir, err)
	}
	if u.AvailBytes < uint64(least) {
		return fmt.Errorf("%w: %d bytes free in %s, %d needed", d.c.Full, u.AvailBytes, d.c.Dir, least)
	}
	return nil
}

// Usage returns the size of the store's file system, and what of it is free, in
// bytes; zeros where that is not known.
func (d *Disk) Usage() (size, free int64) {
	u, err := d.c.FS.GetDiskUsage(d.c.Dir)
	if err != nil {
		return 0, 0
	}
	return int64(min(u.TotalBytes, math.MaxInt64)), int64(min(u.AvailBytes, math.MaxInt64))
}

// End takes the store out of use for good, and never returns: Pebble's call that met err
// may hold Pebble's locks, and must not go on. Its goroutine and the store's memory stay
// until the process ends. Reads go on as far as they need none of these locks. Callers that
// wait for Pebble get err: see OrEnd.
func (d *Disk) End(err error) {
	d.ending.Do(func() {
		d.c.Log.Error("store: it cannot go on: writes fail, reads may go on", "err", err)
		d.endedBy = err
		close(d.ended)
	})
	select {}
}

// OrEnd calls do, which may wait for Pebble's manifest, and returns its error. If the store
// ends meanwhile, OrEnd returns what it ended by, and do goes on in its goroutine.
func (d *Disk) OrEnd(do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-d.ended:
		return d.endedBy
	}
}

// Stuck returns why Pebble cannot write: the store has ended, or a call waits for the disk.
// It returns nil if neither is so.
func (d *Disk) Stuck() error {
	select {
	case <-d.ended:
		return d.endedBy
	default:
	}
	if why := d.stalled.Load(); why != nil {
		return *why
	}
	return nil
}

// Ended returns a channel that is closed when the store has ended; Why then says by what.
func (d *Disk) Ended() <-chan struct{} { return d.ended }

// Why returns what the store ended by. It may be called once Ended is closed.
func (d *Disk) Why() error { return d.endedBy }

// SyncDir puts a directory's entries on disk.
func SyncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
