package fanout

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/maptest"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/nodewire"
	"github.com/millrace/millrace/internal/partition"
)

// scripted is a node that answers for every partition, unless its script says otherwise.
type scripted struct {
	frozen
	id     millrace.NodeID
	script func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) // nil, or both nil: as usual

	ping func(context.Context) error // nil: it answers

	mu     sync.Mutex
	asked  []*nodev1.QueryRequest
	pinged int
}

func (n *scripted) Ping(ctx context.Context) error {
	n.mu.Lock()
	n.pinged++
	n.mu.Unlock()
	if n.ping != nil {
		return n.ping(ctx)
	}
	return nil
}

func (n *scripted) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	n.mu.Lock()
	n.asked = append(n.asked, req)
	n.mu.Unlock()
	if n.script != nil {
		if resp, err := n.script(ctx, req); resp != nil || err != nil {
			return resp, err
		}
	}
	return wholeAnswer(req), nil
}

// wholeAnswer is an answer with one item of each partition asked.
func wholeAnswer(req *nodev1.QueryRequest) *nodev1.QueryResponse {
	resp := &nodev1.QueryResponse{Model: req.Model, ModelVersion: "1", ModelSum: req.ModelSum, Protocol: nodewire.Protocol, Partitions: &nodev1.Partitions{}}
	for b := req.Entities; len(b) > 0; {
		p := int32(binary.LittleEndian.Uint16(b))
		var e []byte
		e, b = partition.CutEntity(b)
		resp.Items = append(resp.Items, &nodev1.Item{Id: "of " + string(e), Entity: string(e)})
		if all := resp.Partitions; !slices.Contains(all.Answered, p) {
			all.Answered, all.AppliedContent, all.AppliedFeatures = append(all.Answered, p), append(all.AppliedContent, 1), append(all.AppliedFeatures, 1)
		}
	}
	return resp
}

// fails is a script of one error.
func fails(err error) func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	return func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) { return nil, err }
}

// hangs is a script of a node that does not answer.
func hangs(ctx context.Context, _ *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// rig is a fan-out to scripted nodes, n0 and up, each of which has every partition.
type rig struct {
	*Fanout
	t     *testing.T
	nodes []*scripted
}

func newRig(t *testing.T, nodes int) *rig {
	r := &rig{t: t}
	byID, ids := map[millrace.NodeID]*scripted{}, []millrace.NodeID(nil)
	for i := range nodes {
		n := &scripted{id: millrace.NodeID(fmt.Sprint("n", i))}
		byID[n.id], ids, r.nodes = n, append(ids, n.id), append(r.nodes, n)
	}
	r.Fanout = New(Config{
		Maps: oneMap{zoned(t, nodes, ids...)}, Memory: memory.New(1<<30, "answers"), Log: slog.New(slog.DiscardHandler),
		Dial: func(n topology.Node) (Node, error) { return byID[n.ID], nil },
	})
	return r
}

// question is one of a viewer of some entities.
func question(t *testing.T, entities ...string) *questions.Question {
	t.Helper()
	q := &questions.Question{Query: &nodev1.QueryRequest{Limit: 10, Model: "recency"}, Viewer: "v"}
	q.Whole()
	q.Groups[0].Query, q.Groups[0].Types = q.Query, 2
	if err := q.TakeEntities(entities); err != nil {
		t.Fatal(err)
	}
	return q
}

// first puts the node that the question is sent to at first in front, and the others in the
// order in which they come after it.
func (r *rig) first(q *questions.Question) {
	slices.SortFunc(r.nodes, func(a, b *scripted) int {
		if tie(q.Viewer, a.id) > tie(q.Viewer, b.id) {
			return -1
		}
		return 1
	})
}

// A node whose part is larger than the room for it is asked again with more, a few times; what
// is held of memory in the end is what the request and the answer take.
func TestANodeIsGivenRoom(t *testing.T) {
	for name, c := range map[string]struct {
		withholds int // how often
		missing   string
	}{"enough": {0, ""}, "once": {1, ""}, "twice": {2, ""}, "always": {3, MissTooLarge}} {
		r := newRig(t, 1)
		q := question(t, "member:1", "member:2")
		q.Loan = r.memory.Borrow()
		n, calls := r.nodes[0], 0
		n.script = func(_ context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			if calls++; calls <= c.withholds {
				return &nodev1.QueryResponse{WithheldBytes: 8 * req.MaxBytes}, nil
			}
			return nil, nil
		}
		o, _, err := r.Ask(t.Context(), q, time.Now().Add(time.Minute))
		want := int64(requestTimes*q.Bytes() + 4*timelineBytes)
		for _, pt := range o.Parts {
			want += nodewire.Size(pt.Resp)
		}
		if held := q.Loan.Held(); err != nil || held != want || len(o.Missing) > 0 != (c.missing != "") || len(o.Missing) > 0 && !o.all(c.missing) {
			t.Errorf("%s: %d bytes are held, want %d; %v, %v", name, held, want, o.Missing, err)
		}
		room := int64(questions.LeastRoom + 10*(usualItem+usualItem/2))
		for i, req := range n.asked {
			if req.MaxBytes != room || i == maxAsks {
				t.Errorf("%s: at question %d there is room for %d bytes, want %d", name, i, req.MaxBytes, room)
			}
			room = 9 * room
		}
		if len(n.asked) != min(maxAsks, c.withholds+1) {
			t.Errorf("%s: %d questions", name, len(n.asked))
		}
		if item := r.sizes.mu.items[sizeOf{rankings: 1}]; len(o.Parts) > 0 && item != nodewire.Size(o.Parts[0].Resp)/2 {
			t.Errorf("%s: %d bytes of an item are learnt", name, item)
		}
		r.Close()
	}
	// Nobody is asked again for who has gone.
	r := newRig(t, 1)
	defer r.Close()
	ctx, gone := context.WithCancel(t.Context())
	r.nodes[0].script = func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
		gone()
		return &nodev1.QueryResponse{WithheldBytes: 1 << 20}, nil
	}
	if o, _, err := r.Ask(ctx, question(t, "member:1"), time.Now().Add(time.Minute)); err != nil || !o.all(MissTimeout) || len(r.nodes[0].asked) != 1 || r.memory.Held() != 0 {
		t.Errorf("%+v, %v, after %d questions; %d bytes are held", o, err, len(r.nodes[0].asked), r.memory.Held())
	}
}

