package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/tables"
)

// Restore replaces everything of a partition by a checkpoint, whose files are
// in dir, and lifts its quarantine. Who keeps what it read of the partition
// must let nobody see it meanwhile, then forget it, and apply from
// [Store.Applied] on, as after [ErrRewound]. Partitions may be restored at the
// same time; two flushes serve all that end at the same time. Schemas that the
// node lacks are taken as they are: whether they have their fingerprints is the
// caller's to verify, and so is that the files are those that a store wrote, by
// their hash: Pebble believes a block whose checksum is right.
//
// When ctx is done while it reads, it gives up, and the store is as it was; once all is
// read it goes on.
//
// The files stay in dir. Those of the bottom must not be written: the store links them. Every
// row is read before anything is replaced: files that are not what the
// checkpoint says are an [ErrRefused], and the store is as it was. A crash or an
// [ErrFailed] in the last step leaves the partition quarantined until the next
// Restore or [Store.DropPartition]. A cause that it had before is kept as well.
func (s *Store) Restore(ctx context.Context, dir string, c Checkpoint) error {
	p, err := s.part(c.Partition)
	if err != nil {
		return err
	}
	if !p.restoring.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: partition %d is being restored already", ErrFailed, c.Partition)
	}
	defer p.restoring.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	r := restore{ctx: ctx, s: s, p: p, c: &c, dir: dir, scratch: s.opts.FS.PathJoin(s.dir, scratchName), prefix: fmt.Sprintf("%03d-", c.Partition)}
	err = r.do()
	if left := r.tidy(); left != nil { // until the next restore, or Open
		s.log.Warn("store: files of a restore are left", "dir", r.scratch, "err", left)
	}
	if err != nil {
		return fmt.Errorf("store: restore partition %d: %w", c.Partition, here(err))
	}
	return nil
}

// scratchName is the name of the directory, within the store's, in which
// restores have their files.
const scratchName = "restore"

// removeScratch removes what restores left that did not end.
func (s *Store) removeScratch() error {
	return s.opts.FS.RemoveAll(s.opts.FS.PathJoin(s.dir, scratchName))
}

// restore is a restore under way.
type restore struct {
	ctx          context.Context // until it is given up
	s            *Store
	p            *part
	c            *Checkpoint
	dir, scratch string
	prefix       string // of the names of its own files in scratch
	// Both are in key order and hold only what a store can take as it is:
	bottom []string // paths of tables of the checkpoint
	run    []string // paths of tables with what is newer than those of the bottom
	rows   *checker // of all of them
}

func (r *restore) do() error {
	if err := r.prepare(); err != nil {
		return r.refuse(err)
	}
	for fp, json := range r.c.Schemas {
		if err := r.s.PutSchema(fp, json); err != nil {
			return err
		}
	}
	for _, t := range r.c.Types {
		if err := r.s.putType(t); err != nil {
			return err
		}
	}
	// Synced here, outside of the lock of replace, so that restores at the same time sync
	// at the same time.
	if err := r.s.maker().Sync(slices.Concat(r.bottom, r.run)); err != nil {
		return err
	}
	return r.s.replace(&replacement{p: r.p, scanned: r.rows, bottom: r.bottom, run: r.run})
}

// refuse tells files that are wrong from a disk that cannot be read or written.
func (r *restore) refuse(err error) error {
	if io := syscall.Errno(0); errors.As(err, &io) && io != syscall.ENOENT || errors.Is(err, ErrFailed) || r.ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: %w; take another checkpoint, or fetch its files again", ErrRefused, err)
}

