package indexnode

import (
	"fmt"
	"strings"
	"testing"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/rpcerr"
)

// Of each thing that a request may have many of, the most is taken, which is
// what brokers send, and one more is refused by name.
func TestTheLimitsOfARequest(t *testing.T) {
	n := hostileNode(t)
	for field, c := range map[string]struct {
		most int
		have func(r *nodev1.QueryRequest, n int)
	}{
		"limit":   {1000, func(r *nodev1.QueryRequest, n int) { r.Limit = int32(n) }},
		"types":   {100, func(r *nodev1.QueryRequest, n int) { r.Types = make([]string, n); fillTypes(r.Types) }},
		"exclude": {20_000, func(r *nodev1.QueryRequest, n int) { r.Exclude = make([]uint64, n) }},
		"above":   {20_000, func(r *nodev1.QueryRequest, n int) { r.Above = make([]*nodev1.Item, n) }},
		"shadow":  {8, func(r *nodev1.QueryRequest, n int) { r.Explain, r.Shadow = true, make([]*nodev1.Model, n) }},
		"entities": {20_000, func(r *nodev1.QueryRequest, n int) {
			r.Types, r.Entities = []string{"post"}, pack(make([]string, n)...)
		}},
	} {
		req := all(func(r *nodev1.QueryRequest) { c.have(r, c.most) })
		if _, err := n.query(t.Context(), req); err != nil {
			t.Errorf("%d of %s: %v", c.most, field, err)
		}
		c.have(req, c.most+1)
		_, err := n.query(t.Context(), req)
		if bad, ok := err.(*millrace.Error); !ok || bad.Field != field || !rpcerr.Refused(err) {
			t.Errorf("%d of %s: %v", c.most+1, field, err)
		}
	}
	name := all(func(r *nodev1.QueryRequest) { r.Types = []string{strings.Repeat("x", millrace.MaxTypeBytes)} })
	name.Entities = pack(strings.Repeat("x", millrace.MaxEntityBytes))
	if _, err := n.query(t.Context(), name); err != nil {
		t.Errorf("the longest names: %v", err)
	}
}

func fillTypes(types []string) {
	for i := range types {
		types[i] = fmt.Sprint("type-", i)
	}
}

// When records have too many content types, what asks for all of them is
// refused, and what names some is answered, whatever their order.
func TestTypesAreBounded(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	bringType := func(i int) {
		bringLine(t, h, kafka.Timeline, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":"type-%[1]d","created_at":1700000000000}`, i), millrace.Offset(i+1))
	}
	for i := range store.MaxTypes {
		bringType(i)
	}
	everything := all(func(r *nodev1.QueryRequest) { r.Limit = 1000 })
	if resp, err := n.query(t.Context(), everything); err != nil || len(resp.Items) != store.MaxTypes {
		t.Fatalf("%d items, %v", len(resp.GetItems()), err)
	}
	if told := n.typesReport(cluster.All()); told != nil {
		t.Errorf("as many as may be are warned of: %v", told)
	}
	bringType(store.MaxTypes)
	bringType(store.MaxTypes + 1)
	if told := n.typesReport(cluster.All()); len(told) != 1 || !told[0].Warning || told[0].Reason != "too_many_types" {
		t.Errorf("the cluster is told %v", told)
	}
	for range 2 {
		_, err := n.query(t.Context(), everything)
		if bad, ok := err.(*millrace.Error); !ok || bad.Field != "types" || bad.WayOut == "" || !rpcerr.Refused(err) {
			t.Errorf("all types: %v", err)
		}
		resp, err := n.query(t.Context(), all(func(r *nodev1.QueryRequest) {
			r.Types, r.Examine = []string{"type-0", "type-256", "type-257"}, "r257"
		}))
		if err != nil || len(resp.Items) != 3 || len(resp.Findings) != 1 {
			t.Errorf("named ones: %v, %v", resp, err)
		}
	}
}

// Filters that nobody sends again do not stay.
func TestFiltersAreBounded(t *testing.T) {
	n := hostileNode(t)
	for i := range 1124 {
		if _, err := n.query(t.Context(), all(func(r *nodev1.QueryRequest) { r.Filter = fmt.Sprintf("record.likes > %d", i) })); err != nil {
			t.Fatal(err)
		}
	}
	if kept := len(n.filters.compiled); kept < 1 || kept > 1024 {
		t.Errorf("%d filters are kept", kept)
	}
}
