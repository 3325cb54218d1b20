package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/tables"
	"github.com/millrace/millrace/internal/partition"
)

// pebbleOptions returns Pebble's options. The write-ahead log is off, since Kafka is the log:
// what is not flushed is read from it again. Memtables reach the disk whole and in order, so
// that what survives a crash is all batches up to some moment.
func (s *Store) pebbleOptions() *pebble.Options {
	o := &pebble.Options{
		FS:                          s.disk.FS(),
		CacheSize:                   s.opts.CacheBytes,
		DisableWAL:                  true,
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                s.opts.memTableBytes,
		MemTableStopWritesThreshold: 8,
		L0CompactionThreshold:       2 * flushesInL0,
		L0CompactionFileThreshold:   2 * flushesInL0 * partition.Count,
		L0StopWritesThreshold:       6 * flushesInL0,
		LBaseMaxBytes:               1 << 30,
		MaxOpenFiles:                4096,
		Logger:                      pebbleLogger{s},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
	}
	// Level 0 has what was flushed last. It is not compressed, since it is soon merged into
	// the levels below, and until then is mostly in memory.
	o.Levels[0].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	o.Experimental.SpanPolicyFunc = splitAtPartitions
	o.EventListener = &pebble.EventListener{
		BackgroundError: s.backgroundError,
		DataCorruption:  s.dataCorruption,
		WriteStallBegin: func(pebble.WriteStallBeginInfo) { s.stalls.Add(1) },
	}
	return o
}

// flushesInL0 is how many flushes of a partition gather in level 0 before they are merged
// into the level below, since each merge writes that level's tables again. Pebble counts each
// flush twice against L0CompactionThreshold. A flush writes a table for each partition.
// Pebble's own bound on the number of tables would therefore merge after every flush.
const flushesInL0 = 4

// splitAtPartitions ends every sstable where its partition ends, so that a partition has
// files of its own, however small. An excise, which removes a range of keys, then drops
// whole files without reading them. If it had to cut a corrupt file in two, all rows behind
// the damage would be lost without a word, those of other partitions too.
func splitAtPartitions(start []byte) (pebble.SpanPolicy, []byte, error) {
	if len(start) < 2 || start[0] == nodePartition>>8 && start[1] == nodePartition&0xff {
		return pebble.SpanPolicy{}, nil, nil
	}
	_, end := partitionSpan(millrace.Partition(start[0])<<8 | millrace.Partition(start[1]))
	return pebble.SpanPolicy{}, end, nil
}

// backgroundError logs an error of Pebble's background work, and has a flush that waits for
// Pebble give up if it must. Pebble calls it.
func (s *Store) backgroundError(err error) {
	what := err.Error()
	if err = here(err); errors.Is(err, ErrDiskFull) {
		what = "disk full"
	}
	if n := s.failures.again(what, time.Now()); n > 0 {
		s.log.Error("store: background work failed", "times", n, "err", err)
	}
	if isCorrupt(err) {
		return // a flush does not read stored rows, so it need not give up
	}
	if f := s.failing.Load(); f != nil && (f.any || errors.Is(err, ErrDiskFull)) {
		s.giveUp(f, err)
	}
}

// giveUp ends with err the wait of the flush that f is for, unless the wait has ended.
func (s *Store) giveUp(f *failure, err error) {
	if s.failing.CompareAndSwap(f, nil) {
		f.err = err
		close(f.stop)
	}
}

// dataCorruption is called by Pebble with a file that is corrupt, perhaps by a compaction
// that holds Pebble's locks. So it only notes the file.
func (s *Store) dataCorruption(i pebble.DataCorruptionInfo) {
	if isCorrupt(i.Details) {
		parts, _ := holders(i.Bounds.Start, i.Bounds.End.Key)
		s.suspect(Damage{File: i.Path, Partitions: parts, Cause: i.Details})
	}
}

// pebbleLogger drops Pebble's informational messages, logs its errors, and ends the store
// when Pebble cannot go on.
type pebbleLogger struct{ s *Store }

func (l pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.log.Warn("store: " + fmt.Sprintf(format, args...))
}

// Fatalf ends the store, not the process. Pebble calls it when it cannot go on, and does
// not expect it to return. A failing disk does not lead here: see disk/patient.go. What was
// not on disk is read from the log again.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	if l.s.opts.fatal != nil {
		l.s.opts.fatal(msg)
	}
	l.s.disk.End(fmt.Errorf("%w: %s", errEnded, msg))
}

