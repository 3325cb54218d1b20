//go:build linux

package query

import (
	"context"
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
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/figure"
)

// BenchmarkMarking gives query_p99_marking_vs_idle: the p99 of queries of one
// loop while the collector works without a rest, against that while it rests.
// The process holds the cache and next to nothing else; what the benchmark
// needs to draw queries has no pointers. DESIGN.md says why it is this, and
// what it found.
//
// In the same run, the same loop with an LRU of pointers and nothing else,
// which while the collector works is query_p99_marking_vs_lru_pointers times as
// slow as ours; and, before anything is in memory, with work of about the same
// time that touches none (query_p99_marking_vs_idle_empty): what the collector
// costs whoever shares two processors with it.
//
// Then queries that come as they come to a server, see besideCollections, of
// those that met a collection against those that did not: with the cache alone
// (query_p99_marking_vs_idle_arrivals), and beside 200 MB of small objects
// (query_p99_marking_vs_idle_objects), of which a collection takes a tenth of a
// second.
func BenchmarkMarking(b *testing.B) {
	empty := looped(spin)
	r := rand.New(rand.NewPCG(11, 11))
	d := drawAlone(b, r)
	s := question(b)
	ask := func(i int) { d.run(s, i) }
	ours := looped(ask)
	alone := besideCollections(b, ask)
	others := objects(r)
	beside := besideCollections(b, ask)
	for b.Loop() {
		ask(0)
	}
	runtime.KeepAlive(others)
	others = nil

	keys, queries := d.few(r)
	baseline := newPointers(b, keys, d.timelines(len(keys)))
	theirs := looped(func(i int) { baseline.ask(queries[i%len(queries)], s) })
	runtime.KeepAlive(baseline)
	if testing.Short() { // on a busy machine a second may have no query that met no collection
		return
	}

	empty.report(b, "-empty")
	ours.report(b, "")
	theirs.report(b, "-pointers")
	alone.report(b, "-arrivals")
	beside.report(b, "-objects")
	figure.Print("query_p99_marking_vs_idle", ours.ratio(), "x")
	figure.Print("query_p99_marking_vs_idle_empty", empty.ratio(), "x")
	figure.Print("query_p99_marking_vs_idle_arrivals", alone.ratio(), "x")
	figure.Print("query_p99_marking_vs_idle_objects", beside.ratio(), "x")
	figure.Print("query_p99_marking_vs_lru_pointers", percentile(theirs.marking, 99)/percentile(ours.marking, 99), "x")
}

// drawn is questions of the world, and the world, without pointers.
type drawn struct {
	names   string // of all entities, each of nameBytes
	at      []uintptr
	queries [][]int32
}

const nameBytes = len("member:0000000")

// drawAlone draws queries, and lets go of all keys.
func drawAlone(b *testing.B, r *rand.Rand) *drawn {
	_, all := world(b)
	built.keys, built.all = nil, nil
	d := &drawn{}
	var names strings.Builder
	for i, tl := range all {
		fmt.Fprintf(&names, "member:%07d", i)
		d.at = append(d.at, uintptr(unsafe.Pointer(tl)))
	}
	d.names = names.String()
	for range 20 {
		q := make([]int32, askedTimelines)
		for i := range q {
			q[i] = int32(r.IntN(len(all)))
		}
		d.queries = append(d.queries, q)
	}
	return d
}

func (d *drawn) key(i int32) millrace.Timeline {
	at := int(i) * nameBytes
	return millrace.Timeline{Entity: millrace.Entity(d.names[at : at+nameBytes]), Type: "post"}
}

// timeline returns the i-th, which is in the arena.
func (d *drawn) timeline(i int32) *cache.Timeline {
	return *(**cache.Timeline)(unsafe.Pointer(&d.at[i]))
}

// run answers the i-th query.
func (d *drawn) run(s Spec, i int) {
	q := New(s)
	defer q.Release()
	for _, t := range d.queries[i%len(d.queries)] {
		q.Add(d.key(t), d.timeline(t), column.Packed{})
	}
	if err := q.Scan(context.Background()); err != nil {
		panic(err)
	}
	if len(q.Answer().Items) == 0 {
		panic("no answer")
	}
}

// few draws queries of as many timelines as BenchmarkWarm has as pointers.
func (d *drawn) few(r *rand.Rand) (keys []millrace.Timeline, queries [][]asked) {
	for i := range min(len(d.at), 100_000) {
		keys = append(keys, d.key(int32(i)))
	}
	return keys, draw(r, len(d.queries), keys, d.timelines(len(keys)))
}

