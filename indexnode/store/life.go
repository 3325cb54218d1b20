package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
)

// exportFileBytes is about the size of an exported file.
const exportFileBytes = 32 << 20

// Export is a partition outside a store, for a backup or another node: what
// [Store.Export] and [Store.Checkpoint] wrote, and [Store.Import] takes.
type Export struct {
	Partition millrace.Partition
	Files     []string // names within the directory, in key order
	Applied   Offsets
	Digest    Digest
	// Schemas is the node's registry: every schema the records may be of.
	Schemas map[millrace.Fingerprint][]byte
	// Types are the node's content types, [Store.Types]: every type that the
	// records may be of.
	Types []millrace.ContentType
}

// Export writes a partition as it is when called into dir, which must not
// exist, as sstables that hold nothing else. Ingest and reads go on.
func (s *Store) Export(n millrace.Partition, dir string) (Export, error) {
	snap, err := s.snapshot(n)
	if err != nil {
		return Export{}, err
	}
	defer snap.Close()
	e, err := s.export(snap, n, dir)
	if err != nil {
		return Export{}, errors.Join(snap.failed(err), s.opts.FS.RemoveAll(dir))
	}
	return e, nil
}

func (s *Store) export(r pebble.Reader, n millrace.Partition, dir string) (Export, error) {
	fs := s.opts.FS
	if _, err := fs.Stat(dir); err == nil {
		return Export{}, fmt.Errorf("store: export: %s exists", dir)
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return Export{}, err
	}
	e, err := s.describe(r, n)
	if err != nil {
		return Export{}, err
	}
	var w *sstable.Writer
	finish := func() error {
		if w == nil {
			return nil
		}
		err := w.Close()
		w = nil
		return err
	}
	start, _ := partitionSpan(n)
	err = scan(r, start, func(k, v []byte) error {
		if w != nil && w.Raw().EstimatedSize() >= exportFileBytes {
			if err := finish(); err != nil {
				return err
			}
		}
		if w == nil {
			name := fmt.Sprintf("%06d.sst", len(e.Files))
			f, err := fs.Create(fs.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
			if err != nil {
				return err
			}
			e.Files = append(e.Files, name)
			w = sstable.NewWriter(objstorageprovider.NewFileWritable(f), s.dbo.MakeWriterOptions(6, s.db.TableFormat()))
		}
		return w.Set(k, v)
	})
	if err = errors.Join(err, finish()); err != nil {
		return Export{}, err
	}
	return e, syncDir(fs, dir)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// describe says what a partition holds.
func (s *Store) describe(r pebble.Reader, n millrace.Partition) (Export, error) {
	row := partRow{applied: Offsets{-1, -1}}
	v, closer, err := r.Get(partitionKey(n, kindPart))
	switch {
	case err == nil:
		row, err = decodePartRow(v)
		err = errors.Join(err, closer.Close())
	case errors.Is(err, pebble.ErrNotFound):
		err = nil
	}
	if err != nil {
		return Export{}, err
	}
	schemas, err := s.Schemas()
	types, _ := s.Types()
	return Export{Partition: n, Applied: row.applied, Digest: row.digest, Schemas: schemas, Types: types}, err
}

// Checkpoint links a partition's files into dir, which must not exist, as a
// store that holds this partition alone: much faster than Export, and its
// unchanged files are those of the last checkpoint. Files at a border may hold
// other partitions' rows; [Store.Import] takes an Export. Ingest waits
// meanwhile. The checkpoint is opened once before this returns.
func (s *Store) Checkpoint(n millrace.Partition, dir string) (Export, error) {
	e, err := s.checkpoint(n, dir)
	if err != nil {
		return Export{}, err
	}
	if err := s.verify(e, dir); err != nil {
		return Export{}, errors.Join(fmt.Errorf("store: checkpoint of partition %d: %w", n, err), s.opts.FS.RemoveAll(dir))
	}
	return e, nil
}

// checkpoint holds every writer: Pebble's checkpoints under concurrent writes
// are not all good.
func (s *Store) checkpoint(n millrace.Partition, dir string) (Export, error) {
	p, err := s.part(n)
	if err != nil {
		return Export{}, err
	}
	s.flushing.Lock()
	defer s.flushing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.ready(s); err != nil {
		return Export{}, err
	}
	if p.changed {
		if err := p.write(s); err != nil {
			return Export{}, s.rewind(p, err)
		}
	}
	if err := s.link(n, dir); err != nil {
		return Export{}, here(err)
	}
	p.durable = p.row.applied
	// The writers go on, and may hold the registry: it has all that the records
	// need, and perhaps more.
	e, err := s.describe(s.db, n)
	if err != nil {
		return Export{}, here(err)
	}
	names, err := s.opts.FS.List(dir)
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			e.Files = append(e.Files, name)
		}
	}
	return e, here(err)
}

