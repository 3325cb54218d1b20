package broker

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/exposure"
)

// The features of items are in as many exposures as the experiment asks for,
// and of no others is a node asked.
func TestExposuresHaveFeatures(t *testing.T) {
	for name, c := range map[string]struct {
		set, features string
		bare          bool // one node of two
		least, most   int  // of 400 answers
	}{
		"all":              {"limit: 5", "10000", false, 400, 400},
		"half":             {"limit: 5", "5000", false, 120, 280},
		"none":             {"limit: 5", "0", false, 0, 0},
		"drafted":          {"interleave: [recency, coarse]", "10000", false, 150, 250}, // the controls'
		"of an older node": {"limit: 5", "10000", true, 400, 400},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2, 1)
			w.fill(rand.New(rand.NewPCG(5, 13)), 12, 200)
			w.nodes["n1"].bare = c.bare
			var told shows
			b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency"})
			b.exposures, b.gaps.Every = &told, 0
			define(t, b, docs, 1, strings.Replace(halves("running", c.set), "share: 10000,", "share: 10000, features: "+c.features+",", 1))
			for range 400 {
				ask(t, b, string(recordID(rand.IntN(1e6))), nil)
			}
			with, without := 0, 0
			for i := range told.all {
				r := &told.all[i]
				if _, err := r.Append(nil); err != nil {
					t.Fatal(err)
				}
				if r.Models[0].Features == nil {
					continue
				}
				with++
				for _, it := range r.Items {
					switch {
					case len(it.Features) == 0 && c.bare:
						without++
					case len(it.Features) != 2 || it.Features[0] != exposure.Number(it.Score) || it.Features[1] != exposure.Text(it.ID):
						t.Fatalf("%+v", it)
					}
				}
			}
			asked := 0
			for _, n := range w.nodes {
				for _, q := range n.asked {
					if q.Features {
						asked++
					}
				}
			}
			if len(told.all) != 400 || with < c.least || with > c.most || (asked > 0) != (with > 0) || asked > 2*with || (without > 0) != c.bare {
				t.Errorf("%d of %d answers have features, %d items of them none; %d questions asked for them", with, len(told.all), without, asked)
			}
		})
	}
	// Nobody writes exposures: nobody asks for their features.
	w := newWorld(t, 2, 1)
	w.fill(rand.New(rand.NewPCG(5, 13)), 12, 200)
	b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency"})
	b.gaps.Every = 0
	define(t, b, docs, 1, strings.Replace(halves("running", "limit: 5"), "share: 10000,", "share: 10000, features: 10000,", 1))
	ask(t, b, "alice", func(*feedv1.GetFeedRequest) {})
	for _, n := range w.nodes {
		for _, q := range n.asked {
			if q.Features {
				t.Error("features that nobody gets are asked for")
			}
		}
	}
}

// An item has the features of its model, as the first node of that model names them, or none.
func TestFeaturesOfItems(t *testing.T) {
	x, y := []string{"age", "text"}, []string{"age"}
	entry := func(names []string, numbers ...float64) fanout.Entry {
		return fanout.Entry{Ranked: fanout.Ranked{Item: &nodev1.Item{Features: &nodev1.Vector{Numbers: numbers, Texts: map[int32]string{1: "t"}}}, From: &fanout.Part{Resp: &nodev1.QueryResponse{FeatureNames: names}}}}
	}
	r := &exposure.Record{Models: make([]exposure.Model, 3), Items: []exposure.Item{{}, {}, {}, {Model: 1}, {Model: 2}}}
	exposeFeatures(r, []fanout.Entry{entry(x, 1, 0), entry(y, 1), entry(x, 1), entry(y, 2), entry(nil)})
	for i, want := range [][]exposure.Value{{exposure.Number(1), exposure.Text("t")}, nil, nil, {exposure.Number(2)}, nil} {
		if got := r.Items[i].Features; !slices.Equal(got, want) {
			t.Errorf("item %d has %v, want %v", i, got, want)
		}
	}
	for i, want := range [][]string{x, y, nil} {
		if got := r.Models[i].Features; !slices.Equal(got, want) {
			t.Errorf("model %d has %q, want %q", i, got, want)
		}
	}
}

