package query

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
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
