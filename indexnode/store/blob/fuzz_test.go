package blob

import (
	"bytes"
	"reflect"
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
	f.Add(Encode(nil, 0).Buf)
	f.Add(Encode(fuzzRecords(), 99).Buf)
	f.Add(Encode(fuzzRecords()[:1], 1).Buf)
	f.Fuzz(func(t *testing.T, in []byte) {
		if v, err := View(bytes.Clone(in)); err == nil {
			w := Window{From: 0, To: MaxTime}
			w.Append(nil, v)
			v.FirstTime()
		}
		b, err := Open(bytes.Clone(in))
		if err != nil {
			return
		}
		recs, err := b.DecodeAll(nil)
		if err != nil {
			return
		}
		if len(recs) != b.Count() {
			t.Fatalf("%d records of %d", len(recs), b.Count())
		}
		again := Encode(recs, b.Digest())
		if got, err := again.DecodeAll(nil); err != nil || !reflect.DeepEqual(got, recs) {
			t.Fatalf("encoded anew: %v, %v; want %v", got, err, recs)
		}
		if len(recs) == 0 {
			return
		}
		last := recs[len(recs)-1]
		if at, id := b.Newest(); at != last.Time || id != last.ID {
			t.Fatalf("newest %d %q, want %d %q", at, id, last.Time, last.ID)
		}
		if i, _, ok := b.Find(last.ID); !ok || recs[i].ID != last.ID {
			t.Fatalf("record %q is not found", last.ID)
		}
		if last.Time < MaxTime {
			r := millrace.Record{ID: "new", Time: last.Time + 1, Schema: last.Schema, Object: "new"}
			if !again.Append(&r, 1) {
				t.Fatal("append refuses a known schema")
			}
			got, err := Open(again.Buf)
			if err != nil || got.Count() != len(recs)+1 {
				t.Fatalf("after append: %v", err)
			}
		}
	})
}

// FuzzChain decodes any bytes: they are refused, or encode to themselves.
func FuzzChain(f *testing.F) {
	f.Add((&Chain{}).Encode(nil))
	f.Add((&Chain{Next: 3, Stale: 9, Links: []Link{{0, 2, 1, 5, 77}, {2, 1, 5, 9, 78}}, Floor: &Floor{4, "id"}}).Encode(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := DecodeChain(in)
		if err != nil {
			return
		}
		if got := c.Encode(nil); !bytes.Equal(got, in) {
			t.Fatalf("%x became %x", in, got)
		}
	})
}

// FuzzFilter decodes any bytes: they are refused, or encode to themselves.
func FuzzFilter(f *testing.F) {
	var seen Filter
	for _, id := range []millrace.RecordID{"a", "b", "c"} {
		seen.Add(id)
	}
	f.Add(seen.Encode())
	f.Fuzz(func(t *testing.T, in []byte) {
		if x, err := DecodeFilter(bytes.Clone(in)); err == nil {
			if !bytes.Equal(x.Encode(), in) {
				t.Fatalf("filter %x became %x", in, x.Encode())
			}
			x.Add("new")
			if !x.MayHave("new") {
				t.Fatal("the filter forgot an id")
			}
		}
	})
}

// TestFilterHasNoFalseNegatives adds ids past several segments.
func TestFilterHasNoFalseNegatives(t *testing.T) {
	var f Filter
	id := func(i int) millrace.RecordID { return millrace.RecordID([]byte{byte(i), byte(i >> 8), byte(i >> 16)}) }
	const n = 20_000
	for i := range n {
		f.Add(id(i))
	}
	g, err := DecodeFilter(f.Encode())
	if err != nil {
		t.Fatal(err)
	}
	wrong := 0
	for i := range 2 * n {
		switch has := g.MayHave(id(i)); {
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
