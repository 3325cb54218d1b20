package answers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/protobuf/encoding/protojson"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/relevance"
)

// Of a record that is asked for it is said what became of it, in each timeline that has it.
func TestWhatBecameOfARecord(t *testing.T) {
	n, h := openStored(t, cache.Config{}, store.Options{FS: vfs.NewMem(), FlushEvery: -1, Retention: map[millrace.ContentType]store.Retention{"story": {MaxCount: 1}}})
	for i, line := range []string{
		`{"id":"a","actor":"member:1","verb":"post","created_at":1700000000001,"likes":3,"language":"en","version":4}`,
		`{"id":"a","actor":"member:1","verb":"like","created_at":1700000000002,"object":"o"}`,
		`{"id":"b","actor":"member:1","verb":"post","created_at":1700000000003,"likes":9}`,
		`{"id":"c","actor":"member:1","verb":"post","created_at":1700000000004,"likes":8}`,
		`{"id":"gone","actor":"member:1","verb":"post","created_at":1700000000005}`,
		`{"id":"gone","actor":"member:1","verb":"post","created_at":1700000000005,"deleted":true,"version":2}`,
		`{"id":"old","actor":"member:1","verb":"story","created_at":1700000000005}`,
		`{"id":"new","actor":"member:1","verb":"story","created_at":1700000000006}`,
		`{"id":"early","actor":"member:1","verb":"post","created_at":1690000000000}`,
	} {
		nodetest.BringLine(t, h, kafka.Timeline, line, millrace.Offset(i+1))
	}
	for _, c := range []struct {
		id     string
		change func(*nodev1.QueryRequest)
		want   []string
	}{
		{"a", func(*nodev1.QueryRequest) {}, []string{"like o 0", "post a 4"}},
		{"a", func(r *nodev1.QueryRequest) { r.Types = []string{"post"} }, []string{"like o 0 not_asked", "post a 4"}},
		{"a", func(r *nodev1.QueryRequest) { r.FromMs = 1700000000002 }, []string{"like o 0", "post a 4 outside_window"}},
		{"a", func(r *nodev1.QueryRequest) { r.ToMs = 1700000000002 }, []string{"like o 0 outside_window", "post a 4"}},
		{"a", func(r *nodev1.QueryRequest) { r.Filter = `record.likes > 5 && record.language == "en"` }, []string{"like o 0 filtered", "post a 4 filtered"}},
		{"b", func(r *nodev1.QueryRequest) { r.CapPerEntity = 1 }, []string{"post b 0 capped by 1"}},
		{"b", func(r *nodev1.QueryRequest) {
			r.Exclude = []uint64{millrace.ServedHash(millrace.ServedKey{}, false, "b", millrace.Timeline{Entity: "member:1", Type: "post"}, "b")}
		}, []string{"post b 0 served"}},
		{"gone", func(*nodev1.QueryRequest) {}, []string{"post gone 2 deleted"}},
		{"old", func(*nodev1.QueryRequest) {}, []string{"story old 0 expired"}},
		{"new", func(*nodev1.QueryRequest) {}, []string{"story new 0"}},
		{"early", func(r *nodev1.QueryRequest) { r.FromMs = 1690000000000 }, []string{"post early 0"}},
		{"nothing", func(*nodev1.QueryRequest) {}, nil},
	} {
		for range 2 { // from the store, and from the cache
			resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Examine = c.id; c.change(r) }))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range resp.Findings {
				text := strings.TrimSpace(fmt.Sprintf("%s %s %d %s", f.Type, f.Object, f.Version, f.Dropped))
				if f.Served {
					text += " served"
				}
				if len(f.CappedBy) > 0 {
					text += fmt.Sprint(" capped by ", len(f.CappedBy))
				}
				if kept := f.Dropped == ""; f.Entity != "member:1" || kept != (f.Score != 0) || (f.Clause != nil) != (f.Dropped == "filtered") || f.TimeMs < 1690000000000 {
					t.Errorf("%s: %v", c.id, f)
				}
				got = append(got, text)
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) || resp.Times == nil {
				t.Errorf("%s: %q, want %q", c.id, got, c.want)
			}
		}
	}
	resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) {
		r.Examine, r.Types, r.RequestFilter, r.Filter, r.Explain = "a", []string{"post"}, "record.likes > 1", `record.language in ["de"] || record.likes == 7`, true
	}))
	if err != nil || len(resp.Findings) != 2 {
		t.Fatal(resp, err)
	}
	if c := resp.Findings[1].Clause; c.Outcome != "false" || !strings.Contains(c.Clause, "language") || len(c.Operands) != 2 || c.Operands[0].Name != "record.language" || c.Operands[0].Value.GetStringValue() != "en" || c.Operands[1].Value.GetNumberValue() != 3 {
		t.Errorf("it is dropped by %v", c)
	}
	if len(resp.Clauses) != 2 || resp.Clauses[0].False != 1 || resp.Clauses[1].False != 3 {
		t.Errorf("clauses drop %v", resp.Clauses)
	}
	// What is above others is counted by rank.
	all, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Above = nil }))
	if err != nil {
		t.Fatal(err)
	}
	above, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Above = all.Items }))
	if err != nil || len(above.Above) != len(all.Items) || len(above.Findings) > 0 || above.Clauses != nil {
		t.Fatal(above, err)
	}
	for i, n := range above.Above {
		if n != int64(i) {
			t.Errorf("%d records are above item %d", n, i)
		}
	}
	gone, goes := context.WithCancel(t.Context())
	goes()
	if _, err := n.query(gone, nodetest.All(func(r *nodev1.QueryRequest) { r.Examine = "a" })); !errors.Is(err, context.Canceled) {
		t.Errorf("who has gone: %v", err)
	}
}

