package packs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// A record has something in a field unless it is null, an empty text or an empty list.
func TestWhatIsAValue(t *testing.T) {
	odd, err := schemas.Parse([]byte(`{"type":"record","name":"team.Odd","fields":[
{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},
{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},
{"name":"text","type":"string"},{"name":"number","type":"long"},{"name":"real","type":"double"},{"name":"flag","type":"boolean"},
{"name":"numbers","type":{"type":"array","items":"double"}},{"name":"texts","type":{"type":"array","items":"string"}},
{"name":"color","type":{"type":"enum","name":"Color","symbols":["RED","BLUE"]}},{"name":"maybe","type":["null","long"],"default":null},{"name":"maybe_text","type":["null","string"],"default":null}]}`))
	if err != nil {
		t.Fatal(err)
	}
	fields := []string{"color", "flag", "maybe", "maybe_text", "number", "numbers", "real", "text", "texts"}
	line := func(kind, text, numbers, texts, maybe, maybeText string) string {
		return fmt.Sprintf(`{"id":%q,"who":"member:1","kind":%q,"at":1,"text":%q,"number":0,"real":0,"flag":false,"numbers":%s,"texts":%s,"color":"RED","maybe":%s,"maybe_text":%s}`, kind+text+maybe+maybeText, kind, text, numbers, texts, maybe, maybeText)
	}
	a, h := open(t)
	if _, err := a.cfg.Schemas.Admit(odd); err != nil {
		t.Fatal(err)
	}
	for _, l := range []string{
		line("empty", "", "[]", "[]", "null", "null"), line("empty", "", "[]", "[]", "null", `""`),
		line("full", "", "[]", "[]", "null", "null"), line("full", "x", "[0]", `[""]`, "0", `"y"`),
		line("some", "x", "[]", `["a"]`, "null", "null"),
	} {
		nodetest.BringOf(t, h, odd, l, h.Of(partition.Of("member:1")).Applied()[0]+1)
	}
	nodetest.BringOf(t, h, odd, line("gone", "", "[]", "[]", "null", "null"), h.Of(partition.Of("member:1")).Applied()[0]+1)
	var b store.Batch
	b.Put(partition.Of("member:1"), millrace.Timeline{Entity: "member:1", Type: "gone"}, millrace.Record{ID: "gonenullnull", Time: 1, Version: 9, Deleted: true})
	body, err := odd.EncodeJSON([]byte(line("last", "", "[]", "[]", "null", "null")))
	if err != nil {
		t.Fatal(err)
	}
	b.Put(partition.Of("member:1"), millrace.Timeline{Entity: "member:1", Type: "last"}, millrace.Record{ID: "last", Time: millrace.MaxTime, Version: 1, Schema: odd.Fingerprint(), Body: body})
	if _, err := a.cfg.Store.Apply(&b, nil); err != nil {
		t.Fatal(err)
	}
	c := takeCensus(t.Context(), a.cfg.Store, a.cfg.Schemas.Snapshot())
	for kind, want := range map[string]struct {
		records int
		has     []string
	}{"empty": {2, []string{"color", "flag", "number", "real"}}, "full": {2, fields}, "some": {1, []string{"color", "flag", "number", "real", "text", "texts"}}, "last": {1, []string{"color", "flag", "number", "real"}}} {
		of := c.types[millrace.ContentType(kind)]
		if of == nil {
			t.Fatalf("nothing is known of %s", kind)
		}
		var has []string
		for _, name := range fields {
			if of.has[name] {
				has = append(has, name)
			}
		}
		if of.records != want.records || !slices.Equal(has, want.has) {
			t.Errorf("%d records of %s have %v, want %d with %v", of.records, kind, has, want.records, want.has)
		}
	}
	if len(c.types) != 4 {
		t.Errorf("%d types are known", len(c.types))
	}
}

