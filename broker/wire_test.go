package broker

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"math"
	"net"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/api/millrace/feed/v1/feedv1connect"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/broker/items"
	"github.com/millrace/millrace/client"
)

// doorsOf are all the ways to ask a broker, by name.
func doorsOf(t *testing.T, b *Broker) map[string]func(*feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	t.Helper()
	h := httptest.NewServer(b.Handler())
	t.Cleanup(h.Close)
	g := grpc.NewServer(b.ServerOptions()...)
	b.RegisterGRPC(g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(b.Guard(l)) }()
	t.Cleanup(g.Stop)
	native, err := client.Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = native.Close() })

	byConnect := func(opts ...connect.ClientOption) func(*feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
		c := feedv1connect.NewFeedServiceClient(h.Client(), h.URL, opts...)
		return func(req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) { return c.GetFeed(t.Context(), req) }
	}
	byPost := func(path, kind string) func(*feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
		return func(req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
			body, err := protojson.Marshal(req)
			if err != nil {
				return nil, err
			}
			_, _, answer := post(t, h.URL+path, kind, string(body))
			resp := &feedv1.GetFeedResponse{}
			return resp, protojson.Unmarshal([]byte(answer), resp)
		}
	}
	return map[string]func(*feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error){
		"in process": func(req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) { return b.GetFeed(t.Context(), req) },
		"gRPC": func(req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
			return native.GetFeed(t.Context(), req)
		},
		"Connect":                byConnect(),
		"gRPC-Web":               byConnect(connect.WithGRPCWeb()),
		"gRPC by Connect":        byConnect(connect.WithGRPC(), connect.WithProtoJSON()),
		"Connect in JSON":        byConnect(connect.WithProtoJSON()),
		"Connect in JSON, UTF-8": byPost(feedv1connect.FeedServiceGetFeedProcedure, "application/json; charset=utf-8"),
		"POST /v1/feed":          byPost("/v1/feed", "application/json"),
		"POST /v1/feed, by curl": byPost("/v1/feed", curl),
	}
}

// Whatever the door, records are the same, whole or some of their fields; and
// of one that is damaged, nothing but the item.
func TestDoors(t *testing.T) {
	w := newWorld(t, 2, 2)
	for i := range 3 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	w.feed.Apply(timelineOf(3), millrace.Record{ID: recordID(3), Time: timeAt(3), Schema: note.Fingerprint(), Body: []byte("no body")})
	whole := func(i int) map[string]any {
		body, err := note.EncodeJSON([]byte(`{"id":"` + string(recordID(i)) + `","author":"` + string(timelineOf(i).Entity) + `","kind":"post","at":"` + timeAt(i).String() + `","stars":3}`))
		if err != nil {
			t.Fatal(err)
		}
		value, err := note.JSONValue(body)
		if err != nil {
			t.Fatal(err)
		}
		value["stars"] = 3.0 // as a Struct has it
		return value
	}
	for door, ask := range doorsOf(t, w.broker()) {
		for _, fields := range [][]string{nil, {"stars", "id", "likes"}} {
			req := recentRequest(4)
			req.Fields = fields
			resp, err := ask(req)
			if err != nil || len(resp.Items) != 4 {
				t.Errorf("%s: %v, %v", door, resp, err)
				continue
			}
			for at, it := range resp.Items {
				i := 3 - at // newest first
				want := whole(i)
				if fields != nil {
					want = map[string]any{"id": want["id"], "stars": want["stars"]}
				}
				if i == 3 {
					want = nil
				}
				if got := it.Record.AsMap(); it.Record == nil != (want == nil) || want != nil && !reflect.DeepEqual(got, want) || it.Id != string(recordID(i)) {
					t.Errorf("%s, fields %q: item %s is %v, want that of %s, %v", door, fields, it.Id, got, recordID(i), want)
				}
				if odd := it.ProtoReflect().GetUnknown(); len(odd) > 0 {
					t.Errorf("%s: item %s has something else, %x", door, it.Id, odd)
				}
			}
		}
	}
}

