package schemas

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/column"
)

// sameRow compares the first rows of two slabs of equal columns, but for $body and $schema.
func sameRow(t *testing.T, what string, got, want *column.Slab) {
	t.Helper()
	if !slices.Equal(got.Layout().Fields(), want.Layout().Fields()) || got.Len() != 1 {
		t.Fatalf("%s: %d rows of other columns", what, got.Len())
	}
	for i, f := range want.Layout().Fields() {
		if f.Name[0] != '$' && (got.Null(i, 0) != want.Null(i, 0) || !reflect.DeepEqual(cell(got, i, 0), cell(want, i, 0))) {
			t.Errorf("%s: column %s is %s, want %s", what, f.Name, text(got, i), text(want, i))
		}
	}
}

// flattened adds the values of a record to those by dotted path. It is not ok if a record that
// may be null has only columns that are null: by columns it is null, too.
func flattened(to object, l *column.Layout, n *node, path string, v any) (ok bool) {
	t, nullable := n.nullable()
	switch {
	case n.kind == kindRecord:
		ok = true
		for i := range n.fields {
			ok = flattened(to, l, n.fields[i].typ, join(path, n.fields[i].name), v.(object)[n.fields[i].name]) && ok
		}
		return ok
	case !nullable || t.kind != kindRecord:
		to[path] = v
		return true
	case v != nil:
		ok = flattened(to, l, t, path, v)
	}
	some := false
	for _, f := range l.Fields() {
		if strings.HasPrefix(f.Name, path+".") {
			if v == nil {
				to[f.Name] = nil
			}
			some = some || to[f.Name] != nil
		}
	}
	return v == nil || ok && some
}

// ownOf returns what the first row of a slab reads in the columns without a role.
func ownOf(slab *column.Slab) string {
	var all []string
	for i, f := range slab.Layout().Fields() {
		if f.Name[0] != '$' && f.Role == "" {
			all = append(all, f.Name+"="+text(slab, i))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// faults returns the fields and reasons of the errors that are in one.
func faults(err error) string {
	var all []string
	switch e := err.(type) {
	case *Error:
		all = append(all, e.Field+" "+string(e.Reason))
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, faults(one))
		}
	}
	return strings.Join(all, ", ")
}

// TestRow has values of fields, and what they and the fields without a value read: their
// own columns, and those of a family in which another schema has more.
func TestRow(t *testing.T) {
	const shop = `{"name":"shop","type":["null",{"type":"record","name":"Shop","fields":[{"name":"country","type":"string"},{"name":"city","type":"string","default":"Pune"},{"name":"open","type":["boolean","null"]}]}],"default":null}`
	fields := []string{`{"name":"likes","type":"long"}`, `{"name":"ratio","type":"float","default":0.5}`, shop,
		`{"name":"any","type":["null","long","string"],"default":7}`, `{"name":"must","type":["long","string"]}`, `{"name":"raw","type":"bytes"}`,
		`{"name":"place","type":{"type":"record","name":"Place","fields":[{"name":"lat","type":"double"},{"name":"tags","type":{"type":"array","items":"string"},"default":["a tag of some length"]}]}}`}
	s := mustSchema(t, withFields(fields...))
	other := mustSchema(t, withFields(slices.Concat([]string{`{"name":"any","type":["long","null"],"default":1}`, `{"name":"must","type":"string"}`, `{"name":"raw","type":"string","default":"none"}`, `{"name":"more","type":"int","default":9}`}, fields[:3])...))
	family, err := FamilyOf(other, s)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := FamilyOf(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		given        object
		alone, other string // what it reads; or the fields at fault
	}{
		{object{"must": 1}, "likes=0 place.lat=0 place.tags=[a tag of some length] ratio=0.5 shop.city=null shop.country=null shop.open=null",
			"any=7 likes=0 more=9 must=null place.lat=0 place.tags=[a tag of some length] ratio=0.5 raw=null shop.city=null shop.country=null shop.open=null"},
		{object{"at": "1970-01-01T00:00:00.005Z", "likes": "3", "ratio": 0.1, "shop.country": "IN", "any": nil, "must": "x", "raw": "AA==", "place.lat": 0.1, "place.tags": []string{}},
			"likes=3 place.lat=0.1 place.tags=[] ratio=0.10000000149011612 shop.city=null shop.country=IN shop.open=null",
			"any=null likes=3 more=9 must=x place.lat=0.1 place.tags=[] ratio=0.10000000149011612 raw=null shop.city=null shop.country=IN shop.open=null"},
		{object{"any": "x", "must": 1, "shop.city": "Pune", "shop.country": "IN", "shop.open": true, "place.lat": 2},
			"likes=0 place.lat=2 place.tags=[a tag of some length] ratio=0.5 shop.city=Pune shop.country=IN shop.open=1",
			"any=null likes=0 more=9 must=null place.lat=2 place.tags=[a tag of some length] ratio=0.5 raw=null shop.city=Pune shop.country=IN shop.open=1"},
		{object{"must": 1, "shop.open": false}, "likes=0 place.lat=0 place.tags=[a tag of some length] ratio=0.5 shop.city=null shop.country=null shop.open=0",
			"any=7 likes=0 more=9 must=null place.lat=0 place.tags=[a tag of some length] ratio=0.5 raw=null shop.city=null shop.country=null shop.open=0"},
		{object{}, "likes=0 place.lat=0 place.tags=[a tag of some length] ratio=0.5 shop.city=null shop.country=null shop.open=null", "must missing-field"},
		{object{"any": true, "likes": nil, "must": 1, "at": -1, "place.lat": math.NaN(), "shop.country": nil, "shop.open": "yes", "raw": "?"},
			"any bad-value, at time-out-of-range, likes bad-value, place.lat bad-json, raw bad-value, shop.open bad-value",
			"any bad-value, at time-out-of-range, likes bad-value, place.lat bad-json, raw bad-value, shop.open bad-value"},
	} {
		for i, read := range []func(object) (*column.Slab, error){
			s.Row, func(given object) (*column.Slab, error) { return alone.Read(s, given) }, func(given object) (*column.Slab, error) { return family.Read(s, given) },
		} {
			want := []string{c.alone, c.alone, c.other}[i]
			slab, err := read(c.given)
			got := faults(err)
			if err == nil {
				got = ownOf(slab)
				if at := int64(slab.Word(slab.Layout().Time(), 0)); (at == 5) != (c.given["at"] != nil) {
					t.Errorf("%v has the time %d", c.given, at)
				}
				if schema := slab.Word(slab.Layout().Index(SchemaColumn), 0); i == 2 && schema != uint64(s.fingerprint) {
					t.Errorf("%v is of the schema %x", c.given, schema)
				}
			}
			if got != want {
				t.Errorf("%v reads\n%s, want\n%s", c.given, got, want)
			}
		}
	}
	if _, err := s.Row(object{"place.lat": math.NaN()}); err == nil || !strings.Contains(err.Error(), "unsupported value: NaN") {
		t.Errorf("a value that JSON does not have: %v", err)
	}
	own, err := s.Row(object{"must": 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := family.Reread(s, own, object{"must": true}); faults(err) != "must bad-value" {
		t.Errorf("a boolean that is a number or a string: %v", err)
	}
	if _, err := family.Reread(Note(), Note().Layout().Blank(), nil); err == nil || !strings.Contains(err.Error(), "not of the family") {
		t.Errorf("a note is read as one of the family: %v", err)
	}
}