// What a call says of its node: nothing where the request or the model is at fault or nobody
// waits, that it is slow, that it fails, or that it is not there, and then it is pinged.
func TestWhatCallsSayOfNodes(t *testing.T) {
	const took = 10 * time.Millisecond
	for name, c := range map[string]struct {
		err    error
		hangs  bool
		aside  bool
		giveUp time.Duration // after which the caller does
		want   nodeHealth    // calls, failed, took and silent
		heard  bool
		pings  int
		refuse bool
	}{
		"an answer":         {want: nodeHealth{calls: 1, took: took}, heard: true},
		"to an inquiry":     {aside: true},
		"a fault":           {err: errors.New("x"), want: nodeHealth{calls: 1, failed: 1, silent: 1}, heard: true},
		"of an inquiry":     {err: errors.New("x"), aside: true},
		"unreachable":       {err: fmt.Errorf("%w: x", ErrUnreachable), want: nodeHealth{calls: 1, failed: 1, silent: 1}, pings: 1},
		"a refusal":         {err: &millrace.Error{Reason: millrace.ReasonInvalid}, heard: true, refuse: true},
		"no model":          {err: &millrace.Error{Reason: millrace.ReasonNotHere}, heard: true},
		"older":             {err: errOlder, heard: true},
		"a condemned model": {err: fmt.Errorf("node: %w", &millrace.Error{Reason: millrace.ReasonCondemned}), heard: true, refuse: true},
		"weights":           {err: &millrace.Error{Reason: millrace.ReasonUnknown, Field: "weights"}, heard: true, refuse: true},
		"time is up":        {hangs: true, want: nodeHealth{calls: 1, took: 950 * time.Millisecond, silent: 1}, pings: 1},
		"given up":          {hangs: true, giveUp: took, want: nodeHealth{}},
		"given up late":     {hangs: true, giveUp: hedgeDelay, want: nodeHealth{calls: 1, took: hedgeDelay}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 1)
			defer r.Close()
			r.health.doubtful(r.maps.Current())
			r.nodes[0].script = func(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
				if c.hangs {
					return hangs(ctx, req)
				}
				time.Sleep(took)
				return nil, c.err
			}
			r.nodes[0].ping = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } // for ever
			ctx, end := context.WithCancel(t.Context())
			if c.giveUp > 0 {
				defer time.AfterFunc(c.giveUp, end).Stop()
			}
			defer end()
			q := question(t, "member:1", "member:2", "member:3")
			q.Aside = c.aside
			o, a, err := r.Ask(ctx, q, time.Now().Add(time.Second))
			var refused *millrace.Error
			if errors.As(err, &refused) != c.refuse || (len(o.Parts) > 0) != (name == "an answer" || name == "to an inquiry") {
				t.Errorf("%s: %+v, %v", name, o, err)
			}
			if by := a.RefusedBy(); (by.Name == "recency") != (name == "a condemned model" || name == "weights") {
				t.Errorf("%s: refused by %+v", name, by)
			}
			synctest.Wait()
			r.health.mu.Lock()
			defer r.health.mu.Unlock()
			n := r.health.of("n0")
			if c.giveUp == hedgeDelay {
				c.want.silent, c.pings = n.silent, n.silent // whether the hedge was due first does not matter
			}
			if n.calls != c.want.calls || n.failed != c.want.failed || n.took != c.want.took || n.silent != c.want.silent || !n.heard.IsZero() != c.heard || r.nodes[0].pinged != c.pings {
				t.Errorf("%s: %+v, after %d pings", name, n, r.nodes[0].pinged)
			}
			if got := a.recent(shardRequest{entities: 3}).mu.n; got != c.want.calls-c.want.failed && !c.hangs {
				t.Errorf("%s: %d times are kept", name, got)
			}
			if got := testutil.CollectAndCount(r.metrics.callTimes); got != 1 {
				t.Errorf("%s: %d metrics", name, got)
			}
		})
	}
}

