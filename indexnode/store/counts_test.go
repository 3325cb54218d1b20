package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/tally"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// scanCounts counts what is there of a partition, record by record: what
// retention has dropped and not reclaimed too.
func scanCounts(s *Store, n millrace.Partition) (map[millrace.ContentType]*tally.Counts, error) {
	all := map[millrace.ContentType]*tally.Counts{}
	for name, err := range s.Timelines(n) {
		if err != nil {
			return nil, err
		}
		t, err := timeline.Open((*source)(s), n, name, s.opts.MaxBlobBytes)
		if err == nil {
			err = t.LoadChain()
		}
		if err != nil {
			return nil, err
		}
		blobs := []*blob.Blob{t.Head}
		for _, l := range t.Links() {
			b, err := t.BlobAt(&l)
			if err != nil {
				return nil, err
			}
			blobs = append(blobs, b)
		}
		c := all[name.Type]
		if c == nil {
			c = new(tally.Counts)
			all[name.Type] = c
		}
		if t.Head.Count() > 0 {
			c.Timelines++
		}
		for _, b := range blobs {
			recs, err := b.DecodeAll(nil)
			if err != nil {
				return nil, err
			}
			for _, r := range recs {
				if !r.Deleted {
					c.Newest = max(c.Newest, r.Time)
				}
				c.Bytes += int64(len(blob.Encode([]millrace.Record{r}, 0).Buf) - len(blob.Encode(nil, 0).Buf) - 8)
				if r.Deleted {
					c.Deleted++
				} else {
					c.Records++
				}
			}
		}
	}
	return all, nil
}

// compareCounts compares a partition's counts with a scan of all that is there,
// and with the oracle, in which nothing leaves for retention.
func compareCounts(s *Store, n millrace.Partition, o *oracle) error {
	there, err := scanCounts(s, n)
	if err != nil {
		return err
	}
	all, err := s.Counts(n)
	if err != nil || !all.Known || all.Applied != s.Applied(n) {
		return fmt.Errorf("partition %d is counted %v, at %v: %v", n, all.Known, all.Applied, err)
	}
	counts := all.Types
	for name := range there {
		if _, ok := counts[name]; !ok {
			return fmt.Errorf("partition %d: %s is there and not counted", n, name)
		}
	}
	for name, c := range counts {
		want := there[name]
		if want == nil {
			want = new(tally.Counts)
		}
		if c.Records != want.Records || c.Deleted != want.Deleted || c.Timelines != want.Timelines || c.Bytes != want.Bytes {
			return fmt.Errorf("partition %d, %s: counted %+v, there are %+v", n, name, c, want)
		}
	}
	for name, want := range o.counts {
		c := counts[name]
		if c.Records+c.Expired != want.Records || c.Taken != want.Taken || c.Hidden != want.Hidden || c.Newest != want.Newest || c.Deleted > want.Deleted {
			return fmt.Errorf("partition %d, %s: counted %+v, the log says %+v", n, name, c, want)
		}
	}
	return nil
}

// A partition without a row of counts, as of an earlier version, is uncounted
// until it is read whole; what is applied meanwhile counts.
func TestCountsBegin(t *testing.T) {
	s, o := countedStore(t), newOracle(nil)
	log := script0(200)
	applyLog(t, s, o, log[:100])
	uncount(t, s)
	if c, err := s.Counts(0); err != nil || c.Known {
		t.Fatalf("%+v: %v", c, err)
	}
	applyLog(t, s, o, log[100:150])
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	// What comes while Check reads is counted once.
	snap, err := s.snapshot(0)
	if err != nil {
		t.Fatal(err)
	}
	c := newChecker(t.Context(), 0)
	if err := c.run(snap); err != nil {
		t.Fatal(err)
	}
	applyLog(t, s, o, log[150:])
	if wrong := s.recount(snap.p, snap.counted, c.counts); wrong != 0 {
		t.Errorf("counts of %d types are said to have been wrong", wrong)
	}
	snap.Close()
	for again := range 2 {
		c, err := s.Counts(0)
		all := c.Types
		if err != nil || !c.Known || len(all) != len(o.counts) {
			t.Fatalf("%+v: %v", c, err)
		}
		if there, err := scanCounts(s, 0); err != nil || *there["post"] != (tally.Counts{Records: all["post"].Records, Deleted: all["post"].Deleted, Timelines: all["post"].Timelines, Bytes: all["post"].Bytes, Newest: there["post"].Newest}) {
			t.Errorf("counted %+v, there are %+v: %v", all["post"], there["post"], err)
		}
		if got, want := all["post"], o.counts["post"]; got.Records != want.Records || got.Deleted != want.Deleted || got.Newest != want.Newest {
			t.Errorf("counted %+v, want %+v", got, want)
		}
		if again == 0 { // and it is so after a restart
			s = reopened(t, s)
		}
	}
}

