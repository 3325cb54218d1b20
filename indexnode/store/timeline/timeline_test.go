package timeline

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// rows are a source in memory, of which one read may fail.
type rows struct {
	all   map[string][]byte
	reads int // so far
	fails int // the number of the read that fails; 0: none does
}

var errRead = errors.New("read failed")

func (r *rows) read() error {
	if r.reads++; r.reads == r.fails {
		return errRead
	}
	return nil
}

func (r *rows) Get(key []byte) ([]byte, error) {
	v, ok := r.all[string(key)]
	if err := r.read(); err != nil || !ok {
		return nil, err
	}
	return append(make([]byte, 0, len(v)+len(v)/4), v...), nil
}

func (r *rows) IDRows(prefix []byte) (map[millrace.RecordID]IDRow, error) {
	ids := map[millrace.RecordID]IDRow{}
	err := r.read()
	for k, v := range r.all {
		if id, ok := strings.CutPrefix(k, string(prefix)+string(rune(PartID))); ok {
			row, wrong := DecodeIDRow(v)
			ids[millrace.RecordID(id)], err = row, errors.Join(err, wrong)
		}
	}
	return ids, err
}

// write writes a timeline, which is clean afterwards unless it is gone.
func (r *rows) write(t *Timeline) error {
	var b pebble.Batch
	if err := t.Write(&b); err != nil {
		return err
	}
	for in := b.Reader(); ; {
		kind, k, v, ok, err := in.Next()
		switch {
		case err != nil:
			return err
		case !ok:
			t.Written()
			return nil
		case kind == pebble.InternalKeyKindSet:
			r.all[string(k)] = bytes.Clone(v)
		case kind == pebble.InternalKeyKindDelete:
			delete(r.all, string(k))
		case kind == pebble.InternalKeyKindRangeDelete:
			maps.DeleteFunc(r.all, func(key string, _ []byte) bool { return string(k) <= key && key < string(v) })
		default:
			return fmt.Errorf("an operation of kind %v", kind)
		}
	}
}

// tally is what a check finds, and how many records retention has dropped.
type tally struct {
	names                             []millrace.Timeline
	records, stale, ended, with, gone int
	sum                               uint64
	refuse                            error
}

func (n *tally) Timeline(name millrace.Timeline) error {
	n.names = append(n.names, name)
	return n.refuse
}
func (n *tally) Blob(recs []millrace.Record, digest uint64) {
	n.records += len(recs)
	n.sum += digest
}
func (n *tally) StaleRow() { n.stale++ }
func (n *tally) End(records bool) {
	n.ended++
	if records {
		n.with++
	}
}

func (n *tally) ExpireBlob(b *blob.Blob) error { n.gone += b.Count(); return nil }

// check checks all rows. Their memory is used again for each.
func check(all map[string][]byte, n *tally) error {
	c := Checker{Found: n}
	var key, value []byte
	for _, k := range slices.Sorted(maps.Keys(all)) {
		key, value = append(key[:0], k...), append(value[:0], all[k]...)
		if err := c.Add(key, value); err != nil {
			return err
		}
		for _, b := range [][]byte{key, value} {
			for i := range b {
				b[i] ^= 0xff
			}
		}
	}
	return c.End()
}

// world is a timeline, and by plain definition what it has to be.
type world struct {
	*testing.T
	r    *rand.Rand
	rows rows
	name millrace.Timeline
	max  int
	keep Keeper
	t    *Timeline

	kept    []millrace.Record // newest first
	floor   *blob.Floor
	sum     uint64 // of what came and was not replaced
	dropped uint64
	n       tally
	there   int // records that are there, kept or not
}

func newer(a, b *millrace.Record) bool { return a.Time > b.Time || a.Time == b.Time && a.ID < b.ID }

func (w *world) open() (err error) {
	w.t, err = Open(&w.rows, 7, w.name, w.max)
	return err
}

// behind reports whether a record that would be the i-th of those kept is not to be kept.
func (w *world) behind(r *millrace.Record, i int) bool {
	return r.Time < w.keep.Horizon || w.keep.Count > 0 && i >= w.keep.Count ||
		w.floor != nil && (r.Time < w.floor.Time || r.Time == w.floor.Time && r.ID > w.floor.ID)
}

// place is where a record has its place among those kept.
func (w *world) place(r *millrace.Record) int {
	return len(w.kept) - len(slices.DeleteFunc(slices.Clone(w.kept), func(k millrace.Record) bool { return newer(&k, r) }))
}

