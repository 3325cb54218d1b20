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

// Restore replaces everything of a partition by a checkpoint, whose files are in dir, and
// lifts its quarantine. A caller that caches what it read of the partition must show it to
// nobody meanwhile, then forget it, and apply from [Store.Applied] on, as after
// [ErrRewound]. Several partitions may be restored at the same time; those that end
// together share two flushes.
//
// Restore takes schemas that the node lacks as they are. The caller must verify that they
// have their fingerprints. It must also verify, by their hashes, that the files are those
// that a store wrote, since Pebble trusts any block whose checksum is right.
//
// If ctx is done while Restore reads, it gives up, and the partition is as it was. Once all
// is read, it goes on to the end.
//
// The files stay in dir. Files of the bottom must not be written to, since the store links
// them. Every row is read before anything is replaced. If the files are not what the
// checkpoint says, the error is an [ErrRefused], and the store is as it was. A crash or an
// [ErrFailed] in the last step leaves the partition quarantined until the next Restore or
// [Store.DropPartition]; the cause also names the one that it had before.
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
	if left := r.tidy(); left != nil { // the partition's next restore, or Open, removes them
		s.log.Warn("store: files of a restore are left", "dir", r.scratch, "err", left)
	}
	if err != nil {
		return fmt.Errorf("store: restore partition %d: %w", c.Partition, here(err))
	}
	return nil
}

// scratchName is the name of the directory, within the store's, in which restores keep their
// files while they are under way.
const scratchName = "restore"

// removeScratch removes the files of restores that did not end.
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
	// The tables of each list are in key order, and a store can ingest them as they are.
	bottom []string // paths of the checkpoint's tables of the bottom
	run    []string // paths of tables that were merged from the others; their rows are newer
	rows   *checker // of the rows of all of them
}

// do carries out the restore: it prepares the tables, puts schemas and types into the node's
// registry, and replaces the partition.
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
	// The tables are synced here, before replace takes its lock, so that several restores can
	// sync at the same time.
	if err := r.s.maker().Sync(slices.Concat(r.bottom, r.run)); err != nil {
		return err
	}
	return r.s.replace(&replacement{p: r.p, scanned: r.rows, bottom: r.bottom, run: r.run})
}

// refuse marks an error as [ErrRefused] if the checkpoint's files are wrong. It leaves as
// it is an error of this machine's disk, and one that comes from the context's end.
func (r *restore) refuse(err error) error {
	if io := syscall.Errno(0); errors.As(err, &io) && io != syscall.ENOENT || errors.Is(err, ErrFailed) || r.ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w: %w; take another checkpoint, or fetch its files again", ErrRefused, err)
}

// prepare makes tables that a store can ingest from those of the checkpoint, in the scratch
// directory, and verifies that they hold the partition as the checkpoint describes it.
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

// compare returns an error if the rows are not what the checkpoint says.
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

// tidy removes what is left of the restore's own files in scratch.
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

// open opens the checkpoint's files and adds them to the merge, those of the bottom last. It
// links those of the bottom into scratch.
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

// openFile adds one file to the merge.
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

// regular returns an error if path is not a regular file of that size; a symbolic link is
// not.
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
	scanned     *checker // that has checked the tables' rows; nil: there are no tables
	bottom, run []string // paths of tables on disk, those of run newer; ingesting moves them
	// Guarded by Store.flushing:
	was   error // why it was quarantined before; nil: it was not
	begun bool  // the partition's rows on disk may have changed
	done  bool
	err   error
}

// replacements is the replacements that wait to be carried out. Those that wait together
// share two flushes.
type replacements struct {
	mu   sync.Mutex
	list []*replacement
}

// errRestoring is why a partition is quarantined while it is replaced by tables. That takes
// several steps, and a crash in between leaves the quarantine.
var errRestoring = errors.New("it was being restored")

// causeWhileReplaced returns errRestoring together with the cause for which the partition was
// quarantined before, if any. That cause still holds if the replacement breaks off.
func causeWhileReplaced(was error) error {
	switch {
	case was == nil:
		return errRestoring
	case strings.HasPrefix(was.Error(), errRestoring.Error()): // a replacement broke off before
		return was
	}
	return fmt.Errorf("%w: %s", errRestoring, was)
}

// DropPartition removes everything of a partition, on disk too, and lifts its quarantine.
// The log can then be read again from its beginning. It reads nothing of the partition, so
// that missing or damaged files do not matter. As with [Store.Restore], a caller that
// caches what it read of the partition shows it to nobody meanwhile, then forgets it and
// applies from [Store.Applied] on.
func (s *Store) DropPartition(n millrace.Partition) error {
	p, err := s.part(n)
	if err != nil {
		return err
	}
	return s.replace(&replacement{p: p})
}

// replace excises a partition and ingests tables in its place. Both are on disk when it
// returns. An excise, which removes a range of keys, drops files without reading them, so
// that it works on damaged ones too. The caller that gets the lock first does the work of
// all that wait.
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

// take removes from the list and returns replacements that wait, in the order of
// partitions, at most one for each partition.
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

// replaceSome carries out replacements of different partitions, and sets done and err of
// each. s.flushing is held.
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

// mark quarantines, on disk, the partitions that are to be replaced by tables. It flushes
// all memtables, so that Pebble has nothing of a partition in memory, and the steps that
// follow only edit its manifest.
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

// exchange excises partitions and ingests their tables. An excise costs a sync of the
// manifest, so a partition without rows is not excised. Memtables are on disk by now, so
// that no table means no rows.
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

// overlaps reports whether one of the tables may have rows of a partition, by their bounds.
func overlaps(tables []pebble.SSTableInfo, n millrace.Partition) bool {
	start, end := partitionSpan(n)
	return slices.ContainsFunc(tables, func(t pebble.SSTableInfo) bool {
		return bytes.Compare(t.Smallest.UserKey, end) < 0 && bytes.Compare(t.Largest.UserKey, start) >= 0
	})
}

// reload makes a partition what the disk says, after its rows were replaced. p.mu is held.
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

// lift ends the quarantines of the partitions that were replaced without an error, and sets
// their counts. If that does not reach the disk, they stay quarantined.
func (s *Store) lift(some []*replacement) error {
	var errs []error
	lifted := slices.DeleteFunc(slices.Clone(some), func(r *replacement) bool { return r.err != nil })
	marked := make([]error, len(lifted)) // the causes that mark set
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

// countReplaced sets the counts of a partition to those of what took its place. They are on
// disk with the next flush. p.mu is held.
func (s *Store) countReplaced(r *replacement) error {
	s.writing.RLock()
	defer s.writing.RUnlock()
	if r.scanned == nil {
		return s.db.Delete(countsKey(r.p.p), pebble.NoSync)
	}
	r.p.tally = s.flows.Scanned(r.scanned.counts)
	return s.db.Set(countsKey(r.p.p), r.p.tally.Encode(r.p.row.counted()), pebble.NoSync)
}

// setBad sets why a partition is quarantined; nil lifts the quarantine. That is on disk
// with the next flush. After an error the quarantine is unchanged. p.mu is held.
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
