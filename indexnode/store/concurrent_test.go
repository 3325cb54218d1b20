package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
)

// TestConcurrent has a writer a partition, readers, flushes, sweeps, checks and
// checkpoints at once. A record's id is its number and a later batch moves some, so
// a reader knows what a timeline must look like at any time.
func TestConcurrent(t *testing.T) {
	batches := 60
	if testing.Short() {
		batches = 30
	}
	s := openMem(t, Options{MaxBlobBytes: 1000, MaxDirtyBytes: 64 << 10, CacheBytes: 1 << 20, Retention: map[millrace.ContentType]Retention{"other": {MaxCount: 3}}})
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	done := make(chan struct{})
	var writers, others sync.WaitGroup
	for p := range millrace.Partition(3) {
		some := make(chan int, 1) // what the upkeep waits for
		writers.Go(func() {
			defer close(some)
			for i := range batches {
				var b Batch
				for k := range 10 {
					b.Put(p, name, millrace.Record{ID: millrace.RecordID(fmt.Sprintf("%06d", i*10+k)), Time: millrace.Time(i*10 + k), Body: make([]byte, 40)})
				}
				// The batch before moves up by half, all of it or none.
				for k := range 10 {
					if i > 0 {
						n := (i-1)*10 + k
						b.Put(p, name, millrace.Record{ID: millrace.RecordID(fmt.Sprintf("%06d", n)), Version: 1, Time: millrace.Time(n + 5), Body: make([]byte, 40)})
					}
				}
				b.SetApplied(p, Content, millrace.Offset(i+1))
				if _, err := s.Apply(&b, nil); err != nil {
					t.Error(err)
					return
				}
				select {
				case some <- i:
				default:
				}
			}
		})
		loop := func(do func(i int) error) {
			others.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-done:
						return
					default:
					}
					if err := do(i); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		last := 0
		loop(func(int) error {
			recs, err := s.Read(nil, p, name, 0, millrace.MaxTime)
			if err != nil {
				return err
			}
			if len(recs)%10 != 0 || len(recs) < last {
				return fmt.Errorf("%d records, after %d", len(recs), last)
			}
			last = len(recs)
			for i := range recs {
				old := int64(1)
				if i == 0 || recs[i].Version == 0 {
					old = recs[i].Version
				}
				if recs[i].Version != old || i > 0 && !blob.Newer(recs[i-1].Time, recs[i-1].ID, recs[i].Time, recs[i].ID) {
					return fmt.Errorf("record %d of %d: %+v", i, len(recs), recs[i])
				}
			}
			return nil
		})
		loop(func(int) error {
			n, err := readNewest(s, p, name, 25)
			if err == nil && n.From != millrace.MinTime && len(n.Records) < 25 {
				err = fmt.Errorf("%d records from %d", len(n.Records), n.From)
			}
			return err
		})
		others.Go(func() {
			for i := range some {
				if err := upkeep(t.Context(), s, p, i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	others.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func upkeep(ctx context.Context, s *Store, p millrace.Partition, i int) (err error) {
	switch i % 3 {
	case 0:
		_, err = s.Check(ctx, p)
	case 1:
		err = s.Sweep(ctx, p, nil)
	case 2:
		err = restoreElsewhere(ctx, s, p, fmt.Sprintf("%d-%d", p, i))
	}
	return err
}

// restoreElsewhere takes a checkpoint of all partitions and restores one of
// them to another store: it is there up to the offset that the checkpoint says.
func restoreElsewhere(ctx context.Context, s *Store, p millrace.Partition, name string) error {
	all, err := s.Checkpoint([]millrace.Partition{0, 1, 2}, "checkpoint-"+name)
	if err != nil {
		return err
	}
	to, err := Open("to-"+name, Options{FS: s.opts.FS, FlushEvery: -1})
	if err != nil {
		return err
	}
	err = to.Restore(context.Background(), "checkpoint-"+name, all[p])
	if err == nil {
		_, err = to.Check(ctx, p)
	}
	if err == nil {
		var recs []millrace.Record
		recs, err = to.Read(nil, p, millrace.Timeline{Entity: "member:1", Type: "post"}, 0, millrace.MaxTime)
		if at := max(0, int(to.Applied(p).Content)); len(recs) != 10*at {
			err = errors.Join(err, fmt.Errorf("%d records at %d", len(recs), at))
		}
	}
	return errors.Join(err, to.Close())
}
