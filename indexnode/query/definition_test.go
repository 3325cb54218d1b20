package query

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// drawnRun is consecutive rows of a timeline that have one layout, as they were written.
type drawnRun struct {
	millrace.Timeline
	rows, features *column.Slab // features is the entity's one row; nil if it has none
}

// drawnWorld is timelines as a query gets them, and as they were written.
type drawnWorld struct {
	keys     []millrace.Timeline
	held     []*cache.Timeline
	features []*column.Slab // by timeline
	runs     []drawnRun
	objects  map[millrace.Entity]*column.Slab    // features of objects, by the entity that routes them
	routed   map[millrace.Entity]*cache.Timeline // the same
	note     *schemas.Schema
	mark     *schemas.Schema
}

// noteSchema is a schema of records without objects, and with fields of other names.
const noteSchema = `{"type":"record","name":"Note","namespace":"test","fields":[
	{"name":"author","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},{"name":"likes","type":"long","default":0},
	{"name":"written","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"key","type":"string","millrace":"id"}]}`

// markSchema is a schema of records whose object is their first field.
const markSchema = `{"type":"record","name":"Mark","namespace":"test","fields":[{"name":"of","type":"string","default":"","millrace":"object"},
	{"name":"author","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},{"name":"likes","type":"long","default":0},
	{"name":"written","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"key","type":"string","millrace":"id"}]}`

// slabOf decodes lines of JSON that are records of a schema.
func slabOf(t testing.TB, s *schemas.Schema, lines []string) *column.Slab {
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
	return a.Slab()
}

// drawWorld draws timelines of three schemas: of one part and of two, in one block and
// continued, of entities with and without features, that route features of objects or none.
func drawWorld(t *testing.T, r *rand.Rand) *drawnWorld {
	note, err := schemas.Parse([]byte(noteSchema))
	if err != nil {
		t.Fatal(err)
	}
	mark, err := schemas.Parse([]byte(markSchema))
	if err != nil {
		t.Fatal(err)
	}
	w := &drawnWorld{mark: mark, objects: map[millrace.Entity]*column.Slab{}, routed: map[millrace.Entity]*cache.Timeline{}, note: note}
	for i := range 40 {
		entity := millrace.Entity(fmt.Sprint("member:", i/2))
		key := millrace.Timeline{Entity: entity, Type: []millrace.ContentType{"post", "share"}[i%2]}
		var features *column.Slab
		if i%2 == 1 {
			features = w.features[i-1]
		} else if r.IntN(3) > 0 {
			features = slabOf(t, schemas.Features(), []string{fmt.Sprintf(`{"entity":%q,"updated_at":1,"followers":%d}`, entity, r.IntN(5))})
		}
		if i%2 == 0 && r.IntN(2) == 0 {
			var lines []string
			for _, subject := range strings.Fields("n0 n1 n2 o0 o1 o2 o3 o4 o5 o6 o7 r0 r1 r2 r5") {
				if r.IntN(2) == 0 {
					lines = append(lines, fmt.Sprintf(`{"entity":%q,"subject":%q,"updated_at":1,"engagement":%d}`, entity, subject, r.IntN(9)))
				}
			}
			w.objects[entity] = slabOf(t, schemas.Features(), lines)
			w.routed[entity] = mustHold(t, w.objects[entity])
		}
		n := []int{1, 3, 20, 60}[r.IntN(4)]
		if i == 7 {
			n = batchRows + 100
		}
		at := asOf - int64(n)*10_000
		activity := func(j int) string {
			at += r.Int64N(3) * 5000
			object := []string{"", string(entity), fmt.Sprint("o", r.IntN(12))}[r.IntN(3)]
			return fmt.Sprintf(`{"id":"r%d","actor":%q,"verb":"post","created_at":%d,"object":%q,"language":%q,"likes":%d,"comments":%d,"impressions":%d}`,
				j, entity, at, object, []string{"en", "de", "zh"}[r.IntN(3)], r.IntN(5), r.IntN(3), r.IntN(900))
		}
		lines := make([]string, n)
		for j := range lines {
			lines[j] = activity(j)
		}
		var tl *cache.Timeline
		switch cut := n * 2 / 3; {
		case i%5 == 1 || i%5 == 3: // notes or marks, too, which are a part of their own
			notes := make([]string, 1+r.IntN(20))
			for j := range notes {
				notes[j] = fmt.Sprintf(`{"author":%q,"kind":"post","likes":%d,"written":%d,"key":"n%d"}`, entity, r.IntN(5), asOf-100_000+j*7000, j)
			}
			other := note
			if i%5 == 3 {
				other = mark
				for j := range notes {
					notes[j] = strings.Replace(notes[j], "{", fmt.Sprintf(`{"of":"%.*s",`, r.IntN(2)*9, fmt.Sprint("o", r.IntN(12))), 1)
				}
			}
			a, b := slabOf(t, schemas.Activity(), lines), slabOf(t, other, notes)
			w.runs = append(w.runs, drawnRun{key, a, features}, drawnRun{key, b, features})
			if tl, err = cache.NewTimeline(millrace.MinTime, a, b); err != nil {
				t.Fatal(err)
			}
		case i%5 == 2 && cut > 0: // continued, so that it is in two blocks
			a, b := slabOf(t, schemas.Activity(), lines[:cut]), slabOf(t, schemas.Activity(), lines[cut:])
			w.runs = append(w.runs, drawnRun{key, a, features}, drawnRun{key, b, features})
			k := held.keys[hold(t, a)]
			d, err := schemas.NewDecoder(schemas.Activity(), schemas.Activity())
			if err != nil {
				t.Fatal(err)
			}
			body := schemas.Activity().Layout().Index(schemas.BodyColumn)
			for row := range b.Len() {
				held.Continue(k, schemas.Activity().Layout(), 1<<20, func(a *column.Appender) error { return d.Append(a, b.BytesAt(body, row)) })
			}
			tl = heldAs(k)
		default:
			a := slabOf(t, schemas.Activity(), lines)
			w.runs = append(w.runs, drawnRun{key, a, features})
			if tl = hold(t, a); i%10 == 4 { // one that is not cached, and has been asked for
				tl = mustHold(t, a)
				tl.Owe(1 << 20)
			}
		}
		w.keys, w.held, w.features = append(w.keys, key), append(w.held, tl), append(w.features, features)
	}
	return w
}

