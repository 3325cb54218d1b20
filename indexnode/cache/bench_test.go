package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/schemas"
)

// oneLock is what a cache usually is: an LRU behind a lock.
type oneLock struct {
	mu  sync.Mutex
	lru *simplelru.LRU[millrace.Timeline, *Timeline]
}

func newOneLock(t testing.TB, size int) *oneLock {
	t.Helper()
	lru, err := simplelru.NewLRU[millrace.Timeline, *Timeline](size, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &oneLock{lru: lru}
}

func (c *oneLock) get(k millrace.Timeline) *Timeline {
	c.mu.Lock()
	defer c.mu.Unlock()
	tl, _ := c.lru.Get(k)
	return tl
}

// BenchmarkLookup gives the figure cache_lookup_vs_lru: look-ups of queries of
// 1,000 timelines of a million, most of them known to be empty, against the
// LRU behind a lock.
func BenchmarkLookup(b *testing.B) {
	const cached, asked = 1_000_000, 1000
	r := rand.New(rand.NewPCG(2, 2))
	c, lru, one := New(Config{}), newOneLock(b, cached), timeline(b, 1)
	for i := range cached {
		tl := Empty
		if i%5 == 0 {
			tl = one
		}
		c.Put(key(i), tl)
		lru.lru.Add(key(i), tl)
	}
	queries := make([][]millrace.Entity, 50)
	for i := range queries {
		queries[i] = request(r, cached, asked)
	}
	posts := []millrace.ContentType{"post"}
	found := make([]*Timeline, 0, asked)
	ours := func() (known int) {
		for _, q := range queries {
			r := c.Reader()
			for _, tl := range r.Lookup(found[:0], q, posts) {
				if tl != nil {
					known++
				}
			}
			r.Leave()
		}
		return known
	}
	theirs := func() (known int) {
		for _, q := range queries {
			for _, e := range q {
				if lru.get(millrace.Timeline{Entity: e, Type: "post"}) != nil {
					known++
				}
			}
		}
		return known
	}
	if x, y := ours(), theirs(); x != y || x != len(queries)*asked {
		b.Fatalf("found %d and %d of %d", x, y, len(queries)*asked)
	}
	var fast, slow []time.Duration
	for range 9 {
		fast, slow = append(fast, timed(func() { ours() })), append(slow, timed(func() { theirs() }))
	}
	b.ReportAllocs()
	for b.Loop() {
		ours()
	}
	keys := float64(len(queries) * asked)
	b.ReportMetric(float64(median(fast))/keys, "ns/key")
	b.ReportMetric(float64(median(slow))/keys, "ns/key-lru")
	figure.Print("cache_lookup_vs_lru", float64(median(slow))/float64(median(fast)), "x")
}

// request draws entities whose names lie side by side, as in a request.
func request(r *rand.Rand, of, n int) (entities []millrace.Entity) {
	var ends []int
	var names []byte
	for range n {
		names = append(names, key(r.IntN(of)).Entity...)
		ends = append(ends, len(names))
	}
	all, at := string(names), 0
	for _, end := range ends {
		entities = append(entities, millrace.Entity(all[at:end]))
		at = end
	}
	return entities
}

// BenchmarkHits gives the figure cache_hit_vs_lru, in points: the hit ratio on
// Zipf with a fifth of one-hit wonders, against an LRU of the same size.
func BenchmarkHits(b *testing.B) {
	const size, universe, requests = 5000, 100_000, 600_000
	var ours, theirs float64
	for b.Loop() {
		r := rand.New(rand.NewPCG(3, 3))
		zipf := rand.NewZipf(r, 1.01, 1, universe-1)
		one := timeline(b, 1)
		c, lru := withRoom(b, size, one), newOneLock(b, size)
		hits, lruHits, counted := 0, 0, 0
		for i := range requests {
			k := key(int(zipf.Uint64()))
			if r.IntN(5) == 0 {
				k = key(universe + i)
			}
			hit := get(b, c, k) != nil
			if !hit {
				c.Fill(k, one)
			}
			lruHit := lru.get(k) != nil
			if !lruHit {
				lru.lru.Add(k, one)
			}
			if i < requests/3 {
				continue // until both are warm
			}
			counted++
			if hit {
				hits++
			}
			if lruHit {
				lruHits++
			}
		}
		ours, theirs = float64(hits)/float64(counted), float64(lruHits)/float64(counted)
	}
	b.ReportMetric(ours, "hits")
	b.ReportMetric(theirs, "hits-lru")
	figure.Print("cache_hit_vs_lru", 100*(ours-theirs), "points")
}

// median is the middle of at least one duration.
func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// timed returns the CPU time of f, since a busy machine stretches any other.
func timed(f func()) time.Duration {
	began := cpuTime()
	f()
	return cpuTime() - began
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkContinue is what ingest pays for a record newer than all others of
// a cached timeline that grows to 20, 100 and 1,000.
func BenchmarkContinue(b *testing.B) {
	s := schemas.Activity()
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		b.Fatal(err)
	}
	body, err := s.EncodeJSON([]byte(`{"id":"activity/12345","actor":"member:1234","verb":"post","created_at":1700000000000,"object":"o12","language":"en","text":"About photos of a day at sea","likes":3}`))
	if err != nil {
		b.Fatal(err)
	}
	for _, most := range []int{20, 100, 1000} {
		b.Run(fmt.Sprint(most), func(b *testing.B) {
			c, i := New(Config{}), 0
			defer c.Close()
			for b.Loop() {
				k := millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i/most%100)), Type: "post"}
				if i%most == 0 {
					c.Put(k, Empty)
				}
				if !c.Continue(k, s.Layout(), most, func(a *column.Appender) error { return d.Append(a, body) }) {
					b.Fatalf("record %d does not continue", i)
				}
				i++
			}
		})
	}
}
