package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/millrace/millrace"
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
	}
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
