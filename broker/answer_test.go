package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/offsets"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance/experiment"
)

// The receipt and the coverage tell of a part only what it covers.
func TestAppliedAndBehind(t *testing.T) {
	for name, c := range map[string]struct {
		covered []millrace.Partition
		lagMs   []int64
		want    *feedv1.Applied
		behind  int32
	}{
		"all":         {[]millrace.Partition{3, 5, 7}, nil, &feedv1.Applied{Partitions: []int32{3, 5, 7}, Content: []int64{30, 50, 70}, Features: []int64{1, 2, 3}}, 0},
		"some":        {[]millrace.Partition{3, 7}, nil, &feedv1.Applied{Partitions: []int32{3, 7}, Content: []int64{30, 70}, Features: []int64{1, 3}}, 0},
		"behind":      {[]millrace.Partition{3, 5, 7}, []int64{0, 0, 1500}, &feedv1.Applied{Partitions: []int32{3, 5, 7}, Content: []int64{30, 50, 70}, Features: []int64{1, 2, 3}, LagSeconds: []float64{0, 0, 1.5}}, 4},
		"some behind": {[]millrace.Partition{5, 7}, []int64{900, 0, 1500}, &feedv1.Applied{Partitions: []int32{5, 7}, Content: []int64{50, 70}, Features: []int64{2, 3}, LagSeconds: []float64{0, 1.5}}, 4},
	} {
		pt := fanout.Part{Node: "n0", Resp: &nodev1.QueryResponse{Partitions: &nodev1.Partitions{
			Answered: []int32{3, 5, 7}, AppliedContent: []int64{30, 50, 70}, AppliedFeatures: []int64{1, 2, 3}, LagMs: c.lagMs}}}
		g := &questions.Group{Types: 2}
		q := &question{Question: questions.Question{Groups: []*questions.Group{g}}}
		pt.Group = g
		var want topology.Set
		for _, p := range []millrace.Partition{3, 5, 7} {
			want.Add(p)
			for _, name := range []string{"a", "b"} {
				g.Add(partition.AppendEntity(nil, p, millrace.Entity(name)))
			}
			if slices.Contains(c.covered, p) {
				pt.Covered.Add(p)
			}
		}
		q.Want = want
		c.want.Node = "n0"
		var digest, again offsets.Digest
		if got := applied(&pt, true, &digest); !proto.Equal(got, c.want) {
			t.Errorf("%s: %v applied, want %v", name, got, c.want)
		}
		got := applied(&pt, false, &again)
		parts, err := offsets.Parts(got)
		whole, _ := offsets.Parts(c.want)
		if err != nil || !slices.Equal(parts, whole) || !slices.Equal(got.LagSeconds, c.want.LagSeconds) || len(got.Partitions) > 0 || got.Node != "n0" || digest != again || digest == 0 {
			t.Errorf("%s: packed %v: %v, %v, want %v; digests %s and %s", name, got, parts, err, whole, digest, again)
		}
		if got := coverage(q, fanout.Outcome{Parts: []fanout.Part{pt}}).GetTimelinesBehind(); got != c.behind {
			t.Errorf("%s: %d timelines behind, want %d", name, got, c.behind)
		}
	}
}