// Pings go to a node where it is now. One that has left counts as there, and one that cannot
// be dialled does not.
func TestPingers(t *testing.T) {
	r := newRig(t, 1)
	defer r.Close()
	dialled := errors.New("no way")
	if err := r.pinger("none")(t.Context()); err != nil {
		t.Error(err)
	}
	if err := r.pinger("n0")(t.Context()); err != nil || r.nodes[0].pinged != 1 {
		t.Errorf("%v after %d pings", err, r.nodes[0].pinged)
	}
	r.conns.close()
	r.conns.dial = func(topology.Node) (Node, error) { return nil, dialled }
	if err := r.pinger("n0")(t.Context()); err != dialled {
		t.Error(err)
	}
	if o, _, err := r.Ask(t.Context(), question(t, "member:1"), time.Now().Add(time.Minute)); err != nil || !o.all(MissError) || r.memory.Held() != 0 {
		t.Errorf("%+v, %v", o, err)
	}
}

// A node that is to be asked by a draft's second model is asked last for that one, while it is
// known to lack it.
func TestNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		defer r.Close()
		asked := func(change func(*questions.Question)) int {
			q := question(t, "member:1")
			r.first(q)
			r.nodes[0].asked = nil
			r.Note(r.nodes[0].id, "sum")
			change(q)
			if _, _, err := r.Ask(t.Context(), q, time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			return len(r.nodes[0].asked)
		}
		if n := asked(func(*questions.Question) {}); n != 1 {
			t.Errorf("by another model it is asked %d times", n)
		}
		if n := asked(func(q *questions.Question) { q.BesideSum = "sum" }); n != 0 {
			t.Errorf("it is asked %d times though it lacks the model beside", n)
		}
		if n := asked(func(q *questions.Question) { q.Query.ModelSum = "sum" }); n != 0 {
			t.Errorf("it is asked %d times though it lacks the model", n)
		}
	})
}

// Of what nodes know of types, what none knows is left.
func TestUnseen(t *testing.T) {
	u := UnseenOf([]string{"a", "b", "c"})
	if !u.Open() || u.Types() != nil {
		t.Errorf("before: %v", u.Types())
	}
	u.Hear(&nodev1.QueryResponse{UnknownTypes: []string{"a", "b"}})
	if !u.Open() || u.Types() != nil { // it knows no type at all
		t.Errorf("%v", u.Types())
	}
	u.Hear(&nodev1.QueryResponse{UnknownTypes: []string{"b", "c"}, KnownTypes: []string{"z", "a"}})
	if !u.Open() || !slices.Equal(u.Types(), []string{"b"}) || u.Known() != "a, z" {
		t.Errorf("%v of %s", u.Types(), u.Known())
	}
	if u.Hear(&nodev1.QueryResponse{KnownTypes: []string{"b"}}); u.Open() || len(u.Types()) > 0 || u.Known() != "a, b, z" {
		t.Errorf("%v of %s", u.Types(), u.Known())
	}
}

