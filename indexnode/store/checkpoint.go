package store

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/disk"
	"github.com/millrace/millrace/indexnode/store/tables"
)

// Checkpoint is a partition as it was at one moment, in files outside of the
// store: [Store.Checkpoint] makes them, [Store.Restore] takes them.
type Checkpoint struct {
	Partition millrace.Partition
	Applied   Offsets
	Digest    Digest
	Clock     millrace.Time // of the log; see [Batch.SetClock]
	Origin    []byte        // see [Batch.SetOrigin]
	// Files hold the partition's rows and nothing else. If two files have the same row, that
	// of the file that comes first in the list is newer. Files of the bottom come last.
	Files []File
	// Schemas is the node's registry, JSON by fingerprint: every schema that the records may
	// be of.
	Schemas map[millrace.Fingerprint][]byte
	// Types are the node's content types, [Store.Types]: every type that the
	// records may be of.
	Types []millrace.ContentType
}

// File is an sstable of a checkpoint. It is never written again.
type File struct {
	Name string // within the directory of the checkpoint
	Size int64  // bytes
	// Bottom says that no file has older versions of its rows, and that Restore can take the
	// file as it is. Restore merges the other files.
	Bottom bool
	// Data is the file's bytes, or nil. If a file that is not Bottom has them,
	// [Store.Restore] needs no file in the directory.
	Data []byte
}

// Checkpoint writes partitions, each as it is at one moment, into dir, which must not
// exist. What Pebble has on disk is linked and not copied, so that a file which did not
// change since the last checkpoint is the same file. Only rows in tables that a partition
// shares with others are copied. Reads and ingest go on; a flush waits until the files are
// linked. Before it returns, Checkpoint opens the result and compares the offsets and
// digest of each partition with what it wrote. Then dir has the files that the checkpoints
// name, and nothing else.
//
// Each partition fails by itself: those that did are missing from what is returned, which
// is in the order of partitions, and the error joins their errors. If all failed, dir does
// not exist. The caller must not change the schemas and types, which all checkpoints share.
func (s *Store) Checkpoint(set []millrace.Partition, dir string) ([]Checkpoint, error) {
	parts, err := s.partsOf(set)
	if err != nil {
		return nil, err
	}
	if _, err := s.opts.FS.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return nil, cmp.Or(here(err), fmt.Errorf("store: checkpoint: %s exists; name a directory that does not", dir))
	}
	whole, errs, err := s.checkpoint(parts, dir)
	if err != nil {
		errs = append(errs, here(fmt.Errorf("store: checkpoint: %w", err)))
	}
	if err != nil || len(whole) == 0 {
		return nil, errors.Join(append(errs, s.opts.FS.RemoveAll(dir))...)
	}
	return whole, errors.Join(errs...)
}

