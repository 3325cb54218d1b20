package lookup

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/panics"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

var seeded = flag.Uint64("seed", 0, "of what is drawn; 0: another one each time")

// joined scores a record by the features of its entity and of its object.
const joined = `
name: joined
version: "1"
schemas: [millrace.Activity]
entity: millrace.Features
object: millrace.Features
features:
  entity: coalesce(entity.followers, -1.0)
  object: coalesce(object.engagement, -1.0)
scorer: linear
parameters: {weights: {entity: 1000, object: 1}}
`

// number returns a field of features as they were written.
func number(t *testing.T, f store.Features, field string) float64 {
	t.Helper()
	d, err := schemas.NewDecoder(schemas.Features(), schemas.Features())
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(schemas.Features().Layout(), 1, 0).Append()
	if err := d.Append(a, f.Body); err != nil {
		t.Fatal(err)
	}
	return math.Float64frombits(a.Slab().Word(schemas.Features().Layout().Index(field), 0))
}

// Questions over a node that is written, whose cache is small, purged and warmed, find what
// the store has, within what retention keeps: records, features of entities and of objects,
// offsets, what the cache missed, and how much was read.
func TestAQuestionFindsWhatTheStoreHas(t *testing.T) {
	seed := cmp.Or(*seeded, uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	kept := map[millrace.ContentType]store.Retention{"like": {MaxCount: 4}, "share": {MaxAge: 50 * time.Millisecond}}
	s, known := nodetest.OpenStore(t, store.Options{FS: vfs.NewMem(), MaxBlobBytes: 600, FlushEvery: -1, Retention: kept})
	budget := memory.New(64<<20, "questions")
	l := New(Config{Store: s, Cache: cache.New(cache.Config{}), Schemas: known, Retention: kept, Memory: budget, Panics: panics.NewTeller(slog.Default()), Cached: 5, RunBytes: 150})
	t.Cleanup(l.cache.Close)
	h := nodetest.Replicas(s, known, l, true)
	l.Over(h)
	m, err := relevance.Parse("joined.yaml", []byte(joined), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	w := nodetest.NewWorld(seed)
	next := map[millrace.Partition][kafka.Streams]millrace.Offset{}
	asked, found, behind, loads := 0, 0, 0, map[millrace.Partition]int64{}
	for step := range 1500 {
		e := w.Draw(t)
		e.At = millrace.Time(w.At)
		p := partition.Of(e.Entity)
		offsets := next[p]
		offsets[e.Stream]++
		next[p] = offsets
		if err := nodetest.Bring(t.Context(), h, []nodetest.Event{e}, offsets[e.Stream]); err != nil {
			t.Fatal(err)
		}
		switch {
		case step%150 == 149:
			l.cache.Purge()
		case step%30 == 7:
			k := millrace.Timeline{Entity: e.Entity, Type: []millrace.ContentType{"post", cache.Features, cache.Objects}[r.IntN(3)]}
			warm := l.Warming(l.cache.Warm())
			for range 2 { // the second time it is there
				if !warm.Warm(p, k) {
					t.Fatalf("step %d: %s is not warm", step, k)
				}
			}
			warm.Release()
		}
		if step%5 != 0 {
			continue
		}
		var names []string
		for _, e := range w.Entities {
			if r.IntN(3) == 0 {
				names = append(names, string(e))
			}
		}
		of := Asked{From: millrace.Time(w.At) - millrace.Time(r.IntN(3000)), To: millrace.Time(w.At) - millrace.Time(r.IntN(40)-20), Objects: r.IntN(3) == 0, Explain: r.IntN(2) == 0}
		types := []millrace.ContentType{"post", "like", "share", "nothing"}[r.IntN(3):]
		if of.Types = types; r.IntN(4) == 0 {
			of.Types = nil
			types, _ = s.Types()
		}
		// By the store.
		var want, misses []string
		read := map[millrace.Partition]int64{}
		cached := l.cache.Reader()
		for _, name := range names {
			e := millrace.Entity(name)
			p := partition.Of(e)
			features, err := s.Features(p, e)
			if err != nil {
				t.Fatal(err)
			}
			byEntity, byObject := -1.0, map[string]float64{}
			for _, f := range features {
				if f.Subject == name {
					byEntity = number(t, f, "followers")
				}
				byObject[f.Subject] = number(t, f, "engagement")
			}
			for _, typ := range types {
				k := millrace.Timeline{Entity: e, Type: typ}
				if tl := cached.Peek(k); of.Explain && (tl == nil || of.From < tl.From()) {
					before := millrace.MaxTime + 1
					if tl != nil {
						before = tl.From()
					}
					misses = append(misses, fmt.Sprint(k, before))
				}
				records, err := s.Read(nil, p, k, of.From, of.To)
				if err != nil {
					t.Fatal(err)
				}
				for _, rec := range records {
					if age := kept[typ].MaxAge; age > 0 && rec.Time < s.Clock(p)-millrace.Time(age.Milliseconds()) {
						continue
					}
					score, known := byObject[string(cmp.Or(rec.Object, millrace.Object(rec.ID)))]
					if !known || !of.Objects && string(rec.Object) != name {
						score = -1
					}
					want = append(want, fmt.Sprint(k, rec.ID, rec.Time, 1000*byEntity+score))
				}
			}
		}
		cached.Leave()
		// By the look-up.
		res := l.Resolve()
		if err := errors.Join(res.Decode(nodetest.Pack(names...)), res.Run(t.Context(), of)); err != nil {
			t.Fatal(err)
		}
		q := query.New(query.Spec{From: of.From, To: of.To, Model: m, Limit: 1 << 16, Viewer: &millrace.Viewer{}})
		res.Add(q)
		if err := q.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		var got, missed []string
		for _, it := range q.Answer().Items {
			got = append(got, fmt.Sprint(it.Timeline, it.ID, it.Time, it.Score))
		}
		for miss := range res.Misses() {
			if missed = append(missed, fmt.Sprint(miss.Key, miss.Before)); miss.Took <= 0 {
				t.Errorf("%s was read in %s", miss.Key, miss.Took)
			}
			if miss.Before <= millrace.MaxTime {
				behind++
			}
		}
		same := func(what string, got, want []string) {
			slices.Sort(got)
			if slices.Sort(want); !slices.Equal(got, want) {
				t.Fatalf("step %d of seed %d, %+v: %s\n got %s\nwant %s", step, seed, of, what, got, want)
			}
		}
		same("records", got, want)
		found += len(got)
		same("misses", missed, misses)
		for range res.Misses() {
			break
		}
		told := res.Answered()
		var entities []string
		at := 0
		for p, some := range res.Answers() {
			for _, e := range some {
				if partition.Of(e) != p {
					t.Fatalf("step %d: %s in partition %d", step, e, p)
				}
				entities = append(entities, string(e))
			}
			applied := h.Of(p).Applied()
			if told.Answered[at] != int32(p) || told.AppliedContent[at] != int64(applied[kafka.Timeline]) || told.AppliedFeatures[at] != int64(applied[kafka.Features]) {
				t.Fatalf("step %d: of partition %d it tells %v, and %v is applied", step, p, told, applied)
			}
			at++
		}
		same("entities", entities, names)
		if len(told.Answered) != at || len(told.Missing)+len(told.LagMs) > 0 {
			t.Fatalf("step %d: %v", step, told)
		}
		for range res.Answers() {
			break
		}
		for i := range res.views {
			read[res.views[i].partition] = int64(res.records(&res.views[i]))
		}
		if asked++; asked%16 == 0 {
			for p, n := range read {
				loads[p] += 16 * n
			}
		}
		res.Count()
		for p := range next {
			if l.Read(p) != loads[p] {
				t.Fatalf("step %d: %d records of partition %d are counted as read, want %d", step, l.Read(p), p, loads[p])
			}
		}
		q.Release()
		res.Release()
		if budget.Held() != 0 {
			t.Fatalf("step %d: %d bytes are lent still", step, budget.Held())
		}
	}
	if found < 1000 || behind == 0 {
		t.Errorf("%d records were found, and %d timelines read behind the cache: the test is of little use", found, behind)
	}
}

// What a question may not take, or cannot read, ends it with an error: none is answered in
// part. It is so for the newest records, for older ones, and for features.
func TestAQuestionIsAnsweredWholeOrNotAtAll(t *testing.T) {
	l, h := open(t)
	l.maxCached, l.maxRun = 5, 150
	members := nodetest.Members(t, h, 4, 40)
	nodetest.Feature(t, h, members[0], 1)
	nodetest.BringLine(t, h, kafka.Features, `{"entity":"member:1","subject":"o1","updated_at":1}`, 1)
	var names []string
	run := func(ctx context.Context, of Asked) (found int, err error) {
		r := l.Resolve()
		defer r.Release()
		if err := errors.Join(r.Decode(nodetest.Pack(names...)), r.Run(ctx, of)); err != nil {
			return 0, err
		}
		for i := range r.views {
			found += r.records(&r.views[i])
		}
		return found, nil
	}
	const newest = millrace.Time(1_700_000_000_000 + 39)
	questions := map[string]Asked{
		"newest":    {Types: []millrace.ContentType{"post"}, From: newest, To: millrace.MaxTime},
		"older":     {Types: []millrace.ContentType{"post"}, From: newest - 30, To: millrace.MaxTime},
		"explained": {Types: []millrace.ContentType{"post"}, From: newest, To: millrace.MaxTime, Explain: true},
		"features":  {Types: []millrace.ContentType{"post"}, From: newest, To: millrace.MaxTime},
		"objects":   {Types: []millrace.ContentType{"post"}, From: newest, To: millrace.MaxTime, Objects: true},
	}
	of := map[string][]string{"newest": members[2:], "older": members[2:], "explained": members[2:], "features": members[:1], "objects": members[1:2]}
	shared, known := l.memory, l.schemas
	for name, asked := range questions {
		names = of[name]
		of := asked
		l.cache.Purge()
		want, err := run(t.Context(), of)
		if err != nil || want < 3 {
			t.Fatalf("%s: %d records, %v", name, want, err)
		}
		refused, answered := 0, 0
		for bytes := int64(0); answered < 2; bytes += 1 + bytes/8 {
			l.memory = memory.New(bytes, "questions")
			l.cache.Purge()
			if name == "older" { // the newest are there
				l.memory = shared
				if _, err := run(t.Context(), questions["newest"]); err != nil {
					t.Fatal(err)
				}
				l.memory = memory.New(bytes, "questions")
			}
			switch found, err := run(t.Context(), of); {
			case panics.In(err):
				t.Fatal(err)
			case err != nil:
				refused++
			case found != want:
				t.Fatalf("%s: of %d bytes %d records are answered, want %d", name, bytes, found, want)
			default:
				answered++
			}
			if l.memory.Held() != 0 {
				t.Fatalf("%s: %d bytes are lent still", name, l.memory.Held())
			}
		}
		if l.memory = shared; refused < 5 {
			t.Errorf("%s: refused %d times", name, refused)
		}
		// Of a schema that is not known.
		l.cache.Purge()
		if name == "older" {
			if _, err := run(t.Context(), questions["newest"]); err != nil {
				t.Fatal(err)
			}
		}
		none, err := registry.New(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		l.schemas = none
		if _, err := run(t.Context(), of); err == nil || !strings.Contains(err.Error(), "unknown schema") {
			t.Errorf("%s: %v", name, err)
		}
		l.schemas = known
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for _, what := range []string{"read", "cached"} {
			if _, err := run(over, of); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if _, err := run(t.Context(), of); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := l.Resolve()
	defer r.Release()
	if err := r.Decode(nodetest.Pack(names...)); err != nil {
		t.Fatal(err)
	}
	n := len(names)
	if bad := (*millrace.Error)(nil); r.Affordable(7, 7*n) != nil || !errors.As(r.Affordable(7, 7*n-1), &bad) || bad.Field != "entities" || bad.Detail != fmt.Sprintf("%d entities of 7 types are more than %d timelines", n, 7*n-1) {
		t.Errorf("of 7 types: %v, %v", r.Affordable(7, 7*n), r.Affordable(7, 7*n-1))
	}
	grant := r.grant(millrace.Timeline{Entity: "e", Type: "post"})
	if err := errors.Join(grant(1), grant(maxReadBytes-1)); err != nil || shared.Held() != 3*maxReadBytes {
		t.Errorf("%v, and %d bytes are lent", err, shared.Held())
	}
	if bad := (*millrace.Error)(nil); !errors.As(grant(1), &bad) || bad.Field != "entities" || bad.Reason != millrace.ReasonTooLarge {
		t.Error("more is read than may be")
	}
	if r.More(64<<20) != nil || r.More(1) == nil {
		t.Error("there is other memory than there is")
	}
	many := l.Resolve()
	defer many.Release()
	l.memory = memory.New(256<<20, "questions")
	if err := many.Decode(nodetest.Pack(slices.Repeat([]string{"member:1"}, maxEntities)...)); err != nil {
		t.Fatal(err)
	}
	bad := (*millrace.Error)(nil)
	if err := many.look(Asked{Types: slices.Repeat([]millrace.ContentType{"post"}, 25)}); !errors.As(err, &bad) || bad.Field != "entities" { // and features
		t.Errorf("26 types of %d entities: %v", maxEntities, err)
	}
}

// Records become slabs by their layout, the oldest first, and none of them where one is of an
// unknown schema or is no such record.
func TestSlabs(t *testing.T) {
	l, _ := open(t)
	activity, features := schemas.Activity(), schemas.Features()
	var records []millrace.Record
	for i := range 6 {
		s, line := activity, fmt.Sprintf(`{"id":"r%d","actor":"a","verb":"post","created_at":%d}`, i, 100-i)
		if i%3 == 1 {
			s, line = features, fmt.Sprintf(`{"entity":"r%d","updated_at":%d}`, i, 100-i)
		}
		body, err := s.EncodeJSON([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, millrace.Record{ID: millrace.RecordID(fmt.Sprint("r", i)), Schema: s.Fingerprint(), Body: body})
	}
	slabs, err := Slabs(l.schemas.Snapshot(), records)
	if err != nil || len(slabs) != 2 {
		t.Fatal(len(slabs), err)
	}
	for i, want := range [][]string{{"r5", "r3", "r2", "r0"}, {"r4", "r1"}} {
		var got []string
		for row := range slabs[i].Len() {
			got = append(got, slabs[i].StringAt(0, row))
		}
		if !slices.Equal(got, want) {
			t.Errorf("slab %d is %v, want %v", i, got, want)
		}
	}
	if slabs, err := Slabs(l.schemas.Snapshot(), nil); len(slabs) != 0 || err != nil {
		t.Error(slabs, err)
	}
	for what, spoil := range map[string]func(*millrace.Record){
		"unknown schema": func(r *millrace.Record) { r.Schema++ },
		"record r2: ":    func(r *millrace.Record) { r.Body = r.Body[:len(r.Body)-1] },
	} {
		bad := slices.Clone(records)
		spoil(&bad[2])
		if _, err := Slabs(l.schemas.Snapshot(), bad); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A timeline of a partition that is damaged, or not held, is not brought into the cache.
func TestWhatIsNotWarmed(t *testing.T) {
	l, h := open(t)
	names := members(t, l, h, 2, 3)
	k := millrace.Timeline{Entity: millrace.Entity(names[0]), Type: "post"}
	p := partition.Of(k.Entity)
	r := l.Warming(l.cache.Warm())
	defer r.Release()
	if r.Warm(p+1, k) {
		t.Error("a timeline of another partition is warm")
	}
	if err := l.store.Quarantine(p, errors.New("a flipped bit")); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []millrace.ContentType{cache.Features, cache.Objects, "post", "post"} {
		if k.Type = typ; r.Warm(p, k) || h.Of(p).State() != replica.Quarantined {
			t.Errorf("what is damaged is warm, and its replica is %s", h.Of(p).State())
		}
	}
	l.cache.Fill(k, cache.Empty)
	if r.Warm(p, k) {
		t.Error("what is not held is warm")
	}
}

// A cached timeline stays cached, and has what is written, where that is newer than all it
// has and may be added; nothing changes where nothing is written. Else it is read again.
func TestWhatStaysCached(t *testing.T) {
	const time = 1_700_000_000_000
	for name, c := range map[string]struct {
		verb, line string
		want       int // records that are cached then; -1: it is not cached
	}{
		"newer":            {"post", `{"id":"new","actor":"member:1","verb":"post","created_at":%d}`, 4},
		"ignored":          {"post", `{"id":"r2","actor":"member:1","verb":"post","created_at":%d}`, 3},
		"a new version":    {"post", `{"id":"r2","actor":"member:1","verb":"post","created_at":%d,"version":7}`, -1},
		"a tombstone":      {"post", `{"id":"r2","actor":"member:1","verb":"post","created_at":%d,"version":7,"deleted":true}`, -1},
		"older":            {"post", `{"id":"new","actor":"member:1","verb":"post","created_at":7,"likes":%d}`, -1},
		"counted":          {"like", `{"id":"new","actor":"member:1","verb":"like","created_at":%d}`, -1},
		"as many as may":   {"many", `{"id":"new","actor":"member:1","verb":"many","created_at":%d}`, 10},
		"more than may be": {"more", `{"id":"new","actor":"member:1","verb":"more","created_at":%d}`, -1},
	} {
		l, h := open(t)
		l.maxCached, l.retention = 5, map[millrace.ContentType]store.Retention{"like": {MaxCount: 100}}
		had := map[string]int{"many": 9, "more": 10}[c.verb]
		for i := range max(had, 3) {
			nodetest.BringLine(t, h, kafka.Timeline, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":%q,"created_at":%d}`, i, c.verb, time+i), millrace.Offset(i+1))
			if i == 0 { // from here on it is cached
				l.cache.Fill(millrace.Timeline{Entity: "member:1", Type: millrace.ContentType(c.verb)}, cache.Empty)
				r := l.Resolve()
				l.cache.Purge()
				if err := errors.Join(r.Decode(nodetest.Pack("member:1")), r.Run(t.Context(), Asked{Types: []millrace.ContentType{millrace.ContentType(c.verb)}, To: millrace.MaxTime})); err != nil {
					t.Fatal(err)
				}
				r.Release()
			}
		}
		if c.verb == "like" {
			if _, err := find(t.Context(), l, 0, "member:1"); err != nil {
				t.Fatal(err)
			}
			l.cache.Fill(millrace.Timeline{Entity: "member:1", Type: "like"}, cache.Empty)
		}
		nodetest.BringLine(t, h, kafka.Timeline, fmt.Sprintf(c.line, time+100), 99)
		r := l.cache.Reader()
		got := -1
		if tl := r.Peek(millrace.Timeline{Entity: "member:1", Type: millrace.ContentType(c.verb)}); tl != nil {
			got = tl.Len()
		}
		if r.Leave(); got != c.want {
			t.Errorf("%s: %d records are cached, want %d", name, got, c.want)
		}
	}
	l, h := open(t)
	postOne(t, h, 1)
	if _, err := find(t.Context(), l, 0, "member:1"); err != nil || l.cache.Stats().Timelines != 1 {
		t.Fatal(err)
	}
	if l.Forget(); l.cache.Stats().Timelines != 0 {
		t.Error("what is forgotten is cached")
	}
	if l.HasFeatures(); !l.features.Load() {
		t.Error("there are features, and nobody asks for them")
	}
	if err := l.store.Quarantine(7, errors.New("a flipped bit")); err != nil {
		t.Fatal(err)
	}
	if l.ForgetPartition(7) == nil {
		t.Error("what a damaged partition has is forgotten")
	}
}

// What is cached is found where no entity has features, and a resolution that ends before it
// runs lets nothing go that it does not hold.
func TestCachedWithoutFeatures(t *testing.T) {
	l, h := open(t)
	postOne(t, h, 1)
	m, err := relevance.Builtin().Get("recency")
	if err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		r := l.Resolve()
		if err := errors.Join(r.Decode(nodetest.Pack("member:1")), r.Run(t.Context(), Asked{Types: []millrace.ContentType{"like", "post"}, To: millrace.MaxTime})); err != nil {
			t.Fatal(err)
		}
		q := query.New(query.Spec{To: millrace.MaxTime, Model: m, Limit: 5, Viewer: &millrace.Viewer{}})
		r.Add(q)
		if err := q.Scan(t.Context()); err != nil || len(q.Answer().Items) != 1 || (round > 0) == r.views[0].locked {
			t.Errorf("round %d: %v, %v", round, q.Answer().Items, err)
		}
		q.Release()
		r.Release()
		l.Resolve().Release()
	}
	k := millrace.Timeline{Entity: "member:1", Type: "post"}
	for range 1000 {
		l.cache.Fill(k, mustTimeline(t))
	}
	if s := l.cache.Stats().Arena; s.Blocks > 500 {
		t.Errorf("%d blocks wait for a reader that is gone", s.Blocks)
	}
}

// mustTimeline returns a timeline of one record.
func mustTimeline(t *testing.T) *cache.Timeline {
	t.Helper()
	a := column.New(schemas.Activity().Layout(), 1, 0).Append()
	if err := a.End(a.Begin()); err != nil {
		t.Fatal(err)
	}
	tl, err := cache.NewTimeline(millrace.MinTime, a.Slab())
	if err != nil {
		t.Fatal(err)
	}
	return tl
}

// A question that names no type may find more than can be read.
func TestTooManyTypesToReadAll(t *testing.T) {
	l, h := open(t)
	var events []nodetest.Event
	for i := range store.MaxTypes + 1 {
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":"member:1","verb":"type %d","created_at":1}`, i, i))
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, nodetest.Event{Stream: kafka.Timeline, Entity: "member:1", Schema: schemas.Activity(), Body: body})
		if i < store.MaxTypes-1 {
			continue
		}
		if err := nodetest.Bring(t.Context(), h, events, millrace.Offset(i+1)); err != nil {
			t.Fatal(err)
		}
		events = nil
		for _, asked := range [][]millrace.ContentType{nil, {"type 7"}} {
			r := l.Resolve()
			err := errors.Join(r.Decode(nodetest.Pack("member:1")), r.Run(t.Context(), Asked{Types: asked, To: millrace.MaxTime}))
			bad := (*millrace.Error)(nil)
			if refused := asked == nil && i == store.MaxTypes; refused != errors.As(err, &bad) || refused && bad.Field != "types" || !refused && err != nil {
				t.Errorf("%d types, asked for %v: %v", i+1, asked, err)
			}
			r.Release()
		}
	}
}