// A value that a filter read is told as what JSON has for it.
func TestValuesAreTold(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{true, "true"}, {false, "false"}, {int64(-7), "-7"}, {1.5, "1.5"}, {"text", `"text"`}, {millrace.Time(1_700_000_000_000), `"` + millrace.Time(1_700_000_000_000).String() + `"`},
		{[]string{"a", ""}, `["a",""]`}, {[]float64{1, math.NaN(), math.Inf(1), math.Inf(-1)}, `[1,"NaN","Infinity","-Infinity"]`}, {[]string(nil), `[]`}, {math.NaN(), `"NaN"`}, {nil, "null"}, {struct{}{}, "null"},
	} {
		got, err := protojson.Marshal(valueOf(c.v))
		if text := strings.ReplaceAll(string(got), " ", ""); err != nil || text != c.want {
			t.Errorf("%v is told as %s, not %s: %v", c.v, text, c.want, err)
		}
	}
	rank := millrace.Rank{Score: 2.5, Time: 7, ID: "a", Timeline: millrace.Timeline{Entity: "e", Type: "post"}}
	if got := rankOf(itemOf(rank)); got != rank {
		t.Errorf("%+v comes back as %+v", rank, got)
	}
}

// noted is a span that notes what it is told.
type noted struct {
	noop.Span
	attributes map[string]string
	events     []string
}

func (s *noted) SetAttributes(all ...attribute.KeyValue) {
	for _, a := range all {
		s.attributes[string(a.Key)] = a.Value.String()
	}
}

func (s *noted) AddEvent(name string, options ...trace.EventOption) {
	c := trace.NewEventConfig(options...)
	s.events = append(s.events, fmt.Sprintf("%s at %d, %s %d", name, c.Timestamp().Unix(), c.Attributes()[0].Key, c.Attributes()[0].Value.AsInt64()))
}

// A span has the stages of its answer.
func TestASpanHasTheStages(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	s := &noted{attributes: map[string]string{}}
	resp := &nodev1.QueryResponse{Model: "m", Execution: "vector", Items: make([]*nodev1.Item, 3), Stages: &nodev1.Stages{Candidates: 9, Scored: 8, Capped: 7}, Partitions: &nodev1.Partitions{}}
	n.describe(s, resp, time.Unix(1, 0), time.Unix(2, 0), time.Unix(3, 0))
	if got := fmt.Sprint(s.attributes); got != "map[execution:vector items:3 model:m node:test partitions:0]" {
		t.Error(got)
	}
	if !slices.Equal(s.events, []string{"resolved at 1, candidates 9", "scanned at 2, scored 8", "ranked at 3, capped 7"}) {
		t.Error(s.events)
	}
}

