package query

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/schemas"
)

func testLayout(t testing.TB) *column.Layout {
	t.Helper()
	l, err := column.NewLayout([]column.Field{
		{Name: "id", Kind: column.String, Role: "id"}, {Name: "at", Kind: column.Time, Role: "time"},
		{Name: "object", Kind: column.String, Role: "object"},
		{Name: schemas.BodyColumn, Kind: column.String}, {Name: schemas.SchemaColumn, Kind: column.Int},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// scored is a segment of records with given scores.
type scored struct {
	timeline millrace.Timeline
	slab     *column.Slab
	held     *cache.Timeline // the same
	scores   []float64
}

func packed(t testing.TB, s *column.Slab) column.Packed {
	t.Helper()
	b, err := column.Pack(nil, s)
	if err != nil {
		t.Fatal(err)
	}
	return column.PackedAt(b)
}

func (s *scored) give(q *Query) {
	l := s.slab.Layout()
	q.plans = append(q.plans[:0], &plan{columns: columns{id: 0, time: 1, object: 2, body: 3, schema: 4}})
	i := int32(len(q.places))
	q.Add(s.timeline, s.held, column.Packed{})
	q.places = append(q.places, place{asked: i})
	// As if the rows stood in two spans of a batch.
	half := int32(s.slab.Len() / 2)
	q.stages.Scored += int64(s.slab.Len())
	q.take([]span{{i, 0, 0}, {i, half, half}}, q.upTo(s.slab.Len()), s.slab.Column(l.Time()), s.scores)
}

// drawScored draws segments in which scores, times, ids and objects tie, and
// scores are sometimes NaN or infinite.
func drawScored(t testing.TB, r *rand.Rand) (all []scored) {
	l := testLayout(t)
	for i := range 1 + r.IntN(12) {
		s := scored{timeline: millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i/3)), Type: millrace.ContentType(fmt.Sprint("t", i%3))}}
		a := column.New(l, 4, 0).Append()
		for _, id := range r.Perm(60)[:r.IntN(60)] {
			row := a.Begin()
			row.SetString(0, fmt.Appendf(nil, "record-%d", id))
			row.SetInt(1, int64(r.IntN(4)))
			row.SetString(2, fmt.Appendf(nil, "%.*s", r.IntN(2)*20, fmt.Sprint("an object ", r.IntN(30))))
			row.SetString(3, fmt.Appendf(nil, "%.*s", r.IntN(20), "the body of a record"))
			row.SetInt(4, 7)
			if err := a.End(row); err != nil {
				t.Fatal(err)
			}
			s.scores = append(s.scores, [...]float64{float64(r.IntN(6)), r.Float64(), math.NaN(), math.Inf(-1), 0, math.Copysign(0, -1), math.Inf(1)}[r.IntN(7)])
		}
		s.slab = a.Slab()
		var err error
		if s.held, err = cache.NewTimeline(millrace.MinTime, s.slab); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// sortAll is rank by sorting everything.
func sortAll(all []scored, s Spec) (items []Item) {
	var ranked []Item
	for _, seg := range all {
		for row, score := range seg.scores {
			it := Item{Schema: 7, Rank: millrace.Rank{Score: score, Time: millrace.Time(seg.slab.Word(1, row)), ID: millrace.RecordID(seg.slab.StringAt(0, row)), Timeline: seg.timeline}}
			it.Body = []byte(seg.slab.StringAt(3, row))
			if it.Object = millrace.Object(seg.slab.StringAt(2, row)); it.Object == "" {
				it.Object = millrace.Object(it.ID)
			}
			ranked = append(ranked, it)
		}
	}
	slices.SortStableFunc(ranked, func(a, b Item) int { return a.Compare(b.Rank) })
	perEntity, byObject := map[millrace.Entity]int{}, map[millrace.Object]int{}
	for _, it := range ranked {
		if len(items) == s.Limit {
			break
		}
		if perEntity[it.Entity]++; s.Cap > 0 && perEntity[it.Entity] > s.Cap {
			continue
		}
		i, seen := byObject[it.Object]
		_, served := s.Exclude[millrace.ServedHash(s.ServedKey, s.DistinctObjects, it.Object, it.Timeline, it.ID)]
		switch {
		case s.DistinctObjects && seen:
			if i != excluded && len(items[i].Also) < maxAlso {
				it.Body = nil
				items[i].Also = append(items[i].Also, it)
			}
		case served:
			byObject[it.Object] = excluded
		default:
			byObject[it.Object] = len(items)
			items = append(items, it)
		}
	}
	return items
}

func TestTopEqualsSort(t *testing.T) {
	r := rand.New(rand.NewPCG(3, uint64(time.Now().UnixNano())))
	for i := range 600 {
		all := drawScored(t, r)
		s := Spec{Limit: 1 + r.IntN([]int{1, 5, 300}[r.IntN(3)]), Cap: r.IntN(2) * r.IntN(6), DistinctObjects: r.IntN(2) == 0}
		if r.IntN(3) == 0 {
			s.Exclude, s.ServedKey = map[uint64]struct{}{}, millrace.ServedKey{byte(1 + r.IntN(255))}
			for _, it := range sortAll(all, Spec{Limit: 1 + r.IntN(20), DistinctObjects: s.DistinctObjects}) {
				s.Exclude[millrace.ServedHash(s.ServedKey, s.DistinctObjects, it.Object, it.Timeline, it.ID)] = struct{}{}
			}
		}
		want := sortAll(all, s)
		q := New(s)
		for i := range all {
			all[i].give(q)
		}
		for !q.rank() {
			q.unrank()
			q.top.keep(moreTimes * q.top.size)
			counted := q.stages
			for i := range all {
				all[i].give(q)
			}
			q.stages = counted
		}
		got, wanted := printed(q.items), printed(want)
		if !slices.Equal(got, wanted) {
			at := 0
			for at < min(len(got), len(wanted)) && got[at] == wanted[at] {
				at++
			}
			t.Fatalf("%d: %+v: %d items, want %d; from item %d\n got %s\nwant %s", i, s, len(got), len(wanted), at, got[at:min(len(got), at+1)], wanted[at:min(len(wanted), at+1)])
		}
		q.Release()
	}
}

func printed(items []Item) (lines []string) {
	for _, it := range items {
		lines = append(lines, fmt.Sprintf("%v %d %q %s %q %q %d also %v", it.Score, it.Time, it.ID, it.Timeline, it.Object, it.Body, it.Schema, printed(it.Also)))
	}
	return lines
}

func TestWindow(t *testing.T) {
	a := column.New(testLayout(t), 4, 0).Append()
	for _, at := range []int64{2, 4, 4, 7} {
		row := a.Begin()
		row.SetInt(1, at)
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
	}
	slab := a.Slab()
	window := func(rows column.Packed, from, to millrace.Time) (lo, hi int) {
		q := Query{spec: Spec{To: to}}
		first, end := q.window(rows, from)
		return int(first), int(end)
	}
	for from := range millrace.Time(10) {
		for to := range millrace.Time(10) {
			lo, hi := window(packed(t, slab), from, to)
			for row, at := range slab.Column(1) {
				in := from <= millrace.Time(at) && millrace.Time(at) < to
				if in != (lo <= row && row < hi) {
					t.Fatalf("[%d, %d): rows %d to %d", from, to, lo, hi)
				}
			}
		}
	}
	if lo, hi := window(packed(t, column.New(testLayout(t), 1, 0)), 0, 9); lo < hi {
		t.Errorf("of no rows: %d to %d", lo, hi)
	}
}

// boxed is the usual top N: push every candidate, pop the worst.
type boxed struct{ c []candidate }

func (b *boxed) Len() int           { return len(b.c) }
func (b *boxed) Less(i, j int) bool { return b.c[i].score < b.c[j].score }
func (b *boxed) Swap(i, j int)      { b.c[i], b.c[j] = b.c[j], b.c[i] }
func (b *boxed) Push(x any)         { b.c = append(b.c, x.(candidate)) }
func (b *boxed) Pop() any {
	last := b.c[len(b.c)-1]
	b.c = b.c[:len(b.c)-1]
	return last
}

// BenchmarkTop gives the figure topk_vs_heap: the best 20 of 1,000 timelines
// of 20 candidates, against container/heap.
func BenchmarkTop(b *testing.B) {
	const timelines, rows, limit = 1000, 20, 20
	r := rand.New(rand.NewPCG(5, 5))
	times, scores := make([]uint64, timelines*rows), make([]float64, timelines*rows)
	var spans []span
	for i := range times {
		times[i], scores[i] = uint64(i%rows), r.NormFloat64()
		if i%rows == 0 {
			spans = append(spans, span{int32(i / rows), int32(i % batchRows), 0})
		}
	}
	ours := func() float64 {
		q := New(Spec{Limit: limit})
		for at := 0; at < len(scores); at += batchRows {
			end := min(at+batchRows, len(scores))
			q.take(spans[(at+rows-1)/rows:(end+rows-1)/rows], q.upTo(end-at), times[at:end], scores[at:end])
		}
		worst := q.sorted()[limit-1].score
		q.Release()
		return worst
	}
	theirs := func() float64 {
		var h boxed
		for i, s := range scores {
			heap.Push(&h, candidate{s, millrace.Time(times[i]), int32(i / rows), int32(i % rows)})
			if h.Len() > limit {
				heap.Pop(&h)
			}
		}
		return h.c[0].score
	}
	if got, want := ours(), theirs(); got != want {
		b.Fatalf("the worst of the best is %v, container/heap says %v", got, want)
	}
	const passes = 10 // of theirs in a turn, in which they pay for most of their garbage, and of ours a hundred times as many
	var fast, slow []time.Duration
	for range 9 {
		runtime.GC() // the rest of it is not ours
		fast = append(fast, timed(func() {
			for range 100 * passes {
				ours()
			}
		})/100)
		slow = append(slow, timed(func() {
			for range passes {
				theirs()
			}
		}))
	}
	b.ReportAllocs()
	for b.Loop() {
		ours()
	}
	b.ReportMetric(float64(median(fast))/(passes*timelines*rows), "ns/candidate")
	b.ReportMetric(float64(median(slow))/(passes*timelines*rows), "ns/candidate-heap")
	figure.Print("topk_vs_heap", float64(median(slow))/float64(median(fast)), "x")
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

// There is room for as many as questions of late looked at, and no more.
func TestReserve(t *testing.T) {
	s := &Spec{Limit: 20, DistinctObjects: true}
	var top top
	size := func() int {
		top.reset(s)
		return top.size
	}
	least := size()
	top.learn(s, 120)
	if size() < 120 {
		t.Errorf("room for %d after 120 were looked at", size())
	}
	if top.learn(s, 20); size() < 110 {
		t.Errorf("room for %d right after", size())
	}
	for range 100 {
		if top.learn(s, 20); size() < least {
			t.Fatalf("room for %d, and for %d before anything was known", size(), least)
		}
	}
	if size() != least || least > 2*s.Limit {
		t.Errorf("room for %d of 20 after a hundred questions without need, at first %d", size(), least)
	}
	if s.DistinctObjects = false; size() != s.Limit {
		t.Errorf("room for %d, where the best 20 are the answer", size())
	}
}
