package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/race"
)

// ordeal is a life of a store that does everything once or more: ingest,
// flush, sweep, checkpoint, restore, drop, reopen. Faults are put in
// from outside; it goes on from the offsets the store is at, as a node would.
type ordeal struct {
	*script
	fs   vfs.FS
	log  map[millrace.Partition][]entry
	opts Options
	// opening says that a store that has been open before is being opened.
	opening atomic.Bool
	// floor is what a crash may not lose any more.
	floor atomic.Pointer[map[millrace.Partition]int]
	// restoring is what the partitions are being restored to.
	restoring atomic.Pointer[[]Checkpoint]
	// again is how often a restore was begun anew after a crash.
	again int
}

var ordealPartitions = []millrace.Partition{3, 4}

var ctx = context.Background()

func newOrdeal(seed uint64, fs vfs.FS, entries int) *ordeal {
	o := &ordeal{script: newScript(seed), fs: fs, log: map[millrace.Partition][]entry{}}
	for _, p := range ordealPartitions {
		for range entries {
			o.log[p] = append(o.log[p], o.entry())
		}
	}
	o.opts = o.options()
	o.opts.MaxBlobBytes = []int{150, 300, 1000}[o.rng.IntN(3)]
	o.opts.memTableBytes = 4 << 10
	o.opts.FS = fs
	o.floor.Store(&map[millrace.Partition]int{})
	return o
}

// live goes through the life, and past every error that a node can go past.
func (o *ordeal) live() error {
	s, err := o.reopen(nil)
	if err != nil {
		return err
	}
	for step := range 40 {
		o.ingest(s)
		p := ordealPartitions[step%2]
		switch step {
		case 5, 25:
			if s, err = o.reopen(s); err != nil {
				return err
			}
		case 2, 9, 20, 33:
			o.flush(s)
		case 11:
			s.Sweep(ctx, p, nil)
		case 13:
			if all, err := s.Checkpoint(ordealPartitions, "checkpoint"); err == nil {
				o.ingest(s)
				o.expect(map[millrace.Partition]int{})
				o.restoring.Store(&all)
				for _, c := range all {
					// One that failed in its last step is done again.
					if s.Restore(context.Background(), "checkpoint", c) != nil && s.Quarantined(c.Partition) != nil {
						s.Restore(context.Background(), "checkpoint", c)
					}
				}
				o.restoring.Store(nil)
			}
		case 29:
			o.expect(map[millrace.Partition]int{})
			s.DropPartition(p)
		}
	}
	o.flush(s)
	return s.Close()
}

func (o *ordeal) expect(applied map[millrace.Partition]int) { o.floor.Store(&applied) }

func (o *ordeal) flush(s *Store) {
	if s.Flush() != nil {
		return
	}
	o.expect(appliedAll(func(p millrace.Partition) Offsets { return durable(s, p) }))
}

func appliedAll(at func(millrace.Partition) Offsets) map[millrace.Partition]int {
	m := map[millrace.Partition]int{}
	for _, p := range ordealPartitions {
		m[p] = max(0, int(at(p).Content))
	}
	return m
}

// reopen opens the store, again if it fails for a passing error.
func (o *ordeal) reopen(s *Store) (*Store, error) {
	if s != nil {
		s.Close()
		o.opening.Store(true)
		defer o.opening.Store(false)
	}
	s, err := Open("db", o.opts)
	for range 3 {
		if err == nil {
			return s, nil
		}
		s, err = Open("db", o.opts)
	}
	return nil, err
}

func (o *ordeal) ingest(s *Store) {
	var b Batch
	for _, p := range ordealPartitions {
		at := max(0, int(s.Applied(p).Content))
		end := min(at+1+o.rng.IntN(12), len(o.log[p]))
		putEntries(&b, p, o.log[p][at:end])
		b.SetApplied(p, Content, millrace.Offset(end))
		b.SetApplied(p, FeatureStream, millrace.Offset(end))
	}
	s.Apply(&b, nil)
}