// A version that the cluster drops is kept for as long as brokers may ask for it, and goes
// then, with its metrics; one that comes back in time stays.
func TestWhatIsDroppedLingers(t *testing.T) {
	a, h := open(t)
	nodetest.BringLine(t, h, 0, `{"id":"r","actor":"member:1","verb":"post","created_at":1}`, 1)
	p := newPublished()
	spec := strings.Replace(nodetest.LikesSpec, "{likes: record.likes,", "{likes: record.likes + size(record.about),", 1)
	row := strings.Replace(strings.Replace(nodetest.LikesRow, `"record":{`, `"record":{"about":["a"],`, 1), `"features":{"likes":1`, `"features":{"likes":2`, 1)
	v := p.put(t, nodetest.PackOf(t, spec, strings.Replace(row, `"score":4`, `"score":5`, 1), relevance.ShippedSchemas()))
	registry := prometheus.NewRegistry()
	registry.MustRegister(a.Collectors()...)
	lacking := func() (n int) {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "millrace_indexnode_model_fields_missing" {
				n += len(f.GetMetric())
			}
		}
		return n
	}
	var dropped []relevance.ID
	a.cfg.Dropped = func(id relevance.ID) { dropped = append(dropped, id) }
	f := a.Follow(p, never)
	if f.Admit(t.Context()); find(a, v) != nil || lacking() != 1 {
		t.Fatalf("it is not admitted, or %d fields are missing: %v", lacking(), f.tried[v].refused)
	}
	if told := f.admissions(); len(told[0].Lacks) != 1 || told[0].Sum != v.Sum {
		t.Errorf("told is %+v", told)
	}
	synctest.Test(t, func(t *testing.T) {
		there := []artefacts.Version{v}
		f.drop(nil)
		time.Sleep(lingers - 1)
		f.drop(there)
		time.Sleep(lingers)
		if f.drop(there); len(f.gone) > 0 || len(dropped) > 0 {
			t.Error("one that came back goes")
		}
		f.drop(nil)
		if told := f.admissions(); len(told) != 0 {
			t.Errorf("of one that was dropped %v is told", told)
		}
		time.Sleep(lingers - 1)
		if f.drop(nil); find(a, v) != nil || len(dropped) > 0 || lacking() != 1 {
			t.Error("it goes before its time")
		}
		time.Sleep(time.Nanosecond)
		if f.drop(nil); find(a, v) == nil || !slices.Equal(dropped, []relevance.ID{relevance.ID(v)}) || lacking() != 0 || len(f.tried)+len(f.gone) > 0 {
			t.Errorf("dropped are %v, and %d fields are missing: %v", dropped, lacking(), find(a, v))
		}
	})
}

// Whom the cluster has told of a version, the node tells of it next; what could not be kept is
// told, and tried again.
func TestWhatIsAdmittedIsTold(t *testing.T) {
	a, _ := open(t)
	pack := nodetest.Likes(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPublished()
		v := p.put(t, pack)
		var order []string
		a.cfg.Admitted = func(_ context.Context, id relevance.ID) { order = append(order, "admitted "+id.Version) }
		p.unkept = map[artefacts.Version]error{v: errors.New("the disk is full")}
		f := a.Follow(p, never)
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		time.AfterFunc(3*time.Second, func() { p.set(func() { p.unkept = nil }) })
		err := f.Run(ctx, func(all []members.Admission) {
			order = append(order, fmt.Sprintf("told %s (%s) after %s", all[0].Version, all[0].Unkept, time.Since(began)))
			if all[0].Unkept == "" {
				cancel()
			}
		})
		want := []string{"told 1 (the disk is full) after 0s", "admitted 1", "told 1 (the disk is full) after 2s", "told 1 () after 3s"}
		if !errors.Is(err, context.Canceled) || !slices.Equal(order, want) {
			t.Errorf("%q: %v", order, err)
		}
		if f.unkept() {
			t.Error("what is kept is tried again")
		}
	})
}

// What cannot be read is tried again, and what was dropped goes after its time, though nothing
// more changes.
func TestAFollowerComesBackByItself(t *testing.T) {
	a, _ := open(t)
	pack := nodetest.Likes(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPublished()
		p.put(t, pack)
		p.fault = errors.New("etcd is away")
		began := time.Now()
		var order []string
		note := func(format string, args ...any) {
			order = append(order, fmt.Sprintf("%s: %s", time.Since(began), fmt.Sprintf(format, args...)))
		}
		ctx, cancel := context.WithCancel(t.Context())
		a.cfg.Dropped = func(id relevance.ID) { note("%s is dropped", id.Version); cancel() }
		time.AfterFunc(3*time.Second, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.fault = nil // and nobody is told
		})
		time.AfterFunc(time.Minute, func() { p.set(func() { delete(p.all, "likes") }) })
		var told string
		err := a.Follow(p, never).Run(ctx, func(all []members.Admission) {
			text := fmt.Sprint(len(all), " told")
			if len(all) > 0 {
				text += ", refused by " + all[0].Refused
			}
			if told != text {
				note("%s; awaits %s", text, a.Pending())
			}
			told = text
		})
		want := []string{"0s: 1 told, refused by etcd is away; awaits ", "4s: 1 told, refused by ; awaits ", "1m0s: 0 told; awaits ", "1m30s: 1 is dropped"}
		if !errors.Is(err, context.Canceled) || !slices.Equal(order, want) {
			t.Errorf("%q: %v", order, err)
		}
	})
}

