// Package tables handles sstables outside of Pebble, the store's key-value database: it
// writes them, reads them row by row, and merges the tables of a checkpoint into tables
// that a store can ingest.
package tables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrTable is the error for a table that no store writes.
var ErrTable = errors.New("table")

// tableBytes is about the size at which a Writer begins the next table.
const tableBytes = 32 << 20

// LowestLevel is the lowest of Pebble's levels.
const LowestLevel = 6

// Maker makes and reads tables in the way of a store's Pebble.
type Maker struct {
	FS      vfs.FS          // through which tables are read
	Options *pebble.Options // Pebble's; tables are written through its FS
	Format  sstable.TableFormat
}

// Writer writes rows, in key order, into tables that a store can ingest.
type Writer struct {
	Maker
	Dir, Prefix string // the directory of the tables, and the beginning of their files' names
	Level       int    // of Pebble, for which the tables are; in tables for LowestLevel Pebble hides tombstones
	Files       []File // those written, and last the one that is being written
	w           *sstable.Writer
}

// File is a table that was written.
type File struct {
	Name string // within the directory
	Size int64  // bytes
}

// Add adds a row, or a tombstone if kind is InternalKeyKindDelete. Keys must ascend.
func (t *Writer) Add(kind pebble.InternalKeyKind, key, value []byte) error {
	if t.w == nil {
		name := fmt.Sprintf("%s%06d.sst", t.Prefix, len(t.Files))
		f, err := t.Options.FS.Create(t.FS.PathJoin(t.Dir, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		f = unsynced{vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: 1 << 20, NoSyncOnClose: true})}
		t.Files = append(t.Files, File{Name: name})
		t.w = sstable.NewWriter(objstorageprovider.NewFileWritable(f), t.Options.MakeWriterOptions(t.Level, t.Format))
	}
	var err error
	if kind == pebble.InternalKeyKindDelete {
		err = t.w.Delete(key)
	} else {
		err = t.w.Set(key, value)
	}
	if err == nil && t.w.Raw().EstimatedSize() >= tableBytes {
		err = t.Finish()
	}
	return err
}

// unsynced is a file whose syncs do nothing. A caller that needs the tables on disk calls
// [Maker.Sync] for many at once.
type unsynced struct{ vfs.File }

func (unsynced) Sync() error     { return nil }
func (unsynced) SyncData() error { return nil }

// StartSync starts to write a table's bytes to disk, and does not wait for the end.
func (m Maker) StartSync(path string, size int64) error {
	return m.withTable(path, func(f vfs.File) error {
		_, err := f.SyncTo(size)
		return err
	})
}

// Sync syncs tables to disk.
func (m Maker) Sync(paths []string) error {
	for _, path := range paths {
		if err := m.withTable(path, vfs.File.Sync); err != nil {
			return err
		}
	}
	return nil
}

func (m Maker) withTable(path string, use func(vfs.File) error) error {
	f, err := m.FS.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(use(f), f.Close())
}

// Finish ends the table that is being written, if there is one, and notes its size in Files.
func (t *Writer) Finish() error {
	if t.w == nil {
		return nil
	}
	err := t.w.Close()
	if err == nil {
		var m *sstable.WriterMetadata
		if m, err = t.w.Metadata(); err == nil {
			t.Files[len(t.Files)-1].Size = int64(m.Size)
		}
	}
	t.w = nil
	return err
}

// Table is a table that is read row by row, and of each key the newest row first. Key, Seq,
// Kind and val are the current row, if More says that there is one; Key and val hold until
// the next call of Next.
type Table struct {
	r           *sstable.Reader
	it          sstable.Iterator
	begun, More bool
	Key         []byte
	Seq         pebble.SeqNum
	Kind        pebble.InternalKeyKind
	val         []byte
	// Ranges are the table's range deletions, by their start.
	Ranges []deletedRange
}

// deletedRange is a range deletion: it deletes rows with start <= key < end that are older.
type deletedRange struct {
	start, end []byte
	seq        pebble.SeqNum
	age        int // of its table among those merged; 0 is the newest
}

// Open opens a table file. It is to be read once, from its beginning to its end.
func (m Maker) Open(path string) (*Table, error) {
	f, err := m.FS.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), tableFile{f, info.Size()}, m.Options.MakeReaderOptions())
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return newTable(r)
}