// Whether a question would be accepted is known as soon as one node accepts it, or from the
// last of few that refuse it.
func TestTry(t *testing.T) {
	filter, unknown := &millrace.Error{Reason: millrace.ReasonFilter}, &millrace.Error{Reason: millrace.ReasonUnknown}
	for name, c := range map[string]struct {
		by    []error // of nodes in order; the others accept
		heard bool
		err   error
		asked int
	}{
		"accepted":       {nil, true, nil, 1},
		"by the second":  {[]error{filter}, true, nil, 2},
		"by the third":   {[]error{filter, errors.New("x")}, true, nil, 3},
		"refused":        {[]error{filter, errors.New("x"), unknown}, true, unknown, 3},
		"refused before": {[]error{unknown, filter, errors.New("x")}, true, filter, 3},
		"not heard":      {[]error{errors.New("x"), errors.New("x"), &millrace.Error{Reason: millrace.ReasonOverloaded}}, false, nil, 3},
	} {
		r := newRig(t, 5)
		for i, err := range c.by {
			r.nodes[i].script = fails(err)
		}
		q := &nodev1.QueryRequest{Filter: "f"}
		heard, err := r.Try(t.Context(), q)
		asked := 0
		for _, n := range r.nodes {
			asked += len(n.asked)
		}
		if heard != c.heard || err != c.err || asked != c.asked || q.Limit != 1 || q.ToMs != int64(millrace.MaxTime)+1 {
			t.Errorf("%s: %t, %v, after %d questions", name, heard, err, asked)
		}
		r.Close()
	}
	r := newRig(t, 2)
	defer r.Close()
	gone, end := context.WithCancel(t.Context())
	end()
	if heard, err := r.Try(gone, &nodev1.QueryRequest{}); heard || err != nil || len(r.nodes[0].asked) > 0 {
		t.Errorf("%t, %v", heard, err)
	}
	r.maps = oneMap{maptest.WithLost(t, r.maps.Current(), "n0")}
	if heard, err := r.Try(t.Context(), &nodev1.QueryRequest{}); !heard || err != nil || len(r.nodes[0].asked) > 0 {
		t.Errorf("%t, %v, of a lost node", heard, err)
	}
}

// healthOf is a node's health service of one answer.
type healthOf struct {
	healthv1.HealthClient
	err error
}

func (h healthOf) Check(context.Context, *healthv1.HealthCheckRequest, ...grpc.CallOption) (*healthv1.HealthCheckResponse, error) {
	return nil, h.err
}

