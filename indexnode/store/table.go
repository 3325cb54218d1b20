package store

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

// errTable is a table that no store writes.
var errTable = errors.New("table")

// tableBytes is about the size of a table that is written beside Pebble.
const tableBytes = 32 << 20

// lowestLevel is Pebble's.
const lowestLevel = 6

// tables writes rows, in key order, into tables that a store can ingest.
type tables struct {
	s           *Store
	dir, prefix string
	level       int // Pebble hides the tombstones of a table for its lowest
	files       []File
	w           *sstable.Writer
}

func (t *tables) add(kind pebble.InternalKeyKind, key, value []byte) error {
	if t.w == nil {
		name := fmt.Sprintf("%s%06d.sst", t.prefix, len(t.files))
		f, err := t.s.dbo.FS.Create(t.s.opts.FS.PathJoin(t.dir, name), vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		f = unsynced{vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: 1 << 20, NoSyncOnClose: true})}
		t.files = append(t.files, File{Name: name, Bottom: true})
		t.w = sstable.NewWriter(objstorageprovider.NewFileWritable(f), t.s.dbo.MakeWriterOptions(t.level, t.s.db.TableFormat()))
	}
	var err error
	if kind == pebble.InternalKeyKindDelete {
		err = t.w.Delete(key)
	} else {
		err = t.w.Set(key, value)
	}
	if err == nil && t.w.Raw().EstimatedSize() >= tableBytes {
		err = t.finish()
	}
	return err
}

// unsynced is a file that its writer does not sync: who needs it on disk does,
// for many at once.
type unsynced struct{ vfs.File }

func (unsynced) Sync() error     { return nil }
func (unsynced) SyncData() error { return nil }

// startSync has a table's bytes written, and does not wait for it.
func (s *Store) startSync(path string, size int64) error {
	return s.withTable(path, func(f vfs.File) error {
		_, err := f.SyncTo(size)
		return err
	})
}

// syncTables has tables on disk when it returns.
func (s *Store) syncTables(paths []string) error {
	for _, path := range paths {
		if err := s.withTable(path, vfs.File.Sync); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) withTable(path string, use func(vfs.File) error) error {
	f, err := s.opts.FS.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(use(f), f.Close())
}

// finish ends the table at hand.
func (t *tables) finish() error {
	if t.w == nil {
		return nil
	}
	err := t.w.Close()
	if err == nil {
		var m *sstable.WriterMetadata
		if m, err = t.w.Metadata(); err == nil {
			t.files[len(t.files)-1].Size = int64(m.Size)
		}
	}
	t.w = nil
	return err
}

// table is a table that is read row by row, the newest of a key first.
type table struct {
	r           *sstable.Reader
	it          sstable.Iterator
	begun, more bool // more: there is a row at hand:
	key         []byte
	seq         pebble.SeqNum
	kind        pebble.InternalKeyKind
	val         []byte
	// ranges are the ranges that it deletes, in order.
	ranges []deletedRange
}

// deletedRange is a range whose older rows are deleted.
type deletedRange struct {
	start, end []byte
	seq        pebble.SeqNum
	age        int // of the table among those merged
}

func (s *Store) openTable(path string) (*table, error) {
	f, err := s.opts.FS.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), tableFile{f, info.Size()}, s.dbo.MakeReaderOptions())
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return newTable(r)
}

// openBytes opens a table that is in memory.
func (s *Store) openBytes(b []byte) (*table, error) {
	r, err := sstable.NewMemReader(b, s.dbo.MakeReaderOptions())
	if err != nil {
		return nil, err
	}
	return newTable(r)
}

func newTable(r *sstable.Reader) (*table, error) {
	t := &table{r: r}
	var err error
	if t.it, err = r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles); err == nil {
		err = t.readRanges()
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *table) close() error {
	var err error
	if t.it != nil {
		err = t.it.Close()
	}
	return errors.Join(err, t.r.Close())
}

// readRanges reads the ranges that the table deletes, and refuses one with
// range keys, which no store writes.
func (t *table) readRanges() error {
	keys, err := t.r.NewRawRangeKeyIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil {
		return err
	}
	if keys != nil {
		keys.Close()
		return fmt.Errorf("%w: it has range keys", errTable)
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
			t.ranges = append(t.ranges, deletedRange{start: bytes.Clone(span.Start), end: bytes.Clone(span.End), seq: span.Keys[0].SeqNum()})
		}
	}
	return nil
}

// next goes to the first row, and then to the next.
func (t *table) next() error {
	if !t.begun {
		t.begun = true
		kv := t.it.First()
		if t.more = kv != nil; !t.more {
			return t.it.Error()
		}
		v, _, err := kv.Value(nil)
		t.key, t.seq, t.kind, t.val = kv.K.UserKey, kv.SeqNum(), kv.Kind(), v
		return err
	}
	kv := t.it.Next()
	if t.more = kv != nil; !t.more {
		return t.it.Error()
	}
	v, _, err := kv.Value(nil)
	t.key, t.seq, t.kind, t.val = kv.K.UserKey, kv.SeqNum(), kv.Kind(), v
	return err
}

// tableFile is a table's file, which is read from its beginning to its end.
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

// aheadBytes is how much of a table is read at once; a block has 4 KiB.
const aheadBytes = 128 << 10

var aheadBuffers = sync.Pool{New: func() any { return new([aheadBytes]byte) }}

// aheadReader reads ahead where the blocks that are asked for follow each other.
type aheadReader struct {
	f    tableFile
	buf  []byte // of aheadBuffers, if any
	from int64  // where buf begins
	next int64  // behind the last block
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
