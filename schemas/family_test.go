package schemas

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/column"
)

// written is a schema and the fields beyond the roles of a record under it.
type written struct {
	fields []string // of the schema
	record string
	want   string // what the record reads, field by field
}

// TestFamily says what each record reads in the columns of its family.
func TestFamily(t *testing.T) {
	likes := `{"name":"likes","type":"long"}`
	for name, all := range map[string][]written{
		"a field that is dropped": {
			{[]string{likes}, `"likes":3`, "likes=3"},
			{nil, ``, "likes=null"},
		},
		"one with a default that is dropped": {
			{[]string{`{"name":"likes","type":"long","default":7}`}, ``, "likes=7"},
			{nil, ``, "likes=7"},
		},
		"one that is added, and its default changed": {
			{nil, ``, "likes=7 text=null"},
			{[]string{`{"name":"likes","type":"long","default":7}`}, `"likes":1`, "likes=1 text=null"},
			{[]string{`{"name":"likes","type":"long","default":9}`, `{"name":"text","type":["null","string"],"default":null}`}, `"likes":2,"text":"x"`, "likes=2 text=x"},
		},
		"one renamed by an alias": {
			{[]string{likes}, `"likes":3`, "hearts=3 likes=3"},
			{[]string{`{"name":"hearts","type":"long","aliases":["likes"]}`}, `"hearts":4`, "hearts=4 likes=4"},
		},
		"one renamed twice, and a record with the middle name": {
			{[]string{likes}, `"likes":3`, "hearts=3 likes=3 loves=3"},
			{[]string{`{"name":"hearts","type":"long","aliases":["likes"]}`}, `"hearts":4`, "hearts=4 likes=4 loves=4"},
			{[]string{`{"name":"loves","type":"double","aliases":["hearts","likes"]}`}, `"loves":5.5`, "hearts=null likes=null loves=5.5"},
		},
		"an old name that means something new": {
			{[]string{likes}, `"likes":3`, "hearts=3 likes=3"},
			{[]string{`{"name":"hearts","type":"long","aliases":["likes"]}`}, `"hearts":4`, "hearts=4 likes=4"},
			{[]string{`{"name":"hearts","type":"long","default":0}`, `{"name":"likes","type":"long","default":0}`}, `"hearts":5,"likes":6`, "hearts=5 likes=6"},
		},
		"an integer that becomes a double": {
			{[]string{likes}, `"likes":3`, "likes=3"},
			{[]string{`{"name":"likes","type":"double"}`}, `"likes":0.5`, "likes=0.5"},
		},
		"one that may be null": {
			{[]string{likes}, `"likes":3`, "likes=3"},
			{[]string{`{"name":"likes","type":["null","long"]}`}, `"likes":null`, "likes=null"},
		},
		"one that becomes a union of several types": {
			{[]string{likes}, `"likes":3`, "likes=3"},
			{[]string{`{"name":"likes","type":["string","long"]}`}, `"likes":4`, "likes=4"},
			{[]string{`{"name":"likes","type":["string","long"]}`}, `"likes":"many"`, "likes=null"},
		},
		"a string that becomes bytes": {
			{[]string{`{"name":"text","type":"string"}`}, `"text":"a text of some length"`, "text=a text of some length"},
			{[]string{`{"name":"text","type":"bytes"}`}, `"text":"AAAA"`, "text=null"},
		},
		"an enum that loses a symbol": {
			{[]string{`{"name":"mood","type":{"type":"enum","name":"Kind","symbols":["a","b","c"]}}`}, `"mood":"c"`, "mood=c"},
			{[]string{`{"name":"mood","type":{"type":"enum","name":"Kind","symbols":["a","b"],"default":"a"}}`}, `"mood":"b"`, "mood=b"},
		},
		"a record within": {
			{[]string{`{"name":"shop","type":{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"}]}}`}, `"shop":{"country":"IN"}`, "shop.city=Pune shop.country=IN shop.land=IN"},
			{[]string{`{"name":"shop","type":{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"},{"name":"city","type":"string","default":"Pune"}]}}`}, `"shop":{"country":"PE","city":"Lima"}`, "shop.city=Lima shop.country=PE shop.land=PE"},
			{[]string{`{"name":"shop","type":["null",{"type":"record","name":"Shop","fields":[{"name":"land","type":"string","aliases":["country"]}]}]}`}, `"shop":{"land":"CH"}`, "shop.city=Pune shop.country=CH shop.land=CH"},
			{[]string{`{"name":"shop","type":["null",{"type":"record","name":"Shop","fields":[{"name":"land","type":"string","aliases":["country"]}]}]}`}, `"shop":null`, "shop.city=null shop.country=null shop.land=null"},
			{nil, ``, "shop.city=null shop.country=null shop.land=null"},
		},
		"a record that is renamed by an alias and loses a field": {
			{[]string{`{"name":"shop","type":["null",{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"},{"name":"city","type":"string"}]}],"default":null}`}, `"shop":{"country":"IN","city":"Pune"}`, "place.country=IN shop.city=Pune shop.country=IN"},
			{[]string{`{"name":"place","type":["null",{"type":"record","name":"Place","fields":[{"name":"country","type":"string"}]}],"aliases":["shop"],"default":null}`}, `"place":{"country":"CH"}`, "place.country=CH shop.city=null shop.country=CH"},
			{[]string{`{"name":"place","type":["null",{"type":"record","name":"Place","fields":[{"name":"country","type":"string"}]}],"aliases":["shop"],"default":null}`}, `"place":null`, "place.country=null shop.city=null shop.country=null"},
		},
		"a record that is renamed by an alias and gains a field": {
			{[]string{`{"name":"shop","type":{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"}]}}`}, `"shop":{"country":"IN"}`, "place.city=null place.country=IN shop.country=IN"},
			{[]string{`{"name":"place","type":["null",{"type":"record","name":"Place","fields":[{"name":"country","type":"string"},{"name":"city","type":"string"}]}],"aliases":["shop"],"default":null}`}, `"place":{"country":"CH","city":"Bern"}`, "place.city=Bern place.country=CH shop.country=CH"},
		},
		"a list": {
			{[]string{`{"name":"tags","type":{"type":"array","items":"string"}}`}, `"tags":["a","something longer"]`, "labels=[a something longer] tags=[a something longer]"},
			{[]string{`{"name":"labels","type":{"type":"array","items":"string"},"default":["none"],"aliases":["tags"]}`}, `"labels":["b"]`, "labels=[b] tags=[b]"},
			{nil, ``, "labels=[none] tags=null"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var known, writers []*Schema
			for _, w := range all {
				s := mustSchema(t, withFields(w.fields...))
				if i := slices.IndexFunc(known, func(was *Schema) bool { return was.fingerprint == s.fingerprint }); i >= 0 {
					s = known[i]
				} else {
					known = append(known, s)
				}
				writers = append(writers, s)
			}
			f, err := FamilyOf(known...)
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range all {
				if got := reads(t, f, writers[i], w.record); got != w.want {
					t.Errorf("record %d {%s} reads %s, want %s", i, w.record, got, w.want)
				}
			}
		})
	}
}