// Whatever a node says to a ping, it is there.
func TestAnswersToPings(t *testing.T) {
	for code, there := range map[codes.Code]bool{codes.OK: true, codes.Unimplemented: true, codes.NotFound: true, codes.PermissionDenied: true, codes.Unavailable: false, codes.DeadlineExceeded: false, codes.Canceled: false} {
		if err := (&remote{health: healthOf{err: status.Error(code, "x")}}).Ping(t.Context()); (err == nil) != there {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// What a node answers in another way than it was asked for counts as no answer, and another
// node is asked; what it does not have is asked of others, and the rest of it stays.
func TestOthersAreAskedForTheRest(t *testing.T) {
	entities := []string{"member:1", "member:2", "member:3"}
	lacking := partition.Of(millrace.Entity(entities[1]))
	for name, c := range map[string]struct {
		weights string
		script  func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error)
		parts   int
		missing string // where no other node is there
		health  bool   // it counts as failed
	}{
		"unreachable":   {"", fails(fmt.Errorf("%w: x", ErrUnreachable)), 1, MissUnreachable, true},
		"broken":        {"", fails(errors.New("x")), 1, MissError, true},
		"too large":     {"", fails(ErrTooLarge), 1, MissTooLarge, true},
		"without model": {"", fails(&millrace.Error{Reason: millrace.ReasonNotHere}), 1, MissModel, false},
		"its own time":  {"", fails(&millrace.Error{Reason: millrace.ReasonDeadline}), 1, MissTimeout, false},
		"overloaded":    {"", fails(&millrace.Error{Reason: millrace.ReasonOverloaded}), 1, MissOverloaded, true},
		"another model": {"", func(_ context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			resp := wholeAnswer(req)
			resp.Model = "home"
			return resp, nil
		}, 1, MissModel, false},
		"older protocol": {"w", func(_ context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			resp := wholeAnswer(req)
			resp.Protocol = 1
			return resp, nil
		}, 1, MissOlder, false},
		"a partition less": {"", func(_ context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			resp := wholeAnswer(req)
			at := slices.Index(resp.Partitions.Answered, int32(lacking))
			resp.Partitions.Answered = slices.Delete(resp.Partitions.Answered, at, at+1)
			resp.Partitions.AppliedContent, resp.Partitions.AppliedFeatures = resp.Partitions.AppliedContent[1:], resp.Partitions.AppliedFeatures[1:]
			resp.Partitions.Missing = map[int32]string{int32(lacking): "not_ready"}
			return resp, nil
		}, 2, MissBehind, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, nodes := range []int{1, 2} {
				r := newRig(t, nodes)
				defer r.Close()
				for range silentCalls {
					q := question(t, entities...)
					q.Query.Weights, q.Query.WeightsSum = c.weights, c.weights
					r.first(q)
					r.nodes[0].script = c.script
					if nodes == 2 {
						r.nodes[1].script = func(_ context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
							resp := wholeAnswer(req)
							resp.WeightsSum = c.weights
							return resp, nil
						}
					}
					o, _, err := r.Ask(t.Context(), q, time.Now().Add(time.Minute))
					if err != nil || nodes == 2 && (len(o.Missing) > 0 || len(o.Parts) != c.parts) || nodes == 1 && (len(o.Missing) == 0 || o.Missing[lacking] != c.missing || len(o.Parts) != c.parts-1) {
						t.Fatalf("%s of %d: %+v, %v", name, nodes, o, err)
					}
					var covered topology.Set
					for _, pt := range o.Parts {
						if both := covered.And(pt.Covered); both.Len() > 0 {
							t.Errorf("%s: %s is covered twice", name, both.Ranges())
						}
						covered = covered.Or(pt.Covered)
					}
					if left := o.Left(); covered.Or(left) != q.Want {
						t.Errorf("%s: %s is covered of %s", name, covered.Ranges(), q.Want.Ranges())
					}
					time.Sleep(absentFor + 1)
				}
				id := r.nodes[0].id
				if got := r.health.of(id); (got.failed > 0 || got.silent > 0) != c.health && c.missing != MissTimeout {
					t.Errorf("%s: %+v", name, got)
				}
			}
		})
	}
}

// A node that said that it is overloaded is not spared by others: asking them spends of the
// budget of hedges, and nothing else that fails does.
func TestOverloadSpendsOfTheBudget(t *testing.T) {
	for err, spent := range map[error]float64{&millrace.Error{Reason: millrace.ReasonOverloaded}: 1, errors.New("broken"): 0} {
		r := newRig(t, 2)
		q := question(t, "member:1")
		r.first(q)
		r.nodes[0].script = fails(err)
		if _, _, err := r.Ask(t.Context(), q, time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if have := r.budget.mu.have; have != hedgeBurst-spent+spent*hedgeShare { // each call earns
			t.Errorf("%v is left after %v", have, err)
		}
		r.budget.mu.have = 0
		o, _, _ := r.Ask(t.Context(), question(t, "member:1"), time.Now().Add(time.Minute))
		if whole := len(o.Missing) == 0; whole != (spent == 0) || !whole && o.Missing[partition.Of("member:1")] != MissOverloaded {
			t.Errorf("without a budget, after %v: %+v", err, o)
		}
		r.Close()
	}
}

// A slow node is hedged, and what came of that is counted and explained.
func TestHedgesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 2)
		defer r.Close()
		q := question(t, "member:1", "member:2")
		q.Query.Explain = true
		r.first(q)
		r.nodes[0].script = hangs
		r.nodes[1].script = func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			time.Sleep(10 * time.Millisecond)
			return nil, nil
		}
		o, a, err := r.Ask(t.Context(), q, time.Now().Add(time.Minute))
		if err != nil || len(o.Missing) > 0 || len(o.Parts) != 1 || o.Parts[0].Node != r.nodes[1].id {
			t.Fatalf("%+v, %v", o, err)
		}
		e := &feedv1.Explain{}
		a.Explain(e)
		if e.HedgesFired != 1 || e.HedgesWon != 1 || e.HedgeSavedMillis != 60 || len(e.Calls) != 2 { // as long again as it took
			t.Errorf("%v", e)
		}
		slices.SortFunc(e.Calls, func(x, y *feedv1.NodeCall) int { return strings.Compare(x.Outcome, y.Outcome) })
		for i, want := range []*feedv1.NodeCall{
			{Node: string(r.nodes[1].id), Hedge: true, BeganMillis: 50, Millis: 10, Outcome: "answered"},
			{Node: string(r.nodes[0].id), BeganMillis: 0, Millis: 60, Outcome: "cancelled"},
		} {
			c := e.Calls[i]
			if c.Node != want.Node || c.Hedge != want.Hedge || c.BeganMillis != want.BeganMillis || c.Millis != want.Millis || c.Outcome != want.Outcome || c.Partitions != 2 || c.Timelines != 4 {
				t.Errorf("got %v, want %v", c, want)
			}
		}
		count := func(want map[string]float64) {
			t.Helper()
			for event, n := range want {
				if got := testutil.ToFloat64(r.metrics.hedges.WithLabelValues(event)); got != n {
					t.Errorf("%v of %s, want %v", got, event, n)
				}
			}
		}
		count(map[string]float64{hedgeFired: 1, hedgeWon: 1, hedgeDenied: 0})
		if got := q.Times.FanOut; got != 60*time.Millisecond {
			t.Errorf("the fan-out took %v", got)
		}
		if got := testutil.ToFloat64(r.metrics.hedgeSaved); got < 0.0599 || got > 0.0601 {
			t.Errorf("%v s are saved", got)
		}
		for node, want := range map[millrace.NodeID]map[string]float64{r.nodes[0].id: {"answered": 0, "cancelled": 1}, r.nodes[1].id: {"answered": 1, "cancelled": 0}} {
			for outcome, n := range want {
				if got := testutil.ToFloat64(r.metrics.calls.WithLabelValues(string(node), outcome)); got != n {
					t.Errorf("%s: %v %s", node, got, outcome)
				}
			}
		}
		// A hedge that is due and not sent is counted once, and one that loses is not won.
		r.budget.mu.have = 0
		r.nodes[0].script = func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			time.Sleep(220 * time.Millisecond)
			return nil, nil
		}
		if _, _, err := r.Ask(t.Context(), question(t, "member:1"), time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		count(map[string]float64{hedgeFired: 1, hedgeWon: 1, hedgeDenied: 1})
		r.budget.mu.have = 1
		r.nodes[1].script = hangs
		if _, _, err := r.Ask(t.Context(), question(t, "member:1"), time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		count(map[string]float64{hedgeFired: 2, hedgeWon: 1, hedgeDenied: 2}) // of the second node there is no other
		// An inquiry is hedged late, and at no cost.
		r = newRig(t, 2)
		defer r.Close()
		r.first(q)
		r.budget.mu.have = 0
		r.nodes[0].script = hangs
		aside := question(t, "member:1")
		aside.Aside = true
		began := time.Now()
		if o, _, err := r.Ask(t.Context(), aside, time.Now().Add(time.Minute)); err != nil || len(o.Missing) > 0 || time.Since(began) != inquiryDelay || r.budget.mu.have > 3*hedgeShare {
			t.Errorf("%+v, %v, after %s; %v is left of the budget", o, err, time.Since(began), r.budget.mu.have)
		}
	})
}