// An answer that is larger than any may be, or than there is memory for, is refused; one that
// is larger than its caller has room for is withheld.
func TestWhatFits(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	nodetest.Lines(t, h)
	for _, c := range []struct {
		bytes, most, free int64
		want              string // a field, or withheld
	}{
		{maxAnswerBytes, 0, 1 << 40, ""}, {maxAnswerBytes + 1, 0, 1 << 40, "TOO_LARGE limit"}, {maxAnswerBytes + 1, 9, 1 << 40, "TOO_LARGE limit"},
		{100, 100, 200, ""}, {101, 100, 0, "withheld"}, {100, 0, 199, "OVERLOADED"}, {100, -1, 200, ""},
	} {
		q := &question{Resolution: n.lookup.Resolve()}
		taken := int64(questionMemory) - c.free
		if c.free < questionMemory && !n.memory.Take(taken) {
			t.Fatal("it cannot be taken")
		}
		resp := &nodev1.QueryResponse{Items: make([]*nodev1.Item, 3)}
		err := q.fits(&nodev1.QueryRequest{MaxBytes: c.most}, resp, c.bytes)
		got := ""
		if e, is := errors.AsType[*millrace.Error](err); is {
			got = strings.TrimSpace(string(e.Reason) + " " + e.Field)
		} else if resp.WithheldBytes == c.bytes && resp.Items == nil {
			got = "withheld"
		}
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
		q.Release()
		if c.free < questionMemory {
			n.memory.Give(taken)
		}
	}
}

// countdown is a context that ends at a look at it: the asker goes while it is worked on.
type countdown struct {
	context.Context
	looks *int // until then
}

func (c countdown) Err() error {
	if *c.looks--; *c.looks < 0 {
		return context.Canceled
	}
	return nil
}

// Whenever the asker goes, work on its question ends, and no answer is made that lacks something.
func TestWhoGoesIsNotWorkedFor(t *testing.T) {
	n := hostileNode(t)
	for name, req := range map[string]*nodev1.QueryRequest{
		"items":   nodetest.All(func(*nodev1.QueryRequest) {}),
		"explain": nodetest.All(func(r *nodev1.QueryRequest) { r.Explain, r.Examine, r.Filter = true, "r1", "record.likes < 4" }),
		"above":   nodetest.All(func(r *nodev1.QueryRequest) { r.Above = []*nodev1.Item{{Score: -1, Id: "r1"}} }),
	} {
		looks := 1 << 30
		if _, err := n.query(countdown{t.Context(), &looks}, req); err != nil {
			t.Fatal(err)
		}
		for i := range 1<<30 - looks {
			left := i
			if resp, err := n.query(countdown{t.Context(), &left}, req); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: who goes at look %d is answered %v, %v", name, i, resp, err)
			}
		}
	}
}

// Portions of one question alone condemn no version before it has taken long; those of three do.
func TestPortionsOfOneQuestionAreNotEnough(t *testing.T) {
	n := hostileNode(t)
	m, err := n.models.Find(relevance.ID{Name: "home"})
	if err != nil {
		t.Fatal(err)
	}
	id := relevance.ID{Name: "slow", Version: "1"}
	for q := range costAsked {
		var w costWatch
		w.begin(n.condemned, id, m, true)
		if w.Processor() != (q > 0) {
			t.Errorf("question %d is measured by the processor: %t", q, w.Processor())
		}
		if err := w.Scored(1, 0, harmless-1); err != nil || w.rows != 1 { // too short to judge
			t.Error(err)
		}
		var condemned error
		for i := 0; i < 30 && condemned == nil; i++ {
			condemned = w.Scored(1, 0, time.Millisecond)
			if i > 0 && !w.Processor() {
				t.Fatal("it is not suspected")
			}
		}
		w.Processor()
		if (condemned != nil) != (q == costAsked-1) {
			t.Errorf("after question %d: %v", q, condemned)
		}
	}
}