func (d *drawn) timelines(n int) (all []*cache.Timeline) {
	for i := range n {
		all = append(all, d.timeline(int32(i)))
	}
	return all
}

// spin is about as much work as a query is, without memory.
func spin(int) {
	x := uint64(1)
	for range spins {
		x = x*6364136223846793005 + 1442695040888963407
	}
	runtime.KeepAlive(x)
}

const spins = 170_000

// looped asks one question after the other, by turns while the collector
// works without a rest and while it rests.
func looped(ask func(i int)) (l latencies) {
	turn := time.Second
	if testing.Short() {
		turn = 100 * time.Millisecond
	}
	asked := 0
	during := func(dst []time.Duration) []time.Duration {
		for end := time.Now().Add(turn); ; asked++ {
			began := time.Now()
			if began.After(end) {
				return dst
			}
			ask(asked)
			dst = append(dst, time.Since(began))
		}
	}
	during(nil) // warm
	for range 5 {
		runtime.GC()
		l.resting = during(l.resting)
		began := time.Now()
		stop := collectAgainAndAgain(began, 0)
		l.marking = during(l.marking)
		l.add(stop())
	}
	l.sort()
	return l
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
	collections      []time.Duration
}

func (l *latencies) add(collections []period) {
	for _, c := range collections {
		l.collections = append(l.collections, c.to-c.from)
	}
}

func (l *latencies) sort() {
	slices.Sort(l.marking)
	slices.Sort(l.resting)
}

// ratio is the p99 while the collector works against that while it rests.
func (l *latencies) ratio() float64 { return percentile(l.marking, 99) / percentile(l.resting, 99) }

func (l *latencies) report(b *testing.B, name string) {
	for _, p := range []int{50, 99} {
		b.ReportMetric(percentile(l.marking, p), fmt.Sprintf("us-p%d%s-marking", p, name))
		b.ReportMetric(percentile(l.resting, p), fmt.Sprintf("us-p%d%s-idle", p, name))
	}
	b.ReportMetric(float64(median(l.collections).Microseconds())/1000, "ms-collection"+name)
}

// percentile returns microseconds.
func percentile(took []time.Duration, p int) float64 {
	return float64(took[len(took)*p/100].Nanoseconds()) / 1000
}

// period is from when to when something was, since some instant.
type period struct{ from, to time.Duration }

// besideCollections asks for a while as a server is asked: queries come at
// their time, by way of the netpoller, each to a goroutine of its own, a quarter
// of what one processor could answer, and their time counts from when they are
// due. The collector works, rests as long as it worked or 50 ms, and so on. A
// query counts as beside it if it was due or at work in any part of a
// collection.
func besideCollections(b *testing.B, ask func(i int)) (l latencies) {
	const warm = 100
	runtime.GC()
	began := time.Now()
	for i := range warm {
		ask(i)
	}
	interval := 4 * time.Since(began) / warm
	d := 12 * time.Second
	if testing.Short() {
		d = time.Second
	}
	queries := make([]period, d/interval)
	began = time.Now()
	timer := newTimer(b, interval)
	defer timer.Close()
	stop := collectAgainAndAgain(began, 50*time.Millisecond)
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
	collections := stop()
	for _, q := range queries {
		if slices.ContainsFunc(collections, func(c period) bool { return q.from < c.to && c.from < q.to }) {
			l.marking = append(l.marking, q.to-q.from)
		} else {
			l.resting = append(l.resting, q.to-q.from)
		}
	}
	l.add(collections)
	l.sort()
	return l
}

// collectAgainAndAgain has the collector work, and if rest is not 0 rest as
// long as it worked or that time, and so on. stop returns when it worked.
func collectAgainAndAgain(began time.Time, rest time.Duration) (stop func() []period) {
	var collections []period
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			from := time.Since(began)
			runtime.GC()
			c := period{from, time.Since(began)}
			collections = append(collections, c)
			select {
			case <-done:
				return
			case <-rested(rest, c.to-c.from):
			}
		}
	}()
	return func() []period {
		close(done)
		<-stopped
		return collections
	}
}

// rested tells when the collector has rested after work, now for a rest of 0.
func rested(rest, work time.Duration) <-chan time.Time {
	if rest > 0 {
		return time.After(max(rest, work))
	}
	now := make(chan time.Time)
	close(now)
	return now
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