// verify opens what is left and compares it with the oracle at the offsets it
// says it is at.
//
// A partition that was being restored may be quarantined. Then it can be
// restored again.
func (o *ordeal) verify(fs vfs.FS, floor map[millrace.Partition]int, restoring *[]Checkpoint) error {
	opts := o.opts
	opts.FS = fs
	s, err := Open("db", opts)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := o.restoreAgain(s, restoring); err != nil {
		return err
	}
	for _, p := range ordealPartitions {
		if err := o.compare(s, p, floor[p]); err != nil {
			return fmt.Errorf("partition %d at %v: %w", p, s.Applied(p), err)
		}
	}
	return nil
}

func (o *ordeal) restoreAgain(s *Store, restoring *[]Checkpoint) error {
	if names, err := s.opts.FS.List("db"); err != nil || slices.Contains(names, scratchName) {
		return fmt.Errorf("left by a restore: %v, %v", names, err)
	}
	if restoring == nil {
		return nil
	}
	for _, c := range *restoring {
		if err := s.Quarantined(c.Partition); err == nil || !strings.Contains(err.Error(), errRestoring.Error()) {
			continue
		}
		if err := s.Restore(context.Background(), "checkpoint", c); err != nil {
			return fmt.Errorf("again: %w", err)
		}
		o.again++
		if s.Applied(c.Partition) != c.Applied {
			return fmt.Errorf("partition %d is restored to %v, want %v", c.Partition, s.Applied(c.Partition), c.Applied)
		}
	}
	return nil
}

func (o *ordeal) compare(s *Store, p millrace.Partition, least int) error {
	at, err := appliedOf(s.Applied(p))
	if err != nil {
		return err
	}
	if at < least {
		return fmt.Errorf("%d were on disk", least)
	}
	want := newOracle(metaRetention)
	fold(want, o.log[p][:at])
	if got := s.Digest(p); got != want.digest {
		return fmt.Errorf("digest %x, want %x", got, want.digest)
	}
	for name := range want.timelines {
		got, err := s.Read(nil, p, name, -1000, millrace.MaxTime)
		if err != nil {
			return err
		}
		if want := want.read(name, -1000, millrace.MaxTime); !equalRecords(got, want) {
			return fmt.Errorf("%s:\n got %s want %s", name, short(got, nil), short(want, nil))
		}
		features, err := s.Features(p, name.Entity)
		if err != nil {
			return err
		}
		if want := want.readFeatures(name.Entity); !equalFeatures(features, want) {
			return fmt.Errorf("features of %s: got %v, want %v", name.Entity, features, want)
		}
	}
	_, err = s.Check(ctx, p)
	return err
}

// thorough says whether to try every point, rather than some.
func thorough() bool { return os.Getenv("MILLRACE_METAMORPHIC") != "" }

// stride leaves out most points of a short run, others each time.
func stride(n int) (first, step int) {
	step = 1
	if !thorough() {
		step = max(1, n/60)
	}
	return rand.IntN(step), step
}

// crashable is a file system that may be cloned while it is used: in some calls
// MemFS takes the lock that CrashClone waits for twice, the second time behind
// CrashClone.
type crashable struct {
	*vfs.MemFS
	mu sync.Mutex
}

func (c *crashable) Lock(name string) (io.Closer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.MemFS.Lock(name)
}

func (c *crashable) Link(from, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.MemFS.Link(from, to)
}

func (c *crashable) ReuseForWrite(from, to string, use vfs.DiskWriteCategory) (vfs.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.MemFS.ReuseForWrite(from, to, use)
}

func (c *crashable) CrashClone(cfg vfs.CrashCloneCfg) *vfs.MemFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.MemFS.CrashClone(cfg)
}

