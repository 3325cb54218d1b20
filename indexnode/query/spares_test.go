package query

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
)

// Queries that are not in use outlast collections, and the last released is
// the first used.
func TestSparesOutlastCollections(t *testing.T) {
	var s spares
	a, b := s.get(), s.get()
	s.put(a, time.Now())
	s.put(b, time.Now())
	runtime.GC()
	runtime.GC()
	if got := s.get(); got != b {
		t.Error("it is not the one released last")
	}
	if got := s.get(); got != a {
		t.Error("the first released is gone")
	}
}

// Who is not needed for a while is let go, who is needed stays.
func TestSparesLetGo(t *testing.T) {
	var s spares
	now := time.Unix(1, 0)
	use := func(n int) {
		some := make([]*Query, n)
		for i := range some {
			some[i] = s.get()
		}
		for _, q := range some {
			s.put(q, now)
		}
	}
	use(5)
	now = now.Add(spareFor - 1)
	use(2)
	if len(s.free) != 5 {
		t.Fatalf("%d are kept, want all 5 so soon", len(s.free))
	}
	for range 4 {
		now = now.Add(spareFor)
		use(2)
	}
	if len(s.free) != 2 {
		t.Errorf("%d are kept, want the 2 that are used", len(s.free))
	}
	if used := s.free[:5]; used[2] != nil || used[3] != nil || used[4] != nil {
		t.Error("who was let go is held still")
	}
}

// A plan of an earlier question serves the same again; one of another gives its memory to a
// new plan once there are as many as are kept, the one that was not used for the longest time.
func TestPlansAreKept(t *testing.T) {
	_, all := activities(t, 1, 1)
	m := question(t).Model
	var layouts []*column.Layout
	for range maxSpare + 2 {
		l, err := column.NewLayout(all[0].First().Layout().Fields())
		if err != nil {
			t.Fatal(err)
		}
		layouts = append(layouts, l)
	}
	key := func(i int) planKey { return planKey{model: m, rows: layouts[i]} }
	q := newQuery()
	var plans []*plan
	for i := range maxSpare {
		plans = append(plans, q.sparePlan(key(i)))
		plans[i].full.kind, plans[i].folded.kind, plans[i].passed.kind = whole, folded, passed
	}
	q.plans = append(q.plans, plans...)
	q.releasePlans()
	if p := q.sparePlan(key(0)); p != plans[0] || len(q.spare) != maxSpare-1 || p.full.kind != whole {
		t.Error("a plan that is known is made again")
	}
	another := q.sparePlan(key(maxSpare))
	if slices.Contains(plans, another) {
		t.Error("a plan is given up where there is room for another")
	}
	q.plans = append(q.plans, plans[0], another)
	if q.releasePlans(); len(q.spare) != maxSpare || q.spare[0] != plans[2] || q.spare[maxSpare-1] != another {
		t.Errorf("%d plans are kept, and not the last", len(q.spare))
	}
	plans = plans[1:]
	p := q.sparePlan(key(maxSpare + 1))
	if p != plans[1] || p.planKey != key(maxSpare+1) || p.full.kind != unready || p.folded.kind != unready || p.passed.kind != unready || len(q.spare) != maxSpare-1 || p.modelID != cache.IDOf(m) {
		t.Errorf("not the oldest plan was given up: %+v", p.planKey)
	}
}

// The texts that a question has made are let go where they take much memory: the
// next one makes its own.
func TestLongTextsAreLetGo(t *testing.T) {
	keys, all := activities(t, 2, 20)
	crossed := `cross("a", record.verb)`
	for range 50 {
		crossed = "cross(" + crossed + ", viewer.country)"
	}
	var features, weights []string
	for i := range 8 {
		features = append(features, fmt.Sprintf(`f%d: 'size(cross("%d", %s))'`, i, i, strings.Replace(crossed, `"a"`, fmt.Sprintf(`"%d"`, i), 1)))
		weights = append(weights, fmt.Sprintf("f%d: 1", i))
	}
	m, err := relevance.Parse("spec.yaml", fmt.Appendf(nil, "name: long\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {country: string}\nfeatures: {%s}\nscorer: linear\nparameters: {weights: {%s}}\n", strings.Join(features, ", "), strings.Join(weights, ", ")), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	s := question(t)
	s.Model, s.Filter, s.Viewer = m, nil, &millrace.Viewer{Attributes: map[string]any{"country": strings.Repeat("z", 29)}}
	var before, after runtime.MemStats
	for range 3 {
		runtime.ReadMemStats(&before)
		if n, err := ask(t.Context(), s, keys, all); n == 0 || err != nil {
			t.Fatal(n, err)
		}
		runtime.ReadMemStats(&after)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took < 256<<10 {
		t.Errorf("the third question allocates %d bytes: what those before it made is kept", took)
	}
}
