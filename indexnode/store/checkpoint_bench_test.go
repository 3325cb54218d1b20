package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/partition"
)

// loadedStore has n records in the first partitions, half of them compacted and
// half as an ingest leaves them.
func loadedStore(b *testing.B, n, partitions int, maxDirtyBytes int64) *Store {
	s, err := Open(b.TempDir(), Options{FlushEvery: -1, MaxDirtyBytes: maxDirtyBytes})
	if err != nil {
		b.Fatal(err)
	}
	names, load := benchNames(), newBenchLoad()
	for half := range 2 {
		for load.n < n*(half+1)/2 {
			if err := applyLoad(s, load, names, partitions); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.Flush(); err != nil {
			b.Fatal(err)
		}
		if half == 0 {
			if err := s.db.Compact(b.Context(), []byte{0}, []byte{0xff}, true); err != nil {
				b.Fatal(err)
			}
		}
	}
	return s
}

// applyLoad applies one poll.
func applyLoad(s *Store, load *benchLoad, names []millrace.Timeline, partitions int) error {
	var batch Batch
	for range benchPoll {
		p, t, r := load.next(names)
		p %= millrace.Partition(partitions)
		batch.Put(p, t, r)
		batch.SetApplied(p, Content, millrace.Offset(load.n))
	}
	_, err := s.Apply(&batch, nil)
	return err
}

// BenchmarkRestore restores partitions, each of tens of MB, four at a time, into
// an empty store, and tells how that compares with copying the same files and
// syncing each copy, by turns.
func BenchmarkRestore(b *testing.B) {
	benchRestore(b, 1_500_000, 8, 4, "store_restore_rate_vs_copy")
}

// BenchmarkRestoreAll is BenchmarkRestore of all partitions, which are small.
func BenchmarkRestoreAll(b *testing.B) {
	benchRestore(b, 300_000, partition.Count, 16, "store_restore_all_rate_vs_copy")
}

func benchRestore(b *testing.B, n, partitions, atOnce int, name string) {
	if testing.Short() {
		n /= 30
	}
	s := loadedStore(b, n, partitions, 32<<20)
	dir := filepath.Join(b.TempDir(), "checkpoint")
	all, err := s.Checkpoint(firstPartitions(partitions), dir)
	if err := errors.Join(err, s.Close()); err != nil {
		b.Fatal(err)
	}
	var bytes, bottom int64
	for _, c := range all {
		for _, f := range c.Files {
			bytes += f.Size
			if f.Bottom {
				bottom += f.Size
			}
		}
	}
	var restore, copied []float64
	for b.Loop() {
		for range 3 {
			copied = append(copied, copyFiles(b, dir, all))
			restore = append(restore, restoreAll(b, dir, all, atOnce))
		}
	}
	b.ReportMetric(float64(bytes)/1e6, "MB")
	b.ReportMetric(100*float64(bottom)/float64(bytes), "%bottom")
	b.ReportMetric(float64(bytes)/1e6/median(copied), "copy-MB/s")
	b.ReportMetric(float64(bytes)/1e6/median(restore), "MB/s")
	figure.Print(name, medianRatio(copied, restore), "x")
}

func firstPartitions(n int) (set []millrace.Partition) {
	for p := range millrace.Partition(n) {
		set = append(set, p)
	}
	return set
}

// copyFiles copies the files of checkpoints as cp does, and syncs the copies.
func copyFiles(b *testing.B, dir string, all []Checkpoint) (seconds float64) {
	to := b.TempDir()
	start := time.Now()
	for _, c := range all {
		for _, f := range c.Files {
			if err := copyFile(filepath.Join(dir, f.Name), filepath.Join(to, f.Name)); err != nil {
				b.Fatal(err)
			}
		}
	}
	seconds = time.Since(start).Seconds()
	if err := os.RemoveAll(to); err != nil {
		b.Fatal(err)
	}
	return seconds
}

func copyFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Sync(), w.Close())
}

func restoreAll(b *testing.B, dir string, all []Checkpoint, atOnce int) (seconds float64) {
	to := b.TempDir()
	s, err := Open(to, Options{FlushEvery: -1})
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, c := range all {
		g.Go(func() error { return s.Restore(context.Background(), dir, c) })
	}
	err = g.Wait()
	seconds = time.Since(start).Seconds()
	if err := errors.Join(err, s.Close(), os.RemoveAll(to)); err != nil {
		b.Fatal(err)
	}
	return seconds
}

// BenchmarkCheckpoint takes checkpoints of all partitions of a store that
// ingests, and tells how long the longest Apply beside one waited, and beside a
// flush.
func BenchmarkCheckpoint(b *testing.B) {
	n := 500_000
	if testing.Short() {
		n = 50_000
	}
	s := loadedStore(b, n, partition.Count, 0)
	load := newBenchLoad()
	var took, pause, flush []float64
	var all []Checkpoint
	for i := 0; b.Loop(); i++ {
		longest, _ := longestApply(b, s, load, s.Flush)
		flush = append(flush, longest)
		longest, length := longestApply(b, s, load, func() (err error) {
			all, err = s.Checkpoint(firstPartitions(partition.Count), filepath.Join(b.TempDir(), fmt.Sprint(i)))
			return err
		})
		pause, took = append(pause, longest), append(took, length)
	}
	bytes := int64(0)
	for _, c := range all {
		for _, f := range c.Files {
			bytes += f.Size
		}
	}
	b.ReportMetric(float64(bytes)/1e6, "MB")
	b.ReportMetric(median(took), "s/checkpoint")
	figure.Print("store_checkpoint_longest_apply", median(pause)*1e3, "ms")
	figure.Print("store_flush_longest_apply", median(flush)*1e3, "ms")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// longestApply applies polls while something is done that has some to flush, and
// returns how long the longest took, and it, in seconds.
func longestApply(b *testing.B, s *Store, load *benchLoad, do func() error) (longest, length float64) {
	names := benchNames()
	for range 4 {
		if err := applyLoad(s, load, names, partition.Count); err != nil {
			b.Fatal(err)
		}
	}
	end := make(chan error, 1)
	begin := time.Now()
	go func() { end <- do() }()
	for {
		start := time.Now()
		if err := applyLoad(s, load, names, partition.Count); err != nil {
			b.Fatal(err)
		}
		longest = max(longest, time.Since(start).Seconds())
		select {
		case err := <-end:
			if err != nil {
				b.Fatal(err)
			}
			return longest, time.Since(begin).Seconds()
		default:
		}
	}
}
