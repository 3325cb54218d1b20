package answers

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/query"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/relevance"
)

// hostileNode is a node with a record of a member and features of it and of an
// object.
func hostileNode(t *testing.T) *node {
	n, h := openNode(t, cache.Config{})
	nodetest.Lines(t, h)
	return n
}

// What a broker would never send is refused by name, and crashes nothing: a
// panic here is the end of the process.
func TestHostileRequests(t *testing.T) {
	n := hostileNode(t)
	nested := structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{structpb.NewListValue(&structpb.ListValue{})}})
	for _, c := range []struct {
		name, field string
		req         *nodev1.QueryRequest
	}{
		{"an empty type", "types", nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{""} })},
		{"the type under which features of objects are cached", "types", nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{"\x00"} })},
		{"a NUL in a type", "types", nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{"post", "po\x00st"} })},
		{"a type that no record has", "types", nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{strings.Repeat("x", millrace.MaxTypeBytes+1)} })},
		{"47 a million entities", "entities", nodetest.All(func(r *nodev1.QueryRequest) { r.Entities = make([]byte, 1_000_000) })},
		{"too many types", "types", nodetest.All(func(r *nodev1.QueryRequest) { r.Types = slices.Repeat([]string{"post"}, lookup.MaxTypes+1) })},
		{"too many hashes", "exclude", nodetest.All(func(r *nodev1.QueryRequest) { r.Exclude = make([]uint64, maxExclude+1) })},
		{"no limit", "limit", nodetest.All(func(r *nodev1.QueryRequest) { r.Limit = 0 })},
		{"a negative limit", "limit", nodetest.All(func(r *nodev1.QueryRequest) { r.Limit = math.MinInt32 })},
		{"a limit of 2^31-1", "limit", nodetest.All(func(r *nodev1.QueryRequest) { r.Limit = math.MaxInt32 })},
		{"a negative cap", "cap_per_entity", nodetest.All(func(r *nodev1.QueryRequest) { r.CapPerEntity = -1; r.Examine = "r1" })},
		{"too many ranks to count above", "above", nodetest.All(func(r *nodev1.QueryRequest) { r.Above = make([]*nodev1.Item, maxAbove+1) })},
		{"a name longer than the rest", "entities", nodetest.All(func(r *nodev1.QueryRequest) { r.Entities = []byte("\x01\x00\x7f\x00x") })},
		{"a name too long", "entities", nodetest.All(func(r *nodev1.QueryRequest) {
			r.Entities = nodetest.Pack(strings.Repeat("x", millrace.MaxEntityBytes+1))
		})},
		{"an entity of another partition", "entities", nodetest.All(func(r *nodev1.QueryRequest) { r.Entities = partition.AppendEntity(nil, 1, "member:1") })},
		{"partitions that descend", "entities", nodetest.All(func(r *nodev1.QueryRequest) {
			r.Entities = append(nodetest.Pack("member:1"), nodetest.Pack("member:42")...) // 644, 251
		})},
		{"a partition that there is not", "entities", nodetest.All(func(r *nodev1.QueryRequest) { r.Entities = partition.AppendEntity(nil, partition.Count, "member:1") })},
		{"an unknown model", "model", nodetest.All(func(r *nodev1.QueryRequest) { r.Model = "nobody" })},
		{"a list in a list", "viewer.attributes.x", nodetest.All(func(r *nodev1.QueryRequest) {
			r.Viewer.Attributes = map[string]*structpb.Value{"x": nested}
		})},
		{"too many shadows", "shadow", nodetest.All(func(r *nodev1.QueryRequest) { r.Explain = true; r.Shadow = make([]*nodev1.Model, maxShadow+1) })},
		{"61 a filter 10,000 deep", "filter", nodetest.All(func(r *nodev1.QueryRequest) {
			r.Filter = strings.Repeat("(", 10_000) + "true" + strings.Repeat(")", 10_000)
		})},
		{"62 a filter of a million terms", "filter", nodetest.All(func(r *nodev1.QueryRequest) {
			r.Filter = "true" + strings.Repeat(" && true", 1_000_000)
		})},
		{"63 a pattern that repeats repeats", "filter", nodetest.All(func(r *nodev1.QueryRequest) {
			r.Filter = `record.text.matches("((((a{1,100}){1,100}){1,100}){1,100})")`
		})},
		{"64 an unknown field", "filter", nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = "record.nothing == 1" })},
		{"65 another type", "filter", nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = `record.likes == "three"` })},
		{"67 a homoglyph", "filter", nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = "rеcord.likes == 3" })},
		{"67 a NUL", "filter", nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = "record.likes == 3\x00" })},
		{"a filter that is not UTF-8", "filter", nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = "record.text == \"\xff\"" })},
		{"68 patterns over the budget", "filter", nodetest.All(func(r *nodev1.QueryRequest) {
			r.Filter = "true" + strings.Repeat(` && record.text.matches("(a|b)*c(d|e){50}")`, 60)
		})},
	} {
		for _, again := range []bool{false, true} {
			_, err := n.query(t.Context(), c.req)
			bad, ok := err.(*millrace.Error)
			if !ok || bad.Field != c.field || !rpcerr.Refused(err) {
				t.Errorf("%s (again: %t): %v, want a refusal of %s", c.name, again, err, c.field)
			}
		}
	}
}

