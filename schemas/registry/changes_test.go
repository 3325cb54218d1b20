package registry

import (
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
