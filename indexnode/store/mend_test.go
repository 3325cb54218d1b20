package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/race"
)

var mendPartitions = []millrace.Partition{0, 3, 4, 719}

var mendName = millrace.Timeline{Entity: "member:1", Type: "post"}

// mendBatch is what the log has of a partition from a batch to another.
func mendBatch(p millrace.Partition, from, to int) *Batch {
	var b Batch
	for i := from; i < to; i++ {
		b.Put(p, mendName, millrace.Record{ID: millrace.RecordID(fmt.Sprintf("%d-%03d", p, i)), Time: millrace.Time(i), Schema: 7, Body: make([]byte, 100)})
		b.PutFeatures(p, mendName.Entity, Features{Subject: fmt.Sprint(i), Version: 1})
	}
	b.SetOrigin(p, []byte("log"))
	b.SetApplied(p, Content, millrace.Offset(to))
	return &b
}

// mendStore has the same in each of mendPartitions, in several files each.
func mendStore(t *testing.T) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewMem()
	s := openMem(t, Options{FS: fs, MaxBlobBytes: 500})
	if err := s.PutSchema(7, []byte(`"int"`)); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		for _, p := range mendPartitions {
			apply(t, s, mendBatch(p, i*20, i*20+20))
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return fs
}

// mended verifies that a partition has everything.
func mended(s *Store, p millrace.Partition) error {
	got, err := s.Read(nil, p, mendName, 0, millrace.MaxTime)
	if err != nil {
		return err
	}
	features, err := s.Features(p, mendName.Entity)
	if err != nil {
		return err
	}
	if _, err := s.Check(ctx, p); err != nil {
		return err
	}
	origin, err := s.Origin(p)
	if len(got) != 40 || len(features) != 40 || string(origin) != "log" || s.Applied(p).Content != 40 {
		return fmt.Errorf("partition %d has %d records, %d features, origin %q at %v: %v", p, len(got), len(features), origin, s.Applied(p), err)
	}
	return err
}

// mendNode verifies that the node knows what it knew.
func mendedNode(s *Store) error {
	schemas, err := s.Schemas()
	if types, all := s.Types(); err != nil || string(schemas[7]) != `"int"` || len(types) != 1 || !all {
		return fmt.Errorf("schemas %v, types %v: %v", schemas, types, err)
	}
	return nil
}

// Each sstable in turn is removed, cut and flipped in each of its parts. The
// store opens; no partition but the one of the file is touched, and that one is
// quarantined, told, dropped and read again from the log. With -short few parts are.
func TestADamagedTableCostsItsPartition(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine: nothing for the race detector")
	}
	parts := 24
	if testing.Short() {
		parts = 2
	}
	base := mendStore(t)
	names, err := base.List("db")
	if err != nil {
		t.Fatal(err)
	}
	hit := map[millrace.Partition]int{}
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		size := sizeOf(t, base, name)
		do := []harm{remove, cutTo(size - 1)}
		if !testing.Short() {
			do = append(do, cutTo(0), cutTo(size/2))
		}
		for part := range parts {
			do = append(do, flipAt(part*(size-1)/(parts-1)))
		}
		for _, do := range do {
			fs := cloneMem(t, base)
			what, err := do(fs, fs.PathJoin("db", name))
			if err != nil {
				t.Fatal(err)
			}
			p, err := mendOne(t, fs, name, what)
			if err != nil {
				t.Errorf("%s %s: %v", name, what, err)
			}
			hit[p]++
		}
	}
	for _, p := range mendPartitions {
		if hit[p] == 0 {
			t.Errorf("partition %d was never hit: the test shows nothing", p)
		}
	}
	t.Logf("hits: %v", hit)
}

