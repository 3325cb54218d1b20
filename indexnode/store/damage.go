package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/internal/partition"
)

// Damage is a file of the store that was found missing or wrong.
type Damage struct {
	// File is its path.
	File string
	// Partitions are those that it held rows of. They are quarantined, unless Pebble had
	// replaced the file by then. There are none if the file held only rows of the node.
	Partitions []millrace.Partition
	// Aside is where the whole store was moved because it could not be opened; "" otherwise.
	// The store then began anew, and nothing is applied in any partition.
	Aside string
	// Cause says what is wrong.
	Cause error
}

// damage is what was found damaged, and what the flusher has yet to look at.
type damage struct {
	sync.Mutex
	found    []Damage
	suspects []Damage // files that Pebble said are corrupt while the store was open
}

// Damage returns what was found damaged since Open began, in the order in which it was found.
func (s *Store) Damage() []Damage {
	s.damage.Lock()
	defer s.damage.Unlock()
	return slices.Clone(s.damage.found)
}

// found notes damage, once for each file.
func (s *Store) found(d Damage) {
	s.damage.Lock()
	known := slices.ContainsFunc(s.damage.found, func(o Damage) bool { return o.File == d.File && o.Aside == d.Aside })
	if !known {
		s.damage.found = append(s.damage.found, d)
	}
	s.damage.Unlock()
	if !known {
		s.log.Error("store: damage", "file", d.File, "partitions", d.Partitions, "aside", d.Aside, "err", d.Cause)
	}
}

var (
	errLost = errors.New("rows of the node are lost")
	// Pebble has no type for its errors about missing or short files that its manifest names,
	// so they are known by their text.
	absentFile = regexp.MustCompile(`file (\d+) \(type \w+\) unknown`)
	wrongSize  = "object size mismatch"
)

// open opens the store in spite of damage: it removes the rows of a damaged file's
// partitions, and moves a store that does not open at all aside, to begin a new one. An
// error that does not come from damage changes nothing.
func (s *Store) open() error {
	for {
		err := s.attempt()
		if err == nil {
			return nil
		}
		aside := s.isAside()
		if fault := s.mend(err); fault != nil {
			return fault
		}
		if aside { // the one that was begun anew is damaged, too
			return err
		}
	}
}

// isAside reports whether the store was moved aside since Open began.
func (s *Store) isAside() bool {
	return slices.ContainsFunc(s.Damage(), func(d Damage) bool { return d.Aside != "" })
}

// mend repairs what made an attempt to open fail, so that the next attempt comes further. It
// returns cause if the fault is not in the files but in the disk, or in another process that
// has the store open.
func (s *Store) mend(cause error) error {
	msg := cause.Error()
	switch name, err := s.badOptions(); {
	case err != nil:
		return err
	case name != "":
		return s.removeOptions(name, cause)
	case errors.Is(cause, pebble.ErrDBNotPristine):
		return s.markFormat(cause)
	case !isCorrupt(cause) && !errors.Is(cause, os.ErrNotExist) && !strings.Contains(msg, wrongSize):
		return cause
	case strings.Contains(msg, wrongSize) || absentFile.MatchString(msg):
		if err := s.cutFiles(cause); !isCorrupt(err) {
			return err
		}
	}
	return s.setAside(cause)
}

// attempt opens Pebble and reads what is kept in memory.
func (s *Store) attempt() (err error) {
	if err := s.disk.RoomToOpen(); err != nil {
		return err
	}
	if err := s.checkManifest(); err != nil {
		return err
	}
	s.dbo = s.pebbleOptions()
	s.dbo.EnsureDefaults()
	if s.db, err = s.openPebble(s.dbo); err != nil {
		return err
	}
	if err := s.load(); err != nil {
		return errors.Join(err, s.db.Close())
	}
	return nil
}

