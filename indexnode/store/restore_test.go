package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/tables"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// restoreLife is a store of two partitions with an older checkpoint and a newer,
// and a second store to restore to.
type restoreLife struct {
	*ordeal
	mem        *vfs.MemFS
	old, young []Checkpoint
	to         *Store
}

func newRestoreLife(t *testing.T, seed uint64) *restoreLife {
	t.Helper()
	mem := vfs.NewMem()
	l := &restoreLife{ordeal: newOrdeal(seed, mem, 400), mem: mem}
	s := openMem(t, l.opts)
	fill := func() {
		for range 12 {
			l.ingest(s)
			if l.rng.IntN(3) == 0 {
				l.flush(s)
			}
		}
	}
	take := func(dir string) []Checkpoint {
		all, err := s.Checkpoint(ordealPartitions, dir)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	fill()
	l.old = take("old")
	fill()
	if err := s.db.Compact(ctx, []byte{0}, []byte{1}, false); err != nil {
		t.Fatal(err)
	}
	fill()
	l.young = take("young")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	to, err := Open("to", l.opts)
	if err != nil {
		t.Fatal(err)
	}
	l.to = to
	for _, c := range l.old {
		if err := to.Restore(context.Background(), "old", c); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// is verifies that a partition is what the log says up to a checkpoint.
func (l *restoreLife) is(c Checkpoint) error {
	if at := l.to.Applied(c.Partition); at != c.Applied {
		return fmt.Errorf("partition %d is at %v, want %v", c.Partition, at, c.Applied)
	}
	return l.compare(l.to, c.Partition, 0)
}

// A checkpoint that is damaged in any way is refused, and then nothing has
// changed, or it makes no difference. The other partition never notices.
func TestADamagedCheckpointIsRefused(t *testing.T) {
	seed := rand.Uint64()
	refused, runs := 0, 0
	kinds := map[string]int{}
	for i := range uint64(4) {
		l := newRestoreLife(t, seed+i)
		for range 60 {
			runs++
			what, taken, err := l.damage(runs)
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed+i, what, err)
			}
			if !taken {
				refused++
				kinds[strings.Fields(what)[0]]++
			}
		}
		if err := l.to.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d damages, %d refused: %v", runs, refused, kinds)
	if refused < runs/2 {
		t.Errorf("only %d of %d damages are refused: are they hitting anything?", refused, runs)
	}
}

// damage restores a damaged copy of the newer checkpoint of a partition. It
// reports whether it was taken.
func (l *restoreLife) damage(run int) (what string, taken bool, err error) {
	i := l.rng.IntN(len(l.young))
	c, old, neighbour := l.young[i], l.old[i], l.old[1-i]
	c.Files = slices.Clone(c.Files)
	dir := fmt.Sprintf("damaged-%d", run)
	if err := l.mem.MkdirAll(dir, 0o755); err != nil {
		return "", false, err
	}
	for _, f := range c.Files {
		if err := vfs.Copy(l.mem, l.mem.PathJoin("young", f.Name), l.mem.PathJoin(dir, f.Name)); err != nil {
			return "", false, err
		}
	}
	what, err = l.harm(dir, &c)
	if err != nil {
		return what, false, err
	}
	if l.rng.IntN(2) == 0 {
		inMemory(l.mem, dir, &c)
		what += ", in memory"
	}
	err = l.to.Restore(context.Background(), dir, c)
	switch {
	case err == nil:
		// What it is must be what the undamaged one is. Then back again.
		if err := errors.Join(l.is(l.young[i]), l.is(neighbour)); err != nil {
			return what, true, err
		}
		return what, true, l.to.Restore(context.Background(), "old", old)
	case !errors.Is(err, ErrRefused) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrFailed):
		return what, false, fmt.Errorf("not ErrRefused alone: %w", err)
	}
	return what, false, errors.Join(l.is(old), l.is(neighbour))
}

// inMemory gives what can be given in memory so, and removes the files.
func inMemory(mem *vfs.MemFS, dir string, c *Checkpoint) {
	c.Files = slices.Clone(c.Files)
	for i := range c.Files {
		f := &c.Files[i]
		if f.Bottom || !plainName(f.Name) {
			continue
		}
		in, err := mem.Open(mem.PathJoin(dir, f.Name))
		if err != nil {
			continue // it was removed, or is there twice
		}
		f.Data, _ = io.ReadAll(in)
		_ = in.Close()
	}
	for _, f := range c.Files {
		if f.Data != nil {
			_ = mem.Remove(mem.PathJoin(dir, f.Name))
		}
	}
}

// harm damages the files of a checkpoint, or what it says.
func (l *restoreLife) harm(dir string, c *Checkpoint) (what string, err error) {
	r := l.rng
	f := &c.Files[r.IntN(len(c.Files))]
	path := l.mem.PathJoin(dir, f.Name)
	// instead puts another file in the place of this one, and says so.
	instead := func(from string, other File) error {
		f.Size = other.Size
		return vfs.Copy(l.mem, l.mem.PathJoin(from, other.Name), path)
	}
	any := func(all []Checkpoint, i int) File { return all[i].Files[r.IntN(len(all[i].Files))] }
	own := slices.Index(ordealPartitions, c.Partition)
	switch r.IntN(20) {
	case 0, 1, 2:
		what, err = flip(r)(l.mem, path)
		return "flip: " + what, err
	case 3:
		what, err = rewriteFile(func(b []byte) ([]byte, string) { // where the footer is
			at := len(b) - 1 - r.IntN(min(len(b), 120))
			b[at] ^= 1 << r.IntN(8)
			return b, "the footer"
		})(l.mem, path)
		return "flip: " + what, err
	case 4:
		what, err = truncate(r)(l.mem, path)
		if r.IntN(2) == 0 {
			info, err := l.mem.Stat(path)
			if err != nil {
				return what, err
			}
			f.Size = info.Size()
		}
		return "cut: " + what, err
	case 5:
		return "remove", l.mem.Remove(path)
	case 6:
		return "foreign file", instead("young", any(l.young, 1-own))
	case 7, 8:
		return "older file", instead("old", any(l.old, own))
	case 9:
		return "same file again", instead("young", any(l.young, own))
	case 10:
		f.Bottom = !f.Bottom
		return "bottom or not", nil
	case 11:
		r.Shuffle(len(c.Files), func(i, j int) { c.Files[i], c.Files[j] = c.Files[j], c.Files[i] })
		return "order", nil
	case 12:
		i := r.IntN(len(c.Files))
		c.Files = slices.Delete(c.Files, i, i+1)
		return "unnamed file", nil
	case 13:
		f.Name = []string{"../young/" + f.Name, "", ".", "..", "/" + f.Name, f.Name + "\x00", "no.sst"}[r.IntN(7)]
		return fmt.Sprintf("name %q", f.Name), nil
	case 14:
		c.Files = append(c.Files, *f)
		return "twice", nil
	case 15:
		f.Size += int64(r.IntN(3)) - 1
		return "size", nil
	case 16:
		c.Applied.Content += millrace.Offset(r.IntN(2)) + 1
		return "offset", nil
	case 17:
		c.Digest.Content++
		return "digest", nil
	case 18:
		c.Clock++
		return "clock", nil
	}
	c.Partition = []millrace.Partition{ordealPartitions[1-own], 5}[r.IntN(2)]
	return "partition", nil
}

// craft writes a table as no store does, and returns a checkpoint with it.
func (l *restoreLife) craft(t *testing.T, i int, dir string, bottom bool, write func(w *sstable.Writer) error) Checkpoint {
	t.Helper()
	if err := l.mem.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := l.young[i]
	for _, f := range c.Files {
		if err := vfs.Copy(l.mem, l.mem.PathJoin("young", f.Name), l.mem.PathJoin(dir, f.Name)); err != nil {
			t.Fatal(err)
		}
	}
	f, err := l.mem.Create(l.mem.PathJoin(dir, "crafted.sst"), vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), l.to.dbo.MakeWriterOptions(0, l.to.db.TableFormat()))
	if err := errors.Join(write(w), w.Close()); err != nil {
		t.Fatal(err)
	}
	m, err := w.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	c.Files = append([]File{{Name: "crafted.sst", Size: int64(m.Size), Bottom: bottom}}, c.Files...)
	return c
}