// change is the protocol of a write: it finds the record of an id, and puts r in its place.
func (w *world) change(r *millrace.Record) (newest bool, dropped uint64, err error) {
	at, ok, err := w.t.Find(r.ID)
	if err != nil {
		return false, 0, err
	}
	if ok {
		gone, err := w.keep.Dropped(w.t, at)
		if err != nil {
			return false, 0, err
		}
		if gone {
			dropped, ok = blob.RecordDigest(w.t.Hash, &at.Rec), false
			if err := w.t.Remove(at); err != nil {
				return false, 0, err
			}
		}
	}
	switch {
	case !ok:
		out, err := w.keep.Excludes(w.t, r)
		if err != nil || out {
			return false, dropped, err
		}
		if newest, err = w.t.Insert(r); err != nil {
			return false, dropped, err
		}
	case at.Rec.Time == r.Time:
		if err := w.t.Replace(at, r); err != nil {
			return false, dropped, err
		}
	default:
		if err := w.keep.SetFloor(w.t); err != nil {
			return false, dropped, err
		}
		if err := w.t.Remove(at); err != nil {
			return false, dropped, err
		}
		if newest, err = w.t.Insert(r); err != nil {
			return false, dropped, err
		}
	}
	more, err := w.keep.Trim(w.t, &w.n)
	return newest, dropped + more, err
}

// put does the same by definition, and reports whether r was put somewhere else than where the
// record of its id was.
func (w *world) put(r *millrace.Record) (placed bool) {
	hash := blob.TimelineDigest(w.name)
	i := slices.IndexFunc(w.kept, func(k millrace.Record) bool { return k.ID == r.ID })
	if i < 0 {
		n := w.place(r)
		if w.behind(r, n) {
			return false
		}
		w.kept = slices.Insert(w.kept, n, *r)
		w.sum += blob.RecordDigest(hash, r)
		if w.keep.Count > 0 && len(w.kept) > w.keep.Count {
			w.kept = w.kept[:w.keep.Count]
		}
		return true
	}
	old := w.kept[i]
	w.sum += blob.RecordDigest(hash, r) - blob.RecordDigest(hash, &old)
	if old.Time == r.Time {
		w.kept[i] = *r
		return false
	}
	if last := w.kept[len(w.kept)-1]; len(w.kept) == w.keep.Count {
		w.floor = &blob.Floor{Time: last.Time, ID: last.ID}
	}
	w.kept = slices.Delete(w.kept, i, i+1)
	if n := w.place(r); !w.behind(r, n) {
		w.kept = slices.Insert(w.kept, n, *r)
	}
	return true
}

// all returns the records that are there, newest first.
func (w *world) all() (recs []millrace.Record, largest int) {
	w.Helper()
	if err := w.t.LoadChain(); err != nil {
		w.Fatal(err)
	}
	if w.t.Head == nil {
		return nil, 0
	}
	blobs := []*blob.Blob{w.t.Head}
	for _, l := range slices.Backward(w.t.Links()) {
		b, err := w.t.BlobAt(&l)
		if err != nil {
			w.Fatal(err)
		}
		blobs = append(blobs, b)
	}
	for _, b := range blobs {
		own, err := b.DecodeAll(nil)
		if err != nil {
			w.Fatal(err)
		}
		size := len(blob.Encode(nil, 0).Buf) + 8 // with one schema, as Split counts
		for i := range own {
			size += blob.RecordSize(&own[i], 0)
		}
		if len(own) > 1 {
			largest = max(largest, size)
		}
		slices.Reverse(own)
		recs = append(recs, own...)
	}
	return recs, largest
}

