package registry

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
)

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
		withFields(shop): "drops record.likes: its records read null\ndrops record.text: its records read the default",
		withFields(`{"name":"hearts","type":"long","aliases":["likes"]}`, `{"name":"words","type":"string","aliases":["text"]}`, shop): "adds record.hearts\nadds record.words\nrenames record.likes: to hearts\nrenames record.text: to words",
		withFields(`{"name":"likes","type":"double"}`, `{"name":"text","type":"string","default":"none"}`, shop):                       "widens record.likes: it was an int, and is a double for all records",
		withFields(`{"name":"likes","type":"long"}`, `{"name":"text","type":"bytes","default":"none"}`, shop):                          "retypes record.text: it is bytes and was string, so that its records read null, or what of it fits",
		strings.Replace(withFields(`{"name":"likes","type":"string"}`, `{"name":"text","type":"string"}`), `"T"`, `"U"`, 1):            "clashes record.likes: it is string, and int in T, which came first, so that filters read null in records of U",
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
			if c.Loses() != (c.What == schemas.Dropped || c.What == schemas.Retyped) {
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

// What changes within a type is told at its path, and of features as of features.
func TestChangesWithin(t *testing.T) {
	fields := func(of ...string) string {
		var all []string
		for i, typ := range of {
			all = append(all, fmt.Sprintf(`{"name":%q,"type":%s}`, []string{"l", "list", "rec", "things", "shop"}[i], typ))
		}
		return withFields(all...)
	}
	const l, list = `"long"`, `{"type":"array","items":["null","int"]}`
	rec, things := `{"type":"record","name":"R","fields":[{"name":"x","type":"int"}]}`, `{"type":"array","items":{"type":"record","name":"Q","fields":[{"name":"y","type":"int"}]}}`
	const shop = `["null",{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"},{"name":"city","type":"string"}]}]`
	wide := func(s string) string { return strings.Replace(s, `"int"`, `"long"`, 1) }
	features := func(n string) string {
		return `{"type":"record","name":"F","millrace":"features","fields":[{"name":"who","type":"string","millrace":"entity"},{"name":"v","type":"long","millrace":"version"},{"name":"n","type":` + n + `}]}`
	}
	before := func(field string) string {
		return strings.Replace(withFields(), `"fields":[`, `"fields":[`+field+",", 1)
	}
	for _, c := range []struct{ was, is, want string }{
		{fields(l, list), fields(`{"type":"long","logicalType":"timestamp-micros"}`), "changes record.l: it was long, and is long (timestamp-micros)"},
		{fields(l, list, rec, things, shop), fields(l, wide(list), rec, things, shop), "widens record.list: of its items: it was int, and is long"},
		{fields(l, list, rec, things, shop), fields(l, strings.Replace(list, `"int"`, `"int","string"`, 1), rec, things, shop), "changes record.list: of its items: it was int, and is union of null, int, string"},
		{fields(l, list, rec, things, shop), fields(l, list, wide(rec), things, shop), "widens record.rec.x: it was int, and is long"},
		{fields(l, list, rec, things, shop), fields(l, list, rec, wide(things), shop), "widens record.things.y: it was int, and is long"},
		{fields(l, list, rec, things, shop), fields(l, list, rec, things, strings.Replace(shop, `,{"name":"city","type":"string"}`, "", 1)), "drops record.shop.city: its records read the default, or null"},
		{fields(l, list, rec, things, shop), fields(l, list, rec, things, strings.Replace(shop, `"country","type":"string"`, `"country","type":"bytes"`, 1)), "retypes record.shop.country: it is bytes and was string, so that its records read null, or what of it fits"},
		{fields(l), fields(`["null","long","string"]`), "retypes record.l: it is union of null, long, string and was int, so that its records read null, or what of it fits"},
		{fields(l, `["int","string"]`), fields(l, `["int","string","null"]`), "changes record.list: it may be null from now on\nchanges record.list: it was union of int, string, and is union of int, string, null"},
		{fields(l, `{"type":"enum","name":"E","symbols":["a","b"],"default":"a"}`), fields(l, `{"type":"enum","name":"E","symbols":["a","c"],"default":"a"}`), "changes record.list: it may also be c\nchanges record.list: it is never b any more"},
		{before(`{"name":"n","type":"int"}`), before(`{"name":"n","type":"double"}`), "widens record.n: it was an int, and is a double for all records"},
		{before(`{"name":"n","type":"int"}`), withFields(), "drops record.n: its records read null"},
		{before(`{"name":"n","type":"int"}`), before(`{"name":"m","type":"int","aliases":["n"]}`), "adds record.m\nrenames record.n: to m"},
		{fields(l, `{"type":"map","values":{"type":"enum","name":"E","symbols":["a","b"]}}`), fields(l, `{"type":"map","values":[{"type":"enum","name":"E","symbols":["a","b"]},"string"]}`), "changes record.list: of its items: it was enum E, and is union of enum E, string"},
		{fields(l, list, rec), fields(l, list, "["+rec+`,"string"]`), "retypes record.rec.x: it is union of record R, string and was int, so that its records read null, or what of it fits\nchanges record.rec: it was record R, and is union of record R, string"},
		{features(`"int"`), features(`"long"`), "widens entity.n: it was int, and is long"},
		{features(`"int"`), strings.Replace(features(`"string"`), `"F"`, `"G"`, 1), "clashes entity.n: it is string, and int in F, which came first, so that filters read null in records of G"},
		{features(`"int"`), withFields(`{"name":"n","type":"string"}`), ""},
		{fields(l), strings.Replace(fields(`"double"`), `"T"`, `"U"`, 1), "widens record.l: it is an int in T, and filters read it as a double"},
		{fields(`"double"`), strings.Replace(fields(l), `"T"`, `"U"`, 1), ""},
		{fields(l), strings.Replace(fields(l), `"T"`, `"U"`, 1), ""},
	} {
		r := newRegistry(t, nil, nil)
		admit(t, r, mustSchema(t, c.was))
		changes, err := r.Snapshot().Changes(mustSchema(t, c.is))
		if got := told(changes); err != nil || got != c.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.is, err, got, c.want)
		}
	}
}