// prepare makes tables that a store can take of the checkpoint's, beside the
// store, and verifies that they are the partition.
func (r *restore) prepare() (err error) {
	fs := r.s.opts.FS
	if err := errors.Join(r.s.room(r.s.opts.MinFreeBytes/4), fs.MkdirAll(r.scratch, 0o700)); err != nil {
		return err
	}
	r.rows = newChecker(r.ctx, r.p.p)
	start, end := partitionSpan(r.p.p)
	out := &tables.Writer{Maker: r.s.maker(), Dir: r.scratch, Prefix: r.prefix + "run-", Level: tables.LowestLevel - 1}
	m := tables.NewMerge(start, end, out, r.rows.add)
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := r.open(m); err != nil {
		return err
	}
	if err := m.Run(); err != nil {
		return err
	}
	for _, f := range out.Files {
		r.run = append(r.run, fs.PathJoin(r.scratch, f.Name))
	}
	return r.compare()
}

// compare compares what is there with what the checkpoint says.
func (r *restore) compare() error {
	c := r.c
	if err := r.rows.end(); err != nil {
		return err
	}
	row, origin := r.rows.row, r.rows.origin
	switch {
	case row.applied != c.Applied, row.digest != c.Digest:
		return fmt.Errorf("%w: the files are at %v with digest %x, the checkpoint says %v with %x", blob.ErrRow, row.applied, row.digest, c.Applied, c.Digest)
	case row.clock != c.Clock, !bytes.Equal(origin, c.Origin):
		return fmt.Errorf("%w: the files have clock %d and origin %q, the checkpoint says %d, %q", blob.ErrRow, row.clock, origin, c.Clock, c.Origin)
	}
	return nil
}

// tidy removes what is there of its own files.
func (r *restore) tidy() error {
	names, err := r.s.opts.FS.List(r.scratch)
	if errors.Is(err, iofs.ErrNotExist) {
		return nil
	}
	for _, name := range names {
		if strings.HasPrefix(name, r.prefix) {
			err = errors.Join(err, r.s.opts.FS.Remove(r.s.opts.FS.PathJoin(r.scratch, name)))
		}
	}
	return err
}

// open opens the files: those of the bottom by links.
func (r *restore) open(m *tables.Merge) error {
	seen := make(map[string]bool)
	for _, f := range r.c.Files {
		if !plainName(f.Name) || seen[f.Name] {
			return fmt.Errorf("file %q: a name within the directory is wanted, each once", f.Name)
		}
		seen[f.Name] = true
	}
	for _, bottom := range []bool{false, true} {
		for _, f := range r.c.Files {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			if f.Bottom != bottom {
				continue
			}
			if err := r.openFile(m, f); err != nil {
				return fmt.Errorf("file %s: %w", f.Name, err)
			}
		}
	}
	return nil
}

func (r *restore) openFile(m *tables.Merge, f File) error {
	if f.Data != nil && !f.Bottom {
		if n := int64(len(f.Data)); n != f.Size {
			return fmt.Errorf("%w: it has %d bytes, %d were written", tables.ErrTable, n, f.Size)
		}
		t, err := r.s.maker().OpenBytes(f.Data)
		if err != nil {
			return err
		}
		return m.Add(t, f.Name, f.Bottom)
	}
	fs := r.s.opts.FS
	path := fs.PathJoin(r.dir, f.Name)
	if err := r.regular(path, f.Size); err != nil {
		return err
	}
	if f.Bottom {
		own := fs.PathJoin(r.scratch, fmt.Sprintf("%sbottom-%06d.sst", r.prefix, len(r.bottom)))
		if err := r.take(path, own, f.Size); err != nil {
			return err
		}
		path = own
		r.bottom = append(r.bottom, own)
		if err := r.s.maker().StartSync(own, f.Size); err != nil { // while its rows are checked
			return err
		}
	}
	t, err := r.s.maker().Open(path)
	if err != nil {
		return err
	}
	return m.Add(t, f.Name, f.Bottom)
}

// regular refuses what is not a file of the size, such as a link to one.
func (r *restore) regular(path string, size int64) error {
	info, err := os.FileInfo(nil), error(nil)
	if vfs.Root(r.s.opts.FS) == vfs.Default {
		info, err = os.Lstat(path)
	} else {
		info, err = r.s.opts.FS.Stat(path)
	}
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: it is not a regular file but %v", tables.ErrTable, info.Mode().Type())
	case info.Size() != size:
		return fmt.Errorf("%w: it has %d bytes, %d were written", tables.ErrTable, info.Size(), size)
	}
	return nil
}