// link makes Pebble's checkpoint, while nobody writes.
func (s *Store) link(n millrace.Partition, dir string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.flushPebble(s.ctx.Done()); err != nil {
		return err
	}
	start, end := partitionSpan(n)
	spans := []pebble.CheckpointSpan{{Start: start, End: end}}
	for _, c := range nodeCopies {
		start, end := nodeSpan(c)
		spans = append(spans, pebble.CheckpointSpan{Start: start, End: end})
	}
	return s.db.Checkpoint(dir, pebble.WithRestrictToSpans(spans))
}

// verify opens a checkpoint and compares it.
func (s *Store) verify(e Export, dir string) error {
	o := s.pebbleOptions()
	o.ReadOnly = true
	db, err := pebble.Open(dir, o)
	if err != nil {
		return err
	}
	got, err := s.describe(db, e.Partition)
	if err == nil && (got.Applied != e.Applied || got.Digest != e.Digest) {
		err = fmt.Errorf("%w: it is at %v, the partition at %v", errRow, got.Applied, e.Applied)
	}
	return errors.Join(err, db.Close())
}

// Import replaces everything of a partition by an export, atomically, and
// lifts its quarantine. Who keeps what it read of the partition must let nobody
// see it meanwhile, then forget it, and apply from [Store.Applied] on, as after
// [ErrRewound]. It consumes the files of the export. What it found is
// compared with what the export says it is, so that the wrong files are an
// [ErrCorrupt]; the partition is then quarantined.
func (s *Store) Import(dir string, e Export) error {
	p, err := s.part(e.Partition)
	if err != nil {
		return err
	}
	start, end := partitionSpan(e.Partition)
	paths := make([]string, len(e.Files))
	for i, name := range e.Files {
		if s.opts.FS.PathBase(name) != name {
			return fmt.Errorf("store: import: file %q: a name within the directory is wanted", name)
		}
		paths[i] = s.opts.FS.PathJoin(dir, name)
		if err := s.within(paths[i], start, end); err != nil {
			return fmt.Errorf("store: import %s: %w", paths[i], err)
		}
	}
	for fp, json := range e.Schemas {
		if err := s.PutSchema(fp, json); err != nil {
			return err
		}
	}
	for _, t := range e.Types {
		if err := s.putType(t); err != nil {
			return err
		}
	}
	return s.replace(p, paths, &e)
}

// within verifies that a file's keys are all of one range.
func (s *Store) within(path string, start, end []byte) error {
	f, err := s.opts.FS.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return err
	}
	r, err := sstable.NewReader(context.Background(), readable, s.dbo.MakeReaderOptions())
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	defer r.Close()
	it, err := r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles)
	if err != nil {
		return err
	}
	defer it.Close()
	if kv := it.First(); kv == nil || bytes.Compare(kv.K.UserKey, start) < 0 {
		return errors.Join(fmt.Errorf("it holds rows of another partition, or none"), it.Error())
	}
	if kv := it.Last(); kv == nil || bytes.Compare(kv.K.UserKey, end) >= 0 {
		return errors.Join(fmt.Errorf("it holds rows of another partition"), it.Error())
	}
	return nil
}

// DropPartition removes everything of a partition at once, on disk too, and
// lifts its quarantine: the log can be read again from its beginning. It reads
// nothing of the partition, so that missing or damaged files do not matter. What [Store.Import] says of what was read holds here.
func (s *Store) DropPartition(n millrace.Partition) error {
	p, err := s.part(n)
	if err != nil {
		return err
	}
	return s.replace(p, nil, &Export{Partition: n, Applied: Offsets{-1, -1}})
}

// replace excises a partition and ingests files in its place, on disk when it
// returns. An excise drops files without reading them, so that it works on
// damaged ones too.
func (s *Store) replace(p *part, paths []string, e *Export) error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := s.room(s.opts.MinFreeBytes / 4); err != nil {
		return err
	}
	// What is in memtables goes first: then the rest is one edit of the manifest.
	if err := s.flushPebble(s.ctx.Done()); err != nil {
		return here(err)
	}
	start, end := partitionSpan(p.p)
	var err error
	if len(paths) == 0 {
		err = s.excise(start, end)
	} else {
		_, err = s.db.IngestAndExcise(context.Background(), paths, nil, nil, pebble.KeyRange{Start: start, End: end})
	}
	if err != nil {
		return here(fmt.Errorf("store: replace partition %d: %w", p.p, err))
	}
	p.epoch++
	p.damaged = false
	err = p.load(s)
	if err == nil && (p.row.applied != e.Applied || p.row.digest != e.Digest) {
		err = fmt.Errorf("%w: the files are at %v with digest %x, the export says %v, %x", errRow, p.row.applied, p.row.digest, e.Applied, e.Digest)
	}
	if isCorrupt(err) {
		p.bad = nil
		s.quarantineLocked(p, err)
		return corrupt(p.p, err)
	}
	if err != nil {
		return here(err)
	}
	return s.lift(p)
}

// lift ends a quarantine, on disk first. p.mu is held.
func (s *Store) lift(p *part) error {
	err := s.unset(badKey(p.p))
	if err == nil {
		err = s.flushPebble(s.ctx.Done())
	}
	if err == nil {
		p.bad = nil
	}
	return here(err)
}