// A refusal counts for a variant unless its caller is to blame: with what is asked
// wrongly anybody could refuse a variant to death. However little a caller waits, a
// refusal counts.
func TestRefusalsOfCallersOwnMakingAreNotExposed(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.fill(rand.New(rand.NewPCG(5, 13)), 12, 20)
	var told shows
	b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency", Types: []millrace.ContentType{"post"}})
	b.exposures = &told
	define(t, b, docs, 1, halves("running", "filter: 'true'"))
	nodes := func(err error, frozen bool) {
		for _, n := range w.nodes {
			n.set(func() { n.err, n.frozen = err, frozen })
		}
	}
	filter := &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field x"}
	for name, c := range map[string]struct {
		node   error // what nodes say
		frozen bool
		wait   time.Duration
		hangs  time.Duration // when the caller hangs up; 0: never
		change func(*feedv1.GetFeedRequest)
		want   int // exposures of a refusal
	}{
		"a type that is none":   {change: func(r *feedv1.GetFeedRequest) { r.Types = []string{"nope"} }},
		"a filter that is none": {change: func(r *feedv1.GetFeedRequest) { r.Filter = "a\x00b" }},
		"a field of a filter":   {node: filter, change: func(r *feedv1.GetFeedRequest) { r.Filter = "record.x == 1" }},
		"a field that is none":  {node: &millrace.Error{Reason: millrace.ReasonUnknown, Field: "fields[0]"}},
		"no token":              {change: func(r *feedv1.GetFeedRequest) { r.PageToken = "x" }},
		"no time":               {frozen: true, wait: time.Microsecond, want: 1},
		"little time":           {frozen: true, wait: 20 * time.Millisecond, want: 1},
		"at once, little time":  {node: fanout.ErrUnreachable, wait: 90 * time.Millisecond, want: 1},
		"time enough":           {frozen: true, wait: 150 * time.Millisecond, want: 1},
		"it hangs up in time":   {frozen: true, wait: 50 * time.Millisecond, hangs: 40 * time.Millisecond, want: 1}, // its word was faster than our clock
		"it hangs up":           {frozen: true, hangs: 40 * time.Millisecond},
		"nodes that are away":   {node: fanout.ErrUnreachable, want: 1},
		"what a variant sets":   {node: &millrace.Error{Reason: millrace.ReasonUnknown, Field: "weights"}, want: 1},
		"a variant's limit":     {node: &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "limit"}, want: 1},
		"the caller's limit":    {node: &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "limit"}, change: func(r *feedv1.GetFeedRequest) { r.Limit = proto.Int64(limits.MaxLimit) }},
	} {
		t.Run(name, func(t *testing.T) {
			nodes(c.node, c.frozen)
			told.all = nil
			req := recentRequest(12)
			req.Feed, req.Limit, req.Viewer = "f", nil, &feedv1.Viewer{Id: "alice"}
			if c.change != nil {
				c.change(req)
			}
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(c.wait, time.Minute))
			defer cancel()
			if c.hangs > 0 {
				time.AfterFunc(c.hangs, cancel)
			}
			if _, err := b.GetFeed(ctx, req); err == nil || len(told.all) != c.want {
				t.Errorf("%v, and %d exposures", err, len(told.all))
			}
		})
	}
	// The variant whose filter no node takes is to blame for it.
	nodes(filter, false)
	for i := range 20 {
		req := recentRequest(12)
		req.Feed, req.Limit, req.Viewer = "f", nil, &feedv1.Viewer{Id: strings.Repeat("v", i+1)}
		_, _ = b.GetFeed(t.Context(), req)
	}
	for i := range told.all {
		if x := told.all[i].Experiments[0]; x.Variant == "control" {
			t.Errorf("%+v", x)
		}
	}
	if len(told.all) < 2 {
		t.Errorf("%d refusals by a variant's filter", len(told.all))
	}
}