func told(changes []schemas.Change) string {
	var all []string
	for _, c := range changes {
		all = append(all, c.String())
	}
	return strings.Join(all, "\n")
}

// A field that the last schema did not have is not lost again, and one that an earlier schema
// had is not new. Types are compared with those of the name that came first.
func TestChangesAfterSeveral(t *testing.T) {
	r := newRegistry(t, nil, nil)
	named := func(name, avsc string) *schemas.Schema {
		return mustSchema(t, strings.Replace(avsc, `"T"`, `"`+name+`"`, 1))
	}
	const a, b = `{"name":"a","type":"int","default":1}`, `{"name":"b","type":"int","default":1}`
	admit(t, r, named("T", withFields(a)))
	admit(t, r, named("T", withFields(b)))
	for avsc, want := range map[string]string{
		withFields(): "drops record.b: its records read the default", withFields(b, `{"name":"c","type":"int","default":0}`): "adds record.c",
		withFields(a, b, `{"name":"z","type":["null","int"],"default":null}`): "adds record.z",
	} {
		changes, err := r.Snapshot().Changes(named("T", avsc))
		if got := told(changes); err != nil || got != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", avsc, err, got, want)
		}
	}
	const double = `{"name":"n","type":"double"}`
	admit(t, r, named("N", withFields(`{"name":"n","type":"int"}`)))
	admit(t, r, named("N", withFields(double)))
	if changes, err := r.Snapshot().Changes(named("N", withFields(double, `{"name":"more","type":"int","default":0}`))); err != nil || told(changes) != "adds record.more" {
		t.Errorf("a field is a double since the schema before: %s, %v", told(changes), err)
	}
	const text = `{"name":"b","type":"string"}`
	admit(t, r, schemas.Features())
	admit(t, r, named("U", withFields(text)))
	admit(t, r, named("V", withFields(text)))
	admit(t, r, named("W", withFields(`{"name":"b","type":"double"}`)))
	if changes, err := r.Snapshot().Changes(named("U", withFields(text))); err != nil || len(changes) > 0 {
		t.Errorf("one that is known changes %v, %v", changes, err)
	}
	want := "clashes record.b: it is string, and int in T, which came first, so that filters read null in records of U\n" +
		"clashes record.b: it is string, and int in T, which came first, so that filters read null in records of V"
	if got := told(r.Snapshot().Disagreements()); got != want {
		t.Errorf("disagreements\n%s\nwant\n%s", got, want)
	}
}
