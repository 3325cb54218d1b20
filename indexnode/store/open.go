package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/disk"
	"github.com/millrace/millrace/indexnode/store/tally"
	"github.com/millrace/millrace/internal/partition"
)

// Store is an index node's store. Any number of goroutines may read; batches
// for different partitions may be applied at once.
type Store struct {
	opts  Options
	log   *slog.Logger
	dir   string
	db    *pebble.DB
	dbo   *pebble.Options
	parts [partition.Count]part
	types registry
	flows *tally.Flows

	dirty   atomic.Int64 // bytes held by what the partitions have not flushed
	hot     atomic.Int64 // bytes held by hot heads, which are flushed
	flushAt atomic.Int64 // dirty bytes that start a flush
	stalls  atomic.Int64 // times that Pebble had writes wait
	// The locks are taken in this order: flushing, a partition's or the registry's, node,
	// writing. To take the locks of several partitions, flushing must be held.
	flushing  sync.Mutex    // one flush, checkpoint or replacement at a time
	node      sync.Mutex    // held while the node's rows change, except for counts
	writing   sync.RWMutex  // shared by writes to Pebble; a checkpoint holds it against them
	wake      chan struct{} // wakes the flusher
	replacing replacements
	damage    damage
	disk      *disk.Disk
	full      repeated        // the disk is full
	failures  repeated        // errors of Pebble's background work
	ctx       context.Context // until Close
	cancel    context.CancelFunc
	closed    atomic.Bool
	failing   atomic.Pointer[failure] // set while a flush waits for Pebble
	flusher   sync.WaitGroup
}

// format is the version of all rows of this package. A store of another format is not opened.
const format = "1"

// Open opens the store in dir, and creates it if it does not exist. A damaged store opens
// too: see [Store.Damage].
func Open(dir string, o Options) (*Store, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Store{opts: o.withDefaults(), dir: dir, flows: tally.NewFlows(MaxTypes), wake: make(chan struct{}, 1)}
	s.log = s.opts.Log
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.stagger()
	if err := s.opts.FS.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: open %s: %w", dir, here(err))
	}
	if err := s.removeScratch(); err != nil {
		return nil, fmt.Errorf("store: open %s: %w", dir, here(err))
	}
	s.disk = disk.New(disk.Config{
		FS: s.opts.FS, Dir: dir, MinFree: s.opts.MinFreeBytes, Full: ErrDiskFull, Offline: s.opts.Offline, Log: s.log, Done: s.ctx.Done(),
		Stalls: func(err error) {
			if f := s.failing.Load(); f != nil {
				s.giveUp(f, err)
			}
		},
	})
	s.dbo = s.pebbleOptions()
	s.dbo.EnsureDefaults()
	if err := s.open(); err != nil {
		return nil, fmt.Errorf("store: open %s: %w", dir, whole(err))
	}
	s.disk.Opened()
	s.disk.Hold()
	s.flusher.Add(1)
	go s.flushLoop()
	return s, nil
}

// load reads what is kept in memory: the format, the partitions' rows, the
// quarantine and the registry.
func (s *Store) load() error {
	s.node.Lock()
	node, err := s.loadNode()
	s.node.Unlock()
	if err != nil {
		return err
	}
	if v, ok := node[nodeRow(nodeFormat, "")]; ok && string(v) != format {
		return fmt.Errorf("format %q; this program reads %s", v, format)
	}
	if err := s.loadParts(); err != nil {
		return err
	}
	if len(node) == 0 {
		if err := s.beginNode(); err != nil {
			return err
		}
	}
	if err := s.loadQuarantine(node); err != nil {
		return err
	}
	return s.loadTypes(node)
}

// beginNode writes the first row of the node, the format. Since that is written before any
// row of a partition, partitions without a row of the node mean that the node's rows are
// lost.
func (s *Store) beginNode() error {
	for i := range s.parts {
		if p := &s.parts[i]; p.row != (partRow{applied: nothingApplied}) {
			return fmt.Errorf("%w: all of them", errLost)
		}
	}
	return s.set(nodeRow(nodeFormat, ""), []byte(format))
}

