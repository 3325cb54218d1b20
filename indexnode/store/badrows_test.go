package store

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// A row that cannot be right, with sound checksums, quarantines its partition as soon as a call
// needs it, and that call and no other says so.
func TestABadRowQuarantinesItsPartition(t *testing.T) {
	s := openMem(t, Options{FS: mendStore(t), MaxBlobBytes: 500, MaxHotBytes: -1, Retention: map[millrace.ContentType]Retention{"post": {MaxCount: 100}}})
	prefix := slices.Clip(timeline.Prefix(3, mendName))
	features := append(slices.Clip(featuresPrefix(3, mendName.Entity)), '7')
	good, err := s.get(features)
	if err != nil || good == nil {
		t.Fatal(good, err)
	}
	all := calls(s)
	all["Apply older"] = func(p millrace.Partition) error {
		var b Batch
		b.Put(p, mendName, millrace.Record{ID: "new", Time: 3})
		_, err := s.Apply(&b, nil)
		return err
	}
	all["Apply features"] = func(p millrace.Partition) error {
		var b Batch
		b.PutFeatures(p, mendName.Entity, Features{Subject: "7", Version: 2})
		_, err := s.Apply(&b, nil)
		return err
	}
	const everything = "Apply Apply older Check Contents Find Read ReadNewestInto Sweep"
	for what, c := range map[string]struct {
		key, v []byte
		says   string
	}{
		"the head":                   {timeline.HeadKey(prefix), []byte{9}, everything},
		"the chain":                  {timeline.ChainKey(prefix), []byte{9}, everything},
		"an older blob":              {timeline.OlderKey(prefix, 0), []byte{9}, "Apply Apply older Check Contents Find Read"},
		"the filter":                 {append(prefix, timeline.PartFilter), []byte{9}, "Apply Apply older Check Find"},
		"an id row":                  {append(prefix, append([]byte{timeline.PartID}, "3-003"...)...), nil, "Apply Check Find"},
		"a row of no part":           {append(prefix, timeline.PartID+1), nil, "Check Contents Sweep Timelines"},
		"a key of no timeline":       {append(partitionKey(3, timeline.Kind), 9), nil, "Check Contents Sweep Timelines"},
		"features, none":             {features, nil, "Apply Apply features Check Contents Features"},
		"features, another format":   {features, append([]byte{9}, good[1:]...), "Apply Apply features Check Contents Features"},
		"features, no version":       {features, good[:1], "Apply Apply features Check Contents Features"},
		"features, no time":          {features, good[:2], "Apply Apply features Check Contents Features"},
		"features, half a schema":    {features, good[:3+7], "Apply Apply features Check Contents Features"},
		"a key of no features":       {append(partitionKey(3, kindFeatures), 9), good, "Check Contents Routes"},
		"the partition's row":        {partitionKey(3, kindPart), []byte{9}, "Check Checkpoint Contents"},
		"an offset below none":       {partitionKey(3, kindPart), (&partRow{applied: Offsets{-2, 0}}).encode(), "Check Checkpoint Contents"},
		"features below none":        {partitionKey(3, kindPart), (&partRow{applied: Offsets{0, -2}}).encode(), "Check Checkpoint Contents"},
		"its key and more":           {append(partitionKey(3, kindPart), 0), nil, "Check"},
		"an origin that is too long": {partitionKey(3, kindOrigin), make([]byte, MaxOriginBytes+1), "Check"},
		"an origin's key and more":   {append(partitionKey(3, kindOrigin), 0), nil, "Check"},
		"a row of no kind":           {partitionKey(3, 0x7f), nil, "Check"},
		"another digest":             {partitionKey(3, kindPart), (&partRow{applied: Offsets{40, -1}, digest: Digest{1, 2}}).encode(), "Check"},
	} {
		was, err := s.get(c.key)
		if err != nil {
			t.Fatal(err)
		}
		p := &s.parts[3]
		var said []string
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if err := s.db.Set(c.key, c.v, pebble.NoSync); err != nil {
				t.Fatal(err)
			}
			err := all[name](3)
			if errors.Is(err, ErrCorrupt) {
				said = append(said, name)
			} else if err != nil && !strings.Contains(err.Error(), "its files are at") {
				t.Errorf("%s: %s: %v", what, name, err)
			}
			if (s.Quarantined(3) != nil) != errors.Is(err, ErrCorrupt) || errors.Is(err, ErrCorrupt) && errors.Is(err, ErrFailed) {
				t.Errorf("%s: %s says %v, and the quarantine is %v", what, name, err, s.Quarantined(3))
			}
			if was == nil { // And back again.
				err = s.db.Delete(c.key, pebble.NoSync)
			} else {
				err = s.db.Set(c.key, was, pebble.NoSync)
			}
			p.mu.Lock()
			err = errors.Join(err, s.setBad(p, nil), p.load(s))
			p.mu.Unlock()
			if err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(said, " "); got != c.says {
			t.Errorf("%s: it is said by %s; want %s", what, got, c.says)
		}
	}
	if err := errors.Join(mended(s, 3), mended(s, 4), s.Close()); err != nil {
		t.Error(err)
	}
}