// An answer as the doors of protobuf get it is, on the wire, the one that
// callers within the process get.
func TestWireFeed(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.add(timelineOf(1), recordID(1), timeAt(1), "")
	b := w.broker()
	wire, err := b.wireFeed(t.Context(), recentRequest(3))
	if err != nil || len(wire.Items) != 0 || len(wire.ProtoReflect().GetUnknown()) == 0 {
		t.Fatalf("%v, %v: want items that are encoded already", wire, err)
	}
	raw, err := proto.Marshal(wire)
	if err != nil {
		t.Fatal(err)
	}
	read := &feedv1.GetFeedResponse{}
	if err := proto.Unmarshal(raw, read); err != nil {
		t.Fatal(err)
	}
	if err := items.Read(wire); err != nil || len(wire.Items) != 1 || wire.Items[0].Record == nil || !proto.Equal(read, wire) {
		t.Errorf("%v: off the wire\n%v, want\n%v", err, read, wire)
	}
}

type everybody struct{}

func (everybody) Has(string) bool { return true }

// The log of a traced request has the items of the answer, not their records.
func TestTracedWithoutRecords(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.add(timelineOf(1), recordID(1), timeAt(1), "")
	b := w.broker()
	var lines bytes.Buffer
	b.traced, b.log = everybody{}, slog.New(slog.NewJSONHandler(&lines, nil))
	req := recentRequest(3)
	req.Viewer = &feedv1.Viewer{Id: "v"}
	resp, err := b.GetFeed(t.Context(), req)
	if err != nil || len(resp.Items) != 1 || resp.Items[0].Record == nil {
		t.Fatalf("%v, %v", resp, err)
	}
	var line struct{ Answer string }
	if err := json.Unmarshal(lines.Bytes(), &line); err != nil || !strings.Contains(line.Answer, `"id":"`+string(recordID(1))+`"`) || strings.Contains(line.Answer, "stars") {
		t.Errorf("%v\n%s", err, lines.String())
	}
	lines.Reset()
	req.Feed = "nosuch"
	if _, err := b.GetFeed(t.Context(), req); err == nil || !strings.Contains(lines.String(), `"err":"`) || !strings.Contains(lines.String(), "nosuch") {
		t.Errorf("%v\n%s", err, lines.String())
	}
}

// Items are written as protobuf would write messages of them, whatever they
// hold.
func TestItemsAsProtobuf(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	node := &fanout.Part{Node: "n0"}
	at := func(r millrace.Rank, object string, also ...fanout.Ranked) fanout.Entry {
		return fanout.Entry{Rank: r, Ranked: fanout.Ranked{Item: &nodev1.Item{Object: object, Schema: uint64(note.Fingerprint()), Body: []byte("no body")}, From: node}, Also: also}
	}
	timeline := millrace.Timeline{Entity: "member:1", Type: "post"}
	entries := []fanout.Entry{
		at(millrace.Rank{}, ""),
		at(millrace.Rank{ID: "a", Timeline: timeline, Time: -1, Score: math.Copysign(0, -1)}, "o", fanout.Ranked{Item: &nodev1.Item{Id: "x", Score: -2, TimeMs: 1500}, From: node}, fanout.Ranked{Item: &nodev1.Item{Entity: "member:2", Type: "share"}, From: node}),
		at(millrace.Rank{ID: millrace.RecordID(strings.Repeat("é", 500)), Time: millrace.MaxTime, Score: math.Inf(1)}, "p"),
	}
	entries[2].Item.Explain = &feedv1.ItemExplain{Node: "n0", Base: 1}
	want := &feedv1.GetFeedResponse{Items: []*feedv1.Item{
		{Time: timestamp(0)},
		{Id: "a", Entity: "member:1", Type: "post", Time: timestamp(-1), Score: math.Copysign(0, -1), Object: "o", Also: []*feedv1.Also{
			{Id: "x", Score: -2, Time: timestamp(1500)}, {Entity: "member:2", Type: "share", Time: timestamp(0)}}},
		{Id: strings.Repeat("é", 500), Time: timestamp(millrace.MaxTime), Score: math.Inf(1), Object: "p", Explain: entries[2].Item.Explain},
	}}
	q, err := b.read(t.Context(), recentRequest(1), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, f, err := b.fanout.Ask(t.Context(), &q.Question, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	q.Loan = b.admission.Answering.Borrow()
	raw, err := b.items(t.Context(), q, f, entries)
	if err != nil {
		t.Fatal(err)
	}
	got := &feedv1.GetFeedResponse{}
	if err := proto.Unmarshal(raw, got); err != nil || !proto.Equal(got, want) || !bytes.Equal(raw, mustMarshal(t, want)) {
		t.Errorf("%v: got\n%v\nwant\n%v", err, got, want)
	}
}

func mustMarshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
