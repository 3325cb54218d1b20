package answers

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/nodewire"
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
		"limit":             {1000, func(r *nodev1.QueryRequest, n int) { r.Limit = int32(n) }},
		"types":             {100, func(r *nodev1.QueryRequest, n int) { r.Types = make([]string, n); fillTypes(r.Types) }},
		"exclude":           {20_000, func(r *nodev1.QueryRequest, n int) { r.Exclude, r.ServedKey = make([]uint64, n), make([]byte, 16) }},
		"above":             {20_000, func(r *nodev1.QueryRequest, n int) { r.Above = make([]*nodev1.Item, n) }},
		"shadow":            {8, func(r *nodev1.QueryRequest, n int) { r.Shadow = make([]*nodev1.Model, n) }},
		"beside":            {8, func(r *nodev1.QueryRequest, n int) { r.Beside = make([]*nodev1.Model, n) }},
		"viewer.features":   {10_000, func(r *nodev1.QueryRequest, n int) { r.Viewer.Features = named(n, math.NaN()) }},
		"viewer.attributes": {1000, func(r *nodev1.QueryRequest, n int) { r.Viewer.Attributes = named(n, structpb.NewBoolValue(true)) }},
		"viewer.attributes.list": {10_000, func(r *nodev1.QueryRequest, n int) {
			list := &structpb.ListValue{Values: slices.Repeat([]*structpb.Value{structpb.NewNumberValue(1)}, n)}
			r.Viewer.Attributes = map[string]*structpb.Value{"list": structpb.NewListValue(list)}
		}},
		"viewer.id": {512, func(r *nodev1.QueryRequest, n int) { r.Viewer.Id = strings.Repeat("x", n) }},
		"examine":   {millrace.MaxIDBytes, func(r *nodev1.QueryRequest, n int) { r.Examine = strings.Repeat("x", n) }},
		"entities": {20_000, func(r *nodev1.QueryRequest, n int) {
			r.Types, r.Entities = []string{"post"}, nodetest.Pack(make([]string, n)...)
		}},
	} {
		req := nodetest.All(func(r *nodev1.QueryRequest) { c.have(r, c.most) })
		if _, err := n.query(t.Context(), req); err != nil {
			t.Errorf("%d of %s: %v", c.most, field, err)
		}
		c.have(req, c.most+1)
		_, err := n.query(t.Context(), req)
		if bad, ok := err.(*millrace.Error); !ok || bad.Field != field || !rpcerr.Refused(err) {
			t.Errorf("%d of %s: %v", c.most+1, field, err)
		}
	}
	for limit, field := range map[int32]string{0: "limit", -1: "limit"} {
		_, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Limit = limit }))
		if bad, ok := err.(*millrace.Error); !ok || bad.Field != field {
			t.Errorf("a limit of %d: %v", limit, err)
		}
	}
	_, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.CapPerEntity = -1 }))
	if bad, ok := err.(*millrace.Error); !ok || bad.Field != "cap_per_entity" {
		t.Errorf("a negative cap: %v", err)
	}
	// No answer is larger than brokers take.
	for bytes, taken := range map[int64]bool{maxAnswerBytes: true, maxAnswerBytes + 1: false} {
		q := question{Resolution: n.lookup.Resolve()}
		var large *millrace.Error
		if err := q.fits(&nodev1.QueryRequest{MaxBytes: maxAnswerBytes}, &nodev1.QueryResponse{}, bytes); (err == nil) != taken || err != nil && (!errors.As(err, &large) || large.Reason != millrace.ReasonTooLarge) {
			t.Errorf("an answer of %d bytes: %v", bytes, err)
		}
		q.Release()
	}
	resp := &nodev1.QueryResponse{}
	q := question{Resolution: n.lookup.Resolve()}
	defer q.Release()
	if err := q.fits(&nodev1.QueryRequest{MaxBytes: 99}, resp, 99); err != nil || resp.WithheldBytes != 0 {
		t.Errorf("an answer of as many bytes as may be: %v, and %d are withheld", err, resp.WithheldBytes)
	}
	name := nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{strings.Repeat("x", millrace.MaxTypeBytes)} })
	name.Entities = nodetest.Pack(strings.Repeat("x", millrace.MaxEntityBytes))
	if _, err := n.query(t.Context(), name); err != nil {
		t.Errorf("the longest names: %v", err)
	}
}

