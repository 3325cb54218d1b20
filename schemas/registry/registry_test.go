package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas"
)

// memory is a store that returns last what it was given first.
type memory struct {
	rows map[millrace.Fingerprint]StoredSchema
	err  error
}

func (m *memory) PutSchema(s StoredSchema) error {
	if m.err == nil {
		m.rows[s.Fingerprint] = s
	}
	return m.err
}

func (m *memory) Schemas() (rows []StoredSchema, err error) {
	for _, s := range m.rows {
		rows = append(rows, s)
	}
	slices.SortFunc(rows, func(a, b StoredSchema) int { return cmp.Compare(b.Order, a.Order) })
	return rows, m.err
}

// withFields is the text of a schema that has these fields beside those of the
// roles that every record has.
func withFields(fields ...string) string {
	all := append([]string{`{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},` +
		`{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}`}, fields...)
	return `{"type":"record","name":"T","fields":[` + strings.Join(all, ",") + `]}`
}

func mustSchema(t *testing.T, avsc string) *schemas.Schema {
	t.Helper()
	s, err := schemas.Parse([]byte(avsc))
	if err != nil {
		t.Fatalf("%s: %v", avsc, err)
	}
	return s
}

func checkReason(t *testing.T, name string, err error, want schemas.Reason) {
	t.Helper()
	if e := (*schemas.Error)(nil); !errors.As(err, &e) || e.Reason != want {
		t.Errorf("%s: got %v, want reason %q", name, err, want)
	}
}

// likes is what the column of that name has for a record of a writer, which
// has the fields beside its roles.
func likes(t *testing.T, known *Snapshot, writer *schemas.Schema, fields string) string {
	t.Helper()
	body, err := writer.EncodeJSON([]byte(`{"id":"r","who":"a","kind":"t","at":1,` + fields + `}`))
	if err != nil {
		t.Fatal(err)
	}
	d := known.Decoder(writer.Fingerprint())
	a := column.New(d.Layout(), 1, 0).Append()
	if err := d.Append(a, body); err != nil {
		t.Fatal(err)
	}
	rows, at := a.Slab(), d.Layout().Index("likes")
	if rows.Null(at, 0) {
		return "null"
	}
	return fmt.Sprint(int64(rows.Word(at, 0)))
}