// take links a file, or copies it where it cannot be linked, as from another disk.
func (r *restore) take(path, own string, size int64) error {
	fs := r.s.opts.FS
	if err := fs.Link(path, own); err != nil {
		if err := r.s.room(r.s.opts.MinFreeBytes/4 + size); err != nil {
			return err
		}
		if err := vfs.Copy(fs, path, own); err != nil {
			return err
		}
	}
	return nil
}

// plainName reports whether a name is one of a file within a directory.
func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\\\x00")
}

// replacement is what takes the place of a partition.
type replacement struct {
	p           *part
	scanned     *checker // of the tables; nil: there are none
	bottom, run []string // paths of tables on disk, those of run newer; both are used up
	// Guarded by Store.flushing:
	was   error // why it was quarantined before
	begun bool  // it may not be what it was
	done  bool
	err   error
}

// replacements are those that wait. Each costs two flushes, which those that
// wait together share.
type replacements struct {
	mu   sync.Mutex
	list []*replacement
}

// errRestoring is why a partition is quarantined while it is replaced, which
// takes several steps, and after a crash in between.
var errRestoring = errors.New("it was being restored")

// causeWhileReplaced is errRestoring, and the cause for which a partition was quarantined
// before: that is still so if the replacement breaks off.
func causeWhileReplaced(was error) error {
	switch {
	case was == nil:
		return errRestoring
	case strings.HasPrefix(was.Error(), errRestoring.Error()): // and broke off before
		return was
	}
	return fmt.Errorf("%w: %s", errRestoring, was)
}

// DropPartition removes everything of a partition at once, on disk too, and
// lifts its quarantine: the log can be read again from its beginning. It reads
// nothing of the partition, so that missing or damaged files do not matter.
// As with [Store.Restore], a caller that keeps what it read of the partition hides it
// meanwhile, then forgets it and applies from [Store.Applied] on.
func (s *Store) DropPartition(n millrace.Partition) error {
	p, err := s.part(n)
	if err != nil {
		return err
	}
	return s.replace(&replacement{p: p})
}

// replace excises a partition and ingests tables in its place, on disk when it
// returns. An excise drops files without reading them, so that it works on
// damaged ones too. Who has the lock first does the work of all that wait.
func (s *Store) replace(r *replacement) error {
	s.replacing.mu.Lock()
	s.replacing.list = append(s.replacing.list, r)
	s.replacing.mu.Unlock()
	s.flushing.Lock()
	defer s.flushing.Unlock()
	for !r.done {
		s.replaceSome(s.replacing.take())
	}
	return here(r.err)
}

// take takes those that wait, at most one of a partition, in order.
func (q *replacements) take() (some []*replacement) {
	q.mu.Lock()
	defer q.mu.Unlock()
	slices.SortStableFunc(q.list, func(a, b *replacement) int { return cmp.Compare(a.p.p, b.p.p) })
	var later []*replacement
	for _, r := range q.list {
		if n := len(some); n > 0 && some[n-1].p == r.p {
			later = append(later, r)
		} else {
			some = append(some, r)
		}
	}
	q.list = later
	return some
}

// replaceSome replaces partitions. s.flushing is held.
func (s *Store) replaceSome(some []*replacement) {
	for _, r := range some {
		r.p.mu.Lock()
		defer r.p.mu.Unlock()
		r.was = r.p.bad
	}
	err := s.mark(some)
	if err == nil {
		err = s.exchange(some)
	}
	for _, r := range some {
		if r.begun {
			r.err = s.reload(r.p)
		} else {
			err = errors.Join(err, s.setBad(r.p, r.was))
		}
	}
	if err == nil {
		err = s.lift(some)
	}
	for _, r := range some {
		r.done = true
		if err != nil && r.err == nil {
			r.err = fmt.Errorf("store: replace partition %d: %w", r.p.p, err)
		}
	}
}