// What nodes say of the stages of an answer is added up, the counts of each group's clauses by
// themselves, and counted by what became of candidates.
func TestStagesAddUp(t *testing.T) {
	g, h := &questions.Group{}, &questions.Group{}
	part := func(of *questions.Group, clauses ...*feedv1.ClauseCounts) fanout.Part {
		return fanout.Part{Group: of, Resp: &nodev1.QueryResponse{Clauses: clauses, Stages: &nodev1.Stages{
			Candidates: 1, FilteredFalse: 2, FilteredNull: 3, FilteredError: 4, FilteredNan: 5, Scored: 6, Capped: 7,
		}}}
	}
	clause := func(name string, n int64) *feedv1.ClauseCounts {
		return &feedv1.ClauseCounts{Clause: name, False: n, Null: 2 * n, Error: 3 * n, Nan: 4 * n}
	}
	o := fanout.Outcome{Parts: []fanout.Part{part(h, clause("c", 100)), part(g, clause("a", 1), clause("b", 10)), part(g, clause("a", 2), clause("b", 20))}}
	q := &question{Question: questions.Question{Groups: []*questions.Group{g, h}, Times: questions.Times{Read: time.Millisecond, Route: 2 * time.Millisecond, FanOut: 3 * time.Millisecond, Merge: 4 * time.Millisecond, Records: 1500 * time.Microsecond}}}
	want := &feedv1.Explain{
		Candidates: 3, FilteredFalse: 6, FilteredNull: 9, FilteredError: 12, FilteredNan: 15, Scored: 18, Capped: 21, Clauses: []*feedv1.ClauseCounts{clause("a", 3), clause("b", 30), clause("c", 100)},
		Times: &feedv1.BrokerTimes{ReadMillis: 1, RouteMillis: 2, FanOutMillis: 3, MergeMillis: 4, RecordsMillis: 1.5},
	}
	if got := explain(q, &fanout.Asking{}, o); !proto.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	b := newWorld(t, 1, 1).broker()
	b.metrics.countCandidates("f", o)
	for fate, n := range map[string]float64{"filtered_false": 6, "filtered_null": 9, "filtered_error": 12, "filtered_nan": 15, "scored": 18} {
		if got := testutil.ToFloat64(b.metrics.candidates.WithLabelValues("f", fate)); got != n {
			t.Errorf("%v %s, want %v", got, fate, n)
		}
	}
	b.metrics.countCandidates("g", fanout.Outcome{})
	if n := testutil.CollectAndCount(b.metrics.candidates); n != 5 {
		t.Errorf("%d series, of what there was none", n)
	}
	if got := each([]string{"b", "a", "b"}); got != "a,b" {
		t.Errorf("%q", got)
	}
	item := func(fp uint64) fanout.Entry {
		return fanout.Entry{Ranked: fanout.Ranked{Item: &nodev1.Item{Schema: fp}}}
	}
	if got := schemasOf([]fanout.Entry{item(2), item(1), item(2)}); !slices.Equal(got, []string{millrace.Fingerprint(1).String(), millrace.Fingerprint(2).String()}) {
		t.Errorf("%q", got)
	}
}