// A version that cannot be asked is not tried, and that is logged.
func TestAVersionThatCannotBeTried(t *testing.T) {
	n := hostileNode(t)
	var log strings.Builder
	n.log = slog.New(slog.NewTextHandler(&log, nil))
	m, err := n.models.Find(relevance.ID{Name: "recency"})
	if err != nil {
		t.Fatal(err)
	}
	if has, tried := n.condemned.try(t.Context(), relevance.ID{Name: "none", Version: "1"}, m); has || tried || !strings.Contains(log.String(), "could not be tried") {
		t.Errorf("has %t, tried %t: %s", has, tried, &log)
	}
	if has, tried := n.condemned.try(t.Context(), relevance.ID{Name: "recency"}, m); !has || !tried {
		t.Errorf("has %t, tried %t", has, tried)
	}
}

// A question that measures tells how many candidates each model scored, how long that took and
// what they lacked, and the scores that the models beside give its items; one that does not
// tells none of it.
func TestWhatAMeasuringQuestionTells(t *testing.T) {
	n := hostileNode(t)
	ask := func(change func(*nodev1.QueryRequest)) *nodev1.QueryResponse {
		t.Helper()
		resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) {
			r.Types = []string{"post"}
			change(r)
		}))
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	beside := []*nodev1.Model{{Name: "home"}, {Name: "recency"}}
	plain := ask(func(r *nodev1.QueryRequest) { r.Beside = beside })
	for _, it := range plain.Items {
		if it.Explain != nil {
			t.Errorf("nobody measures, and of %s it says %v", it.Id, it.Explain)
		}
	}
	for _, b := range plain.Beside {
		if b.ScoringNs != 0 || b.Scored != 0 || b.Looked != 0 || b.Lacking != nil || len(b.Items) == 0 {
			t.Errorf("nobody measures, and it says %v", b)
		}
	}
	if plain.Looked != 0 || plain.Lacking != nil || plain.ScoringNs <= 0 {
		t.Errorf("nobody measures, and it says %d, %v, %d", plain.Looked, plain.Lacking, plain.ScoringNs)
	}
	if alone := ask(func(r *nodev1.QueryRequest) { r.Measure = true }); alone.Items[0].Explain != nil || alone.Looked == 0 {
		t.Errorf("without models beside it says %v of an item, and looked at %d", alone.Items[0].Explain, alone.Looked)
	}
	if alone := ask(func(r *nodev1.QueryRequest) { r.Explain = true }); alone.Items[0].Explain == nil || len(alone.Items[0].Explain.Shadow) > 0 {
		t.Errorf("without shadow models it says %v of an item", alone.Items[0].Explain)
	}
	measured := ask(func(r *nodev1.QueryRequest) { r.Measure, r.Beside = true, beside })
	scored := measured.Stages.Scored
	for i, b := range measured.Beside {
		if b.ScoringNs <= 0 || b.Scored != scored || b.Looked != measured.Looked || b.Looked == 0 || b.Error != "" || b.Model != beside[i].Name {
			t.Errorf("of %d candidates it says %v", scored, b)
		}
		scores := map[string]float64{}
		for _, it := range b.Items {
			scores[it.Id] = it.Score
		}
		for _, it := range measured.Items {
			if s := it.Explain.GetShadow(); len(s) != len(beside) || s[i].Model != b.Model || s[i].Score != scores[it.Id] {
				t.Errorf("%s has the shadow scores %v, and by %s %v", it.Id, s, b.Model, scores[it.Id])
			}
		}
	}
	// One that is not here says so, and is absent.
	none := ask(func(r *nodev1.QueryRequest) {
		r.Measure, r.Beside = true, []*nodev1.Model{{Name: "none", Version: "1"}, {Name: "home"}}
	})
	if b := none.Beside[0]; !b.Absent || b.Error == "" || len(b.Items) > 0 || none.Beside[1].Absent || none.Beside[1].Error != "" {
		t.Errorf("beside one that is not here: %v", none.Beside)
	}
}
