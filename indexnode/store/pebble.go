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

// pebbleOptions are Pebble's options. The write-ahead log is off: the log is
// Kafka, what is not flushed is replayed, and memtables reach the disk whole
// and in order, so that what survives a crash is a prefix of the batches.
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
	// What is flushed is soon merged into what is below, and until then mostly in memory.
	o.Levels[0].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	o.Experimental.SpanPolicyFunc = splitAtPartitions
	o.EventListener = &pebble.EventListener{
		BackgroundError: s.backgroundError,
		DataCorruption:  s.dataCorruption,
		WriteStallBegin: func(pebble.WriteStallBeginInfo) { s.stalls.Add(1) },
	}
	return o
}

// flushesInL0 is how many flushes of a partition gather before they are merged into
// what is below: each merge writes that again. A flush is a table for each partition,
// so that Pebble's bound on their number, meant for stores with few, would merge
// after every one.
const flushesInL0 = 4

// splitAtPartitions ends every sstable where its partition ends, so that a
// partition is files of its own, however small. An excise then drops whole
// files without reading them; where it must cut a corrupt one, what lies behind
// the damage is silently lost, of other partitions too.
func splitAtPartitions(start []byte) (pebble.SpanPolicy, []byte, error) {
	if len(start) < 2 || start[0] == nodePartition>>8 && start[1] == nodePartition&0xff {
		return pebble.SpanPolicy{}, nil, nil
	}
	_, end := partitionSpan(millrace.Partition(start[0])<<8 | millrace.Partition(start[1]))
	return pebble.SpanPolicy{}, end, nil
}

func (s *Store) backgroundError(err error) {
	what := err.Error()
	if err = here(err); errors.Is(err, ErrDiskFull) {
		what = "disk full"
	}
	if n := s.failures.again(what, time.Now()); n > 0 {
		s.log.Error("store: background work failed", "times", n, "err", err)
	}
	if isCorrupt(err) {
		return // no flush reads what is stored
	}
	if f := s.failing.Load(); f != nil && (f.any || errors.Is(err, ErrDiskFull)) {
		s.giveUp(f, err)
	}
}

// giveUp ends the wait of a flush for Pebble.
func (s *Store) giveUp(f *failure, err error) {
	if s.failing.CompareAndSwap(f, nil) {
		f.err = err
		close(f.stop)
	}
}

// dataCorruption hears of a file that cannot be right, perhaps from a
// compaction that holds Pebble's locks.
func (s *Store) dataCorruption(i pebble.DataCorruptionInfo) {
	if isCorrupt(i.Details) {
		parts, _ := holders(i.Bounds.Start, i.Bounds.End.Key)
		s.suspect(Damage{File: i.Path, Partitions: parts, Cause: i.Details})
	}
}

// pebbleLogger keeps Pebble's chatter out and its last words in.
type pebbleLogger struct{ s *Store }

func (l pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.s.log.Warn("store: " + fmt.Sprintf(format, args...))
}

// Fatalf ends the store, and not the process: Pebble calls it when it cannot go
// on, and does not expect it to return. What a disk does is not among that
// (disk/patient.go). The log replays what was not on disk.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	if l.s.opts.fatal != nil {
		l.s.opts.fatal(msg)
	}
	l.s.disk.End(fmt.Errorf("%w: %s", errEnded, msg))
}

// errEnded is what Pebble cannot go on from.
var errEnded = errors.New("the storage engine cannot go on; open the store again")

// Engine is how the storage engine does.
type Engine struct {
	Compactions, Flushes   int64
	CompactedBytes         int64 // written by compactions
	FlushedBytes           int64
	Debt                   int64 // bytes that compactions have yet to write, estimated
	Running                int64 // compactions
	Failed                 int64 // compactions
	ReadAmplification      int   // tables and levels that a read of one row looks into, at most
	Tables                 int64
	DiskBytes              int64 // of all files, those that are to be removed too
	Memtables              int64
	MemtableBytes          int64
	CacheBytes             int64 // of blocks
	CacheHits, CacheMisses int64
	Stalls                 int64 // times that writes waited for flushes or compactions
}

// Engine tells how the storage engine does. ok is false while that cannot be
// told: the store is closed, has ended, or waits for the disk with locks held.
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

// repeated is something that may happen often and is told once a minute.
type repeated struct {
	on  atomic.Bool
	mu  sync.Mutex
	was map[string]*told
}

type told struct {
	at time.Time
	n  int // times since
}

const tellEvery = time.Minute

// again notes that it happened. It returns how many times that was since it was
// told last, if it is to be told now, or 0.
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

// over ends it, and reports whether it was on.
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
// bytes; zeros where that is not known.
func (s *Store) Disk() (size, free int64) { return s.disk.Usage() }

// MinFree returns how many bytes of its file system the store keeps free: with less it
// takes nothing more in. 0: no limit.
func (s *Store) MinFree() int64 { return max(0, s.opts.MinFreeBytes) }

// Bytes returns what the files of a partition take on disk, which is known
// without reading any. What was applied since the last flush is not in it.
func (s *Store) Bytes(n millrace.Partition) (int64, error) {
	if _, err := s.part(n); err != nil {
		return 0, err
	}
	start, end := partitionSpan(n)
	bytes, err := s.db.EstimateDiskUsage(start, end)
	return int64(bytes), here(err)
}

// maker makes and reads tables beside Pebble.
func (s *Store) maker() tables.Maker {
	return tables.Maker{FS: s.opts.FS, Options: s.dbo, Format: s.db.TableFormat()}
}