// A filter that one node refuses may be right for others, but not one that two refuse before
// any has answered, or for which nobody has answered for a while.
func TestRefusedFilters(t *testing.T) {
	refusal := &millrace.Error{Reason: millrace.ReasonFilter, Detail: "no field x"}
	late := func(d time.Duration, err error) func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
		return func(ctx context.Context, _ *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			select {
			case <-time.After(d):
				return nil, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		first, second func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error)
		refused       bool
		took          time.Duration
	}{
		"one refuses":                {fails(refusal), late(10*ms, nil), false, 10 * ms},
		"two refuse":                 {fails(refusal), late(10*ms, refusal), true, 10 * ms},
		"the other is late":          {fails(refusal), late(readWait+100*ms, nil), true, readWait},
		"the other is just in time":  {fails(refusal), late(readWait-1, nil), false, readWait - 1},
		"the other cannot":           {fails(refusal), late(10*ms, errors.New("broken")), true, 10 * ms},
		"it is refused for all time": {fails(&millrace.Error{Reason: millrace.ReasonUnknown, Field: "model"}), late(10*ms, nil), true, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, 2)
			defer r.Close()
			q := question(t, "member:1", "member:2")
			r.first(q)
			r.nodes[0].script, r.nodes[1].script = c.first, c.second
			began := time.Now()
			o, _, err := r.Ask(t.Context(), q, time.Now().Add(time.Minute))
			var e *millrace.Error
			if refused := errors.As(err, &e); refused != c.refused || refused && len(o.Parts) > 0 || !refused && len(o.Missing) > 0 || time.Since(began) != c.took {
				t.Errorf("%s: %+v, %v, after %s", name, o, err, time.Since(began))
			}
			if time.Sleep(time.Second); !c.refused && len(r.nodes[1].asked) != 1 {
				t.Errorf("%s: %d questions", name, len(r.nodes[1].asked))
			}
		})
	}
	synctest.Test(t, func(t *testing.T) { // the third is not asked what two refuse
		r := newRig(t, 3)
		defer r.Close()
		q := question(t, "member:1")
		r.first(q)
		r.nodes[0].script, r.nodes[1].script = fails(refusal), fails(refusal)
		if _, _, err := r.Ask(t.Context(), q, time.Now().Add(time.Minute)); !errors.Is(err, refusal) || len(r.nodes[2].asked) > 0 {
			t.Errorf("%v, %d questions", err, len(r.nodes[2].asked))
		}
	})
	synctest.Test(t, func(t *testing.T) { // once one has answered, the others may take their time
		r := newRig(t, 3)
		defer r.Close()
		m := zoned(t, 1, "n0", "n1", "n2")
		r.maps = oneMap{m}
		var entities []string
		for _, id := range []millrace.NodeID{"n0", "n1", "n2"} {
			for i := 0; len(entities) == 0 || m.Replicas(partition.Of(millrace.Entity(entities[len(entities)-1])))[0] != id; i++ {
				if e := fmt.Sprint("member:", i); m.Replicas(partition.Of(millrace.Entity(e)))[0] == id {
					entities = append(entities, e)
				}
			}
		}
		r.nodes[0].script, r.nodes[1].script, r.nodes[2].script = fails(refusal), late(ms, nil), late(2*readWait, nil)
		o, _, err := r.Ask(t.Context(), question(t, entities...), time.Now().Add(time.Minute))
		if err != nil || len(o.Parts) != 2 || len(o.Missing) != 1 || o.Missing[partition.Of(millrace.Entity(entities[0]))] != MissBehind {
			t.Errorf("%+v, %v", o, err)
		}
	})
}