func named[T any](n int, value T) map[string]T {
	m := make(map[string]T, n)
	for i := range n {
		m[fmt.Sprint("x", i)] = value
	}
	return m
}

// What names a model is quoted by refusals and logs, so it is short.
func TestModelNamesAreShort(t *testing.T) {
	n := hostileNode(t)
	for field, have := range map[string]func(*nodev1.QueryRequest, string){
		"model":         func(r *nodev1.QueryRequest, s string) { r.Model = s },
		"model_version": func(r *nodev1.QueryRequest, s string) { r.ModelVersion = s },
		"model_sum":     func(r *nodev1.QueryRequest, s string) { r.ModelSum = s },
		"weights_sum":   func(r *nodev1.QueryRequest, s string) { r.WeightsSum = s },
		"shadow[0]":     func(r *nodev1.QueryRequest, s string) { r.Shadow = []*nodev1.Model{{Name: s}, {}} },
		"shadow[1]":     func(r *nodev1.QueryRequest, s string) { r.Shadow = []*nodev1.Model{{}, {Version: s}} },
		"beside[1]":     func(r *nodev1.QueryRequest, s string) { r.Beside = []*nodev1.Model{{Name: "home"}, {Sum: s}} },
	} {
		_, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { have(r, strings.Repeat("9", maxNameBytes)) }))
		if bad, ok := err.(*millrace.Error); ok && bad.Field == field && strings.Contains(bad.Detail, "more than") {
			t.Errorf("the longest %s: %v", field, err)
		}
		_, err = n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { have(r, strings.Repeat("9", maxNameBytes+1)) }))
		if bad, ok := err.(*millrace.Error); !ok || bad.Field != field || !strings.Contains(bad.Detail, "513 bytes") {
			t.Errorf("a %s that is one byte too long: %v", field, err)
		}
		_, err = n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { have(r, strings.Repeat("9", 10_000)) }))
		if bad, ok := err.(*millrace.Error); !ok || bad.Field != field || len(err.Error()) > 500 {
			t.Errorf("a long %s: %.600v", field, err)
		}
	}
}

// Features count for the size of an answer, as all else does.
func TestFeaturesAreWithheld(t *testing.T) {
	n := hostileNode(t)
	ask := func(features bool, most int64) *nodev1.QueryResponse {
		t.Helper()
		resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) {
			r.Model, r.Types, r.Features, r.MaxBytes = "home", []string{"post"}, features, most
		}))
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	all := ask(true, 0)
	size := nodewire.Size(all)
	for i, it := range all.Items {
		if len(it.Features.GetNumbers()) != len(all.FeatureNames) || len(all.FeatureNames) == 0 {
			t.Errorf("item %d has the features %v of %v", i, it.Features, all.FeatureNames)
		}
	}
	if resp := ask(false, size-1); resp.WithheldBytes > 0 || len(resp.Items) != len(all.Items) {
		t.Fatalf("without features %d bytes are withheld of %d: the test shows nothing", resp.WithheldBytes, size)
	}
	if resp := ask(true, size-50); resp.WithheldBytes == 0 || len(resp.Items) > 0 || len(resp.FeatureNames) > 0 {
		t.Errorf("of %d bytes %d are withheld, and %d items are not", size, resp.WithheldBytes, len(resp.Items))
	}
	if resp := ask(true, size+50); resp.WithheldBytes > 0 {
		t.Errorf("there is room for %d bytes, and %d are withheld", size+50, resp.WithheldBytes)
	}
}

