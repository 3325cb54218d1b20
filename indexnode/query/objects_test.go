package query

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// about returns a model that reads features of objects, or one like it that
// does not.
func about(t testing.TB, read string) *relevance.Model {
	src := "name: about\nversion: \"1\"\nschemas: [millrace.Activity]\nobject: millrace.Features\nfeatures:\n  likes: log1p(record.likes)\n  about: " + read + "\nscorer: linear\nparameters: {weights: {likes: 0.001, about: 1}}\n"
	m, err := relevance.Parse("about.yaml", []byte(src), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// someObjects returns features of objects o0, o1, ..., each by its number.
func someObjects(t testing.TB, n int) *cache.Timeline {
	var names []string
	for i := range n {
		names = append(names, fmt.Sprint("o", i))
	}
	slices.Sort(names)
	var lines []string
	for _, name := range names {
		lines = append(lines, fmt.Sprintf(`{"entity":"member:1","subject":%q,"updated_at":1,"engagement":%s}`, name, name[1:]))
	}
	return timelineOf(t, schemas.Features(), lines...)
}

// A candidate is scored by the features of its object, as far as its entity
// routes any; what a batch held before does not come back.
func TestObjects(t *testing.T) {
	keys, all := build(200, func(s *column.Slab) *cache.Timeline {
		tl, err := cache.NewTimeline(millrace.MinTime, s)
		if err != nil {
			t.Fatal(err)
		}
		return tl
	})
	objects := someObjects(t, 60) // of 97
	q := New(Spec{To: millrace.MaxTime, AsOf: asOf, Limit: 1000, Model: about(t, "coalesce(object.engagement, -1)")})
	defer q.Release()
	for i, tl := range all {
		q.Add(keys[i], tl, column.Packed{})
		if i%2 == 0 {
			q.AddObjects(keys[i].Entity, objects)
		}
	}
	if err := q.Scan(context.Background()); err != nil {
		t.Fatal(err)
	}
	items := q.Answer().Items
	if len(items) != 1000 {
		t.Fatalf("%d items", len(items))
	}
	for i, it := range items {
		var member, n int
		if _, err := fmt.Sscanf(string(it.Entity)+" "+string(it.Object), "member:%d o%d", &member, &n); err != nil {
			t.Fatal(err)
		}
		want := float64(n)
		if n >= 60 || member%2 == 1 {
			want = -1
		}
		if it.Score < want || it.Score > want+0.01 { // there are likes, too
			t.Fatalf("item %d, %s about %s: %v, want %v", i, it.Entity, it.Object, it.Score, want)
		}
	}
}

// BenchmarkObjects tells what reading features of objects costs a candidate.
func BenchmarkObjects(b *testing.B) {
	keys, all := world(b)
	objects := someObjects(b, 97)
	for name, read := range map[string]string{"objects": "object.engagement", "none": "record.comments"} {
		s := question(b)
		s.Model = about(b, read)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q := New(s)
				for i, tl := range all[:askedTimelines] {
					q.Add(keys[i], tl, column.Packed{})
					q.AddObjects(keys[i].Entity, objects)
				}
				if err := q.Scan(context.Background()); err != nil {
					b.Fatal(err)
				}
				q.Answer()
				q.Release()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*askedTimelines*worldRows), "ns/candidate")
		})
	}
}

// What the items of a model beside a question's lack is told by the features of
// objects that it ranked by, whatever memory of earlier questions is used.
func TestLackingBesideReadsObjects(t *testing.T) {
	keys, all := build(20, func(s *column.Slab) *cache.Timeline {
		tl, err := cache.NewTimeline(millrace.MinTime, s)
		if err != nil {
			t.Fatal(err)
		}
		return tl
	})
	objects := someObjects(t, 97)
	joint := relevance.Join(about(t, "object.engagement"), about(t, "record.likes"))
	for round, routed := range []bool{true, true, false, true} {
		q := New(Spec{To: millrace.MaxTime, AsOf: asOf, Limit: 10, Model: about(t, "record.comments"), Measure: true})
		for i, tl := range all {
			q.Add(keys[i], tl, column.Packed{})
			if routed {
				q.AddObjects(keys[i].Entity, objects)
			}
		}
		if err := q.Scan(context.Background()); err != nil {
			t.Fatal(err)
		}
		q.Answer()
		ranked, err := q.Beside(context.Background(), joint)
		if err != nil || len(ranked[0]) != 10 {
			t.Fatalf("%d rankings, %v", len(ranked), err)
		}
		measured, want := q.MeasuredBeside(joint), int64(0)
		if !routed {
			want = measuredItems
		}
		if m := measured[0]; m.Looked != measuredItems || m.Lacking["about"] != want {
			t.Errorf("round %d: %d of %d items lack what is of their objects, want %d", round, m.Lacking["about"], m.Looked, want)
		}
		if round == 1 { // fewer models, and what is not needed holds none
			q.reset()
			q.begin(Spec{To: millrace.MaxTime, AsOf: asOf, Limit: 10, Model: about(t, "record.comments")})
			if _, err := q.Beside(context.Background(), relevance.Join(about(t, "record.likes"))); err != nil || q.beside[1].measures != nil {
				t.Error("a query that ranks nothing holds a model", err)
			}
		}
		if m := measured[1]; m.Looked != measuredItems || m.Lacking["about"] != 0 {
			t.Errorf("round %d: %d of %d items lack what every record has", round, m.Lacking["about"], m.Looked)
		}
		q.Release()
	}
}
