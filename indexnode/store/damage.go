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
	// Partitions are those it held rows of; they are quarantined. There are
	// none when the file held nothing of a partition.
	Partitions []millrace.Partition
	// Aside is where the whole store was moved, for it could not be opened.
	// A new one was begun: every partition is at no offset.
	Aside string
	// Cause says what is wrong.
	Cause error
}

// damage is what was found, and what is yet to be looked at.
type damage struct {
	sync.Mutex
	found    []Damage
	suspects []Damage // said to be corrupt while the store is open
}

// Damage returns what was found damaged since Open began, in that order.
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
	// What Pebble says of files that its manifest names, without a type.
	absentFile = regexp.MustCompile(`file (\d+) \(type \w+\) unknown`)
	wrongSize  = "object size mismatch"
)

// open opens the store, and goes past damage: what a damaged file held is cut
// out, and a store that does not open at all is moved aside for a new one. An
// error that is no damage changes nothing.
func (s *Store) open() error {
	for {
		err := s.attempt()
		if err == nil {
			return nil
		}
		aside := s.isAside()
		if err := s.mend(err); err != nil || aside {
			return err
		}
	}
}

// isAside reports whether a store was moved aside already.
func (s *Store) isAside() bool {
	return slices.ContainsFunc(s.Damage(), func(d Damage) bool { return d.Aside != "" })
}

// mend does what makes the next attempt come further, or returns the cause if
// it lies not in the files but in the disk, or in another process that has the
// store open.
func (s *Store) mend(cause error) error {
	msg := cause.Error()
	switch name := s.badOptions(); {
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

// checkManifest refuses what Pebble would take for a new store: files without
// the manifest that tells which they are, or one that tells nothing.
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

// badOptions returns the name of the file of Pebble's options if it cannot be
// read as such. It holds nothing that this program does not know.
func (s *Store) badOptions() string {
	fs := s.opts.FS
	names, _ := fs.List(s.dir)
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		if !strings.HasPrefix(name, "OPTIONS-") {
			continue
		}
		f, err := fs.Open(fs.PathJoin(s.dir, name))
		if err != nil {
			return ""
		}
		b, err := io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err == nil && s.dbo.CheckCompatibility(s.dir, string(b)) != nil {
			return name
		}
		return ""
	}
	return ""
}

func (s *Store) removeOptions(name string, cause error) error {
	path := s.opts.FS.PathJoin(s.dir, name)
	s.found(Damage{File: path, Cause: cause})
	return s.opts.FS.Remove(path)
}

// markFormat writes the marker of Pebble's format again: it is always the same.
func (s *Store) markFormat(cause error) error {
	m, _, err := atomicfs.LocateMarker(s.opts.FS, s.dir, "format-version")
	if err != nil {
		return err
	}
	s.found(Damage{File: s.opts.FS.PathJoin(s.dir, "marker.format-version"), Cause: cause})
	return errors.Join(m.Move(s.dbo.FormatMajorVersion.String()), m.Close())
}

// cutFiles cuts out the partitions of the files that are missing or of another
// size than the manifest says.
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

// replaceAbsent puts an empty file where one is missing, so that Pebble tells
// what it held.
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

func (s *Store) cutWrongSizes() error {
	tables, err := s.tables()
	if err != nil {
		return err
	}
	causes := make([]error, len(tables)) // all of them first: a cut removes files
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

// cutSpan removes every row of what a damaged file held rows of, and quarantines
// partitions. It reads nothing.
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

// holders tells which partitions, and which copies of the node's rows, the keys
// from first to last are of.
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

// setAside moves a store that does not open out of the way.
func (s *Store) setAside(cause error) error {
	fs := s.opts.FS
	aside := fmt.Sprintf("%s.damaged-%s", s.dir, time.Now().UTC().Format("20060102T150405.000"))
	if err := fs.Rename(s.dir, aside); err != nil {
		return fmt.Errorf("move the damaged store aside: %w", err)
	}
	s.found(Damage{File: s.dir, Aside: aside, Cause: cause})
	return nil
}

// suspect has a file looked at that Pebble found corrupt, perhaps in the middle
// of a compaction.
func (s *Store) suspect(d Damage) {
	s.found(d)
	s.damage.Lock()
	defer s.damage.Unlock()
	s.damage.suspects = append(s.damage.suspects, d)
	s.wakeFlusher()
}

// checkSuspects quarantines what such files held, unless they are replaced by
// now, and cuts out what is quarantined for a file, or Pebble would try to compact
// it for ever.
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

// quarantineLive quarantines the partitions of those files that are in use, and
// writes the node's rows anew if they were in one. No partition is replaced
// meanwhile: what takes the place of a damaged file is not to blame.
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

// cut removes what is left of a partition with a damaged file; it stays
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

// quarantineLocked takes a corrupt partition out of use. It is on disk with the
// next flush, and an error says that it will not be. p.mu is held.
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

// Quarantine takes a partition out of use for a cause that the store cannot
// see, until it is replaced. It is on disk when this returns; an error says that
// it may be forgotten by a restart. What the partition holds stays on disk.
func (s *Store) Quarantine(n millrace.Partition, cause error) error {
	return s.quarantine(n, func(p *part) error { return s.quarantineLocked(p, cause) })
}

// Requarantine changes why a partition is quarantined, if it is. That is on disk
// when this returns.
func (s *Store) Requarantine(n millrace.Partition, cause error) error {
	return s.quarantine(n, func(p *part) error {
		if p.bad == nil {
			return nil
		}
		return s.setBad(p, cause)
	})
}

// quarantine has a quarantine changed, which is on disk when this returns.
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

func badKey(p millrace.Partition) string {
	return nodeRow(nodeBad, string(partitionPrefix(p)))
}

// failed turns an error met while reading a partition, in the state that epoch
// names, into the caller's, and quarantines the partition if it is corrupt. No
// lock is held.
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

// loadQuarantine reads which partitions were quarantined.
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
