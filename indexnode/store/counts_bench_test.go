package store

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/tally"
	"github.com/millrace/millrace/indexnode/store/timeline"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/partition"
)

// BenchmarkCounts says what part of the processor time of ingest goes into
// counting, of timelines that retention bounds: what is counted for each record,
// the blobs that are read because retention drops them, and the rows that each
// flush writes. Both are measured, of the same records, since the difference of
// two ingests is less than their noise.
func BenchmarkCounts(b *testing.B) {
	n := 200_000
	if testing.Short() {
		n = 50_000
	}
	names := benchNames()
	for b.Loop() {
		s, err := Open(b.TempDir(), Options{FlushEvery: -1, MaxDirtyBytes: 32 << 20, Retention: map[millrace.ContentType]Retention{"post": {MaxCount: 200}}})
		if err != nil {
			b.Fatal(err)
		}
		load := newBenchLoad()
		flushes, start := 0, cpu()
		for i := 0; i < n; i += benchPoll {
			var batch Batch
			for range benchPoll {
				p, t, r := load.next(names)
				batch.Put(p, t, r)
			}
			if _, err := s.Apply(&batch, nil); err != nil {
				b.Fatal(err)
			}
			if i%100_000 == 0 {
				flushes++
				if err := s.Flush(); err != nil {
					b.Fatal(err)
				}
			}
		}
		whole := cpu() - start
		dropped := int64(0)
		for p := range partition.All() {
			all, err := s.Counts(p)
			if err != nil {
				b.Fatal(err)
			}
			dropped += all.Types["post"].Expired
		}
		if dropped == 0 {
			b.Fatal("retention drops nothing")
		}
		if err := s.Flush(); err != nil {
			b.Fatal(err)
		}

		key, perBlob := tailBlob(b, s)
		load = newBenchLoad()
		tallies := make([]*tally.Tally, partition.Count)
		for i := range tallies {
			tallies[i] = s.flows.Begin(true)
		}
		start = cpu()
		for range n {
			p, t, r := load.next(names)
			c := tallies[p].Of(t.Type)
			c.Take(&r)
			c.Timeline(true, true)
		}
		counting := cpu() - start
		load = newBenchLoad()
		start = cpu()
		for range n {
			load.next(names)
		}
		counting -= cpu() - start // of making the records up
		start = cpu()
		c := tallies[0].Of("post")
		for range dropped / int64(perBlob) {
			v, err := s.get(key)
			if err != nil {
				b.Fatal(err)
			}
			blob, err := blob.Open(v)
			if err == nil {
				err = c.ExpireBlob(blob)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		for range flushes {
			for p, c := range tallies {
				rows := s.db.NewBatch()
				if err := rows.Set(countsKey(millrace.Partition(p)), c.Encode(tally.State{}), nil); err != nil {
					b.Fatal(err)
				}
				if err := rows.Commit(pebble.NoSync); err != nil {
					b.Fatal(err)
				}
			}
		}
		counting += cpu() - start
		b.ReportMetric(float64(whole.Nanoseconds())/float64(n), "ns/record")
		b.ReportMetric(float64(counting.Nanoseconds())/float64(n), "counting-ns/record")
		figure.Print("ingest_with_counts_vs_without", float64(whole)/float64(whole-counting), "x")
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// tailBlob returns the key of an older blob, and how many records are in it.
func tailBlob(b *testing.B, s *Store) (key []byte, records int) {
	for p := range partition.All() {
		for name, err := range s.Timelines(p) {
			if err != nil {
				b.Fatal(err)
			}
			t, err := timeline.Open((*source)(s), p, name, s.opts.MaxBlobBytes)
			if err == nil {
				err = t.LoadChain()
			}
			if err != nil {
				b.Fatal(err)
			}
			if links := t.Links(); len(links) > 0 {
				return timeline.OlderKey(t.Prefix, links[0].Suffix), int(links[0].Count)
			}
		}
	}
	b.Fatal("no timeline has a chain")
	return nil, 0
}