// Tables that no store writes, sound as they are, are refused.
func TestACraftedTableIsRefused(t *testing.T) {
	l := newRestoreLife(t, 7)
	p, next := l.young[0].Partition, l.young[1].Partition
	key := append(partitionKey(p, timeline.Kind), "crafted"...)
	other := append(partitionKey(next, timeline.Kind), "crafted"...)
	start, end := partitionSpan(p)
	_, beyond := partitionSpan(next)
	for what, write := range map[string]func(w *sstable.Writer) error{
		"merge":                 func(w *sstable.Writer) error { return w.Merge(key, []byte("x")) },
		"range key":             func(w *sstable.Writer) error { return w.RangeKeySet(start, end, nil, []byte("x")) },
		"deletes the neighbour": func(w *sstable.Writer) error { return w.DeleteRange(start, beyond) },
		"before the partition":  func(w *sstable.Writer) error { return w.DeleteRange(partitionPrefix(p-1), end) },
		"row of the neighbour":  func(w *sstable.Writer) error { return w.Set(other, []byte("x")) },
		"deletes its row":       func(w *sstable.Writer) error { return w.Delete(other) },
		"row of the node":       func(w *sstable.Writer) error { return w.Set(append(partitionPrefix(nodePartition), 'v'), []byte("9")) },
		"short key":             func(w *sstable.Writer) error { return w.Set(partitionPrefix(p), []byte("x")) },
		"no timeline":           func(w *sstable.Writer) error { return w.Set(append(partitionKey(p, timeline.Kind), 0xff), []byte("x")) },
		"unknown kind":          func(w *sstable.Writer) error { return w.Set(partitionKey(p, 0x7f), []byte("x")) },
		"deletes all":           func(w *sstable.Writer) error { return w.DeleteRange(start, end) },
		"deletes the row":       func(w *sstable.Writer) error { return w.Delete(partitionKey(p, kindPart)) },
		"older row":             func(w *sstable.Writer) error { return w.Set(partitionKey(p, kindPart), (&partRow{}).encode()) },
	} {
		for _, bottom := range []bool{false, true} {
			dir := fmt.Sprintf("crafted-%t-%s", bottom, what)
			c := l.craft(t, 0, dir, bottom, write)
			if err := l.to.Restore(context.Background(), dir, c); !errors.Is(err, ErrRefused) || errors.Is(err, ErrFailed) {
				t.Errorf("%s, bottom %t: %v", what, bottom, err)
			}
			if err := errors.Join(l.is(l.old[0]), l.is(l.old[1])); err != nil {
				t.Fatalf("%s, bottom %t: %v", what, bottom, err)
			}
		}
	}
	if err := l.to.Close(); err != nil {
		t.Error(err)
	}
}