// loadParts loads all partitions, and quarantines those that are corrupt.
func (s *Store) loadParts() error {
	for i := range s.parts {
		p := &s.parts[i]
		p.p, p.bad, p.unread, p.durable = millrace.Partition(i), nil, nil, nothingApplied
		if err := p.load(s); isCorrupt(err) {
			_ = s.quarantineLocked(p, err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// load makes the partition what the disk says. If the partition cannot be read now, it
// stands at the offsets that are known to be on disk, and must be loaded before it is used.
// A corrupt one has nothing applied; the caller quarantines it. p.mu is held, or nobody
// else has the store yet.
func (p *part) load(s *Store) error {
	p.forget(s)
	p.rewound = nil
	row, origin, err := loadRows(s.db, p.p)
	var counts []byte
	if err == nil {
		counts, err = s.countsRow(p.p)
	}
	p.tally = s.flows.Read(counts, row != partRow{applied: nothingApplied} || err != nil, row.counted())
	switch {
	case err == nil:
		p.row, p.origin, p.durable = row, origin, row.applied
	case isCorrupt(err):
		p.row, p.origin, p.durable = partRow{applied: nothingApplied}, nil, nothingApplied
	default:
		p.row, p.origin = partRow{applied: p.durable}, nil
		p.unread = err
		return err
	}
	p.unread = nil
	return err
}

// loadRows reads a partition's own rows. If it has none, nothing is applied, and the origin
// is nil.
func loadRows(r pebble.Reader, n millrace.Partition) (row partRow, origin []byte, err error) {
	row.applied = nothingApplied
	v, err := get(r, partitionKey(n, kindPart))
	if err == nil && v != nil {
		row, err = decodePartRow(v)
	}
	if err == nil {
		origin, err = get(r, partitionKey(n, kindOrigin))
	}
	return row, origin, err
}

// countsRow reads a partition's row of counts, or nil. A damaged row counts as none, since
// the partition can be counted again.
func (s *Store) countsRow(n millrace.Partition) ([]byte, error) {
	row, err := s.get(countsKey(n))
	if isCorrupt(err) {
		return nil, nil
	}
	return row, err
}

// forget drops all changes and hot heads that are in memory. p.mu is held.
func (p *part) forget(s *Store) {
	s.dirty.Add(-p.bytes)
	p.timelines, p.features, p.changed, p.bytes = nil, nil, false, 0
	p.hot.clear(s)
}

// usable returns why a partition cannot be used, or nil. p.mu is held.
func (p *part) usable() error {
	switch {
	case p.bad != nil:
		return corrupt(p.p, p.bad)
	case p.unread != nil:
		return here(fmt.Errorf("partition %d cannot be read: %w", p.p, p.unread))
	}
	return nil
}

// ready is usable for a writer. It loads a partition that could not be read before, and
// returns an [ErrRewound] for it, also if that succeeds. p.mu is held for writing.
func (p *part) ready(s *Store) error {
	if p.bad == nil && p.unread != nil {
		return s.rewind(p, p.unread)
	}
	return p.usable()
}

// get returns a row, or nil if there is none. The bytes are the caller's; the slice has a
// quarter more capacity, so that a few records can be appended to a head.
func (s *Store) get(key []byte) ([]byte, error) { return get(s.db, key) }

func get(r pebble.Reader, key []byte) ([]byte, error) {
	v, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b := append(make([]byte, 0, len(v)+len(v)/4), v...)
	return b, closer.Close()
}

// appendRow appends a row that is not empty, or nothing when there is none.
func (s *Store) appendRow(dst, key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return dst, nil
	}
	if err != nil {
		return dst, err
	}
	return append(dst, v...), closer.Close()
}

// Close flushes and releases the store. It must be called once, after every other call has
// returned. While the disk fails, or if the store has ended, it releases nothing until the
// process ends, and what is not flushed must be read from the log again.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return ErrClosed
	}
	s.cancel()
	s.flusher.Wait()
	err := s.lastFlush()
	if s.disk.Stuck() != nil { // Pebble would wait for the disk
		return err
	}
	return errors.Join(err, here(s.disk.OrEnd(s.db.Close)))
}

// part returns a partition; an error if the store is closed or has no such partition.
func (s *Store) part(p millrace.Partition) (*part, error) {
	if s.closed.Load() {
		return nil, ErrClosed
	}
	if int(p) >= len(s.parts) {
		return nil, fmt.Errorf("store: partition %d: there are %d", p, len(s.parts))
	}
	return &s.parts[p], nil
}