func mustHold(t testing.TB, s *column.Slab) *cache.Timeline {
	t.Helper()
	tl, err := cache.NewTimeline(millrace.MinTime, s)
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

// expected is what a question's definition says of it.
type expected struct {
	items    []Item
	stages   Stages
	clauses  []filter.Counts
	all      []Account       // of every candidate, without CappedBy
	kept     []millrace.Rank // of those that the filter keeps, best first
	measured Measured
}

// judge goes through all rows by the definition of a question, in plain steps. begins is
// where the window of each timeline begins.
func (w *drawnWorld) judge(t *testing.T, s Spec, begins map[millrace.Timeline]millrace.Time) (e expected) {
	t.Helper()
	type candidate struct {
		Item
		tell func(*Item) // adds what is told of items
	}
	var kept []*candidate
	if s.Filter != nil && s.Explain {
		e.clauses = make([]filter.Counts, s.Filter.Clauses())
	}
	for _, run := range w.runs {
		var entity *column.Layout
		if run.features != nil {
			entity = run.features.Layout()
		}
		l := run.rows.Layout()
		scorer, err := s.Model.Bind(l, entity, s.Viewer, s.AsOf)
		if err != nil {
			t.Fatal(err)
		}
		at := columnsOf(l)
		objectOf := func(row int) millrace.Object {
			if at.object >= 0 && run.rows.StringAt(at.object, row) != "" {
				return millrace.Object(run.rows.StringAt(at.object, row))
			}
			return millrace.Object(run.rows.StringAt(at.id, row))
		}
		about := func(objects *relevance.Objects) *column.Slab {
			for row := range run.rows.Len() {
				object, routed := objectOf(row), w.objects[run.Entity]
				if string(object) == string(run.Entity) && run.features != nil {
					err = errors.Join(err, objects.Add(run.features, 0))
					continue
				}
				found := -1
				for i := 0; routed != nil && i < routed.Len(); i++ {
					if routed.StringAt(routed.Layout().Role("subject"), i) == string(object) {
						found = i
					}
				}
				if found < 0 {
					objects.AddNone()
				} else {
					err = errors.Join(err, objects.Add(routed, found))
				}
			}
			return objects.Slab()
		}
		if scorer.ObjectLayout() != nil {
			scorer.SetObjects(about(relevance.NewObjects(scorer.ObjectLayout())))
		}
		var rows []int32
		for row := range run.rows.Len() {
			if at := millrace.Time(run.rows.Word(at.time, row)); max(s.From, begins[run.Timeline]) <= at && at < s.To {
				rows = append(rows, int32(row))
			}
		}
		dropped, scores := make([]filter.Dropped, len(rows)), make([]float64, len(rows))
		if s.Filter != nil {
			clauses, err := s.Filter.BindClauses(l, entity, s.Viewer, s.AsOf)
			if err != nil {
				t.Fatal(err)
			}
			dropped = clauses.Judge(run.rows, rows, run.features)
		}
		scorer.Score(run.rows, rows, run.features, scores)
		var joint [][]float64
		if s.Shadow != nil {
			for _, m := range s.Shadow.Models() {
				alone, err := m.Bind(l, entity, s.Viewer, s.AsOf)
				if err != nil {
					t.Fatal(err)
				}
				if alone.ObjectLayout() != nil {
					alone.SetObjects(about(relevance.NewObjects(alone.ObjectLayout())))
				}
				joint = append(joint, make([]float64, len(rows)))
				alone.Score(run.rows, rows, run.features, joint[len(joint)-1])
			}
		}
		e.stages.Candidates += int64(len(rows))
		for i, row := range rows {
			a := Account{Dropped: dropped[i], Object: objectOf(int(row))}
			a.Rank = millrace.Rank{Time: millrace.Time(run.rows.Word(at.time, int(row))), ID: millrace.RecordID(run.rows.StringAt(at.id, int(row))), Timeline: run.Timeline}
			_, a.Served = s.Exclude[millrace.ServedHash(s.ServedKey, s.DistinctObjects, a.Object, a.Timeline, a.ID)]
			if a.Dropped.Outcome != filter.Kept {
				e.stages.Filtered.Add(a.Dropped.Outcome)
				if e.clauses != nil {
					e.clauses[a.Dropped.Clause].Add(a.Dropped.Outcome)
				}
				a.Operands = s.Filter.Operands(a.Dropped.Clause, run.rows, int(row), run.features, s.Viewer, s.AsOf)
				e.all = append(e.all, a)
				continue
			}
			a.Score = scores[i]
			e.all = append(e.all, a)
			e.measured.Finite = e.measured.Finite || finite(a.Score)
			c := &candidate{Item: Item{Rank: a.Rank, Object: a.Object, Schema: millrace.Fingerprint(run.rows.Word(at.schema, int(row))), Body: run.rows.BytesAt(at.body, int(row))}}
			c.tell = func(it *Item) {
				told, _ := scorer.Features(run.rows, int(row), run.features)
				if s.Features {
					it.Features = told.Features
				}
				if s.Explain {
					why := scorer.Explain(run.rows, int(row), run.features)
					it.Why, it.Shadow.Err = &why, s.ShadowErr
				}
				for _, of := range joint {
					it.Shadow.Scores = append(it.Shadow.Scores, of[i])
				}
				m := &e.measured
				if !s.Measure || m.Looked == 4 {
					return
				}
				if m.Looked++; m.Lacking == nil {
					m.Lacking = map[string]int64{}
				}
				for _, f := range told.Features {
					x, number := f.Value.(float64)
					m.Lacking[f.Name] += int64(compute.One(number && x != x || f.Value == ""))
				}
			}
			kept = append(kept, c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	e.stages.Scored, e.measured.Scored = int64(len(kept)), int64(len(kept))
	slices.SortFunc(kept, func(a, b *candidate) int { return a.Compare(b.Rank) })
	for _, c := range kept {
		e.kept = append(e.kept, c.Rank)
	}
	taken, byObject := map[millrace.Entity]int{}, map[millrace.Object]int{}
	for _, c := range kept {
		if len(e.items) == s.Limit {
			break
		}
		if taken[c.Entity]++; s.Cap > 0 && taken[c.Entity] > s.Cap {
			e.stages.Capped++
			continue
		}
		_, served := s.Exclude[millrace.ServedHash(s.ServedKey, s.DistinctObjects, c.Object, c.Timeline, c.ID)]
		i, seen := byObject[c.Object]
		switch {
		case s.DistinctObjects && seen:
			if i >= 0 && len(e.items[i].Also) < 3 {
				e.items[i].Also = append(e.items[i].Also, Item{Rank: c.Rank, Object: c.Object, Schema: c.Schema})
			}
			continue
		case served:
			byObject[c.Object] = -1
			continue
		}
		byObject[c.Object] = len(e.items)
		e.items = append(e.items, c.Item)
		c.tell(&e.items[len(e.items)-1])
	}
	return e
}

// inFull prints all that items have.
func inFull(items []Item) (lines []string) {
	for _, it := range items {
		why := ""
		if it.Why != nil {
			why = fmt.Sprintf("%+v", *it.Why)
		}
		lines = append(lines, fmt.Sprintf("%v %v %+v %s %+v", printed([]Item{it}), it.Features, it.Shadow, why, inFull(it.Also)))
	}
	return lines
}

func rankLine(r millrace.Rank) string {
	return fmt.Sprintf("%v %d %q %s", r.Score, r.Time, r.ID, r.Timeline)
}

// differ fails a test where two lists of lines differ, and tells where.
func differ(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("%s: %d lines, want %d; from line %d\n got %s\nwant %s", what, len(got), len(want), i, got[min(i, len(got)):min(i+1, len(got))], want[min(i, len(want)):min(i+1, len(want))])
		}
	}
}

var seeded = flag.Uint64("seed", 0, "of the questions that are drawn; 0: another one each time")

// A question has the answer that its definition gives, record by record: items with all that
// is told of them, counts, accounts of records, and rankings by other models.
func TestAQuestionIsItsDefinition(t *testing.T) {
	seed := cmp.Or(*seeded, uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	w := drawWorld(t, r)
	known := relevance.ShippedSchemas()
	known["test.Note"], known["test.Mark"] = relevance.Records{Layout: w.note.Layout()}, relevance.Records{Layout: w.mark.Layout()}
	parse := func(features string) *relevance.Model {
		names := ""
		for _, line := range strings.Split(features, "\n") {
			name, _, _ := strings.Cut(line, ":")
			if names += name + ": 1, "; name == "language" {
				names = strings.TrimSuffix(names, "1, ") + "{en: 1, de: 2}, "
			}
		}
		m, err := relevance.Parse("m.yaml", []byte("name: m\nversion: \"1\"\nschemas: [millrace.Activity, test.Note, test.Mark]\nentity: millrace.Features\nobject: millrace.Features\nviewer: {taste: double}\nfeatures:\n  "+strings.ReplaceAll(features, "\n", "\n  ")+"\nscorer: linear\nparameters: {weights: {"+names+"}}\n"), known)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	models := []*relevance.Model{
		parse("likes: record.likes\nrecent: decay(record.time, 3600.0) * coalesce(viewer.taste, 1.0)"),
		parse("likes: record.likes\ncomments: record.comments"), // missing of notes
		parse("likes: record.likes\nfollowers: entity.followers * 0.5\nabout: coalesce(object.engagement, -1.0)"),
		parse("about: object.engagement"), // nearly always missing
		parse("likes: record.likes\nlanguage: record.language"),
		parse("none: record.likes / (record.likes - record.likes)"),
	}
	filters := []*filter.Filter{nil}
	for _, src := range []string{`record.likes >= 1`, `record.likes > 0 && record.language in ["en", "de"] && 10 / record.comments > 1`, `entity.followers > 1.0`, `record.likes > 9`, `viewer.taste > 0.0 || record.likes != 2`} {
		f, err := filter.Compile(src, expr.Env{Record: []*column.Layout{schemas.Activity().Layout(), w.note.Layout(), w.mark.Layout()}, Entity: []*column.Layout{schemas.Features().Layout()}})
		if err != nil {
			t.Fatal(err)
		}
		filters = append(filters, f)
	}
	rescanned := false
	for i := range 50 {
		draw := func(of ...int) int { return of[r.IntN(len(of))] }
		s := Spec{
			From: asOf - millrace.Time(draw(100_000, 400_000, 1e9)), To: asOf - millrace.Time(draw(-1, 20_000, 90_000)), AsOf: asOf - millrace.Time(draw(0, 60_000)),
			Filter: filters[r.IntN(len(filters))], Model: models[r.IntN(len(models))], Viewer: &millrace.Viewer{ID: "v"},
			Limit: draw(1, 5, 40, 5000), Cap: draw(0, 0, 1, 3), DistinctObjects: r.IntN(2) == 0,
			Explain: r.IntN(3) == 0, Features: r.IntN(3) == 0, Measure: r.IntN(2) == 0, Folds: held.Cache,
		}
		if r.IntN(2) == 0 {
			s.Viewer.Features = map[string]float64{"taste": float64(draw(-1, 2))}
		}
		switch r.IntN(3) {
		case 0:
			s.Shadow = relevance.Join(s.Model, models[r.IntN(len(models))])
		case 1:
			s.ShadowErr = errors.New("no shadow")
		}
		begins := map[millrace.Timeline]millrace.Time{}
		for j, key := range w.keys {
			begins[key] = millrace.MinTime
			if j%7 == i%7 {
				begins[key] = asOf - millrace.Time(draw(50_000, 300_000))
			}
		}
		if r.IntN(2) == 0 {
			s.ServedKey, s.Exclude = millrace.ServedKey{7}, map[uint64]struct{}{}
			for _, it := range w.judge(t, s, begins).items {
				if r.IntN(2) == 0 {
					s.Exclude[millrace.ServedHash(s.ServedKey, s.DistinctObjects, it.Object, it.Timeline, it.ID)] = struct{}{}
				}
			}
		}
		want := w.judge(t, s, begins)
		what := fmt.Sprintf("question %d of seed %d", i, seed)
		q := New(s)
		if i%2 == 0 { // as after questions that took few candidates
			q.top.reserve = 0
			q.begin(s)
		}
		for j, key := range w.keys {
			q.NotBefore(begins[key])
			var features column.Packed
			if w.features[j] != nil {
				features = packed(t, w.features[j])
				if j%2 == 1 && w.features[j] == w.features[j-1] {
					features = q.asked[j-1].features
				}
			}
			q.Add(key, w.held[j], features)
			if routed := w.routed[key.Entity]; routed != nil {
				q.AddObjects(key.Entity, routed)
			}
		}
		if err := q.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		rescanned = rescanned || q.again
		a := q.Answer()
		differ(t, what, inFull(a.Items), inFull(want.items))
		if a.Stages != want.stages || !slices.Equal(q.Clauses(), want.clauses) || (a.Execution == "") != (want.stages.Candidates == 0) {
			t.Fatalf("%s: %+v by %q, want %+v; by clause %+v, want %+v", what, a.Stages, a.Execution, want.stages, q.Clauses(), want.clauses)
		}
		m := q.Measured()
		if m.Took = 0; fmt.Sprint(m) != fmt.Sprint(want.measured) {
			t.Fatalf("%s: measured %+v, want %+v", what, m, want.measured)
		}
		w.accounts(t, what, q, r, want)
		for range r.IntN(5) / 2 {
			j := relevance.Join(models[r.IntN(len(models))], models[r.IntN(len(models))])
			beside, err := q.Beside(t.Context(), j)
			if err != nil {
				t.Fatal(err)
			}
			measured := q.MeasuredBeside(j)
			for k, m := range j.Models() {
				alone := s
				alone.Model, alone.Explain, alone.Features, alone.Shadow = m, false, false, nil
				want := w.judge(t, alone, begins)
				differ(t, what+", beside", inFull(beside[k]), inFull(want.items))
				if measured[k].Took = 0; fmt.Sprint(measured[k]) != fmt.Sprint(want.measured) {
					t.Fatalf("%s: measured beside %+v, want %+v", what, measured[k], want.measured)
				}
			}
			differ(t, what+", after others", inFull(a.Items), inFull(want.items))
		}
		q.Release()
	}
	if !rescanned {
		t.Error("no question was scanned again")
	}
}

// accounts compares what a query tells of a record, and of ranks.
func (w *drawnWorld) accounts(t *testing.T, what string, q *Query, r *rand.Rand, want expected) {
	t.Helper()
	id, ranks := millrace.RecordID("nothing"), []millrace.Rank{{}}
	if len(want.all) > 0 {
		id = want.all[r.IntN(len(want.all))].ID
		for range 3 {
			ranks = append(ranks, want.all[r.IntN(len(want.all))].Rank)
		}
	}
	got, err := q.Account(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	lines := func(all []Account) (lines []string) {
		slices.SortFunc(all, func(a, b Account) int {
			return cmp.Or(strings.Compare(a.Timeline.String(), b.Timeline.String()), cmp.Compare(a.Time, b.Time))
		})
		for _, a := range all {
			line := fmt.Sprintf("%s %q %+v %+v %v", rankLine(a.Rank), a.Object, a.Dropped, a.Operands, a.Served)
			for _, r := range a.CappedBy {
				line += " capped by " + rankLine(r)
			}
			lines = append(lines, line)
		}
		return lines
	}
	var of []Account
	above := make([]int64, len(ranks))
	for _, a := range want.all {
		if a.ID == id {
			var better []millrace.Rank
			for _, k := range want.kept {
				if k.Entity == a.Entity && k.Compare(a.Rank) < 0 {
					better = append(better, k)
				}
			}
			if limit := q.spec.Cap; a.Dropped.Outcome == filter.Kept && limit > 0 && len(better) >= limit {
				a.CappedBy = better[:limit]
			}
			of = append(of, a)
		}
	}
	for i, r := range ranks {
		for _, k := range want.kept {
			above[i] += int64(compute.One(k.Compare(r) < 0))
		}
	}
	differ(t, what+", record "+string(id), lines(got), lines(of))
	counts, err := q.Above(t.Context(), ranks)
	if err != nil || !slices.Equal(counts, above) {
		t.Fatalf("%s: %d above %v, want %d: %v", what, counts, ranks, above, err)
	}
}
