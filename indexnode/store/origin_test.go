package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
)

// The origin reaches the disk with the offsets, goes with a checkpoint, leaves
// with the partition, and does not touch the digest.
func TestOriginGoesWithTheOffsets(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openMem(t, Options{FS: fs})
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	put := func(n int, origin string) {
		var b Batch
		b.Put(3, name, millrace.Record{ID: millrace.RecordID(fmt.Sprint(n)), Time: millrace.Time(n)})
		b.SetApplied(3, Content, millrace.Offset(n))
		if origin != "" {
			b.SetOrigin(3, []byte(origin))
		}
		apply(t, s, &b)
	}
	want := func(s *Store, applied millrace.Offset, origin string) {
		t.Helper()
		got, err := s.Origin(3)
		if err != nil || string(got) != origin || s.Applied(3).Content != applied {
			t.Errorf("at %d with origin %q, %v; want %d, %q", s.Applied(3).Content, got, err, applied, origin)
		}
	}
	want(s, -1, "")
	put(1, "cluster-a")
	put(2, "")
	want(s, 2, "cluster-a")
	before := s.Digest(3)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	put(3, "cluster-b")
	want(s, 3, "cluster-b")
	// A crash loses both or none.
	crashed := openMem(t, Options{FS: fs.CrashClone(vfs.CrashCloneCfg{})})
	want(crashed, 2, "cluster-a")
	if crashed.Digest(3) != before {
		t.Error("the digest is another")
	}
	if _, err := crashed.Check(t.Context(), 3); err != nil {
		t.Error(err)
	}
	c := checkpoint(t, crashed, 3, "checkpoint")
	if err := crashed.DropPartition(3); err != nil {
		t.Fatal(err)
	}
	want(crashed, -1, "")
	if err := crashed.Restore(context.Background(), "checkpoint", c); err != nil {
		t.Fatal(err)
	}
	want(crashed, 2, "cluster-a")
	if err := errors.Join(crashed.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

// An origin without anything else is flushed too, and one that is too long is
// refused with the batch.
func TestOriginAlone(t *testing.T) {
	fs := vfs.NewMem()
	s := openMem(t, Options{FS: fs})
	var b Batch
	b.SetOrigin(3, bytes.Repeat([]byte("x"), MaxOriginBytes+1))
	b.SetApplied(3, Content, 9)
	if _, err := s.Apply(&b, nil); err == nil || s.Applied(3).Content != -1 {
		t.Errorf("too long: %v, at %v", err, s.Applied(3))
	}
	b.Reset()
	buf := bytes.Repeat([]byte("x"), MaxOriginBytes)
	b.SetOrigin(3, buf)
	apply(t, s, &b)
	buf[0] = 'y' // the caller's memory again
	for range 2 {
		if got, err := s.Origin(3); err != nil || len(got) != MaxOriginBytes || got[0] != 'x' {
			t.Errorf("%q, %v", got, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openMem(t, Options{FS: fs})
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Origin(3); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}