// A store that opens looks at the rows that it keeps in memory. Those of another version it leaves
// alone.
func TestOpenLooksAtItsRows(t *testing.T) {
	for what, c := range map[string]struct {
		key, v []byte
		fails  bool // to open; else it says so
		aside  bool
	}{
		"another format":                  {append(partitionPrefix(nodePartition), nodeFormat), []byte("2"), true, false},
		"a quarantine of no partition":    {append(partitionPrefix(nodePartition), badKey(720)...), []byte("cause"), false, true},
		"a quarantine of half a one":      {append(partitionPrefix(nodePartition), nodeBad, 0), []byte("cause"), false, true},
		"a schema of no fingerprint":      {append(partitionPrefix(nodePartition), nodeSchema, 0), nil, false, true},
		"the row of a partition":          {partitionKey(3, kindPart), []byte{9}, false, false},
		"a row that nobody knows":         {append(partitionPrefix(nodePartition), 'z'), nil, false, false},
		"the last partition's quarantine": {append(partitionPrefix(nodePartition), badKey(719)...), []byte("cause"), false, false},
	} {
		fs := mendStore(t)
		s := openMem(t, Options{FS: fs, MaxBlobBytes: 500})
		if what == "another format" {
			if err := s.db.Set(append(partitionPrefix(nodeCopies[0]), nodeFormat), c.v, pebble.NoSync); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(s.db.Set(c.key, c.v, pebble.NoSync), s.db.Flush(), s.Close()); err != nil {
			t.Fatal(err)
		}
		s, err := Open("db", Options{FS: fs, FlushEvery: -1, MaxBlobBytes: 500})
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil {
			if !strings.Contains(err.Error(), `format "2"`) || onlyFailed(err) != nil {
				t.Errorf("%s: %v", what, err)
			}
			if names, err := fs.List(""); err != nil || slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "damaged") }) {
				t.Errorf("%s: it is moved aside: %v, %v", what, names, err)
			}
			continue
		}
		if s.isAside() != c.aside {
			t.Errorf("%s: it is moved aside, %t: %+v", what, s.isAside(), s.Damage())
		}
		for p, want := range map[millrace.Partition]bool{3: what == "the row of a partition", 719: strings.HasPrefix(what, "the last")} {
			if got := s.Quarantined(p); (got != nil) != want {
				t.Errorf("%s: partition %d: %v", what, p, got)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A schema that is there stays, unless it is replaced; that is on disk.
func TestASchemaIsReplaced(t *testing.T) {
	disk := &smallDisk{MemFS: vfs.NewMem()}
	disk.size.Store(24 << 20)
	s := openMem(t, Options{FS: disk.fs(), MinFreeBytes: 4 << 20})
	is := func(want string) {
		t.Helper()
		if all, err := s.Schemas(); err != nil || string(all[7]) != want || len(all) != 1 {
			t.Errorf("%q, %v; want %q", all, err, want)
		}
	}
	json := []byte("one")
	if err := s.PutSchema(7, json); err != nil {
		t.Fatal(err)
	}
	json[0] = 'O'
	is("one")
	if err := s.PutSchema(7, []byte("two")); err != nil {
		t.Fatal(err)
	}
	is("one")
	disk.taken.Store(24 << 20)
	if err := s.ReplaceSchema(7, []byte("three")); !errors.Is(err, ErrDiskFull) {
		t.Errorf("on a full disk: %v", err)
	}
	is("one")
	disk.taken.Store(0)
	if size, free := s.Disk(); size != 24<<20 || free <= 0 || free >= size {
		t.Errorf("of %d bytes %d are free", size, free)
	}
	for range 2 {
		if err := s.ReplaceSchema(7, []byte("four")); err != nil {
			t.Fatal(err)
		}
		is("four")
	}
	s.opts.FS = s.opts.FS.(*fullFS)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openMem(t, Options{FS: disk.fs(), MinFreeBytes: 4 << 20})
	is("four")
	var b Batch
	b.SetClock(3, 9)
	b.SetClock(3, 8)
	b.SetOrigin(3, []byte("log"))
	apply(t, s, &b)
	if err := s.Quarantine(3, errors.New("for a test")); err != nil {
		t.Fatal(err)
	}
	if s.Clock(3) != 9 || string(s.LastOrigin(3)) != "log" || s.Clock(4) != 0 || s.LastOrigin(4) != nil {
		t.Errorf("clock %d, origin %q", s.Clock(3), s.LastOrigin(3))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A checkpoint on another disk, from which nothing can be linked, is copied, if there is room.
func TestARestoreCopiesWhatItCannotLink(t *testing.T) {
	disk := &smallDisk{MemFS: mendStore(t)}
	disk.size.Store(1 << 40)
	links := 0
	fs := &fullFS{errorfs.Wrap(disk.MemFS, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpLink && strings.HasPrefix(op.Path, "checkpoint") {
			links++
			return &os.LinkError{Op: "link", Old: op.Path, Err: syscall.EXDEV}
		}
		return nil
	})), disk}
	s := openMem(t, Options{FS: fs, MaxBlobBytes: 500, MinFreeBytes: 4 << 20})
	start, end := partitionSpan(3)
	if err := s.db.Compact(ctx, start, end, false); err != nil {
		t.Fatal(err)
	}
	c := checkpoint(t, s, 3, "checkpoint")
	if !slices.ContainsFunc(c.Files, func(f File) bool { return f.Bottom }) {
		t.Fatal("no file is of the bottom")
	}
	if err := errors.Join(s.Restore(ctx, "checkpoint", c), mended(s, 3)); err != nil || links == 0 {
		t.Errorf("%d files could not be linked: %v", links, err)
	}
	disk.size.Store(disk.used("db") + 1<<20) // enough to restore, and no more
	if err := s.Restore(ctx, "checkpoint", c); !errors.Is(err, ErrDiskFull) {
		t.Errorf("without room: %v", err)
	}
	disk.size.Store(1 << 40)
	if err := errors.Join(mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}

// What a grant refuses is the caller's error, and no fault of the store.
func TestAGrantRefuses(t *testing.T) {
	s := openMem(t, Options{FS: mendStore(t), MaxBlobBytes: 500})
	refused := &millrace.Error{}
	for n := range 8 { // blobs that are granted
		left := n
		grant := func(int) error {
			if left--; left < 0 {
				return refused
			}
			return nil
		}
		before := []millrace.Record{{ID: "before"}}
		got, err := s.ReadGranted(before, 3, mendName, 0, millrace.MaxTime, grant)
		if !errors.Is(err, refused) || errors.Is(err, ErrFailed) || len(got) != 1 {
			t.Errorf("%d blobs granted: %d records, %v", n, len(got), err)
		}
		left = n
		newest := Newest{Grant: grant}
		if err := s.ReadNewestInto(&newest, 3, mendName, 40); !errors.Is(err, refused) || errors.Is(err, ErrFailed) || len(newest.Records) != 0 {
			t.Errorf("%d blobs granted: the newest %d, %v", n, len(newest.Records), err)
		}
	}
	if err := errors.Join(mended(s, 3), s.Close()); err != nil {
		t.Error(err)
	}
}

// Those that wait to be replaced go together, in order; of one partition, one at a time.
func TestReplacementsGoTogether(t *testing.T) {
	var q replacements
	parts := make([]part, 3)
	for i := range parts {
		parts[i].p = millrace.Partition(i)
	}
	for _, i := range []int{2, 0, 1, 0, 2, 0} {
		q.list = append(q.list, &replacement{p: &parts[i]})
	}
	var got []string
	for len(q.list) > 0 {
		text := ""
		for _, r := range q.take() {
			text += fmt.Sprint(r.p.p)
		}
		got = append(got, text)
	}
	if want := []string{"012", "02", "0"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A read within retention by count needs no blob that has only what is behind it.
func TestAReadNeedsOnlyWhatIsKept(t *testing.T) {
	s := openMem(t, Options{FS: mendStore(t), MaxBlobBytes: 500, MaxHotBytes: -1, Retention: map[millrace.ContentType]Retention{mendName.Type: {MaxCount: 10}}})
	tl, err := timeline.Open((*source)(s), 3, mendName, 500)
	if err == nil {
		err = tl.LoadChain()
	}
	if err != nil {
		t.Fatal(err)
	}
	newer := tl.Count()
	for _, l := range slices.Backward(tl.Links()) {
		key := timeline.OlderKey(slices.Clip(tl.Prefix), l.Suffix)
		row, err := s.get(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.db.Delete(key, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		got, err := s.parts[3].read(s, nil, mendName, blob.Window{To: millrace.MaxTime})
		if needs := newer < 10; (err != nil) != needs || !needs && len(got) != 10 {
			t.Errorf("a blob behind %d records is read, %t: %d records, %v", newer, !needs, len(got), err)
		}
		if err := s.db.Set(key, row, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		newer += int(l.Count)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
