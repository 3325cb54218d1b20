package store

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// calls are all calls for a partition that mendStore has filled, by name. Each also tells what
// is not as it should be.
func calls(s *Store) map[string]func(p millrace.Partition) error {
	dirs := 0
	return map[string]func(p millrace.Partition) error{
		"Read": func(p millrace.Partition) error {
			got, err := s.Read([]millrace.Record{{}}, p, mendName, 0, millrace.MaxTime)
			return cmpLen(len(got), 41, 1, err)
		},
		"ReadNewestInto": func(p millrace.Partition) error {
			got, err := readNewest(s, p, mendName, 30)
			return cmpLen(len(got.Records)/30, 1, 0, err)
		},
		"Find": func(p millrace.Partition) error {
			r, ok, err := s.Find(p, mendName, millrace.RecordID(fmt.Sprintf("%d-%03d", p, 3)))
			if err == nil && (!ok || r.Time != 3 || len(r.Body) != 100) || err != nil && (ok || r.ID != "") {
				return fmt.Errorf("found %t: %+v, %w", ok, r, err)
			}
			return err
		},
		"Features": func(p millrace.Partition) error {
			got, err := s.Features(p, mendName.Entity)
			if err != nil {
				return err
			}
			return cmpLen(len(got), 40, 0, err)
		},
		"Contents": func(p millrace.Partition) error {
			c, err := s.Contents(p)
			if err != nil {
				return err
			}
			n := 0
			for _, e := range c.Rows() {
				n++
				err = errors.Join(err, e)
			}
			if err == nil && n != 80 {
				err = fmt.Errorf("%d rows", n)
			}
			return errors.Join(err, c.Close())
		},
		"Timelines": func(p millrace.Partition) error {
			var names []millrace.Timeline
			var err error
			for name, e := range s.Timelines(p) {
				names, err = append(names, name), errors.Join(err, e)
			}
			return cmpLen(len(names), 1, 1, err)
		},
		"Routes": func(p millrace.Partition) error {
			var names []millrace.Entity
			var err error
			for name, e := range s.Routes(p) {
				names, err = append(names, name), errors.Join(err, e)
			}
			return cmpLen(len(names), 1, 1, err)
		},
		"Check": func(p millrace.Partition) error {
			r, err := s.Check(ctx, p)
			if err != nil {
				return err
			}
			return cmpLen(r.Records+r.Features, 80, 0, err)
		},
		"Sweep": func(p millrace.Partition) error { return s.Sweep(ctx, p, nil) },
		"Origin": func(p millrace.Partition) error {
			o, err := s.Origin(p)
			if err != nil {
				return err
			}
			return cmpLen(len(o), len("log"), 0, nil)
		},
		"Counts": func(p millrace.Partition) error {
			c, err := s.Counts(p)
			return cmpLen(int(c.Types[mendName.Type].Records), 40, 0, err)
		},
		"Checkpoint": func(p millrace.Partition) error {
			dirs++
			dir := fmt.Sprint("checkpoint-", dirs)
			all, err := s.Checkpoint([]millrace.Partition{p}, dir)
			if err == nil {
				err = onlyNamed(vfs.Root(s.opts.FS), dir, all)
			} else if _, stat := vfs.Root(s.opts.FS).Stat(dir); stat == nil {
				return fmt.Errorf("%s is left of %w", dir, err)
			}
			return cmpLen(len(all), 1, 0, err)
		},
		"Apply": func(p millrace.Partition) error { _, err := s.Apply(mendBatch(p, 0, 40), nil); return err },
	}
}

func cmpLen(got, want, beside int, err error) error {
	if err == nil && got != want || err != nil && got != beside {
		return fmt.Errorf("it gives %d of %d beside %w", got, want, err)
	}
	return err
}