// No more than three replicas are asked, of which those that only lack the model do not count.
func TestFewReplicasAreAsked(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		asked int
	}{"broken": {errors.New("x"), maxReplicas}, "lacking": {&millrace.Error{Reason: millrace.ReasonNotHere}, 6}} {
		r := newRig(t, 6)
		for _, n := range r.nodes {
			n.script = fails(c.err)
		}
		o, a, err := r.Ask(t.Context(), question(t, "member:1"), time.Now().Add(time.Minute))
		asked := 0
		for _, n := range r.nodes {
			asked += len(n.asked)
		}
		if err != nil || len(o.Missing) != 1 || asked != c.asked {
			t.Errorf("%s: %d are asked; %+v, %v", name, asked, o, err)
		}
		if none := a.Nothing(o); c.asked == 6 && (none == nil || !strings.Contains(none.Error(), "it is not on n0, n1, n2, n3, n4, n5")) {
			t.Errorf("%v", none)
		}
		r.Close()
	}
}

// That one node does not host a partition explains nothing where another has failed.
func TestWhatExplainsAMissingPartition(t *testing.T) {
	r := newRig(t, 2)
	defer r.Close()
	q := question(t, "member:1")
	p := partition.Of("member:1")
	r.first(q)
	r.nodes[0].script = func(_ context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
		resp := wholeAnswer(req)
		resp.Partitions = &nodev1.Partitions{Missing: map[int32]string{int32(p): "not_hosted"}}
		return resp, nil
	}
	r.nodes[1].script = fails(errors.New("broken"))
	if o, _, err := r.Ask(t.Context(), q, time.Now().Add(time.Minute)); err != nil || len(o.Parts) > 0 || o.Missing[p] != MissError {
		t.Errorf("%+v, %v", o, err)
	}
}

// A question for which there is no memory is asked of nobody.
func TestNoRoomForAQuestion(t *testing.T) {
	for _, left := range []int64{0, 300} { // for nothing, or for the request alone
		r := newRig(t, 1)
		r.memory = memory.New(left, "answers")
		_, _, err := r.Ask(t.Context(), question(t, "member:1"), time.Now().Add(time.Minute))
		var e *millrace.Error
		if !errors.As(err, &e) || e.Reason != millrace.ReasonOverloaded || len(r.nodes[0].asked) > 0 || r.memory.Held() != 0 {
			t.Errorf("%v, after %d questions; %d bytes are held", err, len(r.nodes[0].asked), r.memory.Held())
		}
		r.Close()
	}
}

