package schemas

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
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
		"one with an alias for a name that is another's, too": {
			{[]string{`{"name":"a","type":"int"}`, `{"name":"b","type":"int"}`}, `"a":1,"b":2`, "a=1 b=2 c=1"},
			{[]string{`{"name":"c","type":"int","aliases":["a"]}`, `{"name":"b","type":"int"}`}, `"c":3,"b":4`, "a=3 b=4 c=3"},
			{[]string{`{"name":"a","type":"int","default":7}`, `{"name":"b","type":"int"}`, `{"name":"c","type":"int","default":0}`}, `"b":5,"c":6`, "a=7 b=5 c=6"},
		},
		"an integer that becomes a time": {
			{[]string{likes}, `"likes":3`, "likes=3"},
			{[]string{`{"name":"likes","type":{"type":"long","logicalType":"timestamp-millis"}}`}, `"likes":4`, "likes=4"},
		},
		"a time that becomes an integer": {
			{[]string{`{"name":"likes","type":{"type":"long","logicalType":"timestamp-millis"}}`}, `"likes":4`, "likes=4"},
			{[]string{likes}, `"likes":3`, "likes=3"},
		},
		"one of a type that its name cannot have": {
			{[]string{`{"name":"likes","type":"string"}`}, `"likes":"many"`, "hearts=5 likes=many"},
			{[]string{`{"name":"hearts","type":"long","aliases":["likes"],"default":5}`}, `"hearts":4`, "hearts=4 likes=null"},
			{[]string{likes}, `"likes":3`, "hearts=5 likes=null"},
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
		"a record whose name is another field's": {
			{[]string{`{"name":"shop","type":{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"}]}}`}, `"shop":{"country":"IN"}`, "shop.country=IN shop=null"},
			{[]string{`{"name":"shop","type":"string"}`}, `"shop":"x"`, "shop.country=null shop=x"},
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
	for i, f := range a.Slab().Layout().Fields() {
		if a.Slab().Null(i, 0) && !f.Nullable {
			t.Errorf("column %s is null and not nullable", f.Name)
		}
	}
	return ownOf(a.Slab())
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

// A retired schema shapes nothing: its records read null in what is named by an alias for a
// field that only it has.
func TestFamilyOfRetired(t *testing.T) {
	wrong := mustSchema(t, withFields(`{"name":"likes","type":"long"}`, `{"name":"n","type":"int","default":5}`))
	right := mustSchema(t, withFields(`{"name":"hearts","type":"long","aliases":["likes"]}`, `{"name":"n","type":"int"}`))
	f, err := NewFamily([]*Schema{wrong, right}, func(s *Schema) bool { return s == wrong })
	if err != nil {
		t.Fatal(err)
	}
	if got := columns(f.Layout()); !slices.Equal(f.Schemas(), []*Schema{right}) || !strings.HasSuffix(got, "hearts int?, n int, $body string, $schema int") {
		t.Errorf("columns %s", got)
	}
	if got := reads(t, f, wrong, `"likes":3,"n":4`); got != "hearts=null n=4" {
		t.Errorf("reads %s", got)
	}
	early := strings.Replace(string(bodyOf(cat(long(3), long(4))...)), string(long(1767323045678)), string(long(-1)), 1)
	err = f.Decoder(wrong).Append(column.New(f.Layout(), 1, 0).Append(), []byte(early))
	checkReason(t, "before 1970", err, TimeOutOfRange)
	// The name is of a record now, which has no column itself.
	wrong = mustSchema(t, withFields(`{"name":"shop","type":"long"}`))
	shop := mustSchema(t, withFields(`{"name":"shop","type":{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"}]}}`))
	if f, err = NewFamily([]*Schema{wrong, mustSchema(t, withFields(`{"name":"hearts","type":"long","aliases":["shop"]}`)), shop}, func(s *Schema) bool { return s == wrong }); err != nil {
		t.Fatal(err)
	}
	if got := reads(t, f, wrong, `"shop":3`); got != "hearts=null shop.country=null" {
		t.Errorf("reads %s", got)
	}
	if _, err := NewFamily([]*Schema{wrong}, func(*Schema) bool { return true }); err == nil || !strings.Contains(err.Error(), "no other schema of T would be left") {
		t.Errorf("all are retired: %v", err)
	}
}

// TestFamilyLayout has the columns of families, and the fields in which their schemas differ.
func TestFamilyLayout(t *testing.T) {
	long, double := `{"name":"n","type":"long"}`, `{"name":"n","type":"double"}`
	const roles = "id string =id, who string =entity, kind string =type, at timestamp =time"
	key := strings.Replace(withFields(), `{"name":"id"`, `{"name":"key","aliases":["id"]`, 1)
	for _, c := range []struct {
		all           []string
		want, carried string
		clashes       string
	}{
		{[]string{withFields(long), withFields(double)}, roles + ", n double widened, $body string, $schema int", "map[]", ""},
		{[]string{withFields(double), withFields(long)}, roles + ", n double widened, $body string, $schema int", "map[]", ""},
		{[]string{withFields(double), withFields(double, long[:9]+"m"+long[10:])}, roles + ", n double, m int?, $body string, $schema int", "map[]", ""},
		{[]string{withFields(), key}, "key string, who string =entity, kind string =type, at timestamp =time, id string =id, $body string, $schema int", "map[]", ""},
		{[]string{withFields(`{"name":"raw","type":"bytes"}`, long), withFields(`{"name":"m","type":{"type":"map","values":"int"},"default":{}}`, `{"name":"n","type":"string"}`, `{"name":"l","type":"int"}`)},
			roles + ", n int?, l int?, $body string, $schema int", "map[m:map of int raw:bytes]",
			`1 field "n" of T FP1 is string, and the first schema that had it made it int: these records read null there`},
		{[]string{withFields(`{"name":"a","type":"int"}`, long), withFields(`{"name":"n","type":["long","string"]}`, `{"name":"b","type":"int","default":1}`)},
			roles + ", b int, a int?, n int?, $body string, $schema int", "map[]",
			`1 field "n" of T FP1 is union of long, string, and the first schema that had it made it int: these records read null there`},
		{[]string{withFields(`{"name":"n","type":{"type":"record","name":"N","fields":[{"name":"x","type":"int"}]}}`), withFields(`{"name":"n","type":"string"}`)},
			roles + ", n string?, n.x int?, $body string, $schema int", "map[]",
			`0 field "n" of T FP0 is record N, and the first schema that had it made it string: these records read null there` + "\n" +
				`1 field "n.x" of T FP1 is string, and the first schema that had it made it int: these records read null there`},
	} {
		var all []*Schema
		for _, avsc := range c.all {
			all = append(all, mustSchema(t, avsc))
		}
		f, err := FamilyOf(all...)
		if err != nil {
			t.Fatal(err)
		}
		if got := columns(f.Layout()); got != c.want {
			t.Errorf("columns\n%s, want\n%s", got, c.want)
		}
		if got := fmt.Sprint(f.Layout().Carried()); got != c.carried && !slices.ContainsFunc(all, func(s *Schema) bool { return s.layout == f.layout }) {
			t.Errorf("carries %s, want %s", got, c.carried)
		}
		var clashes []string
		for _, x := range f.Clashes() {
			clashes = append(clashes, fmt.Sprintf("%d %s", slices.Index(all, x.Schema), x))
		}
		for i, s := range all {
			c.clashes = strings.ReplaceAll(c.clashes, fmt.Sprintf("FP%d", i), s.fingerprint.String())
		}
		if got := strings.Join(clashes, "\n"); got != c.clashes {
			t.Errorf("clashes\n%s\nwant\n%s", got, c.clashes)
		}
		if f.Features() || f.Name() != "T" || !slices.Equal(f.Schemas(), all) {
			t.Errorf("%s of %d schemas, features: %v", f.Name(), len(f.Schemas()), f.Features())
		}
		one, err := f.Of([]string{all[1].fingerprint.String(), "none"})
		if err != nil || !slices.Equal(one.Schemas(), all[1:]) || f.Decoder(all[0]) == nil || one.Decoder(all[0]) != nil {
			t.Errorf("of the second alone: %v, %v", one, err)
		}
		if none, err := f.Of([]string{"none"}); none != nil || err != nil {
			t.Errorf("of none: %v, %v", none, err)
		}
	}
}

// A field of a type that its column cannot hold is told as such, though no evolution has one.
func TestChangesOfAClash(t *testing.T) {
	was, is := mustSchema(t, withFields(`{"name":"n","type":"int"}`)), mustSchema(t, withFields(`{"name":"n","type":"string"}`))
	before, err := FamilyOf(was)
	if err != nil {
		t.Fatal(err)
	}
	after, err := FamilyOf(was, is)
	if err != nil {
		t.Fatal(err)
	}
	want := []Change{{false, "n", Retyped, "it is string and was int, so that its records read null, or what of it fits"}}
	if got := before.AppendChanges(nil, after); !slices.Equal(got, want) {
		t.Errorf("changes %v, want %v", got, want)
	}
}

// TestFamilyAtItsLimits: a family has at most so many columns, and a field at most so many
// names by aliases.
func TestFamilyAtItsLimits(t *testing.T) {
	version := func(name string, n int) *Schema {
		var fields []string
		for i := range n {
			fields = append(fields, fmt.Sprintf(`{"name":"%s%d","type":"int","default":0}`, name, i))
		}
		return mustSchema(t, withFields(fields...))
	}
	for _, more := range []int{0, 1} {
		f, err := FamilyOf(version("a", 1000), version("b", 1000), version("c", maxColumns-2004+more))
		if more == 0 && err != nil || more == 1 && (err == nil || !strings.Contains(err.Error(), "have 2049 fields together; at most 2048")) {
			t.Errorf("%d more: %v, %v", more, f, err)
		}
	}
	shop := func(name, field, aliases string) *Schema {
		return mustSchema(t, withFields(`{"name":"`+name+`","type":{"type":"record","name":"Shop","fields":[{"name":"`+field+`","type":"int"`+aliases+`}]}`+map[bool]string{true: `,"aliases":["old"]`}[name == "shop"]+`}`))
	}
	aliases := `,"aliases":["a0"`
	for i := range maxAliases - 1 {
		aliases += fmt.Sprintf(`,"a%d"`, i+1)
	}
	now := shop("shop", "x", aliases+"]")
	for was, want := range map[*Schema]string{ // shop.x and 63 aliases of x fit
		shop("shop", "a62", ""): "shop.a62=7 shop.x=7", shop("shop", "a63", ""): "shop.a63=7 shop.x=null", shop("old", "x", ""): "old.x=7 shop.x=null",
	} {
		f, err := FamilyOf(was, now)
		if err != nil {
			t.Fatal(err)
		}
		first := was.root.fields[4]
		if got := reads(t, f, was, fmt.Sprintf(`%q:{%q:7}`, first.name, first.typ.fields[0].name)); got != want {
			t.Errorf("reads %s, want %s", got, want)
		}
	}
}

// TestBytes pins what schemas and families count for. All nodes of a cluster must count
// alike, also those of other versions: they refuse the same schema.
func TestBytes(t *testing.T) {
	const enum = `{"type":"enum","name":"E","symbols":["A","B","C"]}`
	was := mustSchema(t, withFields(`{"name":"e","type":`+enum+`}`, `{"name":"f","type":["null","E"]}`, `{"name":"list","type":{"type":"array","items":["int","null"]}}`))
	is := mustSchema(t, withFields(`{"name":"e","type":`+enum+`}`, `{"name":"g","type":"string","default":"a default"}`, `{"name":"m","type":{"type":"map","values":"int"},"default":{}}`))
	f, err := FamilyOf(was, is)
	if err != nil {
		t.Fatal(err)
	}
	got := []int{was.Bytes(), is.Bytes(), f.Bytes(), Activity().Bytes()}
	if want := []int{8763, 8550, 5791, 29703}; !slices.Equal(got, want) {
		t.Errorf("%d bytes are counted, not %d", got, want)
	}
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
			cut := body[:g.IntN(len(body)):len(body)]
			if err, first := known.Decoder(s).Append(column.New(known.Layout(), 1, 0).Append(), cut), alone.Append(column.New(s.layout, 1, 0).Append(), cut); err == nil || !reflect.DeepEqual(err, first) {
				t.Fatalf("of a part of a body its family says %v, it says %v alone\n%s", err, first, s.JSON())
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
