package items

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/schemas"
)

// teller is a node that tells one schema, and the fields of all.
type teller struct {
	calls, told int  // and how often it did
	silent      bool // it does not tell fields
}

func (t *teller) Query(context.Context, *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	return nil, errors.New("nobody asks here")
}

func (t *teller) GetSchema(_ context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	t.calls++
	resp := &nodev1.GetSchemaResponse{Json: schemas.Note().JSON()}
	if req.Fields {
		if t.told++; !t.silent {
			resp.Fields = schemas.Note().Fields()
		}
	}
	return resp, nil
}

func (t *teller) Ping(context.Context) error { return nil }

// told returns records of one node, an asking of it, and an item that it sent.
func toldBy(t *testing.T, n *teller) (*Records, *fanout.Asking, []fanout.Entry) {
	a, err := topology.Spread([]millrace.NodeID{"n0"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	m := topology.NewMap(a, []topology.Node{{ID: "n0", Addr: "fake:1"}}, map[millrace.NodeID]topology.Set{"n0": topology.All()})
	r := New(func(topology.Node) (fanout.Node, error) { return n, nil }, slog.New(slog.DiscardHandler))
	body, err := schemas.Note().EncodeJSON([]byte(`{"id":"r","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z","stars":3}`))
	if err != nil {
		t.Fatal(err)
	}
	item := &nodev1.Item{Id: "r", Entity: "member:1", Schema: uint64(schemas.Note().Fingerprint()), Body: body}
	return r, &fanout.Asking{Map: m, End: time.Now().Add(time.Hour)}, []fanout.Entry{{Ranked: fanout.Ranked{Item: item, From: &fanout.Part{Node: "n0"}}}}
}

// A wrong name costs look-ups, however many fields there are: it is not compared
// with all of them, no node is asked while what one told is fresh, and names
// that have not changed are not told again.
func TestWrongFieldsAreCheap(t *testing.T) {
	synctest.Test(t, testWrongFieldsAreCheap) // what a node told stays fresh, however busy the machine
}

func testWrongFieldsAreCheap(t *testing.T) {
	n := &teller{}
	r, f, entries := toldBy(t, n)
	resp := &nodev1.GetSchemaResponse{FieldsSum: 7}
	for i := range 100_000 {
		resp.Fields = append(resp.Fields, fmt.Sprintf("a_field_of_a_wide_schema_%d", i))
	}
	known := func(n int) {
		r.learn(&fieldBook{}, &nodev1.GetSchemaResponse{FieldsSum: 7, Fields: resp.Fields[:n]})
	}
	fields := &Fields{Names: []string{"a_field_of_a_wide_schema_99x"}}
	refused := func() {
		var e *millrace.Error
		if err := r.CheckFields(t.Context(), f, fields, entries); !errors.As(err, &e) || e.Reason != millrace.ReasonUnknown {
			t.Fatal(err)
		}
	}
	known(100)
	few := testing.AllocsPerRun(20, refused)
	known(100_000)
	asked := n.calls
	refused()
	if n := n.calls - asked; n > 0 && r.told.Load().sum == 7 {
		t.Errorf("a wrong name among fields that are known was a question to %d nodes", n)
	}
	many := testing.AllocsPerRun(20, refused)
	if many > 3*few+50 {
		t.Errorf("a refusal takes %v allocations among 100,000 fields, and %v among 100", many, few)
	}
	if n.told > 2 { // one a second, by whatever clock
		t.Errorf("nodes were asked %d times", n.told)
	}
	known(100_000) // whatever the node was asked meanwhile
	before := r.told.Load()
	r.learn(before, &nodev1.GetSchemaResponse{FieldsSum: 7})
	if now := r.told.Load(); len(now.names) != 100_000 || !now.closed || now.at.Before(before.at) || now == before {
		t.Errorf("%d names are known once a node has said that they are the same", len(now.names))
	}
	// Where nodes have too many fields to tell, a wrong one passes, and nodes are
	// not asked each time.
	n.silent = true
	r.learn(before, &nodev1.GetSchemaResponse{})
	told := n.told
	for range 20 {
		if err := r.CheckFields(t.Context(), f, fields, entries); err != nil {
			t.Fatal(err)
		}
	}
	if n := n.told - told; n > 2 {
		t.Errorf("nodes were asked %d times", n)
	}
}

// Beyond the bound a schema is fetched anew each time, and records are shown
// all the same.
func TestSchemasAreBounded(t *testing.T) {
	n := &teller{}
	r, f, entries := toldBy(t, n)
	r.mu.bytes = maxSchemaBytes
	for range 2 {
		if wire, err := r.record(t.Context(), nil, &Fields{}, f, &entries[0]); err != nil || len(wire) == 0 {
			t.Fatalf("%x, %v", wire, err)
		}
	}
	if kept := len(r.mu.known); kept != 0 || n.calls != 2 {
		t.Errorf("%d schemas are kept beyond the bound, after %d questions", kept, n.calls)
	}
}

// Fields of records are known once a schema is; those of features are no fields of records.
func TestFieldsThatAreKnown(t *testing.T) {
	r, _, _ := toldBy(t, &teller{})
	r.keep(schemas.Features())
	own := slices.DeleteFunc(slices.Clone(schemas.Features().Fields()), func(f string) bool { return slices.Contains(schemas.Note().Fields(), f) })
	if len(own) == 0 || r.unknown(own[:1]) != 0 {
		t.Errorf("%q are known of features", own)
	}
	if names := schemas.Note().Fields(); r.unknown(names) != 0 {
		t.Errorf("%q are known", names)
	}
	if r.keep(schemas.Note()); r.unknown(schemas.Note().Fields()) != -1 || r.unknown(append(schemas.Note().Fields(), "nosuch")) != len(schemas.Note().Fields()) {
		t.Error("fields of notes are not known")
	}
}

// A request that ends does not wait for what a node knows of fields.
func TestFieldsAreNotWaitedFor(t *testing.T) {
	r, f, entries := toldBy(t, &teller{})
	gone, end := context.WithCancel(t.Context())
	inside := make(chan struct{})
	slow := New(func(topology.Node) (fanout.Node, error) {
		end()
		<-inside
		return &teller{}, nil
	}, r.log)
	if err := slow.CheckFields(gone, f, &Fields{Names: []string{"nosuch"}}, entries); err != nil {
		t.Error(err)
	}
	close(inside)
}

// A node that tells another schema than it was asked for is not believed.
func TestAWrongSchemaIsNotBelieved(t *testing.T) {
	r, f, entries := toldBy(t, &teller{})
	asked := schemas.Activity().Fingerprint()
	entries[0].Item.Schema = uint64(asked)
	if wire, err := r.record(t.Context(), nil, &Fields{}, f, &entries[0]); err == nil || !strings.Contains(err.Error(), "for "+asked.String()) {
		t.Errorf("%x, %v", wire, err)
	}
	if len(r.mu.known) > 0 {
		t.Errorf("%d schemas are kept", len(r.mu.known))
	}
}

// A schema is asked of the node that sent the record, and then of others that are alive; which
// of them could not tell it, and why, is in the refusal.
func TestSchemasAreAskedOfOthers(t *testing.T) {
	ids := []millrace.NodeID{"n0", "n1", "n2"}
	a, err := topology.Spread(ids, 1)
	if err != nil {
		t.Fatal(err)
	}
	ready := map[millrace.NodeID]topology.Set{}
	var nodes []topology.Node
	for _, id := range ids {
		nodes, ready[id] = append(nodes, topology.Node{ID: id, Addr: "fake:1"}), topology.All()
	}
	m := topology.NewMap(a, nodes, ready)
	for name, c := range map[string]struct {
		broken []millrace.NodeID
		asked  string
		fails  bool
	}{"its own": {nil, "n1", false}, "another": {ids[1:2], "n1 n0", false}, "the last": {ids[:2], "n1 n0 n2", false}, "nobody": {ids, "n1 n0 n2", true}} {
		_, _, entries := toldBy(t, nil)
		entries[0].From.Node = "n1"
		var asked []string
		r := New(func(n topology.Node) (fanout.Node, error) {
			asked = append(asked, string(n.ID))
			if slices.Contains(c.broken, n.ID) {
				return nil, fmt.Errorf("%s is away", n.ID)
			}
			return &teller{}, nil
		}, slog.New(slog.DiscardHandler))
		f := &fanout.Asking{Map: m, End: time.Now().Add(time.Hour)}
		wire, err := r.record(t.Context(), nil, &Fields{}, f, &entries[0])
		var e *millrace.Error
		if strings.Join(asked, " ") != c.asked || errors.As(err, &e) != c.fails || c.fails && (e.Reason != millrace.ReasonUnavailable || !strings.Contains(e.Detail, "n2 is away")) || !c.fails && len(wire) == 0 {
			t.Errorf("%s: %v are asked; %v", name, asked, err)
		}
		gone, end := context.WithCancel(t.Context())
		end()
		if asked = nil; c.fails {
			if _, err := r.record(gone, nil, &Fields{}, f, &entries[0]); err == nil || len(asked) != 1 {
				t.Errorf("%v are asked for who has gone; %v", asked, err)
			}
		}
	}
}

// Items that were encoded are read back, by JSON and as messages, and what cannot be is told.
func TestAnswersAreReadBack(t *testing.T) {
	r, f, entries := toldBy(t, &teller{})
	e := &entries[0]
	e.Rank = millrace.Rank{ID: "r", Score: 2, Time: 1500, Timeline: millrace.Timeline{Entity: "member:1", Type: "post"}}
	e.Item.Object, e.Item.Explain = "o", &feedv1.ItemExplain{Node: "n0"}
	e.Also = []fanout.Ranked{{Item: &nodev1.Item{Id: "s", Entity: "member:2", Type: "like", Score: 1, TimeMs: 2000}}}
	wire, err := r.Append(t.Context(), nil, &Fields{Names: []string{"stars"}}, f, e)
	if err != nil {
		t.Fatal(err)
	}
	answer := func(wire []byte) *feedv1.GetFeedResponse {
		resp := &feedv1.GetFeedResponse{NextPageToken: "t"}
		resp.ProtoReflect().SetUnknown(wire)
		return resp
	}
	whole := append(slices.Clone(wire), wire...)
	resp := answer(whole)
	text, err := MarshalJSON(resp)
	if cost := CostOfJSON(resp); err != nil || cost != 4*int64(2*len(wire)) {
		t.Errorf("it costs %d, %v", cost, err)
	}
	if err := Read(resp); err != nil || len(resp.Items) != 2 {
		t.Fatalf("%v, %v", resp, err)
	}
	record, err := structpb.NewStruct(map[string]any{"stars": 3})
	if err != nil {
		t.Fatal(err)
	}
	want := &feedv1.Item{
		Id: "r", Entity: "member:1", Type: "post", Object: "o", Score: 2, Time: &timestamppb.Timestamp{Seconds: 1, Nanos: 5e8}, Record: record, Explain: e.Item.Explain,
		Also: []*feedv1.Also{{Id: "s", Entity: "member:2", Type: "like", Score: 1, Time: &timestamppb.Timestamp{Seconds: 2}}},
	}
	if !proto.Equal(resp.Items[0], want) {
		t.Errorf("got %v\nwant %v", resp.Items[0], want)
	}
	plain, err := plainJSON(resp)
	if err != nil || string(plain) != string(text) {
		t.Errorf("%v\n%s\nwant\n%s", err, text, plain)
	}
	if err := Read(answer([]byte{10, 200})); err == nil {
		t.Error("half an item is read")
	}
	e.Rank.ID = "\xff"
	if wire, err = r.Append(t.Context(), nil, &Fields{}, f, e); err != nil {
		t.Fatal(err)
	}
	if text, err := MarshalJSON(answer(wire)); err == nil {
		t.Errorf("what is no UTF-8 is written: %s", text)
	}
	items := answer(whole)
	for _, resp := range []*feedv1.GetFeedResponse{items, {}} {
		resp.NextPageToken = "\xff"
		if text, err := MarshalJSON(resp); err == nil {
			t.Errorf("what is no UTF-8 is written: %s", text)
		}
	}
	// A damaged record is left out of its item, and told.
	var told strings.Builder
	r.log = slog.New(slog.NewTextHandler(&told, nil))
	e.Rank.ID, e.Item.Body, e.Also = "r", []byte{0xff}, nil
	if wire, err = r.Append(t.Context(), nil, &Fields{}, f, e); err != nil {
		t.Fatal(err)
	}
	resp = answer(wire)
	if err := Read(resp); err != nil || resp.Items[0].Record != nil || resp.Items[0].Id != "r" || !strings.Contains(told.String(), "could not be decoded") {
		t.Errorf("%v, %v; %s", resp, err, told.String())
	}
}