// partsOf returns partitions in order, each once.
func (s *Store) partsOf(set []millrace.Partition) ([]*part, error) {
	set = slices.Clone(set)
	slices.Sort(set)
	parts := make([]*part, 0, len(set))
	for _, n := range slices.Compact(set) {
		p, err := s.part(n)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// checkpoint is [Store.Checkpoint]. It returns the errors of single partitions as errs, and
// what ends it for all of them as err.
func (s *Store) checkpoint(parts []*part, dir string) (whole []Checkpoint, errs []error, err error) {
	linked, errs, err := s.link(parts, dir)
	if err != nil || len(linked) == 0 {
		return nil, errs, err
	}
	o := s.pebbleOptions() // with a small cache, since most is read once
	o.ReadOnly, o.DisableTableStats, o.CacheSize, o.EventListener = true, true, 8<<20, nil
	db, err := pebble.Open(dir, o)
	if err != nil {
		return nil, errs, err
	}
	v := opened{s: s, db: db, dir: dir}
	whole, failed, err := v.describe(linked)
	if err = errors.Join(err, db.Close()); err == nil {
		err = s.keepOnly(dir, whole)
	}
	return whole, append(errs, failed...), err
}

// link writes partitions to disk and links their files. It lets nothing be written at the
// same time, since a checkpoint of Pebble's may then be bad. The files are of one version
// of Pebble's state: they have all batches up to some moment, and none after it.
func (s *Store) link(parts []*part, dir string) (linked []writtenPart, errs []error, err error) {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	if err := s.room(s.opts.MinFreeBytes / 4); err != nil {
		return nil, nil, err
	}
	parts = slices.DeleteFunc(parts, func(p *part) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		err := p.ready(s)
		if err != nil {
			errs = append(errs, err)
		}
		return err != nil
	})
	linked, failed := s.write(parts)
	errs = append(errs, failed...)
	if len(linked) == 0 {
		return nil, errs, nil
	}
	if err := s.settle(linked, s.ctx.Done()); err != nil {
		return nil, errs, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	return linked, errs, s.db.Checkpoint(dir, pebble.WithRestrictToSpans(spansOf(linked)))
}

// spansOf returns the key ranges of partitions, which come in order. Neighbours share a
// range.
func spansOf(parts []writtenPart) (spans []pebble.CheckpointSpan) {
	for _, p := range parts {
		start, end := partitionSpan(p.p)
		if n := len(spans); n > 0 && bytes.Equal(spans[n-1].End, start) {
			spans[n-1].End = end
		} else {
			spans = append(spans, pebble.CheckpointSpan{Start: start, End: end})
		}
	}
	return spans
}

// keepOnly removes all files of dir that no checkpoint names.
func (s *Store) keepOnly(dir string, of []Checkpoint) error {
	fs := s.opts.FS
	named := make(map[string]bool)
	for _, c := range of {
		for _, f := range c.Files {
			named[f.Name] = true
		}
	}
	names, err := fs.List(dir)
	for _, name := range names {
		if !named[name] {
			err = errors.Join(err, fs.Remove(fs.PathJoin(dir, name)))
		}
	}
	return errors.Join(err, disk.SyncDir(fs, dir))
}

// opened is a checkpoint that Pebble has open, to be read.
type opened struct {
	s   *Store
	db  *pebble.DB
	dir string
}

// describe returns the checkpoint of each partition. One in which something is wrong is
// left out, with an error.
func (v *opened) describe(parts []writtenPart) (whole []Checkpoint, errs []error, err error) {
	own, mixed, err := v.tables()
	if err != nil {
		return nil, nil, err
	}
	// The registry has all that the records need, and perhaps more: it is
	// written ahead of them.
	schemas, err := v.s.Schemas()
	if err != nil {
		return nil, nil, err
	}
	types, _ := v.s.Types()
	for _, p := range parts {
		c := Checkpoint{Partition: p.p, Schemas: schemas, Types: types}
		err := v.rows(p, &c)
		if err == nil && mixed[p.p] {
			c.Files, err = v.copy(p.p)
		} else if err == nil {
			c.Files, err = v.files(own[p.p])
		}
		if err != nil {
			errs = append(errs, v.s.failed(p.part, p.epoch, fmt.Errorf("store: checkpoint of partition %d: %w", p.p, err)))
			continue
		}
		whole = append(whole, c)
	}
	return whole, errs, nil
}

// rows reads the partition's own rows into c: offsets, digest, clock and origin. It returns
// an error if they are older than what link wrote, or if the digest differs at equal
// offsets.
func (v *opened) rows(p writtenPart, c *Checkpoint) error {
	row, origin, err := loadRows(v.db, p.p)
	if err != nil {
		return err
	}
	c.Applied, c.Digest, c.Clock, c.Origin = row.applied, row.digest, row.clock, origin
	if row.applied == p.row.applied && row.digest != p.row.digest ||
		row.applied.Content < p.row.applied.Content || row.applied.Features < p.row.applied.Features {
		return fmt.Errorf("its files are at %v with digest %x, it was written at %v with %x", row.applied, row.digest, p.row.applied, p.row.digest)
	}
	return nil
}

// levelTable is a table (an sstable, a file of rows in key order) and where Pebble has it.
type levelTable struct {
	pebble.SSTableInfo
	lowest bool // it is in the lowest level
}

// tables returns two things: the tables that have rows of one partition alone, by partition,
// newest first; and the partitions that may have rows in another table.
func (v *opened) tables() (own map[millrace.Partition][]levelTable, mixed map[millrace.Partition]bool, err error) {
	levels, err := v.db.SSTables()
	if err != nil {
		return nil, nil, err
	}
	slices.Reverse(levels[0]) // Pebble has the oldest of this level first
	own, mixed = make(map[millrace.Partition][]levelTable), make(map[millrace.Partition]bool)
	for level, all := range levels {
		for _, t := range all {
			parts, copies := holders(t.Smallest.UserKey, t.Largest.UserKey)
			alone := len(parts) == 1 && len(copies) == 0 && !t.Virtual
			for _, n := range parts {
				if alone {
					own[n] = append(own[n], levelTable{t, level == tables.LowestLevel})
				} else {
					mixed[n] = true
				}
			}
		}
	}
	return own, mixed, nil
}

// files returns the tables as files of a checkpoint, those of the bottom last.
func (v *opened) files(of []levelTable) (files []File, err error) {
	var bottom []File
	for _, t := range of {
		f := File{Name: t.BackingSSTNum.String() + ".sst", Size: int64(t.Size)}
		if t.lowest {
			if f.Bottom, err = v.takenAsItIs(f.Name, t.SmallestSeqNum, t.LargestSeqNum); err != nil {
				return nil, err
			}
		}
		if f.Bottom {
			bottom = append(bottom, f)
		} else {
			files = append(files, f)
		}
	}
	return append(files, bottom...), nil
}

// takenAsItIs reports whether a store can ingest a table of the lowest level as it is. It
// can if all sequence numbers (Pebble's numbers of writes) in it are zero. A compaction
// into the lowest level makes them zero. They are also zero in a table that was itself
// ingested, although Pebble then gives all of the table one later number.
func (v *opened) takenAsItIs(name string, smallest, largest pebble.SeqNum) (bool, error) {
	if largest == 0 {
		return true, nil
	}
	if smallest != largest {
		return false, nil
	}
	t, err := v.s.maker().Open(v.s.opts.FS.PathJoin(v.dir, name))
	if err != nil {
		return false, err
	}
	defer t.Close()
	err = t.Next()
	return t.More && t.Seq == 0 && len(t.Ranges) == 0, err
}

// copy writes a partition's rows into tables of its own.
func (v *opened) copy(n millrace.Partition) ([]File, error) {
	w := &tables.Writer{Maker: v.s.maker(), Dir: v.dir, Prefix: fmt.Sprintf("partition-%03d-", n), Level: tables.LowestLevel}
	start, _ := partitionSpan(n)
	err := scan(v.db, start, func(k, value []byte) error { return w.Add(pebble.InternalKeyKindSet, k, value) })
	err = errors.Join(err, w.Finish())
	files := make([]File, len(w.Files))
	for i, f := range w.Files {
		files[i] = File{Name: f.Name, Size: f.Size, Bottom: true}
	}
	return files, err
}
