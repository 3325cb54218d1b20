package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
)

// Each read of a sweep fails in turn. What the sweep has done until then is
// accounted for: the digests still follow from what is there.
func TestSweepOnAFailingDisk(t *testing.T) {
	failed := 0
	for at := int64(1); sweepFailingAt(t, at); at++ {
		failed++
	}
	if failed < 3 {
		t.Errorf("%d reads failed: the test shows nothing", failed)
	}
}

// sweepFailingAt reports whether a sweep has as many reads.
func sweepFailingAt(t *testing.T, at int64) bool {
	t.Helper()
	var reads atomic.Int64
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") && reads.Add(-1) == 0 {
			return fmt.Errorf("read %s: %w", op.Path, syscall.EIO)
		}
		return nil
	}))
	o := Options{FS: fs, MaxBlobBytes: 300, CacheBytes: 1, Retention: map[millrace.ContentType]Retention{"post": {MaxAge: time.Millisecond * 35}}}
	s := openMem(t, o)
	var b Batch
	for i := range 40 {
		b.SetClock(3, millrace.Time(i))
		for e := range 3 {
			name := millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("e", e)), Type: "post"}
			b.Put(3, name, millrace.Record{ID: millrace.RecordID(fmt.Sprint(i)), Time: millrace.Time(i), Body: make([]byte, 40)})
		}
	}
	b.SetApplied(3, Content, 40)
	apply(t, s, &b)
	b.Reset()
	b.SetClock(3, 60)
	b.SetApplied(3, Content, 41)
	apply(t, s, &b)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openMem(t, o)
	digest := s.Digest(3)
	reads.Store(at)
	err := s.Sweep(ctx, 3, nil)
	hit := reads.Swap(0) <= 0
	if err != nil && onlyFailed(err) != nil {
		t.Error(err)
	}
	if got := s.Digest(3); got != digest {
		t.Errorf("read %d failed: digest %x, it was %x", at, got, digest)
	}
	if _, err := s.Check(ctx, 3); err != nil {
		t.Errorf("read %d failed: %v", at, err)
	}
	if err := s.Sweep(ctx, 3, nil); err != nil {
		t.Errorf("a sweep after read %d failed: %v", at, err)
	}
	if r, err := s.Check(ctx, 3); err != nil || r.Records != 48 || r.StaleRows != 0 {
		t.Errorf("swept after read %d failed: %+v, %v", at, r, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return hit
}

// A sweep goes in steps, tells each, and ends where it is told to, or where the partition
// cannot be used any more.
func TestASweepGoesInSteps(t *testing.T) {
	s := openMem(t, Options{Retention: map[millrace.ContentType]Retention{"post": {MaxCount: 1}}})
	var b Batch
	for i := range 130 {
		for _, typ := range []millrace.ContentType{"post", "kept"} {
			b.Put(3, millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("e", i)), Type: typ}, millrace.Record{ID: "a", Time: 1})
		}
	}
	apply(t, s, &b)
	var steps []int
	if err := s.Sweep(ctx, 3, func(n int) { steps = append(steps, n) }); err != nil || !slices.Equal(steps, []int{64, 128, 130}) {
		t.Errorf("%v, %v", steps, err)
	}
	short, cancel := context.WithCancel(ctx)
	if err := s.Sweep(short, 3, func(int) { cancel() }); !errors.Is(err, context.Canceled) {
		t.Errorf("told to end: %v", err)
	}
	cause := errors.New("for a test")
	if err := errors.Join(s.Sweep(ctx, 3, nil), s.Flush(), s.Sweep(ctx, 3, nil)); err != nil {
		t.Error(err)
	}
	checkHot(t, s)
	if err := s.Sweep(ctx, 3, func(int) { _ = s.Quarantine(3, cause) }); !errors.Is(err, ErrCorrupt) || !errors.Is(err, cause) {
		t.Errorf("of a partition that is quarantined meanwhile: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