func newRegistry(t *testing.T, store Store, lookup Lookup) *Registry {
	t.Helper()
	r, err := New(store, lookup)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func admit(t *testing.T, r *Registry, s *schemas.Schema) {
	t.Helper()
	if added, err := r.Admit(s); err != nil || !added {
		t.Fatalf("admit %s: %v, %v", s.JSON(), added, err)
	}
}

func TestRegistry(t *testing.T) {
	store := &memory{rows: map[millrace.Fingerprint]StoredSchema{}}
	r := newRegistry(t, store, nil)
	v1 := mustSchema(t, withFields(`{"name":"f","type":"int"}`))
	v2 := mustSchema(t, withFields(`{"name":"f","type":"int"}`, `{"name":"g","type":"int","default":1}`))
	v3 := mustSchema(t, withFields(`{"name":"f","type":"long"}`))
	before := r.Snapshot()
	early := before
	for _, s := range []*schemas.Schema{v1, schemas.Note(), v2, v3} {
		early = r.Snapshot()
		admit(t, r, s)
	}
	if len(before.All()) != 0 {
		t.Error("a snapshot changed")
	}
	if added, err := r.Admit(mustSchema(t, v1.JSON())); added || err != nil {
		t.Errorf("admitted again: %v, %v", added, err)
	}
	if l := r.Snapshot().Family("T").Layout(); l != v2.Layout() {
		t.Errorf("the layout is %v, want that of the schema with every field", l.Fields())
	}

	if _, err := early.Changes(schemas.Features()); err != nil { // shares nothing that it changes with what came later
		t.Fatal(err)
	}
	if all := r.Snapshot().All(); len(all) != 4 || all[3] != v3 || fmt.Sprint(r.Snapshot().names) != "[T millrace.Note]" {
		t.Errorf("an earlier snapshot changed a later one: %v", r.Snapshot().names)
	}
	again := newRegistry(t, store, nil).Snapshot()
	fps := func(all []*schemas.Schema) (out []millrace.Fingerprint) {
		for _, s := range all {
			out = append(out, s.Fingerprint())
		}
		return out
	}
	if got, want := fps(again.All()), fps(r.Snapshot().All()); !slices.Equal(got, want) {
		t.Errorf("loaded %v, want %v", got, want)
	}
	if again.ByFingerprint(v1.Fingerprint()).JSON() != v1.JSON() {
		t.Error("loaded schemas differ")
	}
}

func TestRegistryRefuses(t *testing.T) {
	v1 := mustSchema(t, withFields(`{"name":"f","type":"long"}`))
	for name, c := range map[string]struct{ avsc, want string }{
		"another shape":            {withFields(`{"name":"f","type":"string"}`), `field "f": long cannot be read as string`},
		"another role":             {strings.Replace(v1.JSON(), `"type":"long"}]`, `"type":"long","millrace":"version"}]`, 1), "another role"},
		"another logical type":     {withFields(`{"name":"f","type":{"type":"long","logicalType":"timestamp-micros"}}`), "logical type"},
		"features of these fields": {strings.NewReplacer(`"name":"T"`, `"name":"T","millrace":"features"`, `,"millrace":"id"`, "", `,"millrace":"type"`, "").Replace(v1.JSON()), "T is known with another property millrace"},
		"features of that name":    {`{"type":"record","name":"T","millrace":"features","fields":[{"name":"who","type":"string","millrace":"entity"},{"name":"v","type":"long","default":0,"millrace":"version"}]}`, "name of its own"},
	} {
		r := newRegistry(t, nil, nil)
		admit(t, r, v1)
		add, refused := mustSchema(t, c.avsc), (*RefusedError)(nil)
		added, err := r.Admit(add)
		if added || !errors.As(err, &refused) || !strings.Contains(refused.Unwrap().Error(), c.want) || !strings.HasPrefix(err.Error(), "schemas: T "+add.Fingerprint().String()+": ") {
			t.Errorf("%s: %v, %v; want %q", name, added, err, c.want)
		}
		if check := r.Check(add); check == nil || check.Error() != err.Error() {
			t.Errorf("%s: a check says %v, Admit %v", name, check, err)
		}
		if r.Snapshot().Family("T").Layout() != v1.Layout() || len(r.Snapshot().All()) != 1 {
			t.Errorf("%s: the registry changed", name)
		}
	}
	day := withFields(`{"name":"g","type":["null",{"type":"int","logicalType":"date"}]}`)
	r := newRegistry(t, nil, nil)
	admit(t, r, mustSchema(t, day))
	if _, err := r.Admit(mustSchema(t, strings.Replace(day, "date", "time-millis", 1))); err == nil {
		t.Error("admitted another logical type within a union")
	}
	// A reader must read every earlier schema, not only the one before it.
	r = newRegistry(t, nil, nil)
	admit(t, r, mustSchema(t, withFields(`{"name":"f","type":"int"}`)))
	admit(t, r, mustSchema(t, withFields()))
	if _, err := r.Admit(mustSchema(t, withFields(`{"name":"f","type":"string","default":""}`))); err == nil {
		t.Error("admitted a schema that cannot read the first of its name")
	}
}

// All schemas together are bounded, in what they take in memory: the one that
// is too many is refused for what it says, and those before it stay.
func TestRegistryIsBounded(t *testing.T) {
	r := newRegistry(t, nil, nil)
	admit(t, r, wide(t, "First", 0, 100))
	first := r.Snapshot()
	room := wide(t, "Second", 0, 100)
	if _, err := r.Admit(room); err != nil {
		t.Fatal(err)
	}
	admitted := r.Snapshot()
	takes := admitted.bytes - first.bytes
	for _, short := range []int{1, 0} {
		full := first.clone()
		full.bytes = MaxBytes - takes + short
		r.current.Store(full)
		_, err := r.Admit(room)
		refused := (*RefusedError)(nil)
		if short == 0 {
			if err != nil || r.Snapshot().bytes != MaxBytes {
				t.Errorf("%d bytes, %v", r.Snapshot().bytes, err)
			}
		} else if !errors.As(err, &refused) || !strings.Contains(err.Error(), "256 are allowed") || r.Snapshot() != full {
			t.Errorf("a byte short: %v", err)
		}
	}
	full := r.Snapshot().clone()
	full.bytes = 2 * MaxBytes // as one that was admitted before there was a bound
	r.current.Store(full)
	if added, err := r.Admit(wide(t, "First", 0, 100)); added || err != nil {
		t.Errorf("one that is known is refused: %v", err)
	}
}

// wide returns a schema of a version with so many fields, a third of them new
// in the version.
func wide(t *testing.T, name string, version, fields int) *schemas.Schema {
	var text strings.Builder
	for i := range fields {
		from := 0
		if i%3 == 0 {
			from = version
		}
		kind := []string{`["null","int"]`, `["null","string"]`, `"double"`, `{"type":"array","items":"float"}`, `["null",{"type":"map","values":"string"}]`}[i%5]
		def := []string{"null", "null", "1.5", "[]", "null"}[i%5]
		fmt.Fprintf(&text, `,{"name":"a_field_of_a_usual_length_%d_%d","type":%s,"default":%s,"doc":"a word or two"}`, from, i, kind, def)
	}
	return mustSchema(t, fmt.Sprintf(`{"type":"record","name":%q,"fields":[{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},`+
		`{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}%s]}`, name, text.String()))
}

// What is counted for schemas is at least what they take on the heap, and not
// many times as much: for many names, and for many versions of one.
func TestBytesAreThoseOfTheHeap(t *testing.T) {
	for what, schema := range map[string]func(i int) *schemas.Schema{
		"names":    func(i int) *schemas.Schema { return wide(t, fmt.Sprint("N", i), 0, 100) },
		"versions": func(i int) *schemas.Schema { return wide(t, "V", i, 100) },
		"small":    func(i int) *schemas.Schema { return wide(t, fmt.Sprint("S", i), 0, 3) },
	} {
		r := newRegistry(t, nil, nil)
		before := heap()
		for i := range 12 {
			admit(t, r, schema(i))
		}
		took, counted := int(heap()-before), r.Snapshot().bytes
		t.Logf("%s: %d bytes of heap are counted as %d", what, took, counted)
		if counted < took || counted > 4*took {
			t.Errorf("%s: %d bytes of heap are counted as %d", what, took, counted)
		}
		runtime.KeepAlive(r)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // what pools have
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestRegistryStoreFails(t *testing.T) {
	store := &memory{rows: map[millrace.Fingerprint]StoredSchema{}}
	r := newRegistry(t, store, nil)
	store.err = errors.New("disk full")
	want := "schemas: keep millrace.Note " + schemas.Note().Fingerprint().String() + ": disk full"
	if added, err := r.Admit(schemas.Note()); added || !errors.Is(err, store.err) || err.Error() != want {
		t.Errorf("%v, %v", added, err)
	}
	if r.Snapshot().Family("millrace.Note") != nil {
		t.Error("a schema that was not stored is known")
	}
	if _, err := New(store, nil); !errors.Is(err, store.err) {
		t.Error(err)
	}
	store.err = nil
	store.rows[1] = StoredSchema{Fingerprint: 1, Order: 1, JSON: schemas.Note().JSON()}
	if _, err := New(store, nil); err == nil || !strings.Contains(err.Error(), "load 0000000000000001: the text kept there has the fingerprint "+schemas.Note().Fingerprint().String()) {
		t.Errorf("a schema under another fingerprint: %v", err)
	}
	store.rows[1] = StoredSchema{Fingerprint: 1, Order: 1, JSON: "{"}
	if _, err := New(store, nil); err == nil || !strings.Contains(err.Error(), "load 0000000000000001: schemas: the schema is not JSON") {
		t.Errorf("half a schema: %v", err)
	}
	fp := schemas.Note().Fingerprint()
	store.rows = map[millrace.Fingerprint]StoredSchema{fp: {Fingerprint: fp, Order: 1, Retired: true, JSON: schemas.Note().JSON()}}
	if _, err := New(store, nil); err == nil || !strings.Contains(err.Error(), "load the schemas of millrace.Note: schemas: no other schema of millrace.Note would be left") {
		t.Errorf("the last of a name is retired: %v", err)
	}
}

// TestFields: the names of the fields of all content have a checksum.
func TestFields(t *testing.T) {
	r := newRegistry(t, nil, nil)
	met := map[uint64]bool{}
	for _, c := range []struct {
		add  *schemas.Schema
		want string
		same bool // as before
	}{
		{schemas.Features(), "[]", false},
		{mustSchema(t, withFields(`{"name":"zoo","type":"int"}`)), "[at id kind who zoo]", false},
		{mustSchema(t, strings.Replace(withFields(`{"name":"zoo","type":"int"}`), `"T"`, `"U"`, 1)), "[at id kind who zoo]", true},
		{mustSchema(t, strings.Replace(withFields(`{"name":"ant","type":{"type":"record","name":"R","fields":[{"name":"x","type":"int"}]}}`), `"T"`, `"V"`, 1)), "[ant at id kind who zoo]", false},
	} {
		admit(t, r, c.add)
		for range 2 {
			names, sum := r.Snapshot().Fields()
			if got := fmt.Sprint(names); got != c.want || sum == 0 || met[sum] != c.same {
				t.Errorf("%s, %x; want %s", got, sum, c.want)
			}
			c.same = true
			met[sum] = true
		}
	}
}

func TestWriter(t *testing.T) {
	away := errors.New("connection refused")
	asked := 0
	lookup := func(_ context.Context, id uint32) (*schemas.Schema, error) {
		asked++
		switch id {
		case 7:
			return schemas.Note(), nil
		case 8:
			return nil, away
		}
		return nil, &schemas.Error{Reason: schemas.UnknownSchema, Detail: "no such id"}
	}
	r := newRegistry(t, nil, lookup)
	ctx := t.Context()
	for range 2 {
		if s, err := r.Writer(ctx, schemas.Framed{Confluent: true, ID: 7}); s != schemas.Note() || err != nil {
			t.Fatal(s, err)
		}
	}
	if asked != 1 {
		t.Errorf("asked the Confluent registry %d times for one id", asked)
	}
	if _, err := r.Writer(ctx, schemas.Framed{Confluent: true, ID: 8}); !errors.Is(err, away) {
		t.Error(err)
	}
	_, err := r.Writer(ctx, schemas.Framed{Confluent: true, ID: 9})
	checkReason(t, "unknown id", err, schemas.UnknownSchema)
	_, err = newRegistry(t, nil, nil).Writer(ctx, schemas.Framed{Confluent: true, ID: 7})
	checkReason(t, "no Confluent registry", err, schemas.UnknownSchema)
	_, err = r.Writer(ctx, schemas.Framed{Fingerprint: schemas.Note().Fingerprint()})
	checkReason(t, "unknown fingerprint", err, schemas.UnknownSchema)
	admit(t, r, schemas.Note())
	if s, err := r.Writer(ctx, schemas.Framed{Fingerprint: schemas.Note().Fingerprint()}); s != schemas.Note() || err != nil {
		t.Error(s, err)
	}
}

// What a Confluent registry told is forgotten once it takes too much, and asked for again.
func TestWriterForgets(t *testing.T) {
	asked := 0
	r := newRegistry(t, nil, func(context.Context, uint32) (*schemas.Schema, error) {
		asked++
		return schemas.Note(), nil
	})
	ask := func(id uint32, want int) {
		t.Helper()
		if s, err := r.Writer(t.Context(), schemas.Framed{Confluent: true, ID: id}); s != schemas.Note() || err != nil || asked != want {
			t.Fatalf("asked %d times, want %d: %v, %v", asked, want, s, err)
		}
	}
	ask(1, 1)
	r.mu.confluentBytes += MaxBytes - 2*schemas.Note().Bytes() // as if there were more
	ask(2, 2)                                                  // just fits
	ask(1, 2)
	ask(3, 3) // does not
	ask(3, 3)
	ask(1, 4)
	ask(3, 4)
	if want := 2 * schemas.Note().Bytes(); r.mu.confluentBytes != want {
		t.Errorf("%d bytes are counted, want %d", r.mu.confluentBytes, want)
	}
}

func TestRegistryDecoder(t *testing.T) {
	r := newRegistry(t, nil, nil)
	if r.Snapshot().Decoder(schemas.Note().Fingerprint()) != nil {
		t.Error("a decoder of an unknown writer")
	}
	admit(t, r, schemas.Note())
	d := r.Snapshot().Decoder(schemas.Note().Fingerprint())
	if d == nil || d.Layout() != schemas.Note().Layout() {
		t.Error("one schema alone has another layout")
	}
}

// TestRetire: a schema that was a mistake shapes nothing any more, also after a
// restart, and its records stay readable.
func TestRetire(t *testing.T) {
	store := &memory{rows: map[millrace.Fingerprint]StoredSchema{}}
	r := newRegistry(t, store, nil)
	first := mustSchema(t, withFields(`{"name":"likes","type":"long"}`))
	wrong := mustSchema(t, withFields(`{"name":"likes","type":"double"}`, `{"name":"junk","type":"string","default":"x"}`))
	admit(t, r, first)
	var refused *RefusedError
	if err := r.Retire(first.Fingerprint()); !errors.As(err, &refused) {
		t.Errorf("the last of its name: %v", err)
	}
	if err := r.Retire(wrong.Fingerprint()); !errors.As(err, &refused) {
		t.Errorf("an unknown one: %v", err)
	}
	admit(t, r, wrong)
	if r.Snapshot().Family("T").Layout().Index("junk") < 0 {
		t.Fatal("it shapes nothing yet")
	}
	store.err = errors.New("full")
	var failed *StoreError
	if err := r.Retire(wrong.Fingerprint()); !errors.As(err, &failed) || r.Snapshot().Retired(wrong.Fingerprint()) {
		t.Errorf("on a full disk: %v", err)
	}
	store.err = nil
	for range 2 { // the second time nothing happens
		if err := r.Retire(wrong.Fingerprint()); err != nil {
			t.Fatal(err)
		}
	}
	for fp, want := range map[millrace.Fingerprint]StoredSchema{
		first.Fingerprint(): {first.Fingerprint(), 1, false, first.JSON()}, wrong.Fingerprint(): {wrong.Fingerprint(), 2, true, wrong.JSON()},
	} {
		if got := store.rows[fp]; got != want {
			t.Errorf("kept %+v, want %+v", got, want)
		}
	}
	for name, known := range map[string]*Snapshot{"at once": r.Snapshot(), "after a restart": newRegistry(t, store, nil).Snapshot()} {
		if !known.Retired(wrong.Fingerprint()) || known.Family("T").Layout() == nil || known.Family("T").Layout().Index("junk") >= 0 {
			t.Errorf("%s: it still shapes the layout", name)
		}
		if got := likes(t, known, known.ByFingerprint(wrong.Fingerprint()), `"likes":2.5`); got != "null" {
			t.Errorf("%s: a record of it reads %s", name, got)
		}
		if got := likes(t, known, known.ByFingerprint(first.Fingerprint()), `"likes":2`); got != "2" {
			t.Errorf("%s: a record of the first reads %s", name, got)
		}
	}
	// What it alone would refuse is admitted.
	admit(t, r, mustSchema(t, withFields(`{"name":"likes","type":"long"}`, `{"name":"junk","type":"int","default":1}`)))
}

// What a store keeps is loaded as it was admitted, also where a schema had to be
// retired before its successor had room.
func TestLoadOfWhatOnlyFitsWithoutTheRetired(t *testing.T) {
	store := &memory{rows: map[millrace.Fingerprint]StoredSchema{}}
	r := newRegistry(t, store, nil)
	version := func(name string) *schemas.Schema {
		var fields []string
		for i := range 1000 {
			fields = append(fields, fmt.Sprintf(`{"name":"%s%d","type":"int","default":0}`, name, i))
		}
		return mustSchema(t, withFields(fields...))
	}
	first, second, third := version("a"), version("b"), version("c")
	admit(t, r, first)
	admit(t, r, second)
	if _, err := r.Admit(third); err == nil {
		t.Fatal("a family has columns for 3,000 fields; the test needs more")
	}
	if err := r.Retire(first.Fingerprint()); err != nil {
		t.Fatal(err)
	}
	admit(t, r, third)
	admit(t, r, schemas.Note())

	was, is := r.Snapshot(), newRegistry(t, store, nil).Snapshot()
	if len(is.All()) != 4 || is.bytes != was.bytes || !slices.Equal(is.names, was.names) || !is.Retired(first.Fingerprint()) || is.Retired(third.Fingerprint()) {
		t.Errorf("loaded %d schemas of %v with %d bytes, want 4 of %v with %d", len(is.All()), is.names, is.bytes, was.names, was.bytes)
	}
	for _, name := range was.names {
		if got, want := is.Family(name).Layout().Fields(), was.Family(name).Layout().Fields(); !slices.Equal(got, want) {
			t.Errorf("%s has %d columns, and not the %d that it had", name, len(got), len(want))
		}
	}
	if is.Decoder(first.Fingerprint()) == nil {
		t.Error("records of the schema that was retired are not readable")
	}
}