// A link in the place of a file is refused: what it leads to may be anything.
func TestALinkIsRefused(t *testing.T) {
	root := t.TempDir()
	s, err := Open(filepath.Join(root, "db"), Options{FlushEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, mendBatch(3, 0, 40))
	dir := filepath.Join(root, "checkpoint")
	c := checkpoint(t, s, 3, dir)
	path := filepath.Join(dir, c.Files[0].Name)
	if err := errors.Join(os.Rename(path, filepath.Join(root, "elsewhere.sst")), os.Symlink("../elsewhere.sst", path)); err != nil {
		t.Fatal(err)
	}
	for _, bottom := range []bool{false, true} {
		c.Files[0].Bottom = bottom
		if err := s.Restore(context.Background(), dir, c); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "regular") {
			t.Errorf("bottom %t: %v", bottom, err)
		}
	}
	if err := errors.Join(mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}

// A disk that cannot be read or written while a restore reads the files leaves
// the partition as it is, and says ErrFailed.
func TestAFailingDiskIsNotARefusal(t *testing.T) {
	disk := newFailing(vfs.NewMem())
	s := openMem(t, Options{FS: disk})
	apply(t, s, mendBatch(3, 0, 40))
	c := checkpoint(t, s, 3, "checkpoint")
	disk.reads.Store(true)
	err := s.Restore(context.Background(), "checkpoint", c)
	disk.reads.Store(false)
	if err := onlyFailed(err); err != nil || errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	if err := errors.Join(mended(s, 3), s.Restore(context.Background(), "checkpoint", c), mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}

// A restore that cannot write a row, be it once, restores nothing.
func TestARestoreLosesNoRowToAFailingDisk(t *testing.T) {
	var armed atomic.Bool
	s := openMem(t, Options{FS: errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.Contains(op.Path, "-run-") && armed.CompareAndSwap(true, false) {
			return errorfs.ErrInjected
		}
		return nil
	}))})
	apply(t, s, mendBatch(3, 0, 40))
	c := checkpoint(t, s, 3, "checkpoint")
	armed.Store(true)
	if err := s.Restore(context.Background(), "checkpoint", c); !errors.Is(err, errorfs.ErrInjected) || armed.Load() {
		t.Errorf("it says %v", err)
	}
	if err := errors.Join(mended(s, 3), s.Restore(context.Background(), "checkpoint", c), mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}