// The versions that serve come first, then the newest of each model.
func TestInWhichOrderVersionsCome(t *testing.T) {
	p := newPublished()
	of := func(name string, versions ...string) {
		for _, v := range versions {
			p.all[name] = append(p.all[name], artefacts.Version{Name: name, Version: v})
		}
	}
	of("a", "1", "2", "3")
	of("b", "1", "2")
	serving := map[string]artefacts.Version{"a": p.all["a"][1], "b": p.all["b"][0]}
	f := (&Admission{}).Follow(p, never)
	for range 10 {
		var got []string
		for _, v := range f.versions(serving) {
			got = append(got, v.Name+v.Version)
		}
		if slices.Sort(got[:2]); !slices.Equal(got[:2], []string{"a2", "b1"}) || len(got) != 5 || slices.Index(got, "a3") > slices.Index(got, "a1") || !slices.Contains(got, "b2") {
			t.Fatalf("they come as %v", got)
		}
	}
}

// The last release of a version counts, and nothing else.
func TestWhatReleasesAVersion(t *testing.T) {
	p := newPublished()
	v := artefacts.Version{Name: "likes", Version: "1", Sum: "s"}
	event := func(what ledger.Change, sum string, at int64) ledger.Event {
		return ledger.Event{What: what, Sum: sum, When: time.Unix(at, 0)}
	}
	p.history = []ledger.Event{event(ledger.Released, "s", 5), event(ledger.Released, "s", 7), event(ledger.Released, "s", 6), event(ledger.Released, "other", 9), event(ledger.Published, "s", 8)}
	f := (&Admission{}).Follow(p, never)
	if got := f.released(t.Context(), v); got.Unix() != 7 {
		t.Errorf("released at %s", got)
	}
	p.fault = errors.New("etcd is away")
	if got := f.released(t.Context(), v); !got.IsZero() {
		t.Errorf("while nobody can say: %s", got)
	}
}

// A disk that takes no markers keeps no model from serving, and what is left of others is
// removed.
func TestWithoutMarkers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "admitting")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // where the directory is to be
		t.Fatal(err)
	}
	f, _, first, second := dying(t, dir)
	if f.Admit(t.Context()); find(f.Admission, first) != nil || find(f.Admission, second) != nil {
		t.Errorf("%v", f.admissions())
	}
	if err := f.markers.begin(first, marker{}); err == nil {
		t.Error("a marker is written, and there is no directory")
	}
	k := marker{Deaths: 1, Released: time.Unix(9, 0).UTC()}
	m := markers{filepath.Join(t.TempDir(), "a", "b")}
	began := time.Now().Add(-time.Second)
	if err := m.begin(first, k); err != nil {
		t.Fatal(err)
	}
	if got := m.read(first); got.Deaths != 2 || !got.Released.Equal(k.Released) || got.Last.Before(began) || got.Last.After(time.Now()) {
		t.Errorf("kept is %+v", got)
	}
	if err := os.WriteFile(filepath.Join(m.dir, "new-1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m.keep([]artefacts.Version{first})
	if left, _ := os.ReadDir(m.dir); len(left) != 1 || left[0].Name() != first.Sum {
		t.Errorf("left is %v", left)
	}
	if err := errors.Join(m.end(first), m.end(first)); err != nil || m.read(first) != (marker{}) {
		t.Errorf("%v; %+v", err, m.read(first))
	}
	if err := os.MkdirAll(filepath.Join(m.file(first), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.end(first); err == nil || m.read(first).Deaths != 1 {
		t.Errorf("what cannot be removed is: %v", err)
	}
	if err := m.begin(first, k); err == nil {
		t.Error("a marker is written over a directory")
	}
	if left, _ := os.ReadDir(m.dir); len(left) != 1 {
		t.Errorf("left is %v", left)
	}
}

// Bytes that are no pack are refused, and keep no other version from being admitted.
func TestWhatIsNoPackIsRefused(t *testing.T) {
	a, _ := open(t)
	p := newPublished()
	v := p.put(t, nodetest.Likes(t))
	none := artefacts.Version{Name: "none", Version: "1", Sum: "none"}
	p.set(func() { p.all["none"], p.bodies[none] = []artefacts.Version{none}, []byte("?") })
	f := a.Follow(p, never)
	if again := f.Admit(t.Context()); again || find(a, v) != nil || find(a, none) == nil || f.tried[none].refused == nil || f.tried[none].unread {
		t.Errorf("again: %t; %+v", again, f.tried[none])
	}
}