// mark quarantines the partitions that are to be replaced by tables, on disk.
// It flushes all memtables, so that the steps that follow find nothing of a partition in
// memory, and only edit the manifest.
func (s *Store) mark(some []*replacement) error {
	if err := s.room(s.opts.MinFreeBytes / 4); err != nil {
		return err
	}
	for _, r := range some {
		if len(r.bottom)+len(r.run) == 0 {
			continue
		}
		if err := s.setBad(r.p, causeWhileReplaced(r.was)); err != nil {
			return err
		}
	}
	return s.flushPebble(s.ctx.Done())
}

// exchange excises partitions and ingests their tables. An excise is an edit of
// the manifest, which is synced, so there is none where nothing is: memtables
// are on disk by now.
func (s *Store) exchange(some []*replacement) error {
	there, err := s.tables()
	if err != nil {
		return err
	}
	var bottom, run []string
	for _, r := range some {
		r.begun = true
		if overlaps(there, r.p.p) {
			if err := s.excise(partitionSpan(r.p.p)); err != nil {
				return err
			}
		}
		r.p.damaged = false
		bottom, run = append(bottom, r.bottom...), append(run, r.run...)
	}
	for _, paths := range [][]string{bottom, run} {
		if len(paths) == 0 {
			continue
		}
		if err := s.disk.OrEnd(func() error { return s.db.Ingest(context.Background(), paths) }); err != nil {
			return err
		}
	}
	return nil
}

// overlaps reports whether a table may have rows of a partition. It reads none.
func overlaps(tables []pebble.SSTableInfo, n millrace.Partition) bool {
	start, end := partitionSpan(n)
	return slices.ContainsFunc(tables, func(t pebble.SSTableInfo) bool {
		return bytes.Compare(t.Smallest.UserKey, end) < 0 && bytes.Compare(t.Largest.UserKey, start) >= 0
	})
}

// reload makes a partition what the disk says, whatever it was. p.mu is held.
func (s *Store) reload(p *part) error {
	p.epoch++
	err := p.load(s)
	if isCorrupt(err) {
		p.bad = nil
		_ = s.quarantineLocked(p, err)
		return corrupt(p.p, err)
	}
	return err
}

// lift ends the quarantines of those that are replaced, on disk first, and sets their
// counts.
func (s *Store) lift(some []*replacement) error {
	var errs []error
	lifted := slices.DeleteFunc(slices.Clone(some), func(r *replacement) bool { return r.err != nil })
	marked := make([]error, len(lifted)) // by mark
	for i, r := range lifted {
		marked[i] = r.p.bad
		errs = append(errs, s.countReplaced(r), s.setBad(r.p, nil))
	}
	err := errors.Join(append(errs, s.flushPebble(s.ctx.Done()))...)
	if err != nil {
		for i, r := range lifted {
			r.p.bad = marked[i]
		}
	}
	return err
}

// countReplaced makes the counts of a partition those of what took its place. They
// are on disk with the next flush. p.mu is held.
func (s *Store) countReplaced(r *replacement) error {
	s.writing.RLock()
	defer s.writing.RUnlock()
	if r.scanned == nil {
		return s.db.Delete(countsKey(r.p.p), pebble.NoSync)
	}
	r.p.tally = s.flows.Scanned(r.scanned.counts)
	return s.db.Set(countsKey(r.p.p), r.p.tally.Encode(r.p.row.counted()), pebble.NoSync)
}

// setBad sets why a partition is quarantined; nil: it is not. It is on disk with the
// next flush. p.mu is held.
func (s *Store) setBad(p *part, cause error) error {
	err := error(nil)
	if cause == nil {
		err = s.unset(badKey(p.p))
	} else {
		err = s.set(badKey(p.p), []byte(cause.Error()))
	}
	if err == nil {
		p.bad = cause
	}
	return err
}
