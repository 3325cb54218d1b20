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
		"a list": {
			{[]string{`{"name":"tags","type":{"type":"array","items":"string"}}`}, `"tags":["a","something longer"]`, "labels=[a something longer] tags=[a something longer]"},
			{[]string{`{"name":"labels","type":{"type":"array","items":"string"},"default":["none"],"aliases":["tags"]}`}, `"labels":["b"]`, "labels=[b] tags=[b]"},
			{nil, ``, "labels=[none] tags=null"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, nil, nil)
			var writers []*Schema
			for _, w := range all {
				s := mustSchema(t, withFields(w.fields...))
				if _, err := r.Admit(s); err != nil {
					t.Fatal(err)
				}
				writers = append(writers, s)
			}
			for i, w := range all {
				if got := reads(t, r.Snapshot(), writers[i], w.record); got != w.want {
					t.Errorf("record %d {%s} reads %s, want %s", i, w.record, got, w.want)
				}
			}
		})
	}
}

// reads returns what a record reads in the columns beyond the roles.
func reads(t *testing.T, known *Snapshot, writer *Schema, fields string) string {
	t.Helper()
	line := `{"id":"r","who":"a","kind":"t","at":1`
	if fields != "" {
		line += "," + fields
	}
	body, err := writer.EncodeJSON([]byte(line + "}"))
	if err != nil {
		t.Fatal(err)
	}
	d := known.Decoder(writer.Fingerprint())
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

// TestChanges says what each schema would change after the first, and that
// which is known changes nothing.
func TestChanges(t *testing.T) {
	first := mustSchema(t, withFields(`{"name":"likes","type":"long"}`, `{"name":"text","type":"string","default":"none"}`, `{"name":"shop","type":{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"}]},"default":{"country":"IN"}}`))
	shop := `{"name":"shop","type":{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"}]},"default":{"country":"IN"}}`
	for avsc, want := range map[string]string{
		first.JSON(): "",
		withFields(`{"name":"likes","type":"long"}`, `{"name":"text","type":"string","default":"none"}`, shop, `{"name":"more","type":"int","default":0}`): "adds record.more",
		withFields(`{"name":"text","type":"string","default":"none"}`, shop):                                                                               "drops record.likes: its records read null",
		withFields(`{"name":"likes","type":"long"}`):                                                                                                       "drops record.shop.country: its records read the default\ndrops record.text: its records read the default",
		withFields(`{"name":"hearts","type":"long","aliases":["likes"]}`, `{"name":"text","type":"string","default":"none"}`, shop):                        "adds record.hearts\nrenames record.likes: to hearts",
		withFields(`{"name":"likes","type":"double"}`, `{"name":"text","type":"string","default":"none"}`, shop):                                           "widens record.likes: it was an int, and is a double for all records",
		withFields(`{"name":"likes","type":"long"}`, `{"name":"text","type":"bytes","default":"none"}`, shop):                                              "retypes record.text: it is bytes and was string, so that its records read null, or what of it fits",
		strings.Replace(withFields(`{"name":"likes","type":"string"}`, `{"name":"text","type":"string"}`), `"T"`, `"U"`, 1):                                "clashes record.likes: it is string, and int in T, which came first, so that filters read null in records of U",
	} {
		r := newRegistry(t, nil, nil)
		admit(t, r, first)
		changes, err := r.Snapshot().Changes(mustSchema(t, avsc))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range changes {
			got = append(got, c.String())
			if c.Loses() != (c.What == Dropped || c.What == Retyped) {
				t.Errorf("%s loses: %v", c, c.Loses())
			}
		}
		slices.Sort(got)
		if got := strings.Join(got, "\n"); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", avsc, got, want)
		}
	}
	r := newRegistry(t, nil, nil)
	admit(t, r, first)
	if _, err := r.Snapshot().Changes(mustSchema(t, withFields(`{"name":"likes","type":"string"}`))); err == nil {
		t.Error("what is refused has changes")
	}
}