func (s *Store) openPebble(o *pebble.Options) (*pebble.DB, error) {
	var db *pebble.DB
	err := s.disk.OrEnd(func() (err error) {
		db, err = pebble.Open(s.dir, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	return db, nil
}

// checkManifest returns an error for a store that Pebble would take for a new one: there are
// tables, but no manifest that lists them, or it cannot be read.
func (s *Store) checkManifest() error {
	fs := s.opts.FS
	names, err := fs.List(s.dir)
	if errors.Is(err, os.ErrNotExist) || !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, ".sst") }) {
		return nil
	}
	if err != nil {
		return err
	}
	manifest, err := atomicfs.ReadMarker(fs, s.dir, "manifest")
	if err != nil {
		return err
	}
	if manifest == "" {
		return fmt.Errorf("%w: no marker names the manifest", pebble.ErrCorruption)
	}
	f, err := fs.Open(fs.PathJoin(s.dir, manifest))
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := record.NewReader(f, 0).Next()
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err != nil {
		return fmt.Errorf("%w: %s: %w", pebble.ErrCorruption, manifest, err)
	}
	return nil
}

// badOptions returns the name of the newest file of Pebble's options if it does not fit, else
// "". Such a file may be removed: it holds nothing that this program does not know. An error
// says that the disk cannot be read.
func (s *Store) badOptions() (string, error) {
	fs := s.opts.FS
	names, err := fs.List(s.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // it is not there if the store was moved aside
		return "", err
	}
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		if !strings.HasPrefix(name, "OPTIONS-") {
			continue
		}
		f, err := fs.Open(fs.PathJoin(s.dir, name))
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
		if s.dbo.CheckCompatibility(s.dir, string(b)) != nil {
			return name, nil
		}
		return "", nil
	}
	return "", nil
}

// removeOptions removes a file of Pebble's options, and notes it as damage.
func (s *Store) removeOptions(name string, cause error) error {
	path := s.opts.FS.PathJoin(s.dir, name)
	s.found(Damage{File: path, Cause: cause})
	return s.opts.FS.Remove(path)
}

// markFormat writes the marker file of Pebble's format again. It always says the same.
func (s *Store) markFormat(cause error) error {
	m, _, err := atomicfs.LocateMarker(s.opts.FS, s.dir, "format-version")
	if err != nil {
		return err
	}
	s.found(Damage{File: s.opts.FS.PathJoin(s.dir, "marker.format-version"), Cause: cause})
	return errors.Join(m.Move(s.dbo.FormatMajorVersion.String()), m.Close())
}

// cutFiles removes and quarantines the partitions that have rows in a file which is missing, or
// which has another size than the manifest says. It opens Pebble without its check of files
// for that, and closes it.
func (s *Store) cutFiles(cause error) error {
	if err := s.room(s.opts.MinFreeBytes / 4); err != nil {
		return err
	}
	if err := s.replaceAbsent(cause); err != nil {
		return err
	}
	o := s.pebbleOptions()
	o.DisableConsistencyCheck, o.DisableAutomaticCompactions, o.DisableTableStats = true, true, true
	db, err := s.openPebble(o)
	if err != nil {
		return err
	}
	s.db = db
	err = s.cutWrongSizes()
	return errors.Join(err, s.db.Close())
}