// What is not in the partition that a request says is not remembered as empty
// for all who ask after.
func TestTheCacheLearnsNothingOfAWrongPartition(t *testing.T) {
	n := hostileNode(t)
	n.cache.Purge()
	// The one that is looked at is the other.
	wrong := append(partition.AppendEntity(nil, 1, "member:1"), nodetest.Pack("member:42")...)
	_, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Entities = wrong }))
	if bad, ok := err.(*millrace.Error); !ok || bad.Field != "entities" || !rpcerr.Refused(err) {
		t.Errorf("%v, want a refusal of entities", err)
	}
	if resp, err := n.query(t.Context(), nodetest.All(func(*nodev1.QueryRequest) {})); err != nil || len(resp.Items) != 3 {
		t.Errorf("%d items, %v; want 3", len(resp.GetItems()), err)
	}
}

// What is strange and not wrong is answered.
func TestStrangeRequests(t *testing.T) {
	n := hostileNode(t)
	for _, c := range []struct {
		name string
		want string // ids
		req  *nodev1.QueryRequest
	}{
		{"everything", "[r3 r2 r1]", nodetest.All(func(r *nodev1.QueryRequest) {})},
		{"nobody", "[]", nodetest.All(func(r *nodev1.QueryRequest) { r.Entities = nil })},
		{"an entity without a name", "[]", nodetest.All(func(r *nodev1.QueryRequest) { r.Entities = nodetest.Pack("") })},
		{"an unknown type", "[]", nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{"nothing"} })},
		{"the most items there may be", "[r3 r2 r1]", nodetest.All(func(r *nodev1.QueryRequest) { r.Limit = maxLimit })},
		{"from = to", "[]", nodetest.All(func(r *nodev1.QueryRequest) { r.FromMs, r.ToMs = 1_700_000_000_001, 1_700_000_000_001 })},
		{"50 from > to", "[]", nodetest.All(func(r *nodev1.QueryRequest) { r.FromMs, r.ToMs = 1_700_000_000_002, 1_700_000_000_000 })},
		{"all of time", "[r3 r2 r1]", nodetest.All(func(r *nodev1.QueryRequest) { r.FromMs, r.ToMs = math.MinInt64, math.MaxInt64 })},
		{"no time, from the end", "[]", nodetest.All(func(r *nodev1.QueryRequest) { r.FromMs, r.ToMs = math.MaxInt64, math.MinInt64 })},
		{"before all time", "[]", nodetest.All(func(r *nodev1.QueryRequest) { r.FromMs, r.ToMs = math.MinInt64, math.MinInt64 })},
		{"after all time", "[]", nodetest.All(func(r *nodev1.QueryRequest) { r.FromMs, r.ToMs = math.MaxInt64, math.MaxInt64 })},
		{"the beginning of time", "[r2 r1 r3]", nodetest.All(func(r *nodev1.QueryRequest) { r.AsOfMs = math.MinInt64; r.Model = "home" })},
		{"the end of time", "[r2 r1 r3]", nodetest.All(func(r *nodev1.QueryRequest) { r.AsOfMs = math.MaxInt64; r.Model = "home" })},
		{"66 a division by zero", "[]", nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = "record.likes / 0 == 1" })},
		{"66 a NaN of the viewer", "[]", nodetest.All(func(r *nodev1.QueryRequest) {
			r.Filter = "record.likes == viewer.x"
			r.Viewer.Features = map[string]float64{"x": math.NaN()}
		})},
		{"a cap of 2^31-1", "[r3 r2 r1]", nodetest.All(func(r *nodev1.QueryRequest) { r.CapPerEntity = math.MaxInt32 })},
		{"61 a filter of 10,000 nots", "[r3 r2 r1]", nodetest.All(func(r *nodev1.QueryRequest) { r.Filter = strings.Repeat("!", 10_000) + "true" })},
		{"no viewer", "[r2 r1 r3]", nodetest.All(func(r *nodev1.QueryRequest) { r.Viewer = nil; r.Model = "home" })},
		{"a viewer of nulls", "[r3 r2 r1]", nodetest.All(func(r *nodev1.QueryRequest) {
			r.Viewer.Attributes = map[string]*structpb.Value{"x": nil, "y": {}, "z": structpb.NewNullValue()}
		})},
		{"ranks that are none", "[r3 r2 r1]", nodetest.All(func(r *nodev1.QueryRequest) { r.Above = []*nodev1.Item{nil, {Score: math.NaN()}} })},
		{"a record nobody knows", "[r3 r2 r1]", nodetest.All(func(r *nodev1.QueryRequest) { r.Examine = "nothing"; r.Explain = true })},
	} {
		for range 2 { // from the store and from the cache
			resp, err := n.query(t.Context(), c.req)
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
				break
			}
			ids := []string{}
			for _, it := range resp.Items {
				ids = append(ids, it.Id)
			}
			if fmt.Sprint(ids) != c.want {
				t.Errorf("%s: %v, want %s", c.name, ids, c.want)
			}
		}
	}
}

