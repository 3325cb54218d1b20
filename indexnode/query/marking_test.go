//go:build linux

package query

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/figure"
)

// BenchmarkMarking gives query_p99_marking_vs_idle: the p99 of queries beside
// which the collector was at work, for all of their time or a part, against
// that of the others. DESIGN.md says what it found.
//
// Queries come as they come to a server: at their time, by way of the
// netpoller, each to a goroutine of its own, a quarter of what one processor
// could answer. Their time counts from when they are due. The collector works,
// rests as long as it worked or 50 ms, and so on. Besides the cache there are
// 200 MB of small objects, so that it marks for a tenth of a second and does
// not only stop the world; what the benchmark needs to draw queries is gone.
//
// In the same run: the cache alone (query_p99_marking_vs_idle_alone), and the
// LRU of pointers with those objects, which while the collector works is
// query_p99_marking_vs_lru_pointers times as slow as ours.
func BenchmarkMarking(b *testing.B) {
	r := rand.New(rand.NewPCG(11, 11))
	s := question(b)
	queries, few := drawAlone(b, r)
	ask := func(i int) { run(s, queries[i%len(queries)]) }
	alone := besideCollector(b, ask)
	others := objects(r)
	ours := besideCollector(b, ask)
	for b.Loop() {
		ask(0)
	}

	var keys []millrace.Timeline
	for i := range few {
		keys = append(keys, millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"})
	}
	baseline := newPointers(b, keys, few)
	queries = draw(r, len(queries), keys, few)
	theirs := besideCollector(b, func(i int) { baseline.ask(queries[i%len(queries)], s) })
	runtime.KeepAlive(others)
	runtime.KeepAlive(baseline)

	alone.report(b, "-alone")
	ours.report(b, "")
	theirs.report(b, "-pointers")
	figure.Print("query_p99_marking_vs_idle", percentile(ours.marking, 99)/percentile(ours.resting, 99), "x", 1.2)
	figure.Tell("query_p99_marking_vs_idle_alone", percentile(alone.marking, 99)/percentile(alone.resting, 99), "x")
	figure.Tell("query_p99_marking_vs_lru_pointers", percentile(theirs.marking, 99)/percentile(ours.marking, 99), "x")
}

// drawAlone draws queries and lets go of all keys that no query asks for. It
// also returns timelines for the LRU of pointers, as many as in BenchmarkWarm.
func drawAlone(b *testing.B, r *rand.Rand) ([][]asked, []*cache.Timeline) {
	keys, all := world(b)
	built.keys, built.all = nil, nil
	queries := draw(r, 20, keys, all)
	for _, q := range queries {
		for i := range q {
			q[i].timeline.Entity = millrace.Entity(strings.Clone(string(q[i].timeline.Entity)))
		}
	}
	return queries, slices.Clone(all[:min(len(all), 100_000)])
}

// object is something small that a node has besides its caches: of a
// connection, a schema, a model, the store.
type object struct {
	a, b *object
	_    [10]uint64
}

// objects returns 200 MB of them. They refer to each other at random, as in a
// heap that has been in use.
func objects(r *rand.Rand) []*object {
	all := make([]*object, 2_000_000)
	for i := range all {
		all[i] = new(object)
	}
	for _, o := range all {
		o.a, o.b = all[r.IntN(len(all))], all[r.IntN(len(all))]
	}
	return all
}

// latencies are those of queries beside which the collector worked and of the
// others, ascending.
type latencies struct {
	marking, resting []time.Duration
	collection       time.Duration // the median one
}

func (l *latencies) report(b *testing.B, name string) {
	for _, p := range []int{50, 99} {
		b.ReportMetric(percentile(l.marking, p), fmt.Sprintf("us-p%d%s-marking", p, name))
		b.ReportMetric(percentile(l.resting, p), fmt.Sprintf("us-p%d%s-idle", p, name))
	}
	b.ReportMetric(float64(l.collection.Microseconds())/1000, "ms-collection"+name)
}

// percentile returns microseconds.
func percentile(took []time.Duration, p int) float64 {
	return float64(took[len(took)*p/100].Nanoseconds()) / 1000
}

// period is from when to when something was, since some instant.
type period struct{ from, to time.Duration }

// besideCollector asks for a while as a server is asked.
func besideCollector(b *testing.B, ask func(i int)) (l latencies) {
	const warm = 100
	runtime.GC()
	began := time.Now()
	for i := range warm {
		ask(i)
	}
	interval := 4 * time.Since(began) / warm
	d := 15 * time.Second
	if testing.Short() {
		d = time.Second
	}
	queries := make([]period, d/interval)
	began = time.Now()
	timer := newTimer(b, interval)
	defer timer.Close()
	stop := collectNowAndThen(began)
	var answered sync.WaitGroup
	for due := 0; due < len(queries); {
		for range min(timer.wait(b), len(queries)-due) {
			i := due
			due++
			answered.Go(func() {
				ask(i)
				queries[i] = period{time.Duration(i+1) * interval, time.Since(began)}
			})
		}
	}
	answered.Wait()
	cycles := stop()
	for _, q := range queries {
		if slices.ContainsFunc(cycles, func(c period) bool { return q.from < c.to && c.from < q.to }) {
			l.marking = append(l.marking, q.to-q.from)
		} else {
			l.resting = append(l.resting, q.to-q.from)
		}
	}
	slices.Sort(l.marking)
	slices.Sort(l.resting)
	var took []time.Duration
	for _, c := range cycles {
		took = append(took, c.to-c.from)
	}
	l.collection = median(took)
	return l
}

// collectNowAndThen has the collector work and rest by turns. stop returns when
// it worked.
func collectNowAndThen(began time.Time) (stop func() []period) {
	var cycles []period
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			from := time.Since(began)
			runtime.GC()
			c := period{from, time.Since(began)}
			cycles = append(cycles, c)
			select {
			case <-done:
				return
			case <-time.After(max(c.to-c.from, 50*time.Millisecond)):
			}
		}
	}()
	return func() []period {
		close(done)
		<-stopped
		return cycles
	}
}

// timer is one of the system's, which wakes by way of the netpoller, as a
// request from outside does. The runtime's own are late while the collector
// works, and would make the queries late that it is to hold up.
type timer struct{ *os.File }

func newTimer(b *testing.B, interval time.Duration) timer {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		b.Fatal(err)
	}
	every := unix.NsecToTimespec(int64(interval))
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil); err != nil {
		b.Fatal(err)
	}
	return timer{os.NewFile(uintptr(fd), "timer")}
}

// wait waits until an interval has passed, and returns how many have.
func (t timer) wait(b *testing.B) int {
	var passed [8]byte
	if _, err := t.Read(passed[:]); err != nil {
		b.Fatal(err)
	}
	return int(binary.NativeEndian.Uint64(passed[:]))
}
