package tables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// disk is a file system in memory. It counts the files that are open to be read, and one operation on it
// may fail.
type disk struct {
	vfs.FS
	open, ops atomic.Int64
	fails     int64                 // the number of the operation that fails; 0: none does
	counts    func(errorfs.Op) bool // which operations have numbers; nil: all
}

var errDisk = errors.New("disk failed")

func newDisk() *disk {
	d := new(disk)
	d.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if (d.counts == nil || d.counts(op)) && d.ops.Add(1) == d.fails {
			return errDisk
		}
		return nil
	}))
	return d
}

func (d *disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	d.open.Add(1)
	return openFile{f, d}, nil
}

type openFile struct {
	vfs.File
	d *disk
}

func (f openFile) Close() error {
	f.d.open.Add(-1)
	return f.File.Close()
}

func (d *disk) maker() Maker {
	o := &pebble.Options{FS: d}
	o.EnsureDefaults()
	return Maker{FS: d, Options: o, Format: pebble.FormatNewest.MaxTableFormat()}
}

// quiet drops what Pebble logs.
type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {}
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

// write writes a table.
func (d *disk) write(t *testing.T, name string, rows func(w *sstable.Writer) error) {
	t.Helper()
	f, err := d.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	m := d.maker()
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), m.Options.MakeWriterOptions(0, m.Format))
	if err := errors.Join(rows(w), w.Close()); err != nil {
		t.Fatal(err)
	}
}

// numbered is the key of a row of a kind with a sequence number.
func numbered(key string, kind pebble.InternalKeyKind, seq pebble.SeqNum) pebble.InternalKey {
	return pebble.InternalKey{UserKey: []byte(key), Trailer: pebble.InternalKeyTrailer(seq)<<8 | pebble.InternalKeyTrailer(kind)}
}

// rowsOf reads a table: its rows in order, and tombstones without a value.
func rowsOf(m Maker, name string) (keys []string, values map[string]string, err error) {
	f, err := m.Open(name)
	if err != nil {
		return nil, nil, err
	}
	values = map[string]string{}
	for err = f.Next(); err == nil && f.More; err = f.Next() {
		keys = append(keys, string(f.Key))
		if f.Kind != pebble.InternalKeyKindDelete {
			values[string(f.Key)] = string(f.val)
		}
	}
	return keys, values, errors.Join(err, f.Close())
}

// merged merges tables named from the newest to the oldest, those of the bottom last, into a run.
// It returns the rows that were checked, and the run: its keys, and the values of those that are no
// tombstones.
func merged(d *disk, above, bottom []string) (checked, keys []string, values map[string]string, err error) {
	out := &Writer{Maker: d.maker(), Dir: "", Prefix: "run-", Level: LowestLevel - 1}
	m := NewMerge([]byte("k"), []byte("l"), out, func(k, v []byte) error {
		checked = append(checked, string(k)+"="+string(v))
		return nil
	})
	err = func() error {
		for i, name := range slices.Concat(above, bottom) {
			t, err := d.maker().Open(name)
			if err != nil {
				return err
			}
			if err := m.Add(t, name, i >= len(above)); err != nil {
				return err
			}
		}
		return m.Run()
	}()
	if err = errors.Join(err, m.Close()); err != nil {
		return checked, nil, nil, err
	}
	values = map[string]string{}
	for _, f := range out.Files {
		own, some, err := rowsOf(d.maker(), f.Name)
		if info, statErr := d.Stat(f.Name); statErr != nil || info.Size() != f.Size {
			err = errors.Join(err, statErr, fmt.Errorf("%s is said to have %d bytes", f.Name, f.Size))
		}
		if err != nil {
			return checked, nil, nil, err
		}
		keys = append(keys, own...)
		maps.Copy(values, some)
	}
	return checked, keys, values, nil
}