// A configuration that cannot be is refused with all that is wrong.
func TestConfigFaults(t *testing.T) {
	w := newWorld(t, 1, 1)
	for _, good := range []Config{{Maps: w}, {Maps: w, RequestMemory: minRequestMemory, Timeout: time.Second}, {Maps: w, Quotas: map[string]admission.Quota{"a": {AtOnce: 1}}}} {
		if err := good.Validate(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	bad := Config{Timeout: -1, RequestMemory: minRequestMemory - 1, Feeds: []feeds.Feed{{Name: "1"}}, Quotas: map[string]admission.Quota{"a": {AtOnce: -1}}}
	err := bad.Validate()
	if _, opened := New(bad); opened == nil || err == nil {
		t.Fatalf("%v, %v", err, opened)
	}
	for _, want := range []string{"no maps", "timeout -1ns is negative", "request_memory_mib: 255 MiB", "give at least 256", `feed "1": name`, "quotas.a"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	twice := prometheus.NewRegistry()
	for i := range 2 {
		b, err := New(Config{Maps: w, Metrics: twice})
		if (err == nil) != (i == 0) {
			t.Errorf("%d: metrics that are there twice: %v", i, err)
		}
		if err == nil {
			defer b.Close()
		}
	}
}

// A refusal is its caller's fault where the caller asked for what is refused, and no variant
// could have.
func TestFaultsOfCallers(t *testing.T) {
	var b Broker
	for _, c := range []struct {
		reason millrace.Reason
		field  string
		named  bool
		limit  int32
		want   bool
	}{
		{millrace.ReasonForbidden, "x", false, 1, true}, {millrace.ReasonPageToken, "x", false, 1, true}, {millrace.ReasonQuota, "x", false, 1, true}, {millrace.ReasonFilter, "filter", false, 1, true},
		{millrace.ReasonCondemned, "model", false, 1, false}, {millrace.ReasonCondemned, "model", true, 1, true}, {millrace.ReasonUnknown, "model", true, 1, true}, {millrace.ReasonUnknown, "model", false, 1, false},
		{millrace.ReasonUnknown, "weights", true, 1, false}, {millrace.ReasonUnknown, "fields[0]", false, 1, true}, {millrace.ReasonUnknown, "types[1]", false, 1, true}, {millrace.ReasonInvalid, "viewer.id", false, 1, true}, {millrace.ReasonInvalid, "feed", false, 1, false},
		{millrace.ReasonTooLarge, "limit", false, 20, false}, {millrace.ReasonTooLarge, "limit", false, 21, true}, {millrace.ReasonTooLarge, "page_token", false, 1, true}, {millrace.ReasonTooLarge, "entities", false, 1, true}, {millrace.ReasonTooLarge, "types", false, 1, true}, {millrace.ReasonTooLarge, "viewer", false, 1, false},
		{millrace.ReasonUnavailable, "", false, 1, false}, {millrace.ReasonOverloaded, "", true, 30, false},
	} {
		q := &question{Question: questions.Question{Query: &nodev1.QueryRequest{Limit: c.limit}}, feed: feeds.Feed{Limit: 20}, named: c.named}
		refused := &millrace.Error{Reason: c.reason, Field: c.field}
		if got := b.callersFault(t.Context(), q, refused); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
		// Where variants set the types or the filter, what they may have caused is not.
		q.variants.dealt = []experiment.Assigned{{Experiment: "e", Parameters: []experiment.Parameter{experiment.OfTypes, experiment.OfFilter}}}
		caused := c.reason == millrace.ReasonFilter || c.field == "viewer.id" || c.field == "entities" || c.field == "types"
		if got := b.callersFault(t.Context(), q, refused); got != (c.want && !caused) {
			t.Errorf("%+v, of a variant: %t", c, got)
		}
	}
}

// A model that neither the request nor the caller can change is the feed's fault; why a
// version is condemned is told without what stands before it.
func TestWhoseModelIsAtFault(t *testing.T) {
	unknown := &millrace.Error{Reason: millrace.ReasonUnknown, Field: "model", Detail: "no model m"}
	for _, c := range []struct {
		err     error
		named   bool
		changes bool
	}{{unknown, false, true}, {fmt.Errorf("node: %w", unknown), false, true}, {unknown, true, false}, {&millrace.Error{Reason: millrace.ReasonUnknown, Field: "weights"}, false, false}, {&millrace.Error{Reason: millrace.ReasonCondemned, Field: "model"}, false, false}, {errors.New("x"), false, false}} {
		got := (&question{feed: feeds.Feed{Name: "f"}, named: c.named}).unblamed(c.err)
		var e *millrace.Error
		if (got != c.err) != c.changes || c.changes && (!errors.As(got, &e) || e.Reason != millrace.ReasonUnavailable || e.Field != "feed" || !strings.Contains(e.Detail, `feed "f" cannot be ranked: no model m`)) {
			t.Errorf("%v: %v", c.err, got)
		}
	}
	for err, want := range map[error]string{
		errors.New("x"): "x", &millrace.Error{Detail: "model m@1 " + saysCondemned + "it panicked"}: "it panicked", fmt.Errorf("node: %w", &millrace.Error{Detail: "y"}): "y",
	} {
		if got := reasonOf(err); got != want {
			t.Errorf("%v: %q", err, got)
		}
	}
}

// A request that ended at its deadline, or hardly before it, was late; one that ended earlier
// was given up.
func TestLate(t *testing.T) {
	expired, end := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer end()
	canceled := func(left time.Duration) context.Context {
		ctx, end := context.WithCancel(t.Context())
		if left > 0 {
			ctx, end = context.WithTimeout(t.Context(), left)
		}
		end()
		return ctx
	}
	for what, c := range map[string]struct {
		ctx  context.Context
		late bool
	}{"expired": {expired, true}, "given up": {canceled(0), false}, "given up early": {canceled(time.Minute), false}, "given up at its end": {canceled(overtakes / 2), true}} {
		var e *millrace.Error
		if err := late(c.ctx); errors.As(err, &e) != c.late || c.late && e.Reason != millrace.ReasonDeadline || !c.late && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Who did not ask for explanations gets none, of the answer or of an item.
func TestUnexplained(t *testing.T) {
	for _, asked := range []bool{false, true} {
		resp := &feedv1.GetFeedResponse{Explain: &feedv1.Explain{}, Items: []*feedv1.Item{{}, {Explain: &feedv1.ItemExplain{}}}}
		unexplained(&feedv1.GetFeedRequest{Explain: asked}, resp)
		if (resp.Explain != nil) != asked || (resp.Items[1].Explain != nil) != asked {
			t.Errorf("asked for: %t; %v", asked, resp)
		}
	}
	unexplained(&feedv1.GetFeedRequest{}, nil)
}
