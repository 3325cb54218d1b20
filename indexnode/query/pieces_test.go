package query

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
	modelplan "github.com/millrace/millrace/relevance/plan"
	"github.com/millrace/millrace/schemas"
)

// readWatcher counts what is read, and what that takes.
type readWatcher struct {
	rows, read int
	took       time.Duration
}

func (w *readWatcher) Scored(rows, read int, took time.Duration) error {
	w.rows, w.read, w.took = w.rows+rows, w.read+read, w.took+took
	return nil
}

func (*readWatcher) Processor() bool { return false }

// reader is a model of one feature, of which nothing is the record's alone.
func reader(t testing.TB, s *schemas.Schema, feature string) *relevance.Model {
	t.Helper()
	known := relevance.ShippedSchemas()
	known[s.Name()] = relevance.Records{Layout: s.Layout()}
	src := "name: reader\nversion: \"1\"\nschemas: [" + s.Name() + "]\nentity: millrace.Features\nobject: millrace.Features\nviewer: {one: double, word: string, long: string, taste: list(double)}\nfeatures: {f: '(" + feature + ") * viewer.one'}\nscorer: linear\nparameters: {weights: {f: 1}}\n"
	m, err := relevance.Parse("reader.yaml", []byte(src), known)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// timelineOf returns one timeline of rows of a schema.
func timelineOf(t testing.TB, s *schemas.Schema, lines ...string) *cache.Timeline {
	t.Helper()
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(s.Layout(), len(lines), 0).Append()
	for _, line := range lines {
		body, err := s.EncodeJSON([]byte(line))
		if err == nil {
			err = d.Append(a, body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tl, err := cache.NewTimeline(millrace.MinTime, a.Slab())
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

func numbers(n int) string { return "[1" + strings.Repeat(",1", n-1) + "]" }

// Who watches is told the bytes of texts and the items of lists that a piece reads, of
// records, their objects and their entity, each as often as it is read.
func TestWatchersAreToldWhatIsRead(t *testing.T) {
	key := millrace.Timeline{Entity: "member:1", Type: "post"}
	var lines []string
	for i, text := range []string{"", "short", strings.Repeat("x", 1000)} {
		lines = append(lines, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":"post","created_at":%d,"object":"o","text":%q,"features":%s}`, i, asOf-1000+i, text, numbers(7)))
	}
	records := timelineOf(t, schemas.Activity(), lines...)
	entity := timelineOf(t, schemas.Features(), fmt.Sprintf(`{"entity":"member:1","updated_at":1,"embedding":%s}`, numbers(50)))
	objects := timelineOf(t, schemas.Features(), fmt.Sprintf(`{"entity":"member:1","subject":"o","updated_at":1,"embedding":%s}`, numbers(20)))
	for feature, want := range map[string]int{
		`record.likes`:                       0,
		`size(record.text)`:                  1005,
		`dot(record.features, viewer.taste)`: 3 * 7, // where it stands
		`dot(record.features, viewer.taste) + size(record.features)`: 10 * 3 * 7,
		`dot(object.embedding, viewer.taste)`:                        9 * 3 * 20,
		`dot(entity.embedding, viewer.taste)`:                        50,
		`dot(entity.embedding, record.features) + size(record.text)`: 8*50 + 3*50 + 3*7 + 1005,
	} {
		for _, beside := range []bool{false, true} {
			m, w := reader(t, schemas.Activity(), feature), new(readWatcher)
			q := New(Spec{To: millrace.MaxTime, AsOf: asOf, Limit: 10, Model: m, Viewer: &millrace.Viewer{}})
			q.Add(key, records, entity.First())
			q.AddObjects(key.Entity, objects)
			if !beside {
				q.Watch(w)
			}
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			q.Answer()
			if q.WatchBeside(w); beside {
				if _, err := q.Beside(t.Context(), relevance.Join(m)); err != nil {
					t.Fatal(err)
				}
			}
			if q.Release(); w.rows != 3 || w.read != want {
				t.Errorf("%s, beside %v: %d rows, %d read, want %d", feature, beside, w.rows, w.read, want)
			}
		}
	}
}

// A piece has as many rows as it may, or ends with the row with which more is read than is
// looked away for; what is read of it is what its rows and their entity have.
func TestAPieceIsWhatItMayBe(t *testing.T) {
	seed := cmp.Or(*seeded, uint64(time.Now().UnixNano()))
	r := rand.New(rand.NewPCG(seed, 0))
	l, err := column.NewLayout([]column.Field{{Name: "text", Kind: column.String}, {Name: "list", Kind: column.Doubles}})
	if err != nil {
		t.Fatal(err)
	}
	draw := func(rows int) (s *column.Slab, lengths [2][]int) {
		a := column.New(l, rows, 0).Append()
		for range rows {
			n := [2]int{r.IntN(20), r.IntN(20)}
			row := a.Begin()
			row.SetString(0, make([]byte, n[0]))
			row.SetDoubles(1, make([]float64, n[1]))
			if err := a.End(row); err != nil {
				t.Fatal(err)
			}
			lengths[0], lengths[1] = append(lengths[0], n[0]), append(lengths[1], n[1])
		}
		return a.Slab(), lengths
	}
	whole, ended := 0, 0
	for i := range 2000 {
		var of slabs
		var records, objects, entity [2][]int
		of.rows, records = draw(30)
		if of.objects, objects = draw(30); r.IntN(4) == 0 {
			of.objects, objects = nil, [2][]int{make([]int, 30), make([]int, 30)}
		}
		of.entity, entity = draw(1)
		readings := func(once int) (all []modelplan.Reading) {
			for range r.IntN(3) {
				column := r.IntN(2)
				all = append(all, modelplan.Reading{Column: column, Kind: []modelplan.Kind{modelplan.String, modelplan.Numbers}[column], Each: 1 << r.IntN(22), Once: once * r.IntN(1<<20)})
			}
			return all
		}
		p := pieces{most: 1 + r.IntN(40), readings: relevance.Readings{Record: readings(0), Object: readings(0), Entity: readings(1)}}
		var sel []int32
		for row := range 30 {
			if r.IntN(3) > 0 {
				sel = append(sel, int32(row))
			}
		}
		most := 1 + r.IntN(40)
		want, read, once := 0, 0, 0
		for _, e := range p.readings.Entity {
			once += e.Once * entity[e.Column][0]
		}
		for want < min(most, p.most, len(sel)) && read <= lookEvery {
			row := sel[want]
			for _, e := range p.readings.Entity {
				read += e.Each * entity[e.Column][0]
			}
			for _, e := range p.readings.Record {
				read += e.Each * records[e.Column][row]
			}
			for _, e := range p.readings.Object {
				read += e.Each * objects[e.Column][row]
			}
			want++
		}
		if want == min(most, p.most, len(sel)) {
			whole++
		} else {
			ended++
		}
		if rows, n := p.next(of, sel, most); rows != want || n != read+once {
			t.Fatalf("piece %d of seed %d, %+v: %d rows, of which %d is read, want %d and %d", i, seed, p, rows, n, want, read+once)
		}
	}
	if whole < 300 || ended < 300 {
		t.Errorf("%d pieces have all that they may have, %d have not", whole, ended)
	}
	// The bound itself may be read, and one more ends a piece.
	of := slabs{rows: timelineSlab(t, l, 2)}
	for each, want := range map[int]int{lookEvery / 2: 3, lookEvery/2 + 1: 2} {
		p := pieces{most: 9, readings: relevance.Readings{Record: []modelplan.Reading{{Kind: modelplan.String, Each: each}}}}
		if rows, _ := p.next(of, []int32{0, 1, 2}, 9); rows != want {
			t.Errorf("of texts of 1, 1 and 0 bytes, each read %d times, %d are a piece, want %d", each, rows, want)
		}
	}
}

// timelineSlab is so many rows whose text is of one byte, and one whose text is empty.
func timelineSlab(t *testing.T, l *column.Layout, ones int) *column.Slab {
	t.Helper()
	a := column.New(l, ones+1, 0).Append()
	for i := range ones + 1 {
		row := a.Begin()
		if i < ones {
			row.SetString(0, []byte("x"))
		}
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
	}
	return a.Slab()
}

// Pieces double as long as they take no longer than they may, up to a batch, and go on with
// that in the next batch; time is summed up, and told to who watches.
func TestPiecesDouble(t *testing.T) {
	const rows = 5000
	for _, c := range []struct {
		name  string
		limit time.Duration
		most  int
		want  []int
	}{
		{"quick", time.Hour, rows, []int{64, 128, 256, 512, 1024, 1024, 1024, 968, 1024, 1024, 1024, 1024, 904}},
		{"slow", -time.Hour, rows, nil},
		{"of few rows", time.Hour, 100, nil},
	} {
		var q Query
		w := new(readWatcher)
		s := spent{watcher: w}
		l := pieces{most: c.most, limit: c.limit}
		var sizes []int
		for range 2 {
			end := 0
			if err := q.pieces(t.Context(), &s, &l, slabs{}, q.upTo(rows), func(lo, hi int) {
				if lo != end || hi <= lo {
					t.Fatalf("%s: rows %d to %d after %d", c.name, lo, hi, end)
				}
				if !q.scoring {
					t.Fatal("a model runs, and nobody would know that it was the one that panicked")
				}
				end = hi
				sizes = append(sizes, hi-lo)
			}); err != nil || end != rows || q.scoring {
				t.Fatalf("%s: %d rows, %v, scoring: %v", c.name, end, err, q.scoring)
			}
		}
		if c.want == nil {
			for n, at := 0, 0; n < 2*rows; at++ {
				size := min(beginRows, rows-n%rows)
				if c.limit > 0 && at > 0 {
					size = min(c.most, rows-n%rows)
				}
				c.want = append(c.want, size)
				n += size
			}
		}
		if !slices.Equal(sizes, c.want) {
			t.Errorf("%s: pieces of %v, want %v", c.name, sizes, c.want)
		}
		if w.rows != 2*rows || w.took != s.time {
			t.Errorf("%s: told of %d rows in %s, which took %s", c.name, w.rows, w.took, s.time)
		}
	}
}

// The context is looked at once in so many rows.
func TestTheContextIsLookedAtNowAndThen(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	q := newQuery()
	q.begin(Spec{})
	for i, rows := range []int{1, watchRows, 1, watchRows - 1, 1, 1, watchRows + 1} {
		if err := q.watch(over, rows); (err != nil) != (i%2 == 0 && i != 4 || i == 5) {
			t.Errorf("look %d: %v", i, err)
		}
	}
}

// The context is looked at between two pieces.
func TestNoPieceBeginsAfterTheEnd(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for rows, want := range map[int]error{beginRows: nil, beginRows + 1: context.Canceled} {
		var q Query
		scored := 0
		err := q.pieces(over, &q.spent, &pieces{most: rows}, slabs{}, q.upTo(rows), func(lo, hi int) { scored += hi - lo })
		if err != want || scored != beginRows {
			t.Errorf("%d rows: %d are scored, %v", rows, scored, err)
		}
	}
}

// A piece takes as long as models may, by the sum of what each may, but has 16 rows at least.
func TestRowsOfAPiece(t *testing.T) {
	quick := question(t).Model
	var l pieces
	for _, models := range [][]*relevance.Model{{quick}, {quick, quick, quick}} {
		l.bind(relevance.Readings{}, models...)
		if want := quick.CostLimit() * time.Duration(len(models)); l.limit != want || l.most != max(int(5*time.Millisecond/want), 16) {
			t.Errorf("%d rows that may take %s each, not %s", l.most, l.limit, want)
		}
	}
	if l.bind(relevance.Readings{}, slices.Repeat([]*relevance.Model{quick}, 5000)...); l.most != 16 {
		t.Errorf("%d rows that may take %s each", l.most, l.limit)
	}
}

// onProcessor is a watcher of CPU time.
type onProcessor struct{ readWatcher }

func (*onProcessor) Processor() bool { return true }

// Who watches the processor is told what was computed, and who does not how long it took.
func TestTimeOfTheProcessor(t *testing.T) {
	const waits = 30 * time.Millisecond
	var q Query
	wait := func() { <-time.After(waits) }
	if took := q.count(&spent{watcher: new(readWatcher)}, wait); took < waits {
		t.Errorf("waiting for %s took %s", waits, took)
	}
	if took := q.count(&spent{}, wait); took < waits {
		t.Errorf("waiting for %s took %s, and nobody watches", waits, took)
	}
	if took := q.count(&spent{watcher: new(onProcessor)}, wait); took >= waits {
		t.Errorf("waiting for %s took the processor %s", waits, took)
	}
	s, rounds := spent{watcher: new(onProcessor), time: 1}, 0
	if took := q.count(&s, func() {
		for began := threadTime(); threadTime() < began+2*time.Millisecond; {
			rounds++
		}
	}); took < 2*time.Millisecond || rounds == 0 || s.time != 1+took {
		t.Errorf("computing took the processor %s in %d rounds, and together %s", took, rounds, s.time)
	}
}

// BenchmarkReadings tells what reading a byte of a text or an item of a list takes:
// where [relevance.ReadLimit] is from.
func BenchmarkReadings(b *testing.B) {
	texts := func(what string, n int) string { return `"text":"` + strings.Repeat(what, n) + `"` }
	list := func(what string, n int) string { return `"tags":[` + what + strings.Repeat(","+what, n-1) + `]` }
	s, err := schemas.Parse([]byte(`{"type":"record","name":"Long","namespace":"shop","fields":[
		{"name":"id","type":"string","millrace":"id"},{"name":"actor","type":"string","millrace":"entity"},{"name":"verb","type":"string","millrace":"type"},
		{"name":"created_at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"text","type":"string","default":""},
		{"name":"tags","type":{"type":"array","items":"string"},"default":[]},{"name":"features","type":{"type":"array","items":"float"},"default":[]}]}`))
	if err != nil {
		b.Fatal(err)
	}
	viewer := &millrace.Viewer{Attributes: map[string]any{"one": 1.0, "long": strings.Repeat("a", 15_000) + "b" + strings.Repeat("a", 1000), "word": strings.Repeat("a", 40) + "b", "taste": make([]float64, 50_000)}}
	for _, c := range []struct{ name, feature, record string }{
		{"letters of ASCII", `size(record.text)`, texts("an honest text of some length, ", 1300)},
		{"Cyrillic letters", `size(record.text)`, texts("ж", 8_000)},
		{"of a long text", `size(record.text)`, texts("ж", 450_000)},
		{"search", `record.text.contains("photo") ? 1 : 2`, texts("an honest text of some length, ", 1300)},
		{"hostile search for a long text", `record.text.contains(viewer.long) ? 1 : 2`, texts("a", 40_000)},
		{"hostile search", `record.text.contains(viewer.word) ? 1 : 2`, texts("a", 40_000)},
		{"comparison", `record.text.startsWith(record.text) ? 1 : 2`, texts("a", 400_000)},
		{"list of texts", `"photo" in record.tags ? 1 : 2`, list(`"a photograph"`, 40_000)},
		{"list of letters", `"photo" in record.tags ? 1 : 2`, list(`"a"`, 400_000)},
		{"list of nothing", `"photo" in record.tags ? 1 : 2`, list(`""`, 800_000)},
		{"embedding", `dot(record.features, viewer.taste)`, `"features":` + numbers(50_000)},
		{"another's embedding", `dot(record.features, viewer.taste)`, `"features":` + numbers(50)},
	} {
		b.Run(c.name, func(b *testing.B) {
			var lines []string
			for i := range 10 {
				lines = append(lines, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":"post","created_at":%d,%s}`, i, asOf-1000+i, c.record))
			}
			records, m := timelineOf(b, s, lines...), reader(b, s, c.feature)
			w := new(readWatcher)
			for b.Loop() {
				q := New(Spec{To: millrace.MaxTime, AsOf: asOf, Limit: 10, Model: m, Viewer: viewer})
				q.Add(millrace.Timeline{Entity: "member:1", Type: "post"}, records, column.Packed{})
				q.Watch(w)
				if err := q.Scan(b.Context()); err != nil {
					b.Fatal(err)
				}
				q.Release()
			}
			b.ReportMetric(float64(w.took.Nanoseconds())/float64(w.read), "ns/read")
		})
	}
}