// Of an answer that is larger than the broker has room for nothing is sent that grows with
// it, the rankings of other models included.
func TestWithheldAnswersAreSmall(t *testing.T) {
	resp := &nodev1.QueryResponse{Model: "m"}
	for i := range 1000 {
		it := &nodev1.Item{Id: fmt.Sprint("r", i), Body: make([]byte, 1000)}
		resp.Items, resp.Above, resp.FeatureNames = append(resp.Items, it), append(resp.Above, 1), append(resp.FeatureNames, it.Id)
		resp.Beside = append(resp.Beside, &nodev1.Ranking{Model: "other", Items: []*nodev1.Item{it}})
		resp.Findings, resp.Clauses = append(resp.Findings, &nodev1.Finding{}), append(resp.Clauses, &feedv1.ClauseCounts{})
	}
	bytes := nodewire.Size(resp)
	if err := (&question{}).fits(&nodev1.QueryRequest{MaxBytes: 10_000}, resp, bytes); err != nil || resp.WithheldBytes != bytes {
		t.Fatalf("%v; %d bytes are withheld of %d", err, resp.WithheldBytes, bytes)
	}
	if left := nodewire.Size(resp); left > 1000 {
		t.Errorf("%d bytes are left", left)
	}
}

// What pages served is left out by its hash under the broker's key, and by that
// of a broker of before, which knows of no key. A key of another size is
// neither.
func TestServedHashesGoByTheirKey(t *testing.T) {
	n := hostileNode(t)
	r1 := func(key millrace.ServedKey) uint64 {
		return millrace.ServedHash(key, false, "o1", millrace.Timeline{Entity: "member:1", Type: "post"}, "r1")
	}
	key := millrace.ServedKey{1}
	for name, c := range map[string]struct {
		hash uint64
		key  []byte
		left bool // r1 is left out
	}{
		"under the key":        {r1(key), key[:], true},
		"under another key":    {r1(millrace.ServedKey{2}), key[:], false},
		"of before":            {r1(millrace.ServedKey{}), nil, true},
		"of before, and a key": {r1(millrace.ServedKey{}), key[:], false},
	} {
		resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Exclude, r.ServedKey = []uint64{c.hash}, c.key }))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		shown := slices.ContainsFunc(resp.Items, func(it *nodev1.Item) bool { return it.Id == "r1" })
		if shown == c.left || len(resp.Items) < 2 || resp.Protocol != nodewire.Protocol {
			t.Errorf("%s: r1 is shown: %t; %d items, protocol %d", name, shown, len(resp.Items), resp.Protocol)
		}
	}
	_, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Exclude, r.ServedKey = []uint64{1}, []byte("short") }))
	if bad, ok := err.(*millrace.Error); !ok || bad.Reason != millrace.ReasonPageToken || bad.Field != "page_token" || bad.WayOut == "" || !rpcerr.Refused(err) {
		t.Errorf("a key of another size: %v", err)
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
		nodetest.BringLine(t, h, kafka.Timeline, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":"type-%[1]d","created_at":1700000000000}`, i), millrace.Offset(i+1))
	}
	for i := range store.MaxTypes {
		bringType(i)
	}
	everything := nodetest.All(func(r *nodev1.QueryRequest) { r.Limit = 1000 })
	if resp, err := n.query(t.Context(), everything); err != nil || len(resp.Items) != store.MaxTypes {
		t.Fatalf("%d items, %v", len(resp.GetItems()), err)
	}
	bringType(store.MaxTypes)
	bringType(store.MaxTypes + 1)
	for range 2 {
		_, err := n.query(t.Context(), everything)
		if bad, ok := err.(*millrace.Error); !ok || bad.Field != "types" || bad.WayOut == "" || !rpcerr.Refused(err) {
			t.Errorf("all types: %v", err)
		}
		resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) {
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
		if _, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = fmt.Sprintf("record.likes > %d", i) })); err != nil {
			t.Fatal(err)
		}
	}
	if kept := len(n.filters.compiled); kept < 1 || kept > 1024 {
		t.Errorf("%d filters are kept", kept)
	}
}