// A question that panics is over, and the node goes on.
func TestAPanicEndsAQuestionOnly(t *testing.T) {
	n := hostileNode(t)
	ask := func() (*nodev1.QueryResponse, error) {
		return n.Query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{"post"} }))
	}
	if _, err := ask(); err != nil {
		t.Fatal(err)
	}
	post := millrace.Timeline{Entity: "member:1", Type: "post"}
	l, err := column.NewLayout([]column.Field{{Name: "no time", Kind: column.Int}})
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(l, 1, 0).Append()
	if err := a.End(a.Begin()); err != nil {
		t.Fatal(err)
	}
	alien, err := cache.NewTimeline(millrace.MinTime, a.Slab())
	if err != nil {
		t.Fatal(err)
	}
	n.cache.Fill(post, alien)
	if _, err := ask(); status.Code(err) != codes.Internal || !strings.HasPrefix(status.Convert(err).Message(), "query panicked: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("what breaks invariants: %v", err)
	}
	var m dto.Metric
	if err := n.panics.Count.Write(&m); err != nil || m.Counter.GetValue() != 1 {
		t.Errorf("%v questions that panicked are counted, %v", m.Counter.GetValue(), err)
	}
	n.cache.Remove(post)
	if resp, err := ask(); err != nil || len(resp.Items) != 2 {
		t.Errorf("after it: %v, %v", resp, err)
	}
	for range 5000 {
		n.cache.Fill(post, alien)
	}
	if s := n.CacheStats().Arena; s.Retired > 100_000 {
		t.Errorf("%d bytes wait for a reader that is gone", s.Retired)
	}
}