// onNothing verifies that a call of which nothing can come says so.
func (s *Store) onNothing(t *testing.T, p millrace.Partition, want error) {
	t.Helper()
	all := calls(s)
	all["Restore"] = func(p millrace.Partition) error { return s.Restore(ctx, "none", Checkpoint{Partition: p}) }
	all["DropPartition"] = s.DropPartition
	all["Quarantine"] = func(p millrace.Partition) error { return s.Quarantine(p, errors.New("cause")) }
	all["Requarantine"] = func(p millrace.Partition) error { return s.Requarantine(p, errors.New("cause")) }
	all["Quarantined"] = s.Quarantined
	all["Bytes"] = func(p millrace.Partition) error { _, err := s.Bytes(p); return err }
	for name, call := range all {
		if err := call(p); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.Applied(p) != nothingApplied || s.Digest(p) != (Digest{}) || s.Clock(p) != 0 || s.LastOrigin(p) != nil {
		t.Errorf("partition %d is at %v with %x, clock %d, origin %q", p, s.Applied(p), s.Digest(p), s.Clock(p), s.LastOrigin(p))
	}
}

// A store that is closed, and a partition that is none, answer nothing, and say why.
func TestNothingIsAnsweredOfNothing(t *testing.T) {
	s := openMem(t, Options{Retention: map[millrace.ContentType]Retention{"post": {MaxCount: 100}}})
	apply(t, s, mendBatch(3, 0, 40))
	s.onNothing(t, 720, nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.onNothing(t, 3, ErrClosed)
	_, schemas := s.Schemas()
	for what, err := range map[string]error{
		"Flush": s.Flush(), "Admit": s.Admit(), "PutSchema": s.PutSchema(1, nil), "Close": s.Close(), "Schemas": schemas,
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if e, ok := s.Engine(); ok || e != (Engine{}) {
		t.Errorf("figures of the engine: %+v", e)
	}
}

// A partition that is quarantined refuses every call with the cause. Its neighbour goes on.
func TestAQuarantinedPartitionAnswersNothing(t *testing.T) {
	s := openMem(t, Options{FS: mendStore(t), MaxBlobBytes: 500, Retention: map[millrace.ContentType]Retention{"post": {MaxCount: 100}}})
	cause := errors.New("for a test")
	if err := s.Quarantine(3, cause); err != nil {
		t.Fatal(err)
	}
	for name, call := range calls(s) {
		if err := call(3); !errors.Is(err, ErrCorrupt) || !errors.Is(err, cause) || errors.Is(err, ErrFailed) {
			t.Errorf("%s: %v", name, err)
		}
		if err := call(4); err != nil {
			t.Errorf("%s of its neighbour: %v", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// needing is a file system of which one operation fails: a read of a table, or any in a directory
// of checkpoints or restores.
type needing struct {
	vfs.FS
	at atomic.Int64 // counts down to the operation that fails
}

func newNeeding(fs vfs.FS) *needing {
	n := new(needing)
	n.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		read := op.Kind.ReadOrWrite() == errorfs.OpIsRead && strings.HasSuffix(op.Path, ".sst")
		if (read || strings.HasPrefix(op.Path, "checkpoint") || strings.HasPrefix(op.Path, "db/restore")) && op.Kind != errorfs.OpRemoveAll && n.at.Add(-1) == 0 {
			return fmt.Errorf("%s: %w", op.Path, syscall.EIO)
		}
		return nil
	}))
	return n
}

// each does something time and again, each time with another operation that fails, until none
// does; do must say of each that it failed, unless it may do all the same.
func (n *needing) each(t *testing.T, what string, may bool, do func() error) {
	t.Helper()
	for at, again := int64(1), 0; ; {
		n.at.Store(at)
		err := do()
		hit := n.at.Swap(0) <= 0
		switch {
		case !hit && err == nil:
			if at < 3 {
				t.Errorf("%s: it needs %d operations: the test shows nothing", what, at-1)
			}
			return
		case hit && err == nil && may:
		case hit && err == nil && again < 5: // it may have been Pebble's, in the background
			again++
			continue
		case !hit || onlyFailed(err) != nil:
			t.Errorf("%s: operation %d failed, %t: %v", what, at, hit, err)
		}
		at, again = at+1, 0
	}
}

// Whatever operation on the disk fails, the call that needs it says so, and that nothing is
// wrong with what is stored; when the disk goes on, so does the call.
func TestNoErrorIsLost(t *testing.T) {
	disk := newNeeding(mendStore(t))
	open := func() *Store {
		return openMem(t, Options{FS: disk, CacheBytes: 1, MaxBlobBytes: 500, MaxHotBytes: -1, Retention: map[millrace.ContentType]Retention{"other": {MaxCount: 100}}})
	}
	s := open()
	for name, call := range calls(s) {
		if name == "Origin" || name == "Counts" || name == "Apply" || name == "Sweep" {
			continue // which read nothing of a partition that is loaded, or are below
		}
		disk.each(t, name, name == "Checkpoint", func() error { return call(3) }) // Pebble opens it in spite of some errors
	}
	c := checkpoint(t, s, 4, "checkpoint-of-4")
	disk.each(t, "Restore", true, func() error {
		err := s.Restore(ctx, "checkpoint-of-4", c)
		if errors.Is(err, ErrRefused) || s.Quarantined(4) != nil {
			return err
		}
		at := disk.at.Swap(0)
		whole := mended(s, 4)
		disk.at.Store(at)
		if whole != nil {
			return fmt.Errorf("it left something else behind: %v: %v", whole, err)
		}
		return err
	})
	if err := errors.Join(mended(s, 3), mended(s, 4), s.Close()); err != nil {
		t.Error(err)
	}
	s = open()
	disk.each(t, "Apply", false, func() error {
		_, err := s.Apply(mendBatch(719, 0, 40), nil)
		if err != nil && !errors.Is(err, ErrRewound) {
			return fmt.Errorf("it is not rewound: %v", err)
		}
		return err
	})
	if err := errors.Join(mended(s, 719), s.Close()); err != nil {
		t.Error(err)
	}
}

// A read needs the rows of its window, and no others.
func TestAReadNeedsOnlyItsWindow(t *testing.T) {
	s := openMem(t, Options{FS: mendStore(t), MaxBlobBytes: 500, MaxHotBytes: -1})
	defer s.Close()
	tl, err := timeline.Open((*source)(s), 3, mendName, 500)
	if err == nil {
		err = tl.LoadChain()
	}
	if err != nil {
		t.Fatal(err)
	}
	head, _ := tl.Head.Oldest()
	prefix := slices.Clip(tl.Prefix)
	reads := func(key []byte, from, to millrace.Time) bool {
		t.Helper()
		row, err := s.get(key)
		if err != nil || row == nil {
			t.Fatal(row, err)
		}
		if err := s.db.Delete(key, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		got, err := s.parts[3].read(s, nil, mendName, blob.Window{From: from, To: to})
		if err == nil && len(got) != int(max(0, min(40, to)-max(0, from))) {
			t.Errorf("%d records from %d to %d", len(got), from, to)
		}
		if err := s.db.Set(key, row, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		return err != nil
	}
	for _, l := range tl.Links() {
		key := timeline.OlderKey(prefix, l.Suffix)
		for what, c := range map[string]struct {
			from, to millrace.Time
			needs    bool
		}{
			"behind it":      {l.Newest + 1, 40, false},
			"its last":       {l.Newest, 40, true},
			"before it":      {0, l.Oldest, false},
			"its first":      {0, l.Oldest + 1, true},
			"its inside":     {l.Oldest, l.Newest + 1, true},
			"nothing at all": {l.Oldest, l.Oldest, false},
		} {
			if got := reads(key, c.from, c.to); got != c.needs {
				t.Errorf("m_%d, of %d to %d, is read, %t, for what is %s", l.Suffix, l.Oldest, l.Newest, got, what)
			}
		}
	}
	for from, needs := range map[millrace.Time]bool{head: true, head + 1: false, head - 1: true} {
		if got := reads(timeline.ChainKey(prefix), from, 40); got != needs {
			t.Errorf("the chain is read, %t, for what begins at %d; the head begins at %d", got, from, head)
		}
	}
	if n, err := readNewest(s, 3, mendName, int(39-head)); err != nil || n.From != head+1 {
		t.Errorf("the newest of the head: %+v, %v", n, err)
	}
}

// What a batch refers to is the caller's again when Apply returns: the store keeps nothing of it.
func TestTheStoreKeepsNothingOfTheCaller(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var dumps [2]string
	for i := range dumps {
		s := openMem(t, Options{MaxBlobBytes: 300, Retention: metaRetention})
		log := newScript(seed)
		for n := range 40 {
			var lent [][]byte
			lend := func(v string) string {
				if i == 0 || v == "" {
					return v
				}
				b := []byte(v)
				lent = append(lent, b)
				return unsafe.String(&b[0], len(b))
			}
			var b Batch
			for range 10 {
				e := log.entry()
				name := millrace.Timeline{Entity: millrace.Entity(lend(string(e.timeline.Entity))), Type: millrace.ContentType(lend(string(e.timeline.Type)))}
				b.SetClock(3, e.clock)
				if f := e.features; f != nil {
					f.Subject, f.Body = lend(f.Subject), []byte(lend(string(f.Body)))
					lent = append(lent, f.Body)
					b.PutFeatures(3, name.Entity, *f)
					continue
				}
				r := e.record
				r.ID, r.Object = millrace.RecordID(lend(string(r.ID))), millrace.Object(lend(string(r.Object)))
				lent = append(lent, r.Body)
				b.Put(3, name, r)
			}
			json := []byte(`"int"`)
			b.PutSchema(millrace.Fingerprint(n), json)
			origin := []byte("origin")
			b.SetOrigin(3, origin)
			b.SetApplied(3, Content, millrace.Offset(n))
			apply(t, s, &b)
			for _, l := range append(lent, json, origin) {
				for k := range l {
					l[k] ^= byte(0xff * i) // of the second store alone
				}
			}
			if n%4 == 3 {
				dumps[i] += dump(t, s)
			}
			if n%16 == 15 {
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
				dumps[i] += dump(t, s)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if dumps[0] != dumps[1] {
		t.Errorf("it has\n%.3000s\nand not\n%.3000s", dumps[1], dumps[0])
	}
}

// dump is everything that partition 3 of a store has, and what the node knows.
func dump(t *testing.T, s *Store) string {
	t.Helper()
	var b strings.Builder
	types, all := s.Types()
	schemas, err := s.Schemas()
	if err != nil {
		t.Fatal(err)
	}
	origin, err := s.Origin(3)
	if err != nil {
		t.Fatal(err)
	}
	counts, err := s.Counts(3)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "%q %t %q %q %v %v %v %v\n", types, all, schemas, origin, counts.Types, s.Digest(3), s.Applied(3), s.Flows())
	for e := range 3 {
		features, err := s.Features(3, millrace.Entity(fmt.Sprint("e", e)))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%+v\n", features)
		for _, typ := range types {
			name := millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("e", e)), Type: typ}
			recs, err := s.Read(nil, 3, name, -1000, millrace.MaxTime)
			if err != nil {
				t.Fatal(err)
			}
			for id := range 10 {
				f, ok, err := s.Find(3, name, millrace.RecordID(fmt.Sprint("r", id)))
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "%t %q ", ok, f.Record.Object)
			}
			fmt.Fprintf(&b, "%s: %+v\n", name, recs)
		}
	}
	for name, err := range s.Timelines(3) {
		fmt.Fprintf(&b, "%s %v\n", name, err)
	}
	if _, err := s.Check(ctx, 3); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// All that is wrong with options is said at once, and nothing of what may be so.
func TestOptionsSayWhatIsWrong(t *testing.T) {
	bad := Options{FS: vfs.NewMem(), MaxBlobBytes: -1, MaxDirtyBytes: -1, CacheBytes: -1, Retention: map[millrace.ContentType]Retention{"age": {MaxAge: -1}, "count": {MaxCount: -1}, "good": {MaxAge: 1, MaxCount: 1}}}
	_, err := Open("db", bad)
	if err == nil {
		t.Fatal("it opens")
	}
	for _, want := range []string{"MaxBlobBytes -1", "MaxDirtyBytes -1", "CacheBytes -1", `Retention of "age"`, `Retention of "count"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not said: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "good") {
		t.Error(err)
	}
	o := Options{}.withDefaults()
	if o.FS != vfs.Default || o.Log == nil || o.MaxBlobBytes != 8<<10 || o.MaxDirtyBytes != 128<<20 || o.MaxHotBytes != 64<<20 || o.FlushEvery != 30*time.Second ||
		o.CacheBytes != 64<<20 || o.MinFreeBytes != DefaultMinFreeBytes || o.validate() != nil {
		t.Errorf("defaults %+v", o)
	}
	given := Options{FS: vfs.NewMem(), Log: slog.New(slog.DiscardHandler), MaxBlobBytes: 1, MaxDirtyBytes: 2, MaxHotBytes: -3, FlushEvery: -4, CacheBytes: 5, MinFreeBytes: -6, memTableBytes: 7}
	if o := given.withDefaults(); o.FS != given.FS || o.Log != given.Log || o.MaxBlobBytes != 1 || o.MaxDirtyBytes != 2 || o.MaxHotBytes != -3 || o.FlushEvery != -4 || o.CacheBytes != 5 || o.MinFreeBytes != -6 || o.memTableBytes != 7 {
		t.Errorf("%+v", o)
	}
}