// Partitions are restored at the same time, while others are written and read;
// two restores of one partition are not.
func TestRestoresAtTheSameTime(t *testing.T) {
	s := openMem(t, Options{MaxBlobBytes: 500})
	for i := range 4 {
		for _, p := range mendPartitions {
			apply(t, s, mendBatch(p, i*10, i*10+10))
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.Checkpoint(mendPartitions, "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var restores, writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				apply(t, s, mendBatch(5, i%40, i%40+1))
			}
		}
	})
	for _, c := range all {
		restores.Go(func() {
			for range 5 {
				if err := errors.Join(s.Restore(context.Background(), "checkpoint", c), mended(s, c.Partition)); err != nil {
					t.Errorf("partition %d: %v", c.Partition, err)
				}
			}
		})
	}
	restores.Wait()
	close(done)
	writer.Wait()
	s.parts[3].restoring.Store(true)
	if err := s.Restore(context.Background(), "checkpoint", all[1]); onlyFailed(err) != nil {
		t.Errorf("a second restore of one partition: %v", err)
	}
	if err := errors.Join(mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}

// A partition that is quarantined or that nobody ever wrote to stands in no
// other's way.
func TestCheckpointsFailAlone(t *testing.T) {
	s := openMem(t, Options{})
	apply(t, s, mendBatch(3, 0, 40))
	apply(t, s, mendBatch(4, 0, 40))
	quarantine(t, s, 4)
	all, err := s.Checkpoint([]millrace.Partition{5, 4, 3, 3}, "checkpoint")
	if !errors.Is(err, ErrCorrupt) || len(all) != 2 || all[0].Partition != 3 || all[1].Partition != 5 {
		t.Fatalf("%+v, %v", all, err)
	}
	if err := onlyNamed(s.opts.FS, "checkpoint", all); err != nil {
		t.Error(err)
	}
	if c := all[1]; len(c.Files) != 0 || c.Applied != nothingApplied {
		t.Errorf("an empty partition: %+v", c)
	}
	apply(t, s, mendBatch(5, 0, 40))
	for _, c := range all {
		if err := s.Restore(context.Background(), "checkpoint", c); err != nil {
			t.Error(err)
		}
	}
	if s.Applied(5) != nothingApplied {
		t.Errorf("the empty partition is at %v", s.Applied(5))
	}
	if all, err := s.Checkpoint([]millrace.Partition{3}, "checkpoint"); err == nil || all != nil {
		t.Errorf("into a directory that exists: %v", all)
	}
	if all, err := s.Checkpoint([]millrace.Partition{4}, "none"); !errors.Is(err, ErrCorrupt) || all != nil {
		t.Errorf("of a quarantined partition: %v, %v", all, err)
	}
	if _, err := s.Checkpoint([]millrace.Partition{720}, "none"); err == nil {
		t.Error("of no partition")
	}
	if err := errors.Join(mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}

// Tables that several partitions share, as a store wrote them before tables
// ended where partitions do, are not backed up: each has its rows in tables of
// its own, and nobody else's.
func TestSharedTablesAreWrittenApart(t *testing.T) {
	fs := mendStore(t)
	o := benchPebble() // without the policy that splits them
	o.FS = fs
	from, err := pebble.Open("db", o)
	if err != nil {
		t.Fatal(err)
	}
	to, err := pebble.Open("shared", o)
	if err != nil {
		t.Fatal(err)
	}
	err = scan(from, nil, func(k, v []byte) error { return to.Set(k, v, pebble.NoSync) })
	if err := errors.Join(err, to.Flush(), from.Close(), to.Close()); err != nil {
		t.Fatal(err)
	}
	s, err := Open("shared", Options{FS: fs, FlushEvery: -1, MaxBlobBytes: 500})
	if err != nil {
		t.Fatal(err)
	}
	tables, err := s.tables()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(tables, func(t pebble.SSTableInfo) bool {
		parts, _ := holders(t.Smallest.UserKey, t.Largest.UserKey)
		return len(parts) > 1
	}) {
		t.Fatal("no table is shared: the test shows nothing")
	}
	all, err := s.Checkpoint([]millrace.Partition{3, 4}, "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	if err := onlyNamed(fs, "checkpoint", all); err != nil {
		t.Error(err)
	}
	other, err := Open("other", Options{FS: fs, FlushEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		if err := errors.Join(other.Restore(context.Background(), "checkpoint", c), mended(other, c.Partition)); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []millrace.Partition{0, 719} {
		if other.Applied(p) != nothingApplied {
			t.Errorf("partition %d came along", p)
		}
	}
	if err := errors.Join(other.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

// A table of the lowest level whose rows have sequence numbers, as a snapshot leaves them, is
// merged: no store could take it as it is.
func TestNumberedTablesAreMerged(t *testing.T) {
	fs := mendStore(t)
	s := openMem(t, Options{FS: fs, MaxBlobBytes: 500})
	pinned := s.db.NewSnapshot()
	apply(t, s, mendBatch(3, 0, 40))
	start, end := partitionSpan(3)
	if err := errors.Join(s.Flush(), s.db.Compact(ctx, start, end, false), pinned.Close()); err != nil {
		t.Fatal(err)
	}
	c := checkpoint(t, s, 3, "checkpoint")
	if !slices.ContainsFunc(c.Files, func(f File) bool { return !f.Bottom }) {
		t.Error("all can be taken as they are: the test shows nothing")
	}
	other, err := Open("other", Options{FS: fs, FlushEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(other.Restore(ctx, "checkpoint", c), mended(other, 3), other.Close(), s.Close()); err != nil {
		t.Errorf("%+v: %v", c.Files, err)
	}
}

// What is restored is row for row what was there, with whatever Pebble had above
// the bottom: newer rows, tombstones, and ranges of timelines that are gone.
func TestARestoreIsRowForRow(t *testing.T) {
	seed := rand.Uint64()
	tombstones, ranges, bottoms := 0, 0, 0
	for i := range uint64(30) {
		mem := vfs.NewMem()
		o := newOrdeal(seed+i, mem, 400)
		s := openMem(t, o.opts)
		for step := range 30 {
			o.ingest(s)
			err := error(nil)
			apply(t, s, passing(o.now, step))
			switch o.rng.IntN(6) {
			case 0:
				err = s.db.Compact(ctx, []byte{0}, []byte{1}, false)
			case 1, 2:
				err = s.Flush()
			case 3:
				err = s.Sweep(ctx, ordealPartitions[o.rng.IntN(2)], nil)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		all, err := s.Checkpoint(ordealPartitions, "checkpoint")
		if err != nil {
			t.Fatal(err)
		}
		to, err := Open("to", o.opts)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			if o.rng.IntN(2) == 0 {
				inMemory(mem, "checkpoint", &c)
			}
			if err := errors.Join(to.Restore(context.Background(), "checkpoint", c), sameRows(s, to, c.Partition)); err != nil {
				t.Fatalf("seed %d: partition %d: %v", seed+i, c.Partition, err)
			}
			for _, f := range c.Files {
				dead, gone, err := above(s, "checkpoint/"+f.Name, f.Data)
				if err != nil {
					t.Fatal(err)
				}
				if f.Bottom {
					bottoms++
				} else {
					tombstones, ranges = tombstones+dead, ranges+gone
				}
			}
		}
		if err := errors.Join(to.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d tombstones, %d ranges, %d files of the bottom", tombstones, ranges, bottoms)
	if tombstones == 0 || ranges == 0 || bottoms == 0 {
		t.Error("something of it never came: the test does not show it")
	}
}

// passing is a batch with a timeline that soon is gone.
func passing(now millrace.Time, step int) *Batch {
	var b Batch
	for _, p := range ordealPartitions {
		name := millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("passing-", step)), Type: "aged"}
		b.SetClock(p, now+millrace.Time(step)*100)
		b.Put(p, name, millrace.Record{ID: "a", Time: now + millrace.Time(step)*100})
	}
	return &b
}

// above counts the tombstones and the ranges in a table.
func above(s *Store, path string, data []byte) (tombstones, ranges int, err error) {
	var f *tables.Table
	if data != nil {
		f, err = s.maker().OpenBytes(data)
	} else {
		f, err = s.maker().Open(path)
	}
	if err != nil {
		return 0, 0, err
	}
	for err = f.Next(); err == nil && f.More; err = f.Next() {
		if f.Kind == pebble.InternalKeyKindDelete {
			tombstones++
		}
	}
	return tombstones, len(f.Ranges), errors.Join(err, f.Close())
}

// sameRows compares the rows of a partition in two stores.
func sameRows(a, b *Store, p millrace.Partition) error {
	rows := func(s *Store) (list []string, err error) {
		err = scan(s.db, partitionPrefix(p), func(k, v []byte) error {
			list = append(list, fmt.Sprintf("%q %q", k, v))
			return nil
		})
		return list, err
	}
	x, errX := rows(a)
	y, errY := rows(b)
	if len(x) == 0 || !slices.Equal(x, y) {
		return errors.Join(errX, errY, fmt.Errorf("%d rows, and %d that are others", len(x), len(y)))
	}
	return errors.Join(errX, errY)
}

// What a restore syncs: nothing is excised of a partition of which the store
// has nothing, and each table that is written is synced once, with the others.
func TestARestoreSyncsNoMoreThanItMust(t *testing.T) {
	mem := vfs.NewMem()
	from := openMem(t, Options{FS: mem})
	apply(t, from, mendBatch(3, 0, 40))
	c := checkpoint(t, from, 3, "checkpoint")
	for i := range c.Files {
		c.Files[i].Bottom = false // so that all is written anew
	}
	if err := from.Close(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	synced := map[string]int{} // by the beginning of a file's name, guarded by mu
	logged := vfs.WithLogging(mem, func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasPrefix(format, "sync: ") || strings.HasPrefix(format, "sync-data: ") {
			kind, _, _ := strings.Cut(filepath.Base(fmt.Sprint(args...)), "-")
			synced[kind]++
		}
	})
	to, err := Open("to", Options{FS: logged, FlushEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	of := func(kind string) int {
		mu.Lock()
		defer mu.Unlock()
		return synced[kind]
	}
	before := of("MANIFEST")
	if err := to.exchange([]*replacement{{p: &to.parts[3]}}); err != nil {
		t.Fatal(err)
	}
	if n := of("MANIFEST") - before; n != 0 {
		t.Errorf("the manifest is synced %d times to excise a partition of which there is nothing", n)
	}
	if err := to.Restore(context.Background(), "checkpoint", c); err != nil {
		t.Fatal(err)
	}
	if n := of("003"); n != 1 { // its partition
		t.Errorf("the table that a restore writes is synced %d times; once is enough", n)
	}
	if err := to.exchange([]*replacement{{p: &to.parts[3]}}); err != nil || to.Applied(3).Content != 40 {
		t.Fatal(err)
	}
	if err := to.reload(&to.parts[3]); err != nil || to.Applied(3).Content != -1 {
		t.Errorf("excised, it is at %v: %v", to.Applied(3), err)
	}
	if err := to.Restore(context.Background(), "checkpoint", c); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(mended(to, 3), to.Close()); err != nil {
		t.Error(err)
	}
}
