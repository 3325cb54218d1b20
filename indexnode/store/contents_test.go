package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace"
)

// Stores that took the same operations in other batches, into blobs of other
// sizes, one of them flushed and swept, hold the same rows in the same order,
// whatever retention has dropped from disk; and without retention the rows add
// up to the digest.
func TestContentsDoNotDependOnBlobs(t *testing.T) {
	for _, retention := range []map[millrace.ContentType]Retention{
		nil, {"post": {MaxAge: 150 * time.Millisecond}, "like": {MaxCount: 20}},
	} {
		t.Run(fmt.Sprint(len(retention)), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			var all [2][]Row
			for i, blob := range []int{200, 1000} {
				s := openMem(t, Options{MaxBlobBytes: blob, Retention: retention})
				apart := rand.New(rand.NewPCG(seed, uint64(i)))
				fillBoth(t, s, rand.New(rand.NewPCG(seed, 9)), apart, i == 1)
				c, err := s.Contents(3)
				if err != nil {
					t.Fatal(err)
				}
				for r, err := range c.Rows() {
					if err != nil {
						t.Fatal(err)
					}
					all[i] = append(all[i], r)
				}
				if c.Digest() != s.Digest(3) || c.Applied() != s.Applied(3) {
					t.Errorf("the contents are at %+v with %x, the store at %+v with %x", c.Applied(), c.Digest(), s.Applied(3), s.Digest(3))
				}
				if got := sumOf(all[i]); retention == nil && got != s.Digest(3) {
					t.Errorf("the rows add up to %x, the digest is %x", got, s.Digest(3))
				}
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			same := func(a, b Row) bool { return string(a.Key) == string(b.Key) && a.ID == b.ID && a.Sum == b.Sum }
			if len(all[0]) == 0 || !slices.EqualFunc(all[0], all[1], same) {
				t.Errorf("%d rows and %d", len(all[0]), len(all[1]))
			}
		})
	}
}

// fillBoth applies the same operations in batches of any size.
func fillBoth(t *testing.T, s *Store, same, apart *rand.Rand, sweeps bool) {
	t.Helper()
	var b Batch
	for i := range 600 {
		at := millrace.Time(i)
		b.SetClock(3, at)
		name := millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("e", same.IntN(5))), Type: []millrace.ContentType{"post", "like"}[same.IntN(2)]}
		b.Put(3, name, millrace.Record{
			ID: millrace.RecordID(fmt.Sprint(same.IntN(200))), Time: at - millrace.Time(same.IntN(300)), Version: int64(same.IntN(5)), Deleted: same.IntN(9) == 0, Body: make([]byte, same.IntN(40)),
		})
		b.PutFeatures(3, name.Entity, Features{Subject: fmt.Sprint("s", same.IntN(9)), Version: int64(i), Body: []byte{byte(i)}})
		if apart.IntN(20) > 0 && i < 599 {
			continue
		}
		b.SetApplied(3, Content, millrace.Offset(i+1))
		b.SetApplied(3, FeatureStream, millrace.Offset(i+1))
		apply(t, s, &b)
		b.Reset()
		if sweeps && apart.IntN(4) == 0 {
			if err := s.Sweep(ctx, 3, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func sumOf(rows []Row) (d Digest) {
	for i := range rows {
		if rows[i].Features() {
			d.Features += rows[i].Sum
		} else {
			d.Content += rows[i].Sum
		}
	}
	return d
}

// A range ends where who ranges wants no more, be it anywhere.
func TestARangeEndsEarly(t *testing.T) {
	s := openMem(t, Options{MaxBlobBytes: 500})
	b := mendBatch(3, 0, 40)
	b.Put(3, millrace.Timeline{Entity: "member:2", Type: "post"}, millrace.Record{ID: "last", Time: 1, Schema: 7})
	apply(t, s, b)
	c, err := s.Contents(3)
	if err != nil {
		t.Fatal(err)
	}
	for end := range 82 {
		n := 0
		for r, err := range c.Rows() {
			if err != nil || r.Features() != (n < 40) {
				t.Fatalf("row %d: %+v, %v", n, r, err)
			}
			if n++; n >= end {
				break
			}
		}
		if n != max(1, end) {
			t.Errorf("%d rows of %d", n, end)
		}
	}
	if new(Row).Features() {
		t.Error("a row without a key is of features")
	}
	for range s.Timelines(3) {
		break
	}
	for range s.Routes(3) {
		break
	}
	if err := errors.Join(c.Close(), s.Close()); err != nil { // which tells of iterators that are left open
		t.Error(err)
	}
}
