//go:build synctests

package simulation

import (
	"math/rand/v2"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// disk is a node's disk: it loses in a crash some of what was not synced, and
// can be full.
type disk struct {
	mem  *vfs.MemFS
	full atomic.Bool
}

// crash replaces what is on the disk by what a crash at this moment leaves. Who
// has it open goes on with a copy that nobody sees again.
func (d *disk) crash(r *rand.Rand) {
	d.mem = d.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: rand.New(rand.NewPCG(r.Uint64(), 0))})
}

// life is the disk as a process sees that begins now.
func (d *disk) life() vfs.FS {
	return sized{errorfs.Wrap(d.mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpFilePreallocate, errorfs.OpMkdirAll:
			if d.full.Load() {
				return syscall.ENOSPC
			}
		}
		return nil
	})), d}
}

// sized is a file system that tells how much of it is free.
type sized struct {
	vfs.FS
	d *disk
}

func (s sized) GetDiskUsage(string) (vfs.DiskUsage, error) {
	u := vfs.DiskUsage{TotalBytes: 100 << 30, AvailBytes: 50 << 30, UsedBytes: 50 << 30}
	if s.d.full.Load() {
		u.AvailBytes, u.UsedBytes = 0, u.TotalBytes
	}
	return u, nil
}

func (s sized) Unwrap() vfs.FS { return s.FS }