// replaceAbsent creates an empty file in place of a missing one, so that Pebble opens and its
// manifest tells which keys the file held.
func (s *Store) replaceAbsent(cause error) error {
	for _, m := range absentFile.FindAllStringSubmatch(cause.Error(), -1) {
		f, err := s.opts.FS.Create(s.opts.FS.PathJoin(s.dir, m[1]+".sst"), vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// cutWrongSizes cuts the partitions of each table whose file has another size than the
// manifest says.
func (s *Store) cutWrongSizes() error {
	tables, err := s.tables()
	if err != nil {
		return err
	}
	causes := make([]error, len(tables)) // found before the first cut, which removes files
	for i, t := range tables {
		path := s.tablePath(t)
		info, err := s.opts.FS.Stat(path)
		if err != nil {
			return err
		}
		if size := info.Size(); size != int64(t.Size) && (!t.Virtual || size == 0) {
			causes[i] = fmt.Errorf("%w: %s has %d bytes, %d were written", pebble.ErrCorruption, path, size, t.Size)
		}
	}
	for i, t := range tables {
		if causes[i] == nil {
			continue
		}
		if err := s.cutSpan(s.tablePath(t), t.Smallest.UserKey, t.Largest.UserKey, causes[i]); err != nil {
			return err
		}
	}
	return s.db.Flush()
}

// tables returns Pebble's files.
func (s *Store) tables() ([]pebble.SSTableInfo, error) {
	levels, err := s.db.SSTables()
	return slices.Concat(levels...), err
}

func (s *Store) tablePath(t pebble.SSTableInfo) string {
	return s.opts.FS.PathJoin(s.dir, t.BackingSSTNum.String()+".sst")
}

// cutSpan removes all rows of each partition that a damaged file held rows of, and
// quarantines the partition. It also removes a copy of the node's rows if the file held
// some of it. It reads nothing. First and last are the bounds of the file's keys.
func (s *Store) cutSpan(path string, first, last []byte, cause error) error {
	parts, copies := holders(first, last)
	s.found(Damage{File: path, Partitions: parts, Cause: cause})
	for _, n := range parts {
		if err := s.excise(partitionSpan(n)); err != nil {
			return err
		}
		if err := s.set(badKey(n), []byte(cause.Error())); err != nil {
			return err
		}
	}
	for _, c := range copies {
		if err := s.excise(nodeSpan(c)); err != nil {
			return err
		}
	}
	return nil
}

// holders returns the partitions, and the copies of the node's rows, whose key ranges overlap
// the keys from first to last.
func holders(first, last []byte) (parts, copies []millrace.Partition) {
	within := func(start, end []byte) bool {
		return bytes.Compare(first, end) < 0 && bytes.Compare(last, start) >= 0
	}
	for n := range millrace.Partition(partition.Count) {
		if within(partitionSpan(n)) {
			parts = append(parts, n)
		}
	}
	for _, c := range nodeCopies {
		if within(nodeSpan(c)) {
			copies = append(copies, c)
		}
	}
	return parts, copies
}

// excise removes all keys from start up to end, without reading them.
func (s *Store) excise(start, end []byte) error {
	return s.disk.OrEnd(func() error { return s.db.Excise(context.Background(), pebble.KeyRange{Start: start, End: end}) })
}

// setAside renames the directory of a store that does not open.
func (s *Store) setAside(cause error) error {
	fs := s.opts.FS
	aside := fmt.Sprintf("%s.damaged-%s", s.dir, time.Now().UTC().Format("20060102T150405.000"))
	if err := fs.Rename(s.dir, aside); err != nil {
		return fmt.Errorf("move the damaged store aside: %w", err)
	}
	s.found(Damage{File: s.dir, Aside: aside, Cause: cause})
	return nil
}

// suspect notes a file that Pebble found corrupt, and has the flusher look at it. Pebble may
// call it in the middle of a compaction.
func (s *Store) suspect(d Damage) {
	s.found(d)
	s.damage.Lock()
	defer s.damage.Unlock()
	s.damage.suspects = append(s.damage.suspects, d)
	s.wakeFlusher()
}

// checkSuspects quarantines the partitions of suspect files that are still in use. It then
// removes the rows of all partitions that are quarantined because of a file; otherwise Pebble
// would try for ever to compact the file.
func (s *Store) checkSuspects() {
	s.damage.Lock()
	suspects := s.damage.suspects
	s.damage.suspects = nil
	s.damage.Unlock()
	if err := s.quarantineLive(suspects); err != nil {
		s.log.Error("store: damaged files", "err", err)
	}
	for i := range s.parts {
		if err := s.cut(&s.parts[i]); err != nil {
			s.log.Error("store: cut out what is damaged", "partition", i, "err", err)
		}
	}
}

// quarantineLive quarantines the partitions of the files that are in use, and repairs the
// node's rows if one of the files held rows of no partition. It holds s.flushing, so that
// no partition is replaced meanwhile: a partition that was replaced has nothing of the
// damaged file.
func (s *Store) quarantineLive(suspects []Damage) error {
	if len(suspects) == 0 {
		return nil
	}
	s.flushing.Lock()
	defer s.flushing.Unlock()
	tables, err := s.tables()
	if err != nil {
		return err
	}
	node := false
	for _, d := range suspects {
		if !slices.ContainsFunc(tables, func(t pebble.SSTableInfo) bool { return s.tablePath(t) == d.File }) {
			continue
		}
		for _, n := range d.Partitions {
			p := &s.parts[n]
			p.mu.Lock()
			_ = s.quarantineLocked(p, d.Cause)
			p.mu.Unlock()
		}
		node = node || len(d.Partitions) == 0
	}
	if !node {
		return nil
	}
	s.node.Lock()
	defer s.node.Unlock()
	_, err = s.loadNode()
	return err
}

// cut removes the rows that are left of a partition with a damaged file. The partition stays
// quarantined.
func (s *Store) cut(p *part) error {
	p.mu.RLock()
	damaged := p.damaged
	p.mu.RUnlock()
	if !damaged {
		return nil
	}
	s.flushing.Lock()
	defer s.flushing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.damaged {
		return nil
	}
	if err := s.excise(partitionSpan(p.p)); err != nil {
		return err
	}
	p.damaged = false
	return nil
}

// quarantineLocked takes a partition out of use, unless it is quarantined already. The
// quarantine is on disk with the next flush. An error says that it will not be on disk; in
// memory it holds all the same. p.mu is held.
func (s *Store) quarantineLocked(p *part, cause error) error {
	if p.bad != nil {
		return nil
	}
	p.bad, p.damaged = cause, pebble.IsCorruptionError(cause)
	p.forget(s)
	s.log.Error("store: partition quarantined", "partition", p.p, "err", cause)
	err := s.set(badKey(p.p), []byte(cause.Error()))
	if err != nil {
		s.log.Error("store: quarantine is not remembered", "partition", p.p, "err", err)
	}
	if p.damaged {
		s.wakeFlusher()
	}
	return err
}

// Quarantine takes a partition out of use, until it is replaced, for a cause that the store
// itself cannot find. The quarantine is on disk when Quarantine returns. An error says that a
// restart may forget it. What the partition holds stays on disk.
func (s *Store) Quarantine(n millrace.Partition, cause error) error {
	return s.quarantine(n, func(p *part) error { return s.quarantineLocked(p, cause) })
}

// Requarantine changes the cause for which a partition is quarantined. It does nothing to one
// that is not. The cause is on disk when Requarantine returns without an error.
func (s *Store) Requarantine(n millrace.Partition, cause error) error {
	return s.quarantine(n, func(p *part) error {
		if p.bad == nil {
			return nil
		}
		return s.setBad(p, cause)
	})
}

// quarantine calls change with the partition locked, and then flushes Pebble, so that the
// change is on disk when it returns without an error.
func (s *Store) quarantine(n millrace.Partition, change func(*part) error) error {
	p, err := s.part(n)
	if err != nil {
		return err
	}
	p.mu.Lock()
	err = change(p)
	p.mu.Unlock()
	if err != nil {
		return here(err)
	}
	s.flushing.Lock()
	defer s.flushing.Unlock()
	if err := errors.Join(s.disk.Stuck(), s.room(s.opts.MinFreeBytes/4)); err != nil {
		return here(err)
	}
	return here(s.flushPebble(s.ctx.Done()))
}

// badKey returns the key, without its copy, of the node's row that says why a partition is
// quarantined.
func badKey(p millrace.Partition) string {
	return nodeRow(nodeBad, string(partitionPrefix(p)))
}

// failed returns the error for a caller whose read of a partition met cause. If that is
// corruption, it quarantines the partition, unless all of it was replaced since the read,
// as a changed epoch tells. No lock is held.
func (s *Store) failed(p *part, epoch int, cause error) error {
	if cause == nil || errors.Is(cause, ErrCorrupt) || !isCorrupt(cause) {
		return here(cause)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch == epoch {
		_ = s.quarantineLocked(p, cause)
	}
	return corrupt(p.p, cause)
}

// loadQuarantine takes over, from the node's rows, which partitions are quarantined.
func (s *Store) loadQuarantine(node map[string][]byte) error {
	for row, v := range node {
		if row[0] != nodeBad {
			continue
		}
		if len(row) != 3 || int(row[1])<<8|int(row[2]) >= len(s.parts) {
			return blob.ErrKey
		}
		s.parts[int(row[1])<<8|int(row[2])].bad = errors.New(string(v))
	}
	return nil
}

// Quarantined returns why a partition is quarantined, or nil.
func (s *Store) Quarantined(p millrace.Partition) error {
	q, err := s.part(p)
	if err != nil {
		return err
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.bad == nil {
		return nil
	}
	return corrupt(p, q.bad)
}