// TestCrashAtEveryOperation ends the store before each operation on its file
// system, keeping some of what was not synced.
func TestCrashAtEveryOperation(t *testing.T) {
	seed := rand.Uint64()
	mem := &crashable{MemFS: vfs.NewCrashableMem()}
	rng := rand.New(rand.NewPCG(seed, 2))
	type clone struct {
		at, percent int
		fs          *vfs.MemFS
		floor       map[millrace.Partition]int
		restoring   *[]Checkpoint
	}
	var mu sync.Mutex
	var clones []clone
	n := 0
	var o *ordeal
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		percent := []int{0, 100, rng.IntN(101)}[rng.IntN(3)]
		floor := *o.floor.Load()
		clones = append(clones, clone{n, percent, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), floor, o.restoring.Load()})
		return nil
	}))
	o = newOrdeal(seed, fs, 200)
	if err := o.live(); err != nil {
		t.Fatal(err)
	}
	for i, c := range clones {
		if testing.Short() && i%8 != 0 {
			continue
		}
		if err := o.verify(c.fs, c.floor, c.restoring); err != nil {
			t.Fatalf("seed %d: crash before write %d, keeping %d %% of what was not synced: %v", seed, c.at, c.percent, err)
		}
	}
	t.Logf("%d crashes, %d of them in the middle of a restore", len(clones), o.again)
	if o.again == 0 && !testing.Short() {
		t.Error("no crash was in the middle of a restore: the test does not show that one can be done again")
	}
}

// countLife counts the operations of an undisturbed life.
func countLife(t *testing.T, seed uint64, count *int) {
	t.Helper()
	var n atomic.Int64
	fs := errorfs.Wrap(vfs.NewCrashableMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		n.Add(1)
		return nil
	}))
	if err := newOrdeal(seed, fs, 200).live(); err != nil {
		t.Fatal(err)
	}
	*count = int(n.Load())
}

// TestErrorAtEveryOperation makes each operation on the file system fail, once.
// What lives on must be right, and so must what is found after a restart.
func TestErrorAtEveryOperation(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed := rand.Uint64()
	count := 0
	countLife(t, seed, &count)
	first, step := stride(count)
	deaths, runs := 0, 0
	for i := first; i < count; i += step {
		died, err := errorAt(seed, int64(i))
		if err != nil {
			t.Fatalf("seed %d: error at operation %d of %d: %v", seed, i, count, err)
		}
		runs++
		if died {
			deaths++
		}
	}
	t.Logf("%d errors over %d operations, %d of them ended the process", runs, count, deaths)
}

func errorAt(seed uint64, at int64) (died bool, err error) {
	mem := &crashable{MemFS: vfs.NewCrashableMem()}
	var n atomic.Int64
	var what atomic.Value
	var o *ordeal
	o = newOrdeal(seed, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if n.Add(1) != at || op.Kind == errorfs.OpFileClose {
			return nil
		}
		what.Store(fmt.Sprint(op))
		// Pebble panics, on purpose, when a directory cannot be synced, and by
		// accident when opening fails while it compacts already.
		if op.Kind == errorfs.OpFileSync && !strings.Contains(op.Path, ".") || o.opening.Load() {
			o.opts.fatal("panic")
		}
		return &os.PathError{Op: "inject", Path: op.Path, Err: syscall.EIO}
	})), 200)
	end := make(chan error, 1)
	dead := make(chan string, 1)
	o.opts.fatal = func(msg string) {
		select {
		case dead <- msg:
		default:
		}
		select {} // the process would be gone
	}
	go func() { end <- o.live() }()
	select {
	case err = <-end:
	case <-dead:
		died = true
	case <-time.After(time.Minute):
		return false, errors.New("it hangs")
	}
	// How the life ended may be the fault itself, or that a store which is
	// closing gave up on it; what is on disk is judged below in any case.
	if err != nil && !strings.Contains(err.Error(), "inject") && !errors.Is(err, ErrClosed) {
		return died, err
	}
	percent := 100 // the process died, not the machine
	if at%2 == 0 {
		percent = 0
	}
	floor, restoring := *o.floor.Load(), o.restoring.Load()
	clone := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 3))})
	o.opts.fatal = nil
	if err := o.verify(clone, floor, restoring); err != nil {
		return died, fmt.Errorf("%v: %w", what.Load(), err)
	}
	return died, nil
}