// A model beside the question's that panics has no ranking, and the answer is
// the same.
func TestAPanicBesideIsItsOwn(t *testing.T) {
	n := hostileNode(t)
	req := nodetest.All(func(*nodev1.QueryRequest) {})
	want, err := n.Query(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	spec, err := n.spec(req)
	if err != nil {
		t.Fatal(err)
	}
	r := &question{Resolution: n.lookup.Resolve(), spec: &spec}
	defer r.release()
	if err := r.Decode(req.Entities); err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context(), r.asked()); err != nil {
		t.Fatal(err)
	}
	r.beside = []otherRanking{{asked: &nodev1.Model{Name: "broken"}, model: &relevance.Model{}}, {asked: &nodev1.Model{Name: "recency"}, model: spec.Model}}
	got, err := n.scan(t.Context(), r, query.New(spec), req, time.Now(), time.Now())
	if err != nil || len(got.Beside) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if b := got.Beside[0]; !strings.Contains(b.Error, "panicked") || len(b.Items) > 0 {
		t.Errorf("the broken one: %v", b)
	}
	same := func(a, b *nodev1.Item) bool { return proto.Equal(a, b) }
	if len(want.Items) == 0 || !slices.EqualFunc(got.Items, want.Items, same) || !slices.EqualFunc(got.Beside[1].Items, want.Items, same) {
		t.Errorf("%v, beside %v, want %v", got.Items, got.Beside[1], want.Items)
	}
}

// Input 57: a node says which of the types asked no record of its has, also of
// no entity at all.
func TestUnknownTypesAreTold(t *testing.T) {
	n := hostileNode(t)
	for _, entities := range [][]byte{nodetest.Pack("member:1"), nil} {
		resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) {
			r.Entities, r.Types = entities, []string{"like", "nothing", "post", "psot"}
		}))
		if err != nil || !slices.Equal(resp.UnknownTypes, []string{"nothing", "psot"}) || !slices.Equal(resp.KnownTypes, []string{"like", "post"}) {
			t.Errorf("%v, %v", resp, err)
		}
	}
	if resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Types = []string{"like"} })); err != nil || resp.UnknownTypes != nil || resp.KnownTypes != nil {
		t.Errorf("%v, %v", resp, err)
	}
}

// Where the best candidates are few objects, those beside the question are
// scanned again until there are no more.
func TestBesideIsScannedAgain(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	for i := range 60 {
		nodetest.BringLine(t, h, kafka.Timeline, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":"post","created_at":%d,"object":"o%d"}`, i, 1_700_000_000_000+i, i%2), millrace.Offset(i+1))
	}
	resp, err := n.Query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) {
		r.DistinctObjects, r.Beside = true, []*nodev1.Model{{Name: "recency"}}
	}))
	if err != nil || len(resp.Items) != 2 || len(resp.Beside) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	if !slices.EqualFunc(resp.Items, resp.Beside[0].Items, func(a, b *nodev1.Item) bool { return proto.Equal(a, b) }) {
		t.Errorf("%v, beside %v", resp.Items, resp.Beside[0])
	}
}

// What is no number of JSON is written as ProtoJSON has it, and by no printer refused.
func TestExplainedInfinities(t *testing.T) {
	var n Server
	out := n.why(&relevance.Explanation{Features: []relevance.Explained{
		{Name: "nan", Value: math.NaN()}, {Name: "up", Value: math.Inf(1)}, {Name: "down", Value: math.Inf(-1)}, {Name: "half", Value: 0.5},
	}})
	if _, err := protojson.Marshal(out); err != nil {
		t.Fatal(err)
	}
	for i, want := range []any{nil, "Infinity", "-Infinity", 0.5} {
		if f := out.Features[i]; f.Value.AsInterface() != want {
			t.Errorf("%s is %v", f.Feature, f.Value)
		}
	}
}