// Changes of a type that its columns do not show are told, too: readers of
// records, and models that know an enum's symbols, may notice them.
func TestChangesOfATypeAreTold(t *testing.T) {
	fields := func(n, kind, tags, more string) string {
		return withFields(`{"name":"n","type":`+n+`}`, `{"name":"sort","type":`+kind+`}`, `{"name":"tags","type":`+tags+`}`, `{"name":"more","type":`+more+`}`)
	}
	const n, kind, tags, more = `"int"`, `{"type":"enum","name":"Kind","symbols":["a","b"],"default":"a"}`, `{"type":"array","items":"int"}`, `{"type":"map","values":"float"}`
	first := mustSchema(t, fields(n, kind, tags, more))
	for avsc, want := range map[string]string{
		fields(`"long"`, kind, tags, more):                                           "widens record.n: it was int, and is long",
		fields(`["null","int"]`, kind, tags, more):                                   "changes record.n: it may be null from now on",
		fields(n, strings.Replace(kind, `"b"`, `"b","c","d"`, 1), tags, more):        "changes record.sort: it may also be c, d",
		fields(n, strings.Replace(kind, `,"b"`, ``, 1), tags, more):                  "changes record.sort: it is never b any more",
		fields(n, kind, strings.Replace(tags, "int", "long", 1), more):               "widens record.tags: of its items: it was int, and is long",
		fields(n, kind, tags, strings.Replace(more, "float", "double", 1)):           "widens record.more: of its items: it was float, and is double",
		fields(`{"type":"long","logicalType":"timestamp-millis"}`, kind, tags, more): "widens record.n: it was int, and is long (timestamp-millis)",
		fields(n, kind, tags, more):                                                  "",
		fields(`"double"`, kind, tags, more):                                         "widens record.n: it was an int, and is a double for all records",
	} {
		r := newRegistry(t, nil, nil)
		admit(t, r, first)
		changes, err := r.Snapshot().Changes(mustSchema(t, avsc))
		var got []string
		for _, c := range changes {
			got = append(got, c.String())
			if c.Loses() {
				t.Errorf("%s loses", c)
			}
		}
		if err != nil || strings.Join(got, "\n") != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", avsc, err, strings.Join(got, "\n"), want)
		}
	}
}

// TestRandomFamilies: in every family each record reads its own fields as it
// does by its own schema, whatever other schemas there are and in whatever order
// they came, and no column is null that says it never is.
func TestRandomFamilies(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 1))}
	families, own := 0, 0
	for range 300 {
		r := newRegistry(t, nil, nil)
		shape := g.record()
		for range 6 {
			if s, err := Parse(mustJSON(shape)); err == nil {
				_, _ = r.Admit(s) // one that is refused is none of the family
			}
			shape = g.evolve(shape)
		}
		known := r.Snapshot()
		if len(known.All()) < 2 {
			continue
		}
		families++
		for _, s := range known.All() {
			alone, err := NewDecoder(s, s)
			if err != nil {
				t.Fatal(err)
			}
			body, err := s.EncodeJSON(mustJSON(g.value(s.root)))
			if err != nil {
				t.Fatal(err)
			}
			want, got := column.New(s.layout, 1, 0).Append(), column.New(known.Decoder(s.fingerprint).Layout(), 1, 0).Append()
			if err, first := known.Decoder(s.fingerprint).Append(got, body), alone.Append(want, body); (err == nil) != (first == nil) {
				t.Fatalf("in its family %v, alone %v\n%s", err, first, s.JSON())
			}
			own += sameOwn(t, s, want.Slab(), got.Slab())
			if t.Failed() {
				for _, s := range known.All() {
					t.Log(s.JSON())
				}
				t.FailNow()
			}
		}
	}
	if families < 50 || own < 500 {
		t.Errorf("%d families and %d fields; the test wants many", families, own)
	}
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