// mendOne opens a store with one damaged file and heals it. It returns the
// partition that was hit, or nodePartition.
func mendOne(t *testing.T, fs *vfs.MemFS, name, what string) (hit millrace.Partition, err error) {
	hit = nodePartition
	fatal := func(msg string) { panic("Pebble ends the process: " + msg) }
	o := Options{FS: fs, FlushEvery: -1, MaxBlobBytes: 500, fatal: fatal}
	s, err := Open("db", o)
	if err != nil {
		return hit, err
	}
	if err := mendedNode(s); err != nil {
		return hit, err
	}
	for _, p := range mendPartitions {
		err := mended(s, p)
		if err == nil {
			continue
		}
		if hit != nodePartition || !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrFailed) {
			return hit, err
		}
		hit = p
		told := slices.ContainsFunc(s.Damage(), func(d Damage) bool {
			return filepath.Base(d.File) == name && slices.Contains(d.Partitions, p) && d.Aside == ""
		})
		if !told || !errors.Is(s.Quarantined(p), ErrCorrupt) {
			return hit, fmt.Errorf("not told: %v, %v", s.Damage(), s.Quarantined(p))
		}
	}
	if hit == nodePartition && (what == "removed" || strings.HasPrefix(what, "cut")) && len(s.Damage()) == 0 {
		return hit, errors.New("nothing is told")
	}
	// A restart in between forgets nothing.
	if err := s.Close(); err != nil {
		return hit, err
	}
	if s, err = Open("db", o); err != nil {
		return hit, err
	}
	if hit != nodePartition {
		if !errors.Is(s.Quarantined(hit), ErrCorrupt) {
			return hit, errors.New("the quarantine is forgotten")
		}
		if err := s.DropPartition(hit); err != nil {
			return hit, err
		}
		if at := s.Applied(hit); at != nothingApplied {
			return hit, fmt.Errorf("dropped and at %v", at)
		}
		if _, err := s.Apply(mendBatch(hit, 0, 40), nil); err != nil {
			return hit, err
		}
	}
	if err := s.db.Compact(context.Background(), []byte{0}, []byte{0xff, 0xff, 0xff}, false); err != nil {
		return hit, fmt.Errorf("compaction: %w", err)
	}
	for range 2 {
		for _, p := range mendPartitions {
			if err := mended(s, p); err != nil {
				return hit, err
			}
		}
		if err := errors.Join(mendedNode(s), s.Close()); err != nil {
			return hit, err
		}
		if s, err = Open("db", o); err != nil {
			return hit, err
		}
	}
	return hit, s.Close()
}

