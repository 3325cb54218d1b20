// Package disk is the disk as Pebble sees it: one that keeps room for what Pebble
// cannot do without, and waits where Pebble could not go on. Who calls a store
// hears of both; Pebble does not.
package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Config says whose disk it is.
type Config struct {
	FS      vfs.FS
	Dir     string // the store's
	MinFree int64  // bytes below which a store takes nothing more in; negative: no limit
	Full    error  // what an error for want of room is
	Offline bool   // nobody waits: the store ends where another would wait for the disk
	Log     *slog.Logger
	Done    <-chan struct{} // closed when the store is
	// Stalls hears each time a call of Pebble's meets a disk that fails.
	Stalls func(error)
}

// Disk is the disk of a store, and whether the store can still use it.
type Disk struct {
	c       Config
	ballast *ballast
	opened  atomic.Bool           // Pebble is open
	stalled atomic.Pointer[error] // why Pebble waits for the disk; see patiently

	ending  sync.Once
	ended   chan struct{} // closed when the store has ended; see End
	endedBy error         // set before
}

// New returns the disk of a store whose directory is there.
func New(c Config) *Disk {
	return &Disk{c: c, ballast: newBallast(c), ended: make(chan struct{})}
}

// FS is the file system for Pebble.
func (d *Disk) FS() vfs.FS { return fileSystem{d.c.FS, d} }

// Opened says that Pebble is open: from now on it is waited for.
func (d *Disk) Opened() { d.opened.Store(true) }

// Hold takes the ballast up again.
func (d *Disk) Hold() {
	if err := d.ballast.hold(); err != nil {
		d.c.Log.Warn("store: the ballast for a full disk is not whole", "bytes", d.ballast.size(), "err", err)
	}
}

// Room reports whether the disk has at least as much free space. An error of one
// that has not is Config.Full.
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

// End takes the store out of use for good, and never returns: Pebble's call
// that met err may hold its locks, and must not go on. Its goroutine and the
// store's memory stay until the process ends. Reads go on as far as they need
// none of these locks; who waits for Pebble gets err, see OrEnd.
func (d *Disk) End(err error) {
	d.ending.Do(func() {
		d.c.Log.Error("store: it cannot go on: writes fail, reads may go on", "err", err)
		d.endedBy = err
		close(d.ended)
	})
	select {}
}

// OrEnd does what waits for Pebble's manifest, and returns when the store ends
// meanwhile.
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

// Stuck says why Pebble cannot write: the store has ended, or the disk is
// waited for.
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

// Ended is closed when the store has ended, and Why then says by what.
func (d *Disk) Ended() <-chan struct{} { return d.ended }

// Why says what the store ended by.
func (d *Disk) Why() error { return d.endedBy }

// SyncDir puts a directory on disk.
func SyncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