// reads returns what a record reads in the columns beyond the roles.
func reads(t *testing.T, known *Family, writer *Schema, fields string) string {
	t.Helper()
	line := `{"id":"r","who":"a","kind":"t","at":1`
	if fields != "" {
		line += "," + fields
	}
	body, err := writer.EncodeJSON([]byte(line + "}"))
	if err != nil {
		t.Fatal(err)
	}
	d := known.Decoder(writer)
	a := column.New(d.Layout(), 1, 0).Append()
	if err := d.Append(a, body); err != nil {
		t.Fatal(err)
	}
	rows := a.Slab()
	var own []string
	for i, f := range rows.Layout().Fields() {
		if f.Role == "" && !strings.HasPrefix(f.Name, "$") {
			if rows.Null(i, 0) && !f.Nullable {
				t.Errorf("column %s is null and not nullable", f.Name)
			}
			own = append(own, f.Name+"="+text(rows, i))
		}
	}
	slices.Sort(own)
	return strings.Join(own, " ")
}

func text(s *column.Slab, i int) string {
	w := s.Word(i, 0)
	switch f := s.Layout().Fields()[i]; {
	case s.Null(i, 0):
		return "null"
	case f.Kind == column.Double:
		return fmt.Sprint(math.Float64frombits(w))
	case f.Kind == column.String:
		return s.String(w)
	case f.Kind == column.Strings:
		return fmt.Sprint(s.Strings(nil, w))
	case f.Kind == column.Doubles:
		return fmt.Sprint(s.Doubles(nil, w))
	}
	return fmt.Sprint(int64(w))
}

