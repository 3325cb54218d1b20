package store

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
