package backup

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/internal/backup/objects"
)

// Hashes remembers the hashes of files that never change once written, such as a store's
// tables, so that a backup reads only new files to hash them. It knows a file by device,
// inode, size and time of modification. A round is one time that a node backs up
// its partitions. The zero Hashes is empty and ready for use.
type Hashes struct {
	mu        sync.Mutex
	last, now map[fileID]Ref // the files that the last round asked for, and those that this round did
}

// fileID tells a file from all others as long as it is not written.
type fileID struct {
	device, inode uint64
	size          int64
	modified      time.Time
}

// NewRound begins another round. It forgets the files that the round that ends did not ask
// for.
func (h *Hashes) NewRound() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.now = h.now, make(map[fileID]Ref)
}

// Len returns of how many files it has the hash.
func (h *Hashes) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.now)
	for id := range h.last {
		if _, also := h.now[id]; !also {
			n++
		}
	}
	return n
}

func (h *Hashes) get(id fileID) (Ref, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r, ok := h.now[id]
	if !ok {
		if r, ok = h.last[id]; ok {
			h.now[id] = r
		}
	}
	return r, ok
}

func (h *Hashes) set(id fileID, r Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.now == nil {
		h.now = make(map[fileID]Ref)
	}
	h.now[id] = r
}

func (h *Hashes) forget(id fileID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.now, id)
	delete(h.last, id)
}

// idOf returns the id of a file. ok is false if the system tells no inode.
func idOf(info fs.FileInfo) (id fileID, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return id, false
	}
	return fileID{device: uint64(s.Dev), inode: s.Ino, size: info.Size(), modified: info.ModTime()}, true
}

// hash reads a file and returns its size and hash. After each chunk it
// rests as Options.Pace says, to leave processor and disk to requests.
func (b *Bucket) hash(ctx context.Context, f *os.File) (r Ref, err error) {
	sum := sha256.New()
	buf := chunks.Get().(*[objects.Chunk]byte)
	defer chunks.Put(buf)
	for {
		began := time.Now()
		n, err := f.Read(buf[:])
		sum.Write(buf[:n])
		r.Size += int64(n)
		if err == io.EOF {
			break
		}
		if err == nil {
			b.pace.Since(ctx, began)
			err = ctx.Err()
		}
		if err != nil {
			return r, fmt.Errorf("backup: read %s: %w", f.Name(), err)
		}
	}
	sum.Sum(r.SHA256[:0])
	return r, nil
}
