package blob

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// random returns a source of random numbers, and prints its seed. MILLRACE_SEED repeats one run.
func random(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	if v := os.Getenv("MILLRACE_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("MILLRACE_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// randomRecords returns records as a blob has them: oldest first, of few times, and each field
// now and then missing, negative or long.
func randomRecords(r *rand.Rand, n int) []millrace.Record {
	text := func() string {
		return strings.Repeat("x", []int{0, 1, 126, 127, 300}[r.IntN(5)]) + strconv.Itoa(r.IntN(1e9))
	}
	recs := make([]millrace.Record, n)
	for i := range recs {
		recs[i] = millrace.Record{
			ID: millrace.RecordID(text()), Time: millrace.Time(r.IntN(12) - 4), Deleted: r.IntN(4) == 0,
			Version: []int64{0, 0, 1, -1, 64, math.MaxInt64, math.MinInt64}[r.IntN(7)],
			Schema:  millrace.Fingerprint(r.IntN(3)), Body: make([]byte, []int{0, 1, 100, 200, 17_000}[r.IntN(5)]),
		}
		switch r.IntN(4) {
		case 0:
			recs[i].Object = millrace.Object(text())
		case 1:
			recs[i].Object = millrace.Object(recs[i].ID)
		}
		for k := range recs[i].Body {
			recs[i].Body[k] = byte(i + k)
		}
	}
	slices.SortFunc(recs, func(a, b millrace.Record) int {
		if a.Time != b.Time {
			return int(a.Time - b.Time)
		}
		return strings.Compare(string(b.ID), string(a.ID))
	})
	return recs
}

func same(a, b millrace.Record) bool {
	own := func(r *millrace.Record) millrace.Object {
		if r.Object == "" {
			return millrace.Object(r.ID)
		}
		return r.Object
	}
	return a.ID == b.ID && a.Time == b.Time && a.Version == b.Version && own(&a) == own(&b) && a.Deleted == b.Deleted && a.Schema == b.Schema && bytes.Equal(a.Body, b.Body)
}

// A blob that is encoded, or to which records are appended, has them, tells where each is, and
// takes as many bytes as it says; stored and opened again, it tells the same.
func TestABlobIsItsRecords(t *testing.T) {
	r := random(t)
	for range 60 {
		recs := randomRecords(r, 1+r.IntN(8))
		schemas := []millrace.Fingerprint{}
		n := r.IntN(len(recs) + 1)
		b := Encode(recs[:n], uint64(n))
		for i, rec := range recs {
			known := slices.Contains(schemas, rec.Schema)
			if !known {
				schemas = append(schemas, rec.Schema)
			}
			if i < n {
				continue
			}
			before := bytes.Clone(b.Buf)
			switch b.SetHasChain(i%2 == 0); {
			case b.HasChain() != (i%2 == 0):
				t.Fatal("it forgets whether there is a chain")
			case known != b.Append(&rec, 1):
				t.Fatalf("a record of a schema that is known, %t, is appended, %t", known, !known)
			case !known && !bytes.Equal(before[2:], b.Buf[2:]):
				t.Fatal("what is not appended changes it")
			case !known:
				b = Encode(recs[:i+1], uint64(i+1))
			}
		}
		b.SetHasChain(false)
		if !bytes.Equal(b.Buf, Encode(recs, uint64(len(recs))).Buf) {
			t.Fatal("appended and encoded are not the same")
		}
		opened, err := Open(bytes.Clone(b.Buf))
		if err != nil {
			t.Fatal(err)
		}
		size := blobHeader + 8*len(schemas)
		for i, rec := range recs {
			for _, b := range []*Blob{b, opened} {
				index, off, ok := b.Find(rec.ID)
				got, err := b.At(off)
				if !ok || index != i || off != size || err != nil || !same(got, rec) {
					t.Fatalf("record %d at %d is found as %d at %d, %t: %+v, %v; want %+v", i, size, index, off, ok, got, err, rec)
				}
			}
			size += RecordSize(&rec, slices.Index(schemas, rec.Schema))
		}
		for _, b := range []*Blob{b, opened} {
			all, err := b.DecodeAll([]millrace.Record{{ID: "before"}})
			if err != nil || all[0].ID != "before" || !slices.EqualFunc(all[1:], recs, same) {
				t.Fatalf("%+v: %v; want %+v", all, err, recs)
			}
			if len(b.Buf) != size || b.Count() != len(recs) || b.Digest() != uint64(len(recs)) || b.HasChain() {
				t.Fatalf("%d bytes, want %d; %d records, want %d; digest %d", len(b.Buf), size, b.Count(), len(recs), b.Digest())
			}
			oldest, newest := recs[0], recs[len(recs)-1]
			if at, id := b.Oldest(); at != oldest.Time || id != oldest.ID {
				t.Errorf("oldest %d %s, want %d %s", at, id, oldest.Time, oldest.ID)
			}
			if at, id := b.Newest(); at != newest.Time || id != newest.ID {
				t.Errorf("newest %d %s, want %d %s", at, id, newest.Time, newest.ID)
			}
			if at, err := b.FirstTime(); err != nil || at != oldest.Time {
				t.Errorf("first time %d, %v; want %d", at, err, oldest.Time)
			}
			if _, _, ok := b.Find("none"); ok {
				t.Error("a record that is not there is found")
			}
			if got, want := LinkOf(7, b), (Link{7, uint32(len(recs)), oldest.Time, newest.Time, uint64(len(recs))}); got != want {
				t.Errorf("link %+v, want %+v", got, want)
			}
		}
	}
	var many []millrace.Record // whose last schemas have a number of two bytes
	for i := range 200 {
		many = append(many, millrace.Record{ID: "x", Time: millrace.Time(i), Schema: millrace.Fingerprint(i)})
	}
	b := Encode(many[:199], 0)
	last := many[199]
	last.Schema = 198
	if !b.Append(&last, 0) {
		t.Fatal("the last schema is not found")
	}
	all, err := b.DecodeAll(nil)
	if err != nil || len(all) != 200 || all[198].Schema != 198 || all[199].Schema != 198 || len(b.Buf)-len(Encode(many[:199], 0).Buf) != RecordSize(&last, 198) {
		t.Errorf("%d records, %v", len(all), err)
	}
	if at, err := Encode(nil, 0).FirstTime(); err != nil || at != MaxTime {
		t.Errorf("an empty blob begins at %d, %v", at, err)
	}
}

// A window picks of blobs what a loop over all of their records picks.
func TestAWindowPicksAsItSays(t *testing.T) {
	r := random(t)
	older := func(f *Floor, rec *millrace.Record) bool {
		return f != nil && (rec.Time < f.Time || rec.Time == f.Time && rec.ID > f.ID)
	}
	for range 500 {
		recs := randomRecords(r, r.IntN(12))
		w := Window{From: millrace.Time(r.IntN(8) - 4), To: millrace.Time(r.IntN(12) - 2)}
		if r.IntN(2) == 0 {
			w.Most = 1 + r.IntN(10)
		}
		if len(recs) > 0 && r.IntN(2) == 0 {
			at := recs[r.IntN(len(recs))]
			w.Floor = &Floor{at.Time, at.ID}
		}
		granted := 0
		w.Grant = func(n int) error { granted += n; return nil }
		first := millrace.Record{ID: "before"}
		got, want, size, seen := []millrace.Record{first}, []millrace.Record{first}, 0, 0
		for n := len(recs); n > 0; {
			m := r.IntN(n)
			b := Encode(recs[m:n], 0)
			size += len(b.Buf)
			for _, rec := range slices.Backward(recs[m:n]) {
				if !rec.Deleted && w.From <= rec.Time && rec.Time < w.To && !older(w.Floor, &rec) && (w.Most == 0 || seen < w.Most) {
					want = append(want, rec)
				}
				seen++
			}
			var err error
			if got, err = w.Append(got, b); err != nil || !slices.EqualFunc(got, want, same) {
				t.Fatalf("%+v of %+v: %+v, %v; want %+v", w, recs, got, err, want)
			}
			if w.Skipped != seen || w.Done() != (w.Most > 0 && seen >= w.Most) || granted != size {
				t.Fatalf("%+v: %d records of %d bytes were read, granted were %d; done %t", w, seen, size, granted, w.Done())
			}
			for _, left := range got[len(got):cap(got)] {
				if left.ID != "" {
					t.Fatal("memory behind what it picked refers to blobs")
				}
			}
			n = m
		}
		for i, rec := range recs {
			f := Floor{rec.Time, rec.ID}
			if f.Under(rec.Time, rec.ID) || i > 0 && !f.Under(recs[i-1].Time, recs[i-1].ID) || i+1 < len(recs) && f.Under(recs[i+1].Time, recs[i+1].ID) {
				t.Fatalf("%+v is a floor for the wrong ones of %+v", f, recs)
			}
		}
	}
	refused := errors.New("refused")
	w := Window{To: MaxTime, Grant: func(int) error { return refused }}
	if got, err := w.Append(nil, Encode(randomRecords(r, 3), 0)); err != refused || len(got) != 0 || w.Skipped != 0 {
		t.Errorf("%d records are picked of what is not granted: %v", len(got), err)
	}
}

// bytesOf makes a blob of one schema and any records, each behind its length.
func bytesOf(count int, recs ...string) []byte {
	b := Encode([]millrace.Record{{}}, 0).Buf[:blobHeader+8]
	for _, rec := range recs {
		b = AppendString(b, rec)
	}
	binary.LittleEndian.PutUint32(b[2:], uint32(count))
	return b
}

// What is wrong with a blob is said by whatever reads that part of it.
func TestABadBlobIsRefused(t *testing.T) {
	const (
		id   = "\x01a" // behind its length
		time = "\x02"  // 1
		rest = id + time
	)
	edit := func(at int, to byte) []byte {
		b := bytesOf(1, "\x00"+rest)
		b[at] = to
		return b
	}
	endless := strings.Repeat("\xff", 11)
	long := append(bytesOf(1, "\x00"+rest), "\x05\x00"+rest...) // and the second is two bytes short
	for what, c := range map[string]struct {
		says               string
		b                  []byte
		view, first, opens bool // what takes it all the same
	}{
		"no header":               {says: "15 bytes", b: bytesOf(0)[:blobHeader-1]},
		"older format":            {says: "format 0", b: edit(0, 0)},
		"newer format":            {says: "format 2", b: edit(0, 2)},
		"flags of the blob":       {says: "header", b: edit(1, 2)},
		"schemas cut short":       {says: "header", b: append(edit(14, 3), make([]byte, 10)...)},
		"length cut short":        {says: "record at 24 is cut short", b: append(bytesOf(1), 0x80), view: true},
		"length endless":          {says: "record at 24 is cut short", b: append(bytesOf(1), endless...), view: true},
		"record cut short":        {says: "record at 24 is cut short", b: bytesOf(1, "\x00"+rest)[:blobHeader+8+4], view: true},
		"second record cut short": {says: "record at 29 is cut short", b: long, view: true, first: true},
		"empty record":            {says: "empty record", b: bytesOf(1, ""), view: true},
		"no id":                   {says: "id is cut short", b: bytesOf(1, "\x00"), view: true},
		"id cut short":            {says: "id is cut short", b: bytesOf(1, "\x00\x02a"), view: true},
		"id endless":              {says: "id is cut short", b: bytesOf(1, "\x00"+endless), view: true},
		"no time":                 {says: "time is cut short", b: bytesOf(1, "\x00"+id), view: true},
		"time cut short":          {says: "time is cut short", b: bytesOf(1, "\x00"+id+"\x80"), view: true},
		"flags":                   {says: "flags 0x10", b: bytesOf(1, "\x10"+rest), view: true, first: true, opens: true},
		"no version":              {says: "version is cut short", b: bytesOf(1, "\x02"+rest), view: true, first: true, opens: true},
		"no schema":               {says: "schema is cut short", b: bytesOf(1, "\x04"+rest), view: true, first: true, opens: true},
		"another schema":          {says: "schema 1 of 1", b: bytesOf(1, "\x04"+rest+"\x01"), view: true, first: true, opens: true},
		"no object":               {says: "object is cut short", b: bytesOf(1, "\x08"+rest), view: true, first: true, opens: true},
		"object cut short":        {says: "object is cut short", b: bytesOf(1, "\x08"+rest+"\x02o"), view: true, first: true, opens: true},
		"object endless":          {says: "object is cut short", b: bytesOf(1, "\x08"+rest+endless), view: true, first: true, opens: true},
		"its own object":          {says: "object is its own", b: bytesOf(1, "\x08"+rest+"\x01a"), view: true, first: true, opens: true},
		"empty object":            {says: "object is its own", b: bytesOf(1, "\x08"+rest+"\x00"), view: true, first: true, opens: true},
		"twice":                   {says: "out of order", b: bytesOf(2, "\x00"+rest, "\x00"+rest), view: true, first: true},
		"out of order by time":    {says: "out of order", b: bytesOf(2, "\x00"+rest, "\x00"+id+"\x00"), view: true, first: true},
		"out of order by id":      {says: "out of order", b: bytesOf(2, "\x00"+rest, "\x00\x01b"+time), view: true, first: true},
		"more than it says":       {says: "records", b: bytesOf(1, "\x00\x01b"+time, "\x00"+rest), view: true, first: true},
		"fewer than it says":      {says: "1 records, header says 2", b: bytesOf(2, "\x00"+rest), view: true, first: true},
	} {
		refused := func(by string, yes bool, err error) {
			t.Helper()
			if (err != nil) != yes || yes && (!errors.Is(err, Err) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%s, by %s: %v", what, by, err)
			}
		}
		v, err := View(c.b)
		refused("View", !c.view, err)
		b, err := Open(c.b)
		refused("Open", !c.opens, err)
		if v == nil {
			continue
		}
		if b == nil && !c.first {
			for by, read := range map[string]func(){"Oldest": func() { v.Oldest() }, "Newest": func() { v.last = v.records(); v.Newest() }, "Find": func() { v.Find("z") }} {
				if err, _ := panicOf(read).(error); by != "Find" || strings.HasPrefix(c.says, "record at") {
					refused(by, true, err)
				}
			}
		}
		_, err = v.FirstTime()
		refused("FirstTime", !c.first, err)
		if strings.Contains(c.says, "order") || what == "fewer than it says" {
			continue // which only Open finds
		}
		w := Window{From: -9, To: 9}
		got, err := w.Append([]millrace.Record{{ID: "before"}}, v)
		refused("a window", true, err)
		if len(got) != 1 || got[0].ID != "before" || w.Skipped != 0 {
			t.Errorf("%s: a window picks %+v", what, got)
		}
		if what == "more than it says" {
			continue
		}
		_, err = v.DecodeAll(nil)
		refused("DecodeAll", true, err)
		if !strings.HasPrefix(what, "second") {
			_, err = v.At(v.records())
			refused("At", true, err)
		}
	}
	for _, good := range [][]byte{bytesOf(0), bytesOf(1, "\x00"+rest), bytesOf(2, "\x00\x01b"+time, "\x00"+rest), bytesOf(1, "\x0e"+rest+"\x00\x00\x01o"), bytesOf(1, "\x00\x00\x00")} {
		b, err := Open(good)
		if err != nil {
			t.Errorf("%x: %v", good, err)
		} else if _, err = b.DecodeAll(nil); err != nil {
			t.Errorf("%x: %v", good, err)
		}
	}
	huge := bytesOf(1<<31, "\x00"+rest)
	if got, err := (&Window{From: -9, To: 9}).Append(nil, &Blob{Buf: huge}); !errors.Is(err, Err) || cap(got) > 0 {
		t.Errorf("room is made for %d records, which cannot be there: %v", cap(got), err)
	}
}

// panicOf returns what a function panics with; nil if it does not.
func panicOf(f func()) (with any) {
	defer func() { with = recover() }()
	f()
	return nil
}

// What is on disk has been written by earlier versions, and is read by others: the bytes are
// what they were.
func TestBytesAreWhatTheyWere(t *testing.T) {
	b := Encode(fuzzRecords()[:2], 0x1122334455667788)
	b.SetHasChain(true)
	var few, many Filter
	for i := range 65 {
		if i < 2 {
			few.Add(millrace.RecordID(strconv.Itoa(i)))
		}
		many.Add(millrace.RecordID(strconv.Itoa(i)))
	}
	segments := sha256.Sum256(many.Encode())
	chain := Chain{Next: 0x04030201, Stale: 9, Links: []Link{{1, 2, -1, 5, 77}, {0x04030200, 1, 5, 9, 78}}, Floor: &Floor{4, "id"}}
	for what, c := range map[string]struct {
		got  []byte
		want string
	}{
		"blob":         {b.Buf, "01010200000088776655443322110200010000000000000002000000000000000b0a01610901016f626f6479050501620a01"},
		"chain":        {chain.Encode([]byte{0xff}), "ff01010102030402000000090000000100000002000000ffffffffffffffff05000000000000004d000000000000000002030401000000050000000000000009000000000000004e0000000000000004000000000000006964"},
		"empty chain":  {(&Chain{}).Encode(nil), "0100000000000000000000000000"},
		"filter":       {few.Encode(), "01020000000000010000000000000800000010000000000002000000020000000000002000000000008000000000001000000000400000000000000000040000000000000080000000000001000000000000000000"},
		"string":       {AppendString([]byte{7}, strings.Repeat("x", 130))[:4], "07820178"},
		"its segments": {segments[:8], "b3fa521487b3f42c"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s is %s, was %s", what, got, c.want)
		}
	}
}

// Records are split by halves into blobs that are no larger than they may be, but for those of
// one record.
func TestSplit(t *testing.T) {
	r := random(t)
	sizeOf := func(recs []millrace.Record) int {
		n := blobHeader + 8
		for i := range recs {
			n += RecordSize(&recs[i], 0)
		}
		return n
	}
	for range 300 {
		recs := randomRecords(r, 1+r.IntN(20))
		most := 1 + r.IntN(sizeOf(recs)+2)
		parts := Split(recs, most)
		if !slices.EqualFunc(slices.Concat(parts...), recs, same) {
			t.Fatal("the parts are not the whole")
		}
		for _, part := range parts {
			if len(part) == 0 || len(part) > 1 && sizeOf(part) > most {
				t.Fatalf("a part of %d records has %d bytes of %d", len(part), sizeOf(part), most)
			}
		}
		if len(recs) < 2 || len(Split(recs, sizeOf(recs))) != 1 {
			if len(parts) != 1 {
				t.Fatalf("what fits is split into %d", len(parts))
			}
			continue
		}
		half := Split(recs, sizeOf(recs)-1)[0] // or the first quarter of it, and so on
		all := sizeOf(recs)
		n := 1
		for n < len(recs)-1 && sizeOf(recs[:n]) < all/2 {
			n++
		}
		if len(half) > n || sizeOf(recs[:n]) < all && len(half) != n {
			t.Fatalf("the first half is %d records of %d, want %d", len(half), len(recs), n)
		}
	}
}

// The first half has no more records than make half of the bytes.
func TestHalves(t *testing.T) {
	for size, want := range map[int]int{12: 1, 13: 2} { // of four records: the header of 24 bytes counts for both
		recs := make([]millrace.Record, 4)
		for i := range recs {
			recs[i].Body = make([]byte, size-4)
		}
		if got := len(Split(recs, 23+4*size)[0]); got != want {
			t.Errorf("the first half of four records of %d bytes is %d", size, got)
		}
	}
}

// A chain is refused that contradicts itself; so is a part of one.
func TestABadChainIsRefused(t *testing.T) {
	good := Chain{Next: 3, Stale: 9, Links: []Link{{0, 2, 1, 5, 77}, {2, 1, 5, 5, 78}}, Floor: &Floor{4, "id"}}
	with := func(change func(*Chain)) []byte {
		c := good
		c.Links = slices.Clone(c.Links)
		change(&c)
		return c.Encode(nil)
	}
	edit := func(at int, to byte) []byte {
		b := good.Encode(nil)
		b[at] = to
		return b
	}
	bad := map[string][]byte{
		"older format":      edit(0, 0),
		"newer format":      edit(0, 2),
		"flags":             edit(1, 2),
		"no floor":          edit(1, 0),
		"more links":        edit(6, 4),
		"fewer links":       with(func(c *Chain) { c.Floor = nil; c.Links = append(c.Links, Link{1, 1, 9, 9, 0}) })[:chainHeader+2*LinkBytes],
		"suffix to come":    with(func(c *Chain) { c.Links[1].Suffix = 3 }),
		"newer before":      with(func(c *Chain) { c.Links[0].Newest = 6 }),
		"ends before":       with(func(c *Chain) { c.Links[1].Newest = 4 }),
		"nothing in a blob": with(func(c *Chain) { c.Links[0].Count = 0 }),
	}
	for n := range good.Encode(nil) {
		if n < chainHeader+2*LinkBytes+8 {
			bad["cut to "+strconv.Itoa(n)] = good.Encode(nil)[:n]
		}
	}
	for what, b := range bad {
		if c, err := DecodeChain(b); !errors.Is(err, ErrChain) || c != nil {
			t.Errorf("%s: %+v, %v", what, c, err)
		}
	}
	for _, want := range []Chain{good, {}, {Next: 1, Links: []Link{{0, 1, -9, -9, 0}}}, {Floor: &Floor{-1, ""}}} {
		got, err := DecodeChain(want.Encode(nil))
		if err != nil || got.Next != want.Next || got.Stale != want.Stale || !slices.Equal(got.Links, want.Links) ||
			(got.Floor == nil) != (want.Floor == nil) || got.Floor != nil && *got.Floor != *want.Floor {
			t.Errorf("%+v became %+v, %v", want, got, err)
		}
	}
	var none *Floor
	if none.Under(-5, "") {
		t.Error("a record is under no floor")
	}
}

// A filter has room for as many ids as it says, and no more; full, it takes few others for
// them.
func TestSegmentsOfAFilter(t *testing.T) {
	var f Filter
	if f.MayHave("a") {
		t.Error("an empty filter has an id")
	}
	for n, bytes := range map[uint32]int{0: 0, 1: 80, 64: 80, 65: 240, 192: 240, 193: 560} {
		if got := filterLen(segments(n)); got != bytes {
			t.Errorf("%d ids take %d bytes, want %d", n, got, bytes)
		}
		row := append(binary.LittleEndian.AppendUint32([]byte{filterFormat}, n), make([]byte, bytes)...)
		if _, err := DecodeFilter(row); err != nil {
			t.Errorf("%d ids in %d bytes: %v", n, bytes, err)
		}
		row[0]++
		for what, bad := range map[string][]byte{"format": row, "longer": append([]byte{filterFormat}, append(row[1:], 0)...), "shorter": append([]byte{filterFormat}, row[1:len(row)-1]...), "header": row[:4]} {
			if _, err := DecodeFilter(bad); !errors.Is(err, ErrFilter) {
				t.Errorf("%d ids in %d bytes, %s: %v", n, bytes, what, err)
			}
		}
	}
	for i := range 64 * 3 {
		f.Add(millrace.RecordID(strconv.Itoa(i)))
	}
	wrong := 0
	for i := range 10_000 {
		if f.MayHave(millrace.RecordID("other" + strconv.Itoa(i))) {
			wrong++
		}
	}
	if wrong < 20 || wrong > 400 {
		t.Errorf("of 10,000 others it takes %d for its own; about 200 are to be expected of two full segments", wrong)
	}
}

// A number and a string are read as package binary writes them, and nothing that is cut short or
// longer than need be.
func TestStrings(t *testing.T) {
	for _, n := range []uint64{0, 1, 127, 128, 16_383, 16_384, 1 << 32, math.MaxUint64} {
		b := binary.AppendUvarint(nil, n)
		for _, b := range [][]byte{b, append(b, 0xff), b[:len(b)-1], append(b, 0xff, 0xff)} {
			x, w := uvarint(b)
			if y, v := binary.Uvarint(b); x != y || w != v {
				t.Errorf("%x is %d in %d bytes, want %d in %d", b, x, w, y, v)
			}
		}
		if got, want := uvarintLen(n), len(b); got != want {
			t.Errorf("%d takes %d bytes, want %d", n, got, want)
		}
		if got, want := varintLen(int64(n)), len(binary.AppendVarint(nil, int64(n))); got != want {
			t.Errorf("%d takes %d bytes, want %d", int64(n), got, want)
		}
	}
	for _, n := range []int{0, 1, 127, 128, 300} {
		want := strings.Repeat("s", n)
		b := AppendString(nil, want)
		if s, rest, err := CutString(append(b, "rest"...)); err != nil || s != want || string(rest) != "rest" {
			t.Errorf("%d bytes became %q, %q, %v", n, s, rest, err)
		}
		if _, _, err := CutString(b[:len(b)-1]); err != ErrKey {
			t.Errorf("%d bytes, the last missing: %v", n, err)
		}
	}
	for _, bad := range []string{"\x80\x00", "\x81\x00a", "\x80", strings.Repeat("\xff", 11)} {
		if s, _, err := CutString([]byte(bad)); err != ErrKey {
			t.Errorf("%x is %q, %v", bad, s, err)
		}
	}
}