// Whether a refusal is the caller's own depends on what the experiment sets: what a
// variant is refused for that another may not be counts, for the control too.
func TestRefusalsForWhatVariantsSetAreExposed(t *testing.T) {
	w := newWorld(t, 2, 1)
	w.fill(rand.New(rand.NewPCG(5, 13)), 12, 20)
	text := &millrace.Error{Reason: millrace.ReasonInvalid, Field: "viewer.age", Detail: "is a string"}
	much := &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "entities", Detail: "too many to read"}
	filter := &millrace.Error{Reason: millrace.ReasonFilter, Field: "filter", Detail: "no field x"}
	condemned := &millrace.Error{Reason: millrace.ReasonCondemned, Field: "model", Detail: "model coarse is condemned: it panicked"}
	model := &millrace.Error{Reason: millrace.ReasonUnknown, Field: "model", Detail: "no version of model coarse serves"}
	filtered := func(r *feedv1.GetFeedRequest) { r.Filter = "record.y == 1" }
	named := func(r *feedv1.GetFeedRequest) { r.Model = "coarse" }
	late := func(r *feedv1.GetFeedRequest) { r.From, r.To = timestamp(timeAt(9)), timestamp(timeAt(8)) }
	for _, c := range []struct {
		set    string
		node   func(*nodev1.QueryRequest) error
		change func(*feedv1.GetFeedRequest)
		want   int
	}{
		{set: "model: coarse", node: always(text), want: 2},
		{set: "interleave: [coarse, recency]", node: always(text), want: 2},
		{set: "weights: {scale: 2}", node: always(text), want: 2},
		{set: "types: [post]", node: always(text), want: 2},
		{set: "window: 9h", node: always(text), want: 2},
		{set: "limit: 5", node: always(text)},
		{set: "filter: 'true'", node: always(text)},
		{set: "window: 9h", node: always(much), want: 2},
		{set: "types: [post]", node: always(much), want: 2},
		{set: "limit: 5", node: always(much)},
		{set: "filter: 'true'", node: always(filter), want: 2},
		{set: "limit: 5", node: always(filter)},
		{set: "filter: 'true'", node: always(filter), change: filtered},
		{set: "filter: 'true'", change: filtered, want: 1, node: func(r *nodev1.QueryRequest) error { // the variant's is wrong, and the caller's is not
			if r.Filter != "" {
				return filter
			}
			return nil
		}},
		{set: "limit: 5", node: always(condemned), change: named},
		{set: "limit: 5", node: always(condemned), want: 2},
		{set: "limit: 5", node: always(model), change: named},
		{set: "model: coarse", node: always(model), want: 2},
		{set: "model: coarse", change: late},
		{set: "limit: 5", change: func(r *feedv1.GetFeedRequest) { r.Model = "no model" }},
	} {
		var told shows
		b, docs := w.experimental(nil, feeds.Feed{Name: "f", Model: "recency"})
		b.exposures = &told
		refuse := func(with func(*nodev1.QueryRequest) error) {
			for _, n := range w.nodes {
				n.set(func() { n.refusal = with })
			}
		}
		refuse(nil) // or nobody is dealt a variant that nodes refuse
		define(t, b, docs, 1, halves("running", c.set))
		refuse(c.node)
		for _, viewer := range []string{"alice", "bob"} {
			req := recentRequest(12)
			req.Feed, req.Limit, req.Viewer = "f", nil, &feedv1.Viewer{Id: viewer}
			if c.change != nil {
				c.change(req)
			}
			_, _ = b.GetFeed(t.Context(), req)
		}
		told.all = slices.DeleteFunc(told.all, func(r exposure.Record) bool { return r.Refusal == "" })
		if len(told.all) != c.want {
			t.Errorf("%s: %d refusals are exposed, want %d: %+v", c.set, len(told.all), c.want, told.all)
		}
	}
}

func always(err error) func(*nodev1.QueryRequest) error {
	return func(*nodev1.QueryRequest) error { return err }
}