// A schema with the fingerprint of another is forged, since nobody waits for one.
func TestCollision(t *testing.T) {
	forged := *Activity()
	forged.fingerprint = Note().fingerprint
	if err := CheckSame(Note(), &forged); err == nil || !strings.Contains(err.Error(), "by accident") {
		t.Error(err)
	}
}

// A family of one schema has its layout, and its generated code.
func TestFamilyOfOne(t *testing.T) {
	f, err := FamilyOf(Note())
	if err != nil {
		t.Fatal(err)
	}
	if d := f.Decoder(Note()); d == nil || d.Layout() != Note().Layout() || d.generated == nil {
		t.Error("one schema alone has another layout, or its generated code is not used")
	}
}

// TestRandomFamilies: in every family each record reads its own fields as it
// does by its own schema, whatever other schemas there are and in whatever order
// they came, and no column is null that says it never is. The record as a row of values reads
// the same.
func TestRandomFamilies(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 1))}
	families, own, read := 0, 0, 0
	for range 300 {
		var all []*Schema
		shape := g.record()
		for range 6 {
			if s, err := Parse(mustJSON(shape)); err == nil && follows(all, s) {
				all = append(all, s)
			}
			shape = g.evolve(shape)
		}
		if len(all) < 2 {
			continue
		}
		known, err := FamilyOf(all...)
		if err != nil {
			t.Fatal(err)
		}
		families++
		for _, s := range all {
			alone, err := NewDecoder(s, s)
			if err != nil {
				t.Fatal(err)
			}
			value := g.value(s.root)
			body, err := s.EncodeJSON(mustJSON(value))
			if err != nil {
				t.Fatal(err)
			}
			want, got := column.New(s.layout, 1, 0).Append(), column.New(known.Decoder(s).Layout(), 1, 0).Append()
			if err, first := known.Decoder(s).Append(got, body), alone.Append(want, body); (err == nil) != (first == nil) {
				t.Fatalf("in its family %v, alone %v\n%s", err, first, s.JSON())
			}
			own += sameOwn(t, s, want.Slab(), got.Slab())
			if given := (object{}); got.Slab().Len() == 1 && flattened(given, s.layout, s.root, "", value) {
				row, err := s.Row(given)
				if err != nil {
					t.Fatal(err)
				}
				sameRow(t, "a row of values", row, want.Slab())
				if row, err = known.Read(s, given); err != nil {
					t.Fatal(err)
				}
				sameRow(t, "a row of values in the family", row, got.Slab())
				read++
			}
			if t.Failed() {
				for _, s := range all {
					t.Log(s.JSON())
				}
				t.FailNow()
			}
		}
	}
	if families < 50 || own < 500 || read < 100 {
		t.Errorf("%d families, %d fields and %d rows of values; the test wants many", families, own, read)
	}
}

// follows reports whether a schema is another than those of a family and can
// read all of them.
func follows(all []*Schema, s *Schema) bool {
	return !slices.ContainsFunc(all, func(was *Schema) bool {
		return was.fingerprint == s.fingerprint || CheckEvolution(was, s) != nil
	})
}

// sameOwn compares a row by its schema alone with that in its family.
func sameOwn(t *testing.T, s *Schema, want, got *column.Slab) (own int) {
	t.Helper()
	for i, f := range got.Layout().Fields() {
		if got.Null(i, 0) && !f.Nullable {
			t.Errorf("column %s is null and not nullable", f.Name)
		}
		at := s.layout.Index(f.Name)
		if at < 0 || f.Name == BodyColumn {
			continue
		}
		switch w := s.layout.Fields()[at]; {
		case w.Kind == f.Kind, w.Kind == column.Int && f.Kind == column.Time, w.Kind == column.Time && f.Kind == column.Int:
			if x, y := text(want, at), text(got, i); x != y {
				t.Errorf("%s of a %s is %s, want %s", f.Name, s.fingerprint, y, x)
			}
			own++
		case f.Kind == column.Double && w.Kind == column.Int:
			if x := float64(int64(want.Word(at, 0))); !want.Null(at, 0) && math.Float64frombits(got.Word(i, 0)) != x {
				t.Errorf("%s of a %s is %s, want %v", f.Name, s.fingerprint, text(got, i), x)
			}
		case !got.Null(i, 0):
			t.Errorf("%s is a %s in its schema, and a %s in the family, and not null", f.Name, w.Kind, f.Kind)
		}
	}
	return own
}