// A partition is counted when it is restored, and begins anew with that: its
// counts are on disk when Restore returns.
func TestRestoreCounts(t *testing.T) {
	for _, uncounted := range []bool{false, true} {
		s, o := countedStore(t), newOracle(nil)
		applyLog(t, s, o, script0(100))
		if uncounted {
			uncount(t, s)
		}
		all, err := s.Checkpoint([]millrace.Partition{0}, "d")
		if err != nil {
			t.Fatal(err)
		}
		there, err := scanCounts(s, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range there {
			c.Taken = c.Records
		}
		applyLog(t, s, o, script0(10))
		if err := s.Restore(context.Background(), "d", all[0]); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := s.Counts(0)
			if err != nil || !got.Known || len(got.Types) != len(there) || got.Types["post"] != *there["post"] || got.Types["share"] != *there["share"] {
				t.Fatalf("%+v, want %+v, %+v: %v", got, there["post"], there["share"], err)
			}
			// A crash takes none of it.
			fs := s.opts.FS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s.opts.FS = fs
			if s, err = Open("db", s.opts); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A partition that is dropped has no counts and begins counted, whatever an
// earlier version puts back.
func TestDropCounts(t *testing.T) {
	s, o := countedStore(t), newOracle(nil)
	applyLog(t, s, o, script0(100))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	was, err := s.get(countsKey(0))
	if err != nil || was == nil {
		t.Fatal(was, err)
	}
	if err := s.DropPartition(0); err != nil {
		t.Fatal(err)
	}
	if row, err := s.get(countsKey(0)); err != nil || row != nil {
		t.Errorf("%x is left: %v", row, err)
	}
	if err := s.db.Set(countsKey(0), was, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	s = reopened(t, s)
	if c, err := s.Counts(0); err != nil || !c.Known || len(c.Types) != 0 {
		t.Errorf("%+v: %v", c, err)
	}
}

// A checkpoint has no rows but those of kinds that versions without counts know:
// they refuse any other.
func TestCheckpointsHaveNoCounts(t *testing.T) {
	s := countedStore(t)
	apply(t, s, mendBatch(0, 0, 40))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	all, err := s.Checkpoint([]millrace.Partition{0}, "d")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[byte]int{}
	for _, f := range all[0].Files {
		table, err := s.maker().Open("d/" + f.Name)
		if err != nil {
			t.Fatal(err)
		}
		for err = table.Next(); err == nil && table.More; err = table.Next() {
			if !bytes.HasPrefix(table.Key, []byte{0, 0}) {
				t.Errorf("it has the key %x", table.Key)
			}
			kinds[table.Key[2]]++
		}
		if err := errors.Join(err, table.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if kinds[0] == 0 || kinds[1] == 0 || kinds['f'] == 0 || kinds['t'] == 0 || len(kinds) != 4 {
		t.Errorf("rows by kind: %v", kinds)
	}
}

// A damaged file that holds counts costs a recount of those that were in it, and
// nothing else.
func TestDamagedCounts(t *testing.T) {
	for what, do := range map[string]harm{"removed": remove, "empty": cutTo(0), "cut": cutTo(100), "flipped": flipAt(30)} {
		fs := vfs.NewMem()
		s := openMem(t, Options{FS: fs})
		if err := s.PutSchema(7, []byte(`"int"`)); err != nil {
			t.Fatal(err)
		}
		for _, p := range mendPartitions {
			apply(t, s, mendBatch(p, 0, 40))
		}
		if err := errors.Join(s.Flush(), s.db.Compact(t.Context(), []byte{0}, []byte{0xff, 0xff, 0xff}, false)); err != nil {
			t.Fatal(err)
		}
		file := countsFile(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := do(fs, file); err != nil {
			t.Fatal(err)
		}
		s = openMem(t, Options{FS: fs})
		if len(s.Damage()) == 0 {
			t.Errorf("%s: nothing is told", what)
		}
		for _, p := range mendPartitions {
			if c, err := s.Counts(p); err != nil || c.Known || c.Applied.Content != 40 {
				t.Errorf("%s: %+v: %v", what, c, err)
			}
			if err := mended(s, p); err != nil { // by a check, which counts
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := mendedNode(s); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s = openMem(t, Options{FS: fs})
		if c, err := s.Counts(mendPartitions[0]); err != nil || !c.Known || c.Types[mendName.Type].Records != 40 {
			t.Errorf("%s: %+v: %v", what, c, err)
		}
		// The second copy of the node's rows stays small, and apart.
		err := scan(s.db, partitionPrefix(nodePartition), func(k, _ []byte) error {
			if k[2] == nodeCounts {
				t.Errorf("%s: %x is there", what, k)
			}
			return nil
		})
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
	}
}

// So it is with a file that is found damaged while the store is open.
func TestDamagedCountsWhileOpen(t *testing.T) {
	s := countedStore(t)
	if err := s.PutSchema(7, []byte(`"int"`)); err != nil {
		t.Fatal(err)
	}
	for _, p := range mendPartitions {
		apply(t, s, mendBatch(p, 0, 40))
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := flipAt(30)(s.opts.FS.(*vfs.MemFS), countsFile(t, s)); err != nil {
		t.Fatal(err)
	}
	p := &s.parts[3]
	p.mu.Lock()
	err := p.load(s)
	p.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	s.checkSuspects()
	for _, p := range mendPartitions {
		if c, err := s.Counts(p); err != nil || c.Known != (p != 3) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	s = reopened(t, s)
	for _, p := range mendPartitions {
		if err := mended(s, p); err != nil {
			t.Error(err)
		}
		if c, err := s.Counts(p); err != nil || !c.Known || c.Types[mendName.Type].Records != 40 {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := mendedNode(s); err != nil {
		t.Error(err)
	}
}

// countsFile returns the file that has the counts of mendPartitions.
func countsFile(t *testing.T, s *Store) string {
	t.Helper()
	tables, err := s.tables()
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if bytes.Compare(table.Smallest.UserKey, countsKey(0)) <= 0 && bytes.Compare(table.Largest.UserKey, countsKey(719)) >= 0 {
			return s.tablePath(table)
		}
	}
	t.Fatal("no file has the counts")
	return ""
}

// Counts that an earlier version has left behind, by which a partition has gone
// on, are counted anew.
func TestCountsLeftBehind(t *testing.T) {
	s, o := countedStore(t), newOracle(nil)
	log := script0(200)
	applyLog(t, s, o, log[:100])
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	was, err := s.get(countsKey(0))
	if err != nil || was == nil {
		t.Fatal(was, err)
	}
	applyLog(t, s, o, log[100:])
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Set(countsKey(0), was, pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	s = reopened(t, s)
	if c, err := s.Counts(0); err != nil || c.Known {
		t.Fatalf("%+v: %v", c, err)
	}
	if r, err := s.Check(t.Context(), 0); err != nil || r.Miscounted != 0 {
		t.Fatalf("%+v: %v", r, err)
	}
	if c, err := s.Counts(0); err != nil || !c.Known || c.Types["post"].Records != o.counts["post"].Records || c.Types["share"].Deleted != o.counts["share"].Deleted {
		t.Errorf("%+v: %v", c, err)
	}
}

// Check mends counts that are wrong, and says so; nothing is quarantined.
func TestCheckMendsCounts(t *testing.T) {
	s, o := countedStore(t), newOracle(nil)
	applyLog(t, s, o, script0(100))
	s.parts[0].tally.Of("post").Records += 7
	s.parts[0].changed = true
	s = reopened(t, s)
	if err := compareCounts(s, 0, o); err == nil {
		t.Fatal("the counts are not wrong")
	}
	for _, want := range []int{1, 0} {
		if r, err := s.Check(t.Context(), 0); err != nil || r.Miscounted != want {
			t.Fatalf("%+v, %v; want %d types miscounted", r, err, want)
		}
	}
	if err := compareCounts(s, 0, o); err != nil {
		t.Error(err)
	}
}

// Of more types than are counted by name the others are counted together, and
// what was counted there is taken off there.
func TestCountsAreBounded(t *testing.T) {
	s := countedStore(t)
	put := func(deleted bool) {
		var b Batch
		for i := range MaxTypes + 50 {
			i = MaxTypes + 50 - i // not in the order of keys
			name := millrace.Timeline{Entity: "e", Type: millrace.ContentType("t" + strconv.Itoa(i))}
			b.Put(0, name, millrace.Record{ID: "r", Time: 1, Version: 1, Deleted: deleted})
		}
		if _, err := s.Apply(&b, nil); err != nil {
			t.Fatal(err)
		}
	}
	put(false)
	s = reopened(t, s)
	put(true)
	c, err := s.Counts(0)
	all := c.Types
	if err != nil || len(all) != MaxTypes+1 {
		t.Fatalf("%d types: %v", len(all), err)
	}
	var sum tally.Counts
	for c := range maps.Values(all) {
		if c.Records < 0 || c.Records != 0 || c.Deleted < 1 {
			t.Errorf("%+v", c)
		}
		sum = sum.Add(c)
	}
	if sum.Deleted != MaxTypes+50 || all[""].Deleted != 50 || len(s.Flows()) != MaxTypes+1 {
		t.Errorf("%+v, %+v, %d flows", sum, all[""], len(s.Flows()))
	}
	if r, err := s.Check(t.Context(), 0); err != nil || r.Miscounted != 0 {
		t.Errorf("%+v: %v", r, err)
	}
}

func countedStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open("db", Options{FS: vfs.NewCrashableMem(), FlushEvery: -1, MaxBlobBytes: 200})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func reopened(t *testing.T, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := Open("db", s.opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// script0 is a log of records without retention.
func script0(n int) (log []entry) {
	s := newScript(1)
	s.types = []millrace.ContentType{"post", "share"}
	for len(log) < n {
		if e := s.entry(); e.features == nil {
			log = append(log, e)
		}
	}
	return log
}

func applyLog(t *testing.T, s *Store, o *oracle, log []entry) {
	t.Helper()
	var b Batch
	putEntries(&b, 0, log)
	b.SetApplied(0, Content, s.Applied(0).Content+1)
	if _, err := s.Apply(&b, nil); err != nil {
		t.Fatal(err)
	}
	fold(o, log)
}

// uncount makes partition 0 as an earlier version wrote it.
func uncount(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Delete(countsKey(0), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	p := &s.parts[0]
	if err := p.load(s); err != nil {
		t.Fatal(err)
	}
}