// compare compares the timeline with what it has to be.
func (w *world) compare() {
	w.Helper()
	recs, largest := w.all()
	kept := recs
	for i := range recs {
		if w.behind(&recs[i], i) {
			kept = recs[:i]
			break
		}
	}
	if !slices.EqualFunc(kept, w.kept, func(a, b millrace.Record) bool {
		return a.ID == b.ID && a.Time == b.Time && a.Version == b.Version && a.Deleted == b.Deleted && bytes.Equal(a.Body, b.Body)
	}) {
		w.Fatalf("it keeps\n%+v\nand ought to keep\n%+v\nfrom %d, floor %+v", kept, w.kept, w.keep.Horizon, w.floor)
	}
	if largest > w.max {
		w.Fatalf("a blob of more than one record has %d bytes of %d", largest, w.max)
	}
	for i, r := range recs {
		at, ok, err := w.t.Find(r.ID)
		if err != nil || !ok || !blobHas(at, &r) {
			w.Fatalf("%s is found %t: %+v, %v", r.ID, ok, at.Rec, err)
		}
		if gone, err := w.keep.Dropped(w.t, at); err != nil || gone != (i >= len(kept)) {
			w.Fatalf("record %d, %s, of %d kept is dropped: %t, %v", i, r.ID, len(kept), gone, err)
		}
	}
	if _, ok, err := w.t.Find("stranger"); ok || err != nil {
		w.Fatalf("what is not there is found: %v", err)
	}
	older := 0
	for _, b := range w.t.older {
		older += cap(b.Buf)
	}
	if older != w.t.olderBytes {
		w.Fatalf("%d bytes of older blobs are in memory, it counts %d", older, w.t.olderBytes)
	}
	least := 300 + older + 100*len(w.t.ids) + blob.LinkBytes*len(w.t.Links())
	most := least + len(w.name.Entity) + cap(w.t.Prefix)
	if w.t.Head != nil {
		least, most = least+len(w.t.Head.Buf), most+cap(w.t.Head.Buf)
	}
	if w.t.Chain != nil {
		most += blob.LinkBytes * (cap(w.t.Links()) - len(w.t.Links()))
	}
	if w.t.Seen != nil {
		least, most = least+len(w.t.Seen.Bits), most+cap(w.t.Seen.Bits)
	}
	if got := w.t.Memory(); got < least || got > most {
		w.Fatalf("it takes %d bytes of memory, and tells %d", least, got)
	}
	w.there = len(recs)
}

func blobHas(at Place, r *millrace.Record) bool {
	recs, err := at.blob.DecodeAll(nil)
	return err == nil && recs[at.index].ID == r.ID && at.Rec.ID == r.ID && at.Rec.Time == r.Time && at.Rec.Version == r.Version
}

// flush writes the timeline, checks all rows, and perhaps reads it again.
func (w *world) flush(again bool) {
	w.Helper()
	gone := w.t.gone
	if w.t.Little() != (gone || w.there == 0) {
		w.Fatalf("it is little: %t, and has %d records", w.t.Little(), w.there)
	}
	if err := w.rows.write(w.t); err != nil {
		w.Fatal(err)
	}
	var found tally
	if err := check(w.rows.all, &found); err != nil {
		w.Fatal(err)
	}
	if found.records != w.there || found.sum+w.dropped != w.sum || len(found.names) > 1 || found.ended != len(found.names) || (found.with > 0) != (w.there > 0) {
		w.Fatalf("a check finds %+v; %d records of %x are there, and %x was dropped", found, w.there, w.sum, w.dropped)
	}
	if w.keep == (Keeper{Horizon: math.MinInt64}) && found.stale > 0 {
		w.Fatalf("nothing was dropped, and %d id rows are stale", found.stale)
	}
	if !gone && !w.t.Clean() {
		w.Fatal("what was written is not clean")
	}
	if again || gone {
		if err := w.open(); err != nil {
			w.Fatal(err)
		}
		if !w.t.Clean() {
			w.Fatal("what was just read is not clean")
		}
	}
}

// hard does something to the timeline as it is on disk, time and again, each time with another
// read that fails, until none does. No error is lost.
func (w *world) hard(do func() error) error {
	w.Helper()
	w.flush(true)
	for k := 1; ; k++ {
		w.rows.reads, w.rows.fails = 0, k
		gone := w.n.gone
		err := w.open()
		if err == nil {
			err = do()
		}
		w.rows.fails = 0
		if w.rows.reads < k {
			return err
		}
		if !errors.Is(err, errRead) {
			w.Fatalf("read %d failed, and it says %v", k, err)
		}
		w.n.gone = gone
	}
}

// TestATimelineIsWhatItsRecordsSay does random things to a timeline. It has the records that
// retention keeps by its definition, whatever its blobs, and however often it is written and
// read again; and what it writes passes the check.
func TestATimelineIsWhatItsRecordsSay(t *testing.T) {
	seed, runs := rand.Uint64(), 25
	if v := os.Getenv("MILLRACE_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
		runs = 1
	}
	for i := range uint64(runs) {
		w := &world{T: t, r: rand.New(rand.NewPCG(seed+i, 1)), rows: rows{all: map[string][]byte{}}, name: millrace.Timeline{Entity: "member:1", Type: "post"}}
		w.live(seed + i)
	}
}

