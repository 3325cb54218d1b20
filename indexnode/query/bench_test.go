package query

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/arena"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/schemas"
)

// Queries are of 1,000 timelines, 20 records each.
const (
	worldRows      = 20
	askedTimelines = 1000
)

// worldTimelines is how many timelines there are: several times what a
// processor's caches hold, which on servers is hundreds of megabytes.
func worldTimelines() int {
	if testing.Short() {
		return 5000
	}
	return 400_000
}

// memoryTimelines is how many are held both ways at once to compare memory.
const memoryTimelines = 20_000

// built is the world, once it is.
var built struct {
	keys []millrace.Timeline
	all  []*cache.Timeline
}

func world(b *testing.B) ([]millrace.Timeline, []*cache.Timeline) {
	if built.all == nil {
		built.keys, built.all = build(worldTimelines(), func(s *column.Slab) *cache.Timeline { return hold(b, s) })
	}
	return built.keys, built.all
}

func build(timelines int, hold func(*column.Slab) *cache.Timeline) ([]millrace.Timeline, []*cache.Timeline) {
	s := schemas.Activity()
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		panic(err)
	}
	bodies := make([][]byte, 20_011) // encoding all anew would take longer than the benchmarks
	for j := range bodies {
		if bodies[j], err = s.EncodeJSON(fmt.Appendf(nil, `{"id":"activity/%d","actor":"member:%d","verb":"post","created_at":%d,"object":"o%d","language":%q,"country":"India","visibility":"public","text":"About photos of a day at sea","likes":%d,"comments":%d,"shares":%d,"impressions":%d}`,
			j, j, asOf-int64(len(bodies)-j)*2500, j%97, [...]string{"en", "de", "zh", "en"}[j%4], (j*31)%12, j%4, j%3, j%900)); err != nil {
			panic(err)
		}
	}
	var keys []millrace.Timeline
	var all []*cache.Timeline
	for i := range timelines {
		a := column.New(s.Layout(), worldRows+worldRows/8+1, worldRows*128).Append()
		for j := range worldRows {
			if err := d.Append(a, bodies[i*7919%(len(bodies)-worldRows*80)+j*80]); err != nil {
				panic(err)
			}
		}
		keys, all = append(keys, millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"}), append(all, hold(a.Slab()))
	}
	return keys, all
}

// draw draws n questions' timelines, which it resolves.
func draw(r *rand.Rand, n int, keys []millrace.Timeline, all []*cache.Timeline) [][]asked {
	queries := make([][]asked, n)
	for i := range queries {
		for range askedTimelines {
			at := r.IntN(len(all))
			queries[i] = append(queries[i], asked{timeline: keys[at], held: all[at]})
		}
	}
	return queries
}

// run answers a drawn query.
func run(s Spec, timelines []asked) (last float64) {
	q := New(s)
	defer q.Release()
	for i := range timelines {
		q.Add(timelines[i].timeline, timelines[i].held, column.Packed{})
	}
	if err := q.Scan(context.Background()); err != nil {
		panic(err)
	}
	items := q.Answer().Items
	return items[len(items)-1].Score
}

// BenchmarkWarm gives the figures of a warm query, from resolved keys to
// ranked answer: against the touch floor, and against an LRU of pointers with
// hand-written code.
//
// The touch floor is what the hardware takes to read one word of each 64-byte
// row of as many timelines, 20 rows side by side, in memory of the kind that
// the cache has its timelines in. All is much larger than the processor's
// caches, and no timeline is asked for again before they have been flooded.
func BenchmarkWarm(b *testing.B) {
	keys, all := world(b)
	s := question(b)
	few := min(len(all), 100_000) // as pointers, a gigabyte
	baseline := newPointers(b, keys[:few], all[:few])
	memory := arena.New() // where ours are
	defer memory.Close()
	rows := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(memory.Alloc(len(all)*worldRows*64)))), len(all)*worldRows*8)
	for i := range rows {
		rows[i] = uint64(i)
	}
	r := rand.New(rand.NewPCG(11, 11))
	ours := func(queries [][]asked) {
		for _, q := range queries {
			run(s, q)
		}
	}
	var sum uint64
	var warm, full, pointer, touch []time.Duration
	for i := 0; i < 6*len(all); i += askedTimelines { // all is folded
		i := i % len(all)
		var q []asked
		for j := i; j < i+askedTimelines; j++ {
			q = append(q, asked{timeline: keys[j], held: all[j]})
		}
		run(s, q)
	}
	const queries = 60
	for range 7 {
		q := draw(r, queries, keys, all)
		warm = append(warm, timed(func() { ours(q) }))
		q = draw(r, queries, keys, all)
		folding = false
		full = append(full, timed(func() { ours(q) }))
		folding = true
		theirs := draw(r, queries, keys[:few], all[:few])
		pointer = append(pointer, timed(func() {
			for _, q := range theirs {
				baseline.ask(q, s)
			}
		}))
		places := make([]int, queries*askedTimelines)
		for i := range places {
			places[i] = r.IntN(len(all)) * worldRows * 8
		}
		touch = append(touch, timed(func() {
			for _, at := range places {
				for row := range worldRows {
					sum += rows[at+row*8]
				}
			}
		}))
	}
	runtime.KeepAlive(sum)
	q := draw(r, queries, keys, all)
	b.ReportAllocs()
	for b.Loop() {
		ours(q)
	}
	candidates := float64(queries * askedTimelines * worldRows)
	b.ReportMetric(float64(median(warm))/candidates, "ns/candidate")
	b.ReportMetric(float64(median(full))/candidates, "ns/candidate-full")
	b.ReportMetric(float64(median(pointer))/candidates, "ns/candidate-pointers")
	b.ReportMetric(float64(median(touch))/candidates, "ns/candidate-touch")
	figure.Print("query_folded_vs_touch_floor", float64(median(warm))/float64(median(touch)), "x")
	figure.Print("query_warm_vs_touch_floor", float64(median(full))/float64(median(touch)), "x")
	figure.Print("query_warm_vs_lru_pointers", float64(median(pointer))/float64(median(warm)), "x")

	figure.Print("query_warm_allocs", testing.AllocsPerRun(20, func() { ours(q[:1]) }), "allocations")
	runtime.KeepAlive(baseline)
}

