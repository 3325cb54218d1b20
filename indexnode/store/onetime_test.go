package store

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/timeline"
	"github.com/millrace/millrace/internal/race"
)

// TestManyRecordsOfOneTime puts a million records of one time into one timeline, in
// an order that has nothing to do with their ids: they are read by id, as often as
// one asks, no blob is larger than it may be, and all that links say of blobs is true.
// With -short it is a tenth of that.
func TestManyRecordsOfOneTime(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine: nothing for the race detector")
	}
	n, batch := 1_000_000, 5_000
	if testing.Short() {
		n = 100_000
	}
	const at = 1_000
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	s := openMem(t, Options{})
	defer s.Close()
	id := func(i int) millrace.RecordID { return millrace.RecordID(fmt.Sprintf("r%07d", i)) }
	order := rand.New(rand.NewPCG(17, 18)).Perm(n)
	for begin := 0; begin < n; begin += batch {
		var b Batch
		for _, i := range order[begin:min(begin+batch, n)] {
			b.Put(0, name, millrace.Record{ID: id(i), Time: at, Schema: 7, Body: fmt.Appendf(nil, "body of %d", i)})
		}
		b.SetApplied(0, Content, millrace.Offset(begin+batch))
		if _, err := s.Apply(&b, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // from memory, and from disk
		got, err := s.Read(nil, 0, name, at, at+1)
		if err != nil || len(got) != n {
			t.Fatalf("%d records of %d, %v", len(got), n, err)
		}
		for i := range got {
			if got[i].ID != id(i) || string(got[i].Body) != fmt.Sprintf("body of %d", i) {
				t.Fatalf("the %d-th is %s: %q", i, got[i].ID, got[i].Body)
			}
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	tl, err := timeline.Open((*source)(s), 0, name, s.opts.MaxBlobBytes)
	if err == nil {
		err = tl.LoadChain()
	}
	if err != nil {
		t.Fatal(err)
	}
	records, largest := tl.Head.Count(), len(tl.Head.Buf)
	for _, l := range tl.Links() {
		b, err := tl.BlobAt(&l)
		if err != nil {
			t.Fatal(err)
		}
		if got := blob.LinkOf(l.Suffix, b); got != l {
			t.Fatalf("a link says %+v of %+v", l, got)
		}
		records, largest = records+b.Count(), max(largest, len(b.Buf))
	}
	if records != n || largest > s.opts.MaxBlobBytes {
		t.Errorf("%d records in blobs of up to %d bytes; %d of up to %d", records, largest, n, s.opts.MaxBlobBytes)
	}
}