// A manifest that tells nothing any more: the store is moved aside with all its
// files, and a new one begins, at no offset.
func TestADamagedManifestMovesTheStoreAside(t *testing.T) {
	base := mendStore(t)
	names, err := base.List("db")
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	var manifest, marker string
	for _, name := range names {
		switch {
		case strings.HasSuffix(name, ".sst"):
			tables++
		case strings.HasPrefix(name, "marker.manifest"):
			marker = name
			manifest = name[strings.LastIndexByte(name, '.')+1:]
		}
	}
	for _, h := range []struct {
		file string
		do   harm
	}{{manifest, remove}, {manifest, cutTo(0)}, {manifest, cutTo(5)}, {manifest, flipAt(9)}, {marker, remove}} {
		fs := cloneMem(t, base)
		what, err := h.do(fs, fs.PathJoin("db", h.file))
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open("db", Options{FS: fs, FlushEvery: -1})
		if err != nil {
			t.Errorf("%s %s: %v", h.file, what, err)
			continue
		}
		d := s.Damage()
		if len(d) != 1 || d[0].File != "db" || d[0].Aside == "" || d[0].Cause == nil {
			t.Fatalf("%s %s: %v", h.file, what, d)
		}
		kept, err := fs.List(d[0].Aside)
		n := 0
		for _, name := range kept {
			if strings.HasSuffix(name, ".sst") {
				n++
			}
		}
		if err != nil || n != tables {
			t.Errorf("%s %s: %d of %d files are kept, %v", h.file, what, n, tables, err)
		}
		for _, p := range mendPartitions {
			if s.Applied(p) != nothingApplied || s.Quarantined(p) != nil {
				t.Errorf("partition %d: %v, %v", p, s.Applied(p), s.Quarantined(p))
			}
			apply(t, s, mendBatch(p, 0, 40))
			if err := mended(s, p); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Damage is told once for each file, and for each time that a store was moved aside.
func TestDamageIsToldOnce(t *testing.T) {
	s := openMem(t, Options{})
	all := []Damage{{File: "db/000001.sst"}, {File: "db/000002.sst"}, {File: "db", Aside: "db.damaged-1"}, {File: "db", Aside: "db.damaged-2"}}
	for range 2 {
		for _, d := range all {
			s.found(d)
		}
	}
	if got := s.Damage(); !reflect.DeepEqual(got, all) {
		t.Errorf("told %v, want %v", got, all)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A store that says nothing of the node, though partitions are in it, is moved
// aside too: a damaged manifest can end early, and Pebble opens what is before.
func TestAStoreWithoutItsNodeIsMovedAside(t *testing.T) {
	fs := cloneMem(t, mendStore(t))
	s, err := Open("db", Options{FS: fs, FlushEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range nodeCopies {
		start, end := nodeSpan(c)
		if err := s.excise(start, end); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open("db", Options{FS: fs, FlushEvery: -1}); err != nil {
		t.Fatal(err)
	}
	if d := s.Damage(); len(d) != 1 || d[0].Aside == "" || !errors.Is(d[0].Cause, errLost) {
		t.Errorf("damage: %v", d)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// What holds no rows costs nothing: Pebble's options, the marker of its format,
// its empty logs.
func TestOtherFilesCostNothing(t *testing.T) {
	base := mendStore(t)
	names, err := base.List("db")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, name := range names {
		var do []harm
		switch {
		case strings.HasPrefix(name, "OPTIONS"):
			do = []harm{remove, cutTo(0), cutTo(37), flipAt(3)}
		case strings.HasPrefix(name, "marker.format"), strings.HasSuffix(name, ".log"):
			do = []harm{remove}
		}
		for _, do := range do {
			tried++
			fs := cloneMem(t, base)
			what, err := do(fs, fs.PathJoin("db", name))
			if err != nil {
				t.Fatal(err)
			}
			s, err := Open("db", Options{FS: fs, FlushEvery: -1})
			if err != nil {
				t.Errorf("%s %s: %v", name, what, err)
				continue
			}
			d := s.Damage()
			if strings.HasPrefix(name, "marker") && (len(d) != 1 || d[0].File != "db/marker.format-version" || len(d[0].Partitions) > 0 || d[0].Aside != "" || d[0].Cause == nil) {
				t.Errorf("%s %s is told as %+v", name, what, d)
			}
			for _, p := range mendPartitions {
				if err := mended(s, p); err != nil {
					t.Errorf("%s %s: %v", name, what, err)
				}
			}
			if err := errors.Join(mendedNode(s), s.Close()); err != nil {
				t.Errorf("%s %s: %v", name, what, err)
			}
		}
	}
	if tried < 6 {
		t.Errorf("%d files were tried: the test shows nothing", tried)
	}
}

// A disk that cannot be read, or a store that is open already, is not damage:
// Open says ErrFailed and leaves everything as it is.
func TestFailingToOpenIsNotDamage(t *testing.T) {
	fs := mendStore(t)
	disk := newFailing(fs)
	disk.reads.Store(true)
	if _, err := Open("db", Options{FS: disk, FlushEvery: -1}); onlyFailed(err) != nil {
		t.Error(err)
	}
	disk.reads.Store(false)
	s := openMem(t, Options{FS: fs})
	if _, err := Open("db", Options{FS: fs, FlushEvery: -1}); onlyFailed(err) != nil {
		t.Error(err)
	}
	for _, p := range mendPartitions {
		if err := mended(s, p); err != nil {
			t.Error(err)
		}
	}
	if d := s.Damage(); len(d) > 0 {
		t.Error(d)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A file that goes bad under an open store is met by a compaction: its partition
// is quarantined and cut out, and compactions go on.
func TestACompactionMeetsADamagedTable(t *testing.T) {
	fs := mendStore(t)
	s := openMem(t, Options{FS: fs, CacheBytes: 1})
	levels, err := s.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, mendBatch(4, 40, 41))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	start, end := partitionSpan(4)
	harmed := 0
	for _, table := range slices.Concat(levels...) {
		if parts, _ := holders(table.Smallest.UserKey, table.Largest.UserKey); slices.Contains(parts, 4) {
			f, err := fs.OpenReadWrite(s.tablePath(table), vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte{0xa5, 0x5a}, 30); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			harmed++
		}
	}
	if err := s.db.Compact(ctx, start, end, false); err == nil {
		t.Error("the compaction meets no damage: the test shows nothing")
	}
	s.checkSuspects()
	if !errors.Is(s.Quarantined(4), ErrCorrupt) {
		t.Fatalf("%d files are damaged: %v", harmed, s.Quarantined(4))
	}
	if err := s.db.Compact(ctx, []byte{0}, []byte{0xff, 0xff, 0xff}, false); err != nil {
		t.Errorf("what is damaged is still there: %v", err)
	}
	for _, p := range []millrace.Partition{0, 3, 719} {
		if err := mended(s, p); err != nil {
			t.Error(err)
		}
	}
	if err := s.DropPartition(4); err != nil {
		t.Fatal(err)
	}
	apply(t, s, mendBatch(4, 0, 40))
	if err := errors.Join(mended(s, 4), s.Close()); err != nil {
		t.Error(err)
	}
}

func sizeOf(t *testing.T, fs vfs.FS, name string) int {
	t.Helper()
	info, err := fs.Stat(fs.PathJoin("db", name))
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

func cloneMem(t *testing.T, from *vfs.MemFS) *vfs.MemFS {
	t.Helper()
	to := vfs.NewMem()
	if _, err := vfs.Clone(from, to, "db", "db", vfs.CloneSync); err != nil {
		t.Fatal(err)
	}
	return to
}

func cutTo(n int) harm {
	return rewriteFile(func(b []byte) ([]byte, string) { return b[:min(n, len(b))], fmt.Sprintf("cut to %d of %d", n, len(b)) })
}

func flipAt(i int) harm {
	return rewriteFile(func(b []byte) ([]byte, string) {
		b[i] ^= 0x10
		return b, fmt.Sprintf("flipped at %d of %d", i, len(b))
	})
}
