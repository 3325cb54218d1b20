package store

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/figure"
)

// featureStores returns a store in which an entity has three features that are
// not flushed, alone or among those of many others.
func featureStore(t testing.TB, others int) *Store {
	s := openMem(t, Options{MaxDirtyBytes: 1 << 30})
	var b Batch
	for i := range 3 {
		b.PutFeatures(3, "member:1", Features{Subject: fmt.Sprint(i), Version: 1, Body: make([]byte, 50)})
	}
	for i := range others {
		b.PutFeatures(3, millrace.Entity(fmt.Sprint("other:", i)), Features{Subject: "s", Version: 1, Body: make([]byte, 50)})
	}
	apply(t, s, &b)
	return s
}

// readFeatures is the processor time of reads, in µs each.
func readFeatures(t testing.TB, s *Store, reads int) float64 {
	start := cpu()
	for range reads {
		if got, err := s.Features(3, "member:1"); err != nil || len(got) != 3 {
			t.Fatalf("%v, %v", got, err)
		}
	}
	return float64((cpu() - start).Nanoseconds()) / 1e3 / float64(reads)
}

// A read of an entity's features does not look at those of others that wait for
// a flush. Among 50,000 it took two hundred times as long as alone.
func TestFeaturesAmongManyUnflushed(t *testing.T) {
	alone, among := featureStore(t, 0), featureStore(t, 50_000)
	defer alone.Close()
	defer among.Close()
	var one, many []float64
	for range 5 {
		one = append(one, readFeatures(t, alone, 50))
		many = append(many, readFeatures(t, among, 50))
	}
	if r := medianRatio(many, one); r > 20 {
		t.Errorf("%.0f times as long as alone", r)
	}
}

// BenchmarkFeatures reads the three features of an entity among 100,000 that are
// not flushed, and, as the baseline, alone.
func BenchmarkFeatures(b *testing.B) {
	alone, among := featureStore(b, 0), featureStore(b, 100_000)
	defer alone.Close()
	defer among.Close()
	var one, many []float64
	for b.Loop() {
		for range 9 {
			one = append(one, readFeatures(b, alone, 500))
			many = append(many, readFeatures(b, among, 500))
		}
	}
	figure.Print("features_among_unflushed_vs_alone", medianRatio(many, one), "x")
	b.ReportMetric(median(many), "µs/read")
	b.ReportMetric(median(one), "baseline-µs/read")
}