// OpenBytes opens a table that is in memory.
func (m Maker) OpenBytes(b []byte) (*Table, error) {
	r, err := sstable.NewMemReader(b, m.Options.MakeReaderOptions())
	if err != nil {
		return nil, err
	}
	return newTable(r)
}

func newTable(r *sstable.Reader) (*Table, error) {
	t := &Table{r: r}
	var err error
	if t.it, err = r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles); err == nil {
		err = t.readRanges()
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Close closes the table and its file.
func (t *Table) Close() error {
	var err error
	if t.it != nil {
		err = t.it.Close()
	}
	return errors.Join(err, t.r.Close())
}

// readRanges reads the table's range deletions. The error refuses a table with range keys,
// which no store writes.
func (t *Table) readRanges() error {
	keys, err := t.r.NewRawRangeKeyIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil {
		return err
	}
	if keys != nil {
		keys.Close()
		return fmt.Errorf("%w: it has range keys", ErrTable)
	}
	it, err := t.r.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil || it == nil {
		return err
	}
	defer it.Close()
	for span, err := it.First(); span != nil || err != nil; span, err = it.Next() {
		if err != nil {
			return err
		}
		if len(span.Keys) > 0 { // the newest first
			t.Ranges = append(t.Ranges, deletedRange{start: bytes.Clone(span.Start), end: bytes.Clone(span.End), seq: span.Keys[0].SeqNum()})
		}
	}
	return nil
}

// Next goes to the first row when it is called first, and then to the next row each time. At
// the end More is false.
func (t *Table) Next() error {
	if !t.begun {
		t.begun = true
		kv := t.it.First()
		if t.More = kv != nil; !t.More {
			return t.it.Error()
		}
		v, _, err := kv.Value(nil)
		t.Key, t.Seq, t.Kind, t.val = kv.K.UserKey, kv.SeqNum(), kv.Kind(), v
		return err
	}
	kv := t.it.Next()
	if t.More = kv != nil; !t.More {
		return t.it.Error()
	}
	v, _, err := kv.Value(nil)
	t.Key, t.Seq, t.Kind, t.val = kv.K.UserKey, kv.SeqNum(), kv.Kind(), v
	return err
}

// tableFile is a table's file, read from its beginning to its end, and so with read-ahead.
type tableFile struct {
	vfs.File
	size int64
}

func (f tableFile) Size() int64 { return f.size }

func (f tableFile) ReadAt(_ context.Context, b []byte, at int64) error {
	_, err := f.File.ReadAt(b, at)
	return err
}

func (f tableFile) NewReadHandle(objstorage.ReadBeforeSize) objstorage.ReadHandle {
	return &aheadReader{f: f}
}

// aheadBytes is how many bytes of a table are read at once. A block has 4 KiB.
const aheadBytes = 128 << 10

var aheadBuffers = sync.Pool{New: func() any { return new([aheadBytes]byte) }}

// aheadReader reads ahead as long as each block that is asked for follows the last one.
type aheadReader struct {
	f    tableFile
	buf  []byte // from aheadBuffers; nil: none yet
	from int64  // the offset in the file at which buf begins
	next int64  // the offset behind the last block read
}

func (r *aheadReader) ReadAt(ctx context.Context, b []byte, at int64) error {
	within := at >= r.from && at+int64(len(b)) <= r.from+int64(len(r.buf))
	if !within && (at != r.next || len(b) > aheadBytes) {
		r.next = at + int64(len(b))
		return r.f.ReadAt(ctx, b, at)
	}
	if !within {
		if r.buf == nil {
			r.buf = aheadBuffers.Get().(*[aheadBytes]byte)[:]
		}
		r.buf = r.buf[:min(aheadBytes, max(r.f.size-at, 0))]
		r.from = at
		if err := r.f.ReadAt(ctx, r.buf, at); err != nil {
			return err
		}
		if len(r.buf) < len(b) {
			return io.ErrUnexpectedEOF
		}
	}
	copy(b, r.buf[at-r.from:])
	r.next = at + int64(len(b))
	return nil
}

func (r *aheadReader) Close() error {
	if r.buf != nil {
		aheadBuffers.Put((*[aheadBytes]byte)(r.buf[:aheadBytes]))
		r.buf = nil
	}
	return nil
}

func (r *aheadReader) SetupForCompaction()                          {}
func (r *aheadReader) RecordCacheHit(context.Context, int64, int64) {}