// errEnded is wrapped by what the store ends with when Pebble cannot go on.
var errEnded = errors.New("the storage engine cannot go on; open the store again")

// Engine is figures of the storage engine: totals since it was opened, and its present state.
type Engine struct {
	Compactions, Flushes   int64
	CompactedBytes         int64 // written by compactions
	FlushedBytes           int64 // written by flushes
	Debt                   int64 // bytes that compactions have yet to write, estimated
	Running                int64 // compactions that run now
	Failed                 int64 // compactions that failed
	ReadAmplification      int   // tables and levels that a read of one row looks into, at most
	Tables                 int64
	DiskBytes              int64 // of all files, those that are to be removed too
	Memtables              int64
	MemtableBytes          int64
	CacheBytes             int64 // of blocks
	CacheHits, CacheMisses int64
	Stalls                 int64 // times that writes waited for flushes or compactions
}

// Engine returns figures of the storage engine. ok is false if they cannot be had: the
// store is closed, has ended, or waits for the disk with Pebble's locks held.
func (s *Store) Engine() (e Engine, ok bool) {
	if s.closed.Load() || s.disk.Stuck() != nil {
		return e, false
	}
	m := s.db.Metrics()
	e = Engine{
		Compactions: m.Compact.Count, Flushes: m.Flush.Count, Debt: int64(m.Compact.EstimatedDebt), Running: m.Compact.NumInProgress, Failed: m.Compact.FailedCount,
		ReadAmplification: m.ReadAmp(), DiskBytes: int64(m.DiskSpaceUsage()), Memtables: m.MemTable.Count, MemtableBytes: int64(m.MemTable.Size),
		CacheBytes: m.BlockCache.Size, Stalls: s.stalls.Load(),
	}
	e.CacheHits, e.CacheMisses = m.BlockCache.Hits, m.BlockCache.Misses
	for i := range m.Levels {
		e.CompactedBytes += int64(m.Levels[i].TableBytesCompacted)
		e.FlushedBytes += int64(m.Levels[i].TableBytesFlushed)
		e.Tables += m.Levels[i].TablesCount
	}
	return e, true
}

// repeated is an event that may happen often, and is logged at most once a minute.
type repeated struct {
	on  atomic.Bool // it has happened since over was last called
	mu  sync.Mutex
	was map[string]*told // by what happened; at most 101
}

// told says when an event was last logged, and how often it has happened since.
type told struct {
	at time.Time // when it was last logged
	n  int       // how often it has happened since then
}

const tellEvery = time.Minute

// again notes that what happened at now. If that is to be logged now, it returns how often it
// has happened since it was last logged, this time included; else 0.
func (r *repeated) again(what string, now time.Time) (n int) {
	r.on.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.was[what]
	if t == nil {
		if r.was == nil || len(r.was) > 100 {
			r.was = make(map[string]*told)
		}
		t = new(told)
		r.was[what] = t
	}
	t.n++
	if !t.at.IsZero() && now.Sub(t.at) < tellEvery {
		return 0
	}
	n, t.at, t.n = t.n, now, 0
	return n
}

// over says that it does not happen any more, and reports whether it had happened since the
// last call of over.
func (r *repeated) over() bool {
	if !r.on.Load() || !r.on.Swap(false) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.was = nil
	return true
}

// Disk returns the size of the store's file system, and what of it is free, in
// bytes; zeros if that is not known.
func (s *Store) Disk() (size, free int64) { return s.disk.Usage() }

// MinFree returns the number of free bytes on the file system below which the store takes
// nothing more in; 0 if there is no limit.
func (s *Store) MinFree() int64 { return max(0, s.opts.MinFreeBytes) }

// Bytes returns how many bytes the files of a partition take on disk, estimated without
// reading them. What was applied since the last flush is not in it.
func (s *Store) Bytes(n millrace.Partition) (int64, error) {
	if _, err := s.part(n); err != nil {
		return 0, err
	}
	start, end := partitionSpan(n)
	bytes, err := s.db.EstimateDiskUsage(start, end)
	return int64(bytes), here(err)
}

// maker returns what makes and reads sstables outside of Pebble.
func (s *Store) maker() tables.Maker {
	return tables.Maker{FS: s.opts.FS, Options: s.dbo, Format: s.db.TableFormat()}
}