func (w *world) live(seed uint64) {
	defer func() {
		if w.Failed() {
			w.Logf("MILLRACE_SEED=%d, with %+v in blobs of %d", seed, w.keep, w.max)
		}
	}()
	r := w.r
	w.max = []int{1, 100, 150, 300, 1000}[r.IntN(5)]
	w.keep = Keeper{Horizon: math.MinInt64, Count: []int{0, 0, 1, 5, 12}[r.IntN(5)]}
	aged, ids := r.IntN(2) == 0, 3+r.IntN(40)
	if err := w.open(); err != nil {
		w.Fatal(err)
	}
	for now := 0; now < 200; now++ {
		if r.IntN(20) == 0 {
			now += r.IntN(60)
		}
		if aged {
			w.keep.Horizon = millrace.Time(now - 40)
			for len(w.kept) > 0 && w.kept[len(w.kept)-1].Time < w.keep.Horizon {
				w.kept = w.kept[:len(w.kept)-1]
			}
		}
		rec := millrace.Record{ID: millrace.RecordID(fmt.Sprint("r", r.IntN(ids))), Time: millrace.Time(now), Version: int64(now), Deleted: r.IntN(5) == 0, Schema: millrace.Fingerprint(r.IntN(2)), Body: make([]byte, r.IntN(50))}
		switch r.IntN(4) {
		case 0:
			rec.Time -= millrace.Time(r.IntN(60))
		case 1:
			rec.Time -= rec.Time % 8
		case 2:
			if len(w.kept) > 0 { // another version of what is there, perhaps at its time
				rec.ID = w.kept[r.IntN(len(w.kept))].ID
				if old := w.kept[slices.IndexFunc(w.kept, func(k millrace.Record) bool { return k.ID == rec.ID })]; r.IntN(2) == 0 {
					rec.Time = old.Time
				}
			}
		}
		var newest bool
		var dropped uint64
		do := func() (err error) { newest, dropped, err = w.change(&rec); return err }
		run := func(do func() error) error { return do() }
		if r.IntN(4) == 0 {
			run = w.hard
		}
		if err := run(do); err != nil {
			w.Fatal(err)
		}
		w.dropped += dropped
		placed := w.put(&rec)
		w.compare()
		if recs, _ := w.all(); newest != (placed && len(recs) > 0 && recs[0].ID == rec.ID) {
			w.Fatalf("%+v is the newest: %t, of %+v", rec, newest, recs)
		}
		if r.IntN(6) == 0 {
			links, stale := len(w.t.Links()), w.t.Chain != nil && w.t.Chain.Stale > 0
			if err := run(func() (err error) { dropped, err = w.keep.Sweep(w.t, &w.n); return err }); err != nil {
				w.Fatal(err)
			}
			w.dropped += dropped
			w.compare()
			if w.t.Chain != nil && w.t.Chain.Stale != 0 {
				w.Fatalf("%d id rows are stale after a sweep", w.t.Chain.Stale)
			}
			w.swept(stale || len(w.t.Links()) < links)
		}
		if r.IntN(5) == 0 || w.t.gone {
			w.flush(r.IntN(2) == 0)
			w.compare()
		}
	}
	dropped, err := w.keep.Sweep(w.t, &w.n)
	w.dropped += dropped
	w.compare()
	w.flush(true)
	if dropped, err := w.keep.Sweep(w.t, &w.n); err != nil || dropped != 0 || !w.t.Clean() {
		w.Fatalf("a second sweep drops %x, and changes something, %t: %v", dropped, !w.t.Clean(), err)
	}
	w.compare()
	if err != nil {
		w.Fatal(err)
	}
}

// swept verifies that nothing is left that a sweep has to drop; stale says that there were id
// rows of dropped blobs.
func (w *world) swept(stale bool) {
	w.Helper()
	ids, err := w.rows.IDRows(w.t.Prefix)
	if err != nil {
		w.Fatal(err)
	}
	if w.t.gone {
		clear(ids)
	}
	maps.Copy(ids, w.t.ids)
	for id, row := range ids {
		if l := w.t.Links(); stale && row.present && (len(l) == 0 || row.At < l[0].Oldest) {
			w.Fatalf("the id row of %s, at %d, is left", id, row.At)
		}
	}
	recs, _ := w.all()
	kept := len(w.kept)
	if l := w.t.Links(); len(l) > 0 && len(recs)-int(l[0].Count) >= kept && w.keep != (Keeper{Horizon: math.MinInt64}) && (w.floor == nil || l[0].Newest < w.floor.Time) {
		w.Fatalf("the oldest older blob, of %d of %d records, is left, and %d are kept", l[0].Count, len(recs), kept)
	}
	if aged := w.keep.Horizon > math.MinInt64; aged && kept == 0 && len(recs) > 0 && (w.floor == nil || w.floor.Time < w.keep.Horizon) {
		w.Fatalf("%d records are left, and none is kept", len(recs))
	}
}
