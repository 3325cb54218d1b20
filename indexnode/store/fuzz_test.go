package store

import (
	"bytes"
	"maps"
	"testing"

	"github.com/millrace/millrace"
)

func fuzzRecords() []millrace.Record {
	return []millrace.Record{
		{ID: "a", Time: -5, Version: -1, Object: "o", Schema: 1, Body: []byte("body")},
		{ID: "b", Time: 5, Deleted: true, Schema: 2},
		{ID: "a2", Time: 5, Version: 1 << 60, Schema: 1, Body: bytes.Repeat([]byte{7}, 300)},
	}
}

// FuzzBlob decodes any bytes: they are refused, or are a blob that encodes to
// an equal one, whose records are found, and that can be appended to.
func FuzzBlob(f *testing.F) {
	f.Add(encodeBlob(nil, 0).buf)
	f.Add(encodeBlob(fuzzRecords(), 99).buf)
	f.Add(encodeBlob(fuzzRecords()[:1], 1).buf)
	f.Fuzz(func(t *testing.T, in []byte) {
		if v, err := viewBlob(bytes.Clone(in)); err == nil {
			w := window{from: 0, to: maxTime}
			w.append(nil, v)
			v.firstTime()
		}
		b, err := openBlob(bytes.Clone(in))
		if err != nil {
			return
		}
		recs, err := b.decodeAll(nil)
		if err != nil {
			return
		}
		if len(recs) != b.count() {
			t.Fatalf("%d records of %d", len(recs), b.count())
		}
		again := encodeBlob(recs, b.digest())
		if got, err := again.decodeAll(nil); err != nil || !equalRecords(got, recs) {
			t.Fatalf("encoded anew: %v, %v; want %v", got, err, recs)
		}
		if len(recs) == 0 {
			return
		}
		last := recs[len(recs)-1]
		if at, id := b.newest(); at != last.Time || id != last.ID {
			t.Fatalf("newest %d %q, want %d %q", at, id, last.Time, last.ID)
		}
		if i, _, ok := b.find(last.ID); !ok || recs[i].ID != last.ID {
			t.Fatalf("record %q is not found", last.ID)
		}
		if last.Time < maxTime {
			r := millrace.Record{ID: "new", Time: last.Time + 1, Schema: last.Schema, Object: "new"}
			if !again.append(&r, 1) {
				t.Fatal("append refuses a known schema")
			}
			got, err := openBlob(again.buf)
			if err != nil || got.count() != len(recs)+1 {
				t.Fatalf("after append: %v", err)
			}
		}
	})
}

// FuzzChain decodes any bytes: they are refused, or encode to themselves.
func FuzzChain(f *testing.F) {
	f.Add((&chain{}).encode(nil))
	f.Add((&chain{next: 3, stale: 9, links: []link{{0, 2, 1, 5, 77}, {2, 1, 5, 9, 78}}, floor: &floor{4, "id"}}).encode(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := decodeChain(in)
		if err != nil {
			return
		}
		if got := c.encode(nil); !bytes.Equal(got, in) {
			t.Fatalf("%x became %x", in, got)
		}
	})
}

// FuzzRows decodes any bytes as each of the small rows: they are refused, or
// encode to themselves, or, where numbers may be written longer than needed,
// to what decodes to the same.
func FuzzRows(f *testing.F) {
	f.Add((&partRow{applied: Offsets{4, -1}, digest: Digest{1, 2}, dropped: 3, clock: 4}).encode())
	f.Add((&Features{Version: 3, Time: 4, Schema: 5, Body: []byte("b")}).encode(nil))
	f.Add(idRow{at: 77}.encode())
	var seen filter
	for _, id := range []millrace.RecordID{"a", "b", "c"} {
		seen.add(id)
	}
	f.Add(seen.encode())
	f.Add((&tally{types: map[millrace.ContentType]*typeTally{"post": {Counts: Counts{1, 2, 3, 4, -5, 6, 7, 8}}, "": {}}}).encode(countsOf{7, 8}))
	f.Fuzz(func(t *testing.T, in []byte) {
		if r, err := decodePartRow(in); err == nil && !bytes.Equal(r.encode(), in) {
			t.Fatalf("partition row %x became %x", in, r.encode())
		}
		if c, err := decodeCounts(in, countsOf{7, 8}); err == nil {
			s := new(Store)
			again, err := decodeCounts(s.tallyOf(in, true, countsOf{7, 8}).encode(countsOf{7, 8}), countsOf{7, 8})
			if err != nil || !maps.Equal(c, again) {
				t.Fatalf("counts %v became %v: %v", c, again, err)
			}
		}
		if x, err := decodeFeatures("s", in); err == nil {
			if y, err := decodeFeatures("s", x.encode(nil)); err != nil || !equalFeatures([]Features{x}, []Features{y}) {
				t.Fatalf("features %v became %v, %v", x, y, err)
			}
		}
		if x, err := decodeIDRow(in); err == nil {
			if y, err := decodeIDRow(x.encode()); err != nil || x != y {
				t.Fatalf("id row %v became %v, %v", x, y, err)
			}
		}
		if x, err := decodeFilter(bytes.Clone(in)); err == nil {
			if !bytes.Equal(x.encode(), in) {
				t.Fatalf("filter %x became %x", in, x.encode())
			}
			x.add("new")
			if !x.mayHave("new") {
				t.Fatal("the filter forgot an id")
			}
		}
	})
}

// FuzzKey cuts any bytes as a key: they are refused, or build the same key.
func FuzzKey(f *testing.F) {
	prefix := timelinePrefix(7, millrace.Timeline{Entity: "member:1", Type: "post"})
	for _, k := range [][]byte{headKey(prefix), chainKey(prefix), olderKey(prefix, 9), filterKey(prefix), idKey(prefix, "id")} {
		f.Add(bytes.Clone(k))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		name, n, rest, err := cutTimeline(in)
		if err != nil {
			return
		}
		p := millrace.Partition(in[0])<<8 | millrace.Partition(in[1])
		if got := append(timelinePrefix(p, name), rest...); !bytes.Equal(got, in) || n+len(rest) != len(in) {
			t.Fatalf("%x became %x", in, got)
		}
	})
}

// TestFilterHasNoFalseNegatives adds ids past several segments.
func TestFilterHasNoFalseNegatives(t *testing.T) {
	var f filter
	id := func(i int) millrace.RecordID { return millrace.RecordID([]byte{byte(i), byte(i >> 8), byte(i >> 16)}) }
	const n = 20_000
	for i := range n {
		f.add(id(i))
	}
	g, err := decodeFilter(f.encode())
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for i := range 2 * n {
		switch has := g.mayHave(id(i)); {
		case i < n && !has:
			t.Fatalf("id %d is lost", i)
		case i >= n && has:
			wrong++
		}
	}
	if wrong > n/10 {
		t.Errorf("%d of %d strangers are taken for members", wrong, n)
	}
}