// BenchmarkTwoCores gives the figure query_two_cores: how many times the
// queries of one goroutine two of them answer. It needs two idle cores.
func BenchmarkTwoCores(b *testing.B) {
	keys, all := world(b)
	s, queries := question(b), draw(rand.New(rand.NewPCG(11, 11)), 40, keys, all)
	answer := func(goroutines int) time.Duration {
		began := time.Now()
		var wg sync.WaitGroup
		for range goroutines {
			wg.Go(func() {
				for _, q := range queries {
					run(s, q)
				}
			})
		}
		wg.Wait()
		return time.Since(began)
	}
	answer(2)
	var one, two []time.Duration
	for range 7 {
		one, two = append(one, answer(1)), append(two, answer(2))
	}
	for b.Loop() {
		answer(2)
	}
	figure.Print("query_two_cores", 2*float64(median(one))/float64(median(two)), "x")
}

// BenchmarkMemory gives the figures cache_bytes_vs_pointers and
// gc_cpu_vs_pointers: the memory of a cached record, in the heap and outside,
// and the CPU time of a collection, against the LRU of pointers with the same
// records. Each side is there alone when it is measured.
func BenchmarkMemory(b *testing.B) {
	built.keys, built.all = nil, nil
	if held.Cache != nil {
		held.Purge()
		held.keys = make(map[*cache.Timeline]millrace.Timeline)
	}
	inHeap := func(s *column.Slab) *cache.Timeline {
		tl, err := cache.NewTimeline(millrace.MinTime, s)
		if err != nil {
			b.Fatal(err)
		}
		return tl
	}
	base, empty := heapBytes(), collect()
	pointers := func() *pointers {
		keys, all := build(memoryTimelines, inHeap)
		return newPointers(b, keys, all)
	}()
	theirBytes, withPointers := heapBytes()-base, collect()
	runtime.KeepAlive(pointers)
	pointers = nil

	base = heapBytes()
	c := cache.New(cache.Config{})
	defer c.Close()
	func() {
		keys, all := build(memoryTimelines, inHeap)
		for i, k := range keys {
			c.Fill(k, all[i])
		}
	}()
	ourBytes, withOurs := heapBytes()-base+int64(c.Stats().Arena.Used), collect()
	for b.Loop() {
		runtime.GC()
	}
	runtime.KeepAlive(c)
	records := float64(memoryTimelines * worldRows)
	b.ReportMetric(float64(theirBytes)/records, "B/record-pointers")
	b.ReportMetric(float64(ourBytes)/records, "B/record")
	b.ReportMetric(withPointers-empty, "ms-gc-pointers")
	b.ReportMetric(withOurs-empty, "ms-gc")
	figure.Print("cache_bytes_vs_pointers", float64(theirBytes)/float64(ourBytes), "x")
	figure.Print("gc_cpu_vs_pointers", (withPointers-empty)/max(withOurs-empty, 0.001), "x")
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// collect returns the CPU milliseconds that marking takes in a collection: the
// least of some, since whoever else is busy only adds.
func collect() float64 {
	var took []float64
	for range 15 {
		before := markTime()
		runtime.GC()
		took = append(took, 1000*(markTime()-before))
	}
	return slices.Min(took)
}

func markTime() float64 {
	s := []metrics.Sample{{Name: "/cpu/classes/gc/mark/assist:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/dedicated:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/idle:cpu-seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64() + s[1].Value.Float64() + s[2].Value.Float64()
}