// What tables are merged into is, over the bottom, what Pebble reads of them all.
func TestAMergeIsWhatPebbleReads(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	deleted, bottoms := 0, 0
	for i := range uint64(12) {
		r := rand.New(rand.NewPCG(seed+i, 1))
		d := newDisk()
		o := &pebble.Options{FS: d, DisableWAL: true, DisableAutomaticCompactions: true, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}, L0StopWritesThreshold: 100}
		for l := range o.TargetFileSizes {
			o.TargetFileSizes[l] = 400
		}
		for l := range o.Levels {
			o.Levels[l].BlockSize = 100
		}
		db, err := pebble.Open("", o)
		if err != nil {
			t.Fatal(err)
		}
		key := func() []byte { return fmt.Appendf(nil, "k%02d", r.IntN(40)) }
		var pinned []*pebble.Snapshot // so that older rows stay
		for round := range 1 + r.IntN(6) {
			for range 1 + r.IntN(30) {
				switch r.IntN(12) {
				case 0, 1:
					err = db.Delete(key(), pebble.NoSync)
				case 2:
					from, to := key(), key()
					if bytes.Compare(from, to) > 0 {
						from, to = to, from
					}
					err = db.DeleteRange(from, to, pebble.NoSync)
				case 3:
					if round > 0 {
						pinned = append(pinned, db.NewSnapshot())
					}
				default:
					err = db.Set(key(), fmt.Appendf(nil, "%d", r.Uint32()), pebble.NoSync)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := db.Flush(); err != nil {
				t.Fatal(err)
			}
			if round == 0 {
				if err := db.Compact(context.Background(), []byte("k"), []byte("l"), false); err != nil {
					t.Fatal(err)
				}
			}
		}
		want := map[string]string{}
		var wantChecked []string
		it, err := db.NewIter(nil)
		if err != nil {
			t.Fatal(err)
		}
		for ok := it.First(); ok; ok = it.Next() {
			want[string(it.Key())] = string(it.Value())
			wantChecked = append(wantChecked, string(it.Key())+"="+string(it.Value()))
		}
		levels, err := db.SSTables()
		if err := errors.Join(err, it.Close()); err != nil {
			t.Fatal(err)
		}
		slices.Reverse(levels[0])
		var above, bottom []string
		got := map[string]string{}
		for l, all := range levels {
			for _, f := range all {
				name := f.BackingSSTNum.String() + ".sst"
				if l < LowestLevel || f.LargestSeqNum > 0 { // not to be taken as it is
					above = append(above, name)
					continue
				}
				bottom = append(bottom, name)
				_, rows, err := rowsOf(d.maker(), name)
				if err != nil {
					t.Fatal(err)
				}
				maps.Copy(got, rows)
			}
		}
		bottoms += len(bottom)
		checked, keys, run, err := merged(d, above, bottom)
		if err != nil || !slices.Equal(checked, wantChecked) {
			t.Fatalf("seed %d: %v are checked: %v; want %v", seed+i, checked, err, wantChecked)
		}
		if !slices.IsSorted(keys) || len(slices.Compact(slices.Clone(keys))) != len(keys) {
			t.Fatalf("seed %d: rows out of order: %v", seed+i, keys)
		}
		for _, k := range keys {
			if v, ok := run[k]; ok {
				got[k] = v
			} else if _, ok := got[k]; ok {
				delete(got, k)
				deleted++
			} else {
				t.Fatalf("seed %d: a tombstone for %s, which the bottom does not have", seed+i, k)
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("seed %d: %v, want %v", seed+i, got, want)
		}
		for _, s := range pinned {
			err = errors.Join(err, s.Close())
		}
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if deleted == 0 || bottoms < 13 {
		t.Errorf("%d tombstones, %d files of the bottom: the test does not show it", deleted, bottoms)
	}
}

// What no store writes is refused, and with it the merge.
func TestAMergeRefuses(t *testing.T) {
	one := func(w *sstable.Writer) error { return w.Set([]byte("k1"), []byte("v")) }
	none := func(w *sstable.Writer) error { return nil }
	for what, c := range map[string]struct {
		first, second   func(w *sstable.Writer) error
		bottom, second2 bool // whether they are of the bottom
		says            string
	}{
		"a row":                     {one, none, false, false, ""},
		"a row of the bottom":       {one, one, true, false, ""},
		"the whole range":           {func(w *sstable.Writer) error { return w.DeleteRange([]byte("k"), []byte("l")) }, one, false, true, ""},
		"a range before the prefix": {func(w *sstable.Writer) error { return w.DeleteRange([]byte("j"), []byte("k2")) }, one, false, true, "another partition"},
		"a range behind the end":    {func(w *sstable.Writer) error { return w.DeleteRange([]byte("k"), []byte("l0")) }, one, false, true, "another partition"},
		"a range of the bottom":     {func(w *sstable.Writer) error { return errors.Join(one(w), w.DeleteRange([]byte("k"), []byte("k2"))) }, none, true, false, "of the bottom and deletes ranges"},
		"nothing at the bottom":     {none, one, true, false, "it has no rows"},
		"a row before the prefix":   {func(w *sstable.Writer) error { return w.Set([]byte("j9"), nil) }, none, false, false, "first.sst: table: it holds rows of another partition"},
		"a row behind the end":      {func(w *sstable.Writer) error { return w.Set([]byte("l"), nil) }, none, false, false, "another partition"},
		"the prefix alone":          {func(w *sstable.Writer) error { return w.Set([]byte("k"), nil) }, none, false, false, "another partition"},
		"a tombstone of another":    {func(w *sstable.Writer) error { return w.Delete([]byte("j9")) }, none, false, false, "another partition"},
		"a merge":                   {func(w *sstable.Writer) error { return w.Merge([]byte("k1"), nil) }, none, false, false, "rows of kind MERGE"},
		"a merge below":             {one, func(w *sstable.Writer) error { return w.Merge([]byte("k1"), nil) }, false, false, "second.sst: table: it has rows of kind MERGE"},
		"range keys":                {func(w *sstable.Writer) error { return w.RangeKeySet([]byte("k1"), []byte("k2"), nil, nil) }, none, false, false, "it has range keys"},
		"a number at the bottom": {func(w *sstable.Writer) error {
			return w.Raw().Add(numbered("k1", pebble.InternalKeyKindSet, 1), nil, false)
		}, none, true, false, "sequence numbers"},
		"a number above": {func(w *sstable.Writer) error {
			return w.Raw().Add(numbered("k1", pebble.InternalKeyKindSet, 1), []byte("v"), false)
		}, none, false, false, ""},
		"a row that may go": {func(w *sstable.Writer) error {
			return w.Raw().Add(numbered("k1", pebble.InternalKeyKindSetWithDelete, 1), []byte("v"), false)
		}, none, false, false, ""},
		"the same row at the bottom":   {one, one, true, true, "second.sst: table: it overlaps with first.sst at the bottom"},
		"tables of the bottom overlap": {func(w *sstable.Writer) error { return errors.Join(one(w), w.Set([]byte("k3"), nil)) }, func(w *sstable.Writer) error { return w.Set([]byte("k2"), nil) }, true, true, "it overlaps with first.sst"},
		"tables of the bottom touch":   {one, func(w *sstable.Writer) error { return w.Set([]byte("k2"), nil) }, true, true, ""},
		"no table":                     {nil, none, false, false, "invalid table"},
	} {
		d := newDisk()
		for name, rows := range map[string]func(w *sstable.Writer) error{"first.sst": c.first, "second.sst": c.second} {
			if rows == nil {
				f, err := d.Create(name, vfs.WriteCategoryUnspecified)
				if err := errors.Join(err, f.Close()); err != nil {
					t.Fatal(err)
				}
				continue
			}
			d.write(t, name, rows)
		}
		var names [2][]string // above, and of the bottom
		for name, bottom := range map[string]bool{"first.sst": c.bottom, "second.sst": c.second2} {
			i := 0
			if bottom {
				i = 1
			}
			names[i] = append(names[i], name)
		}
		slices.Sort(names[0])
		slices.Sort(names[1])
		_, _, _, err := merged(d, names[0], names[1])
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || c.says != "invalid table" && !errors.Is(err, ErrTable)) {
			t.Errorf("%s: %v; want %q", what, err, c.says)
		}
		if n := d.open.Load(); n != 0 {
			t.Errorf("%s: %d files are left open", what, n)
		}
	}
	d := newDisk()
	d.write(t, "first.sst", one)
	refused := errors.New("refused")
	m := NewMerge([]byte("k"), []byte("l"), &Writer{Maker: d.maker()}, func(k, v []byte) error { return refused })
	f, err := d.maker().Open("first.sst")
	if err := errors.Join(err, m.Add(f, "first.sst", false)); err != nil {
		t.Fatal(err)
	}
	if err := m.Run(); !errors.Is(err, refused) || !strings.Contains(err.Error(), "first.sst") {
		t.Errorf("a row that the check refuses: %v", err)
	}
}

// Each operation on the disk fails in turn: the merge says so each time, and closes its files.
func TestAMergeOnAFailingDisk(t *testing.T) {
	noise := make([]byte, 2*aheadBytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	for n := int64(1); ; n++ {
		d := newDisk()
		d.write(t, "new.sst", func(w *sstable.Writer) error {
			return errors.Join(w.Set([]byte("k0"), nil), w.Delete([]byte("k1")), w.Set([]byte("k4"), nil), w.DeleteRange([]byte("k2"), []byte("k3")))
		})
		d.write(t, "old.sst", func(w *sstable.Writer) error {
			return errors.Join(w.Set([]byte("k1"), noise), w.Set([]byte("k2"), noise), w.Set([]byte("k5"), noise)) // each more than is read at once
		})
		d.ops.Store(0)
		d.fails = n
		_, keys, _, err := merged(d, []string{"new.sst"}, []string{"old.sst"})
		if d.ops.Load() < n {
			if err != nil || !slices.Equal(keys, []string{"k0", "k1", "k2", "k4"}) {
				t.Errorf("%v, %v", keys, err)
			}
			if n < 10 {
				t.Errorf("%d operations failed: the test shows nothing", n)
			}
			return
		}
		if !errors.Is(err, errDisk) {
			t.Errorf("operation %d failed: %v", n, err)
		}
		if open := d.open.Load(); open != 0 {
			t.Errorf("operation %d failed: %d files are left open", n, open)
		}
	}
}

// Of a table in memory that is cut or has a wrong byte, nothing wrong is read: whoever opens or
// reads it is told, unless nothing of what it holds depends on that byte.
func TestADamagedTableIsTold(t *testing.T) {
	d := newDisk()
	d.write(t, "a.sst", func(w *sstable.Writer) error {
		return errors.Join(w.Set([]byte("k0"), []byte("v")), w.Delete([]byte("k1")), w.DeleteRange([]byte("k2"), []byte("k3")), w.Set([]byte("k4"), []byte("w")))
	})
	f, err := d.Open("a.sst")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	read := func(b []byte) (rows string, err error) {
		f, err := d.maker().OpenBytes(b)
		if err != nil {
			return "", err
		}
		for err = f.Next(); err == nil && f.More; err = f.Next() {
			rows += fmt.Sprintf("%s %d %s, ", f.Key, f.Kind, f.val)
		}
		return rows + fmt.Sprint(f.Ranges), errors.Join(err, f.Close())
	}
	want, err := read(whole)
	if err != nil || !strings.HasPrefix(want, "k0 1 v, k1 0 , k4 1 w, [{") {
		t.Fatalf("%s, %v", want, err)
	}
	told := 0
	for i := range whole {
		bad := slices.Clone(whole)
		bad[i] ^= 0x11
		if got, err := read(bad); err != nil {
			told++
		} else if got != want {
			t.Errorf("byte %d of %d is wrong, and read is %s", i, len(whole), got)
		}
		if got, err := read(whole[:i]); err == nil {
			t.Errorf("%d bytes of %d are read as %s", i, len(whole), got)
		}
	}
	if told < len(whole)/2 {
		t.Errorf("%d wrong bytes of %d are told: the test shows nothing", told, len(whole))
	}
}

// A writer begins another table when one is large enough. A table is as large as it says.
func TestAWriterBeginsAnotherTable(t *testing.T) {
	d := newDisk()
	w := &Writer{Maker: d.maker(), Level: LowestLevel}
	if err := w.Finish(); err != nil || len(w.Files) != 0 {
		t.Errorf("nothing is written: %v, %v", w.Files, err)
	}
	if err := errors.Join(d.MkdirAll("dir", 0o700), w.Add(pebble.InternalKeyKindSet, []byte("k2"), nil)); err != nil || w.Add(pebble.InternalKeyKindSet, []byte("k1"), nil) == nil {
		t.Errorf("a row out of order is written: %v", err)
	}
	w = &Writer{Maker: d.maker(), Dir: "dir", Prefix: "part-", Level: LowestLevel}
	var want []string
	value := make([]byte, 4<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(value) // noise, which is not compressed
	for i := range 9 {
		want = append(want, fmt.Sprint("k", i))
		if err := w.Add(pebble.InternalKeyKindSet, []byte(want[i]), value); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range w.Files {
		keys, values, err := rowsOf(d.maker(), "dir/"+f.Name)
		info, statErr := d.Stat("dir/" + f.Name)
		if err := errors.Join(err, statErr); err != nil || info.Size() != f.Size || len(values) != len(keys) {
			t.Errorf("%+v has %d rows, %d of them tombstones: %v", f, len(keys), len(keys)-len(values), err)
		}
		got = append(got, keys...)
	}
	if len(w.Files) != 2 || w.Files[0].Name != "part-000000.sst" || w.Files[1].Name != "part-000001.sst" || !slices.Equal(got, want) {
		t.Errorf("%+v have %v", w.Files, got)
	}
	syncs := int64(0)
	d.counts = func(op errorfs.Op) bool {
		if op.Kind == errorfs.OpFileSync {
			syncs++
		}
		return op.Kind == errorfs.OpFileSync
	}
	names := []string{"dir/" + w.Files[0].Name, "dir/" + w.Files[1].Name}
	if err := w.Sync(names); err != nil || syncs != 2 {
		t.Errorf("%d tables are synced of 2: %v", syncs, err)
	}
	if err := w.StartSync(names[0], w.Files[0].Size); err != nil {
		t.Error(err)
	}
	d.counts = func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncTo }
	d.fails = d.ops.Load() + 1
	if err := w.StartSync(names[0], w.Files[0].Size); !errors.Is(err, errDisk) {
		t.Errorf("a sync that does not start: %v", err)
	}
	d.fails = d.ops.Load() + 1
	for what, err := range map[string]error{"sync": w.Sync(names), "sync of none": w.Sync([]string{"none"}), "start": w.StartSync("none", 1)} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if n := d.open.Load(); n != 0 {
		t.Errorf("%d files are left open", n)
	}
}

// A reader that reads ahead reads what is there, whatever is asked for, and block after block with
// few reads of the disk.
func TestReadingAhead(t *testing.T) {
	d := newDisk()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	all := make([]byte, 3*aheadBytes+100)
	for i := range all {
		all[i] = byte(r.Uint32())
	}
	f, err := d.Create("file", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(bytes.Clone(all)) // under the race detector the disk spoils what it was given
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	if f, err = d.Open("file"); err != nil {
		t.Fatal(err)
	}
	table := tableFile{f, int64(len(all))}
	reads := int64(0)
	d.counts = func(op errorfs.Op) bool { reads++; return true }
	h := table.NewReadHandle(0)
	at := 0
	for range 500 {
		n := 1 + r.IntN([]int{10, 5000, aheadBytes + 10}[r.IntN(3)])
		if r.IntN(4) == 0 {
			at = r.IntN(len(all) + 10)
		}
		b := make([]byte, n)
		err := h.ReadAt(context.Background(), b, int64(at))
		if inside := at+n <= len(all); inside != (err == nil) || inside && !bytes.Equal(b, all[at:at+n]) {
			t.Fatalf("%d bytes at %d of %d: %v", n, at, len(all), err)
		}
		if at += n; at > len(all) {
			at = 0
		}
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	h = table.NewReadHandle(0)
	reads = 0
	for _, from := range []int{0, 4096} {
		for at := from; at < len(all); at += 4096 {
			b := make([]byte, min(4096, len(all)-at))
			if err := h.ReadAt(context.Background(), b, int64(at)); err != nil || !bytes.Equal(b, all[at:at+len(b)]) {
				t.Fatalf("%d bytes at %d: %v", len(b), at, err)
			}
		}
	}
	if reads > 9 {
		t.Errorf("%d reads of the disk for twice three times what is read at once, and a bit", reads)
	}
	if err := errors.Join(h.Close(), f.Close()); err != nil {
		t.Error(err)
	}
}