// Groups are asked at the same time, each by its own; if one fails all have.
func TestGroupsAreAskedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		defer r.Close()
		of := func(model, entity string) *questions.Group {
			g := &questions.Group{Query: &nodev1.QueryRequest{Model: model, Limit: 10}, Types: 1}
			g.Add(partition.AppendEntity(nil, partition.Of(millrace.Entity(entity)), millrace.Entity(entity)))
			g.Close()
			return g
		}
		ask := func() (Outcome, error) {
			q := &questions.Question{Query: &nodev1.QueryRequest{Model: "recency", Limit: 10}}
			q.Groups = []*questions.Group{of("recency", "member:1"), of("home", "member:1"), of("home", "member:2")}
			q.Want = q.Groups[0].Want.Or(q.Groups[2].Want)
			o, _, err := r.Ask(t.Context(), q, time.Now().Add(time.Minute))
			return o, err
		}
		r.nodes[0].script = func(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			time.Sleep(20 * time.Millisecond)
			return nil, nil
		}
		began := time.Now()
		o, err := ask()
		models := map[string]int{}
		for _, pt := range o.Parts {
			models[pt.Resp.Model+" of "+pt.Resp.Items[0].Entity]++
		}
		if err != nil || len(o.Missing) > 0 || time.Since(began) != 20*time.Millisecond || !maps.Equal(models, map[string]int{"recency of member:1": 1, "home of member:1": 1, "home of member:2": 1}) {
			t.Errorf("%v, %+v, %v, after %s", models, o, err, time.Since(began))
		}
		r.nodes[0].script = func(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			resp := wholeAnswer(req)
			if req.Model == "recency" {
				resp.Partitions = &nodev1.Partitions{}
			}
			return resp, nil
		}
		if o, err := ask(); err != nil || len(o.Parts) != 1 || o.Parts[0].Resp.Items[0].Entity != "member:2" || len(o.Missing) != 1 {
			t.Errorf("%+v, %v", o, err)
		}
		r.nodes[0].script = func(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
			if req.Model == "recency" {
				return nil, errors.New("broken")
			}
			return hangs(ctx, req)
		}
		began = time.Now()
		if o, err := ask(); err != nil || len(o.Parts) > 0 || len(o.Missing) != 2 || time.Since(began) != 0 {
			t.Errorf("%+v, %v, after %s", o, err, time.Since(began))
		}
	})
}

// The nodes have a twentieth less of the time than the caller, but no more than 50 ms less.
func TestMargin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for left, want := range map[time.Duration]time.Duration{time.Second: 950 * time.Millisecond, 100 * time.Millisecond: 95 * time.Millisecond, time.Minute: time.Minute - 50*time.Millisecond} {
			if got := margin(now.Add(left)).Sub(now); got != want {
				t.Errorf("of %s nodes have %s, want %s", left, got, want)
			}
		}
	})
}

// How large items are is learnt at once where they grow, and slowly where they shrink, by
// feed and by what they carry; there is room for few parts more than for many.
func TestRoomForItems(t *testing.T) {
	of := func(feed string, change func(*nodev1.QueryRequest)) *questions.Question {
		q := &questions.Question{FeedName: feed, Query: &nodev1.QueryRequest{Limit: 2}}
		change(q.Query)
		return q
	}
	plain := func(*nodev1.QueryRequest) {}
	s := newSizes()
	look := func(q *questions.Question, item int64) {
		t.Helper()
		if got := s.expect(q); got != questions.LeastRoom+3*item {
			t.Errorf("%d bytes of an item, want %d", (got-questions.LeastRoom)/3, item)
		}
	}
	q, beside := of("a", plain), of("a", func(r *nodev1.QueryRequest) { r.Beside = make([]*nodev1.Model, 2) })
	explained, featured := of("a", func(r *nodev1.QueryRequest) { r.Explain = true }), of("a", func(r *nodev1.QueryRequest) { r.Features = true })
	look(q, usualItem)
	look(beside, 3*usualItem)
	look(explained, usualItem+usualAccount)
	look(featured, usualItem+usualAccount)
	s.learn(q, 6400, 1)
	look(q, 6400)
	look(of("b", plain), usualItem)
	s.learn(q, 0, 0)
	s.learn(q, 200, 2)
	look(q, 6300)
	s.learn(q, 19_200, 2)
	look(q, 9600)
	s.learn(featured, 640, 1)
	look(explained, 640)
	look(beside, 3*usualItem)
	if got := s.expect(of("a", func(r *nodev1.QueryRequest) { r.Limit = 1 << 20 })); got != maxMessageBytes {
		t.Errorf("%d bytes for the largest", got)
	}
	for i := range maxSizes - 2 {
		s.learn(of(fmt.Sprint(i), plain), 100, 1)
	}
	look(q, 9600)
	s.learn(of("x", plain), 100, 1)
	look(q, usualItem)
	for _, c := range []struct {
		room  int64
		parts int
		want  int64
	}{{1 << 20, 0, 1 << 20}, {1 << 20, 8, 1 << 20}, {1 << 20, 16, 1 << 19}, {16 << 20, 1, 8 << 20}, {1, 1, questions.LeastRoom}, {1 << 20, 1000, questions.LeastRoom}} {
		if got := share(c.room, c.parts); got != c.want {
			t.Errorf("%d bytes for %d parts are %d each, want %d", c.room, c.parts, got, c.want)
		}
	}
}
