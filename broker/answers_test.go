package broker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/broker/questions"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/race"
	"github.com/millrace/millrace/internal/rpcerr"
)

// addText applies a record with a text.
func (w *world) addText(t millrace.Timeline, id millrace.RecordID, at millrace.Time, text string) {
	body, err := note.EncodeJSON(fmt.Appendf(nil, `{"id":%q,"author":%q,"kind":%q,"at":%q,"text":%q,"stars":3}`, id, t.Entity, t.Type, at, text))
	if err != nil {
		w.t.Fatal(err)
	}
	w.feed.Apply(t, millrace.Record{ID: id, Time: at, Schema: note.Fingerprint(), Body: body})
}

// largeWorld has records of so many bytes, each of an entity of its own.
func largeWorld(t *testing.T, records, bytes int) *world {
	w := newWorld(t, 1, 1)
	for i := range records {
		w.addText(timelineOf(i), recordID(i), timeAt(i), strings.Repeat("x", bytes))
	}
	return w
}

func largeRequest(items int) *feedv1.GetFeedRequest {
	req := recentRequest(items)
	req.Limit = proto.Int64(int64(items))
	return req
}

// stubborn asks by HTTP or by gRPC, and does not read.
func stubborn(t *testing.T, addr string, req *feedv1.GetFeedRequest, byGRPC bool) net.Conn {
	t.Helper()
	d := net.Dialer{}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).SetReadBuffer(32 << 10)
	if byGRPC {
		message, err := proto.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		f := framed{c}
		_, _ = c.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), http2Frame(4, 0, 0, nil)...))
		f.call(1, 0)
		_, _ = c.Write(http2Frame(0, 1, 1, envelope(message)))
		return c
	}
	body := fmt.Sprintf(`{"feed":"recent","limit":%d,"entities":["%s"]}`, req.GetLimit(), strings.Join(req.Entities, `","`))
	fmt.Fprintf(c, "POST /v1/feed HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	return c
}

// narrow is a listener for whose connections the kernel takes little.
type narrow struct{ net.Listener }

func (n narrow) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(32 << 10)
	}
	return c, err
}

func serveNarrow(t *testing.T, b *Broker) (addr string) {
	t.Helper()
	h := httptest.NewUnstartedServer(b.Handler())
	h.Listener = narrow{h.Listener}
	h.Start()
	t.Cleanup(h.Close)
	return h.Listener.Addr().String()
}

// Answers that nobody reads share a budget, by JSON and by gRPC: what is beyond
// it is refused, and all of it comes back when the callers are gone.
func TestAnswersShareABudget(t *testing.T) {
	for _, byGRPC := range []bool{false, true} {
		b := largeWorld(t, 40, 100_000).broker()
		const limit = 32 << 20
		b.admission.Answering, b.TakenWithin = memory.New(limit, "answers"), time.Hour
		addr := serveNarrow(t, b)
		if byGRPC {
			addr = listenGRPC(t, b)
		}
		var unread []net.Conn
		waitFor(t, "a refusal", func() bool {
			if b.admission.Answering.Held() < limit { // under load some are refused before they have an answer
				unread = append(unread, stubborn(t, addr, largeRequest(40), byGRPC))
			}
			_, err := b.GetFeed(t.Context(), largeRequest(40))
			if held := b.admission.Answering.Held(); held > 2*limit { // with those that are being refused
				t.Errorf("%d bytes are held", held)
			}
			return err != nil && refusal(t, err).Reason == millrace.ReasonOverloaded && strings.Contains(err.Error(), "answers take all")
		})
		for _, c := range unread {
			c.Close()
		}
		waitFor(t, "the budget to come back", func() bool { return b.admission.Answering.Held() == 0 })
		if resp, err := b.GetFeed(t.Context(), largeRequest(40)); err != nil || len(resp.Items) != 40 {
			t.Errorf("gRPC %v: in the end: %v", byGRPC, err)
		}
	}
}

// drain reads what is left of a connection, with more room than before: tiny
// windows take TCP long.
func drain(c net.Conn) (int64, error) {
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 20)
	return io.Copy(io.Discard, c)
}

// cutOff reports whether err says that the other end has closed a connection.
func cutOff(err error) bool {
	return strings.Contains(err.Error(), "reset") || strings.Contains(err.Error(), "EOF")
}

// Who does not read an answer is cut off, though nobody else asks; who reads it
// at leisure is not.
func TestUnreadAnswersAreCutOff(t *testing.T) {
	t.Parallel() // it waits
	b := largeWorld(t, 40, 100_000).broker()
	b.TakenWithin = 2 * time.Second // a busy machine does not look like one who does not read
	for _, byGRPC := range []bool{false, true} {
		addr := serveNarrow(t, b)
		if byGRPC {
			addr = listenGRPC(t, b)
		}
		c := stubborn(t, addr, largeRequest(40), byGRPC)
		defer c.Close()
		waitFor(t, "an answer", func() bool { return b.admission.Answering.Held() > 0 })
		waitFor(t, "the end of it", func() bool { return b.admission.Answering.Held() == 0 })
		n, err := drain(c)
		if n >= 4_000_000 || err != nil && !cutOff(err) {
			t.Errorf("gRPC %v: %d bytes, %v", byGRPC, n, err)
		}
	}
}

// A connection over which an answer was read stays, however long nobody asks again.
func TestAnIdleConnectionStays(t *testing.T) {
	t.Parallel() // it waits
	b := largeWorld(t, 4, 20_000).broker()
	b.TakenWithin = 2 * time.Second // a busy machine does not look like one who does not read
	var dials atomic.Int32
	conn, err := grpc.NewClient(listenGRPC(t, b), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<20), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := range 2 {
		if i > 0 {
			time.Sleep(b.TakenWithin * 5 / 4)
		}
		resp, err := feedv1.NewFeedServiceClient(conn).GetFeed(t.Context(), largeRequest(4))
		if err != nil || proto.Size(resp) < 50_000 {
			t.Fatalf("%d bytes, %v", proto.Size(resp), err)
		}
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// Whatever becomes of requests, what their answers held comes back.
func TestTheMemoryOfAnswersComesBack(t *testing.T) {
	w := largeWorld(t, 20, 20_000)
	b := w.broker()
	for name, ask := range doorsOf(t, b) {
		for i := range 20 {
			req := largeRequest(20)
			switch i % 4 {
			case 1:
				req.Feed = "none"
			case 2:
				req.Limit = proto.Int64(1)
			case 3:
				req.MinCoverage = 1
			}
			_, _ = ask(req)
		}
		waitFor(t, "the budget to come back after "+name, func() bool { return b.admission.Answering.Held() == 0 })
	}
}

// However many nodes there are, and however much each might send, a request
// that is in order is let in: they have little.
func TestManyNodesShareTheRoom(t *testing.T) {
	w := newWorld(t, 60, 2)
	for i := range 200 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	req := largeRequest(200)
	req.Limit, req.Explain = proto.Int64(1000), true
	resp, err := w.broker().GetFeed(t.Context(), req)
	if err != nil || len(resp.Items) != 200 {
		t.Errorf("%d items, %v", len(resp.GetItems()), err)
	}
}

var muchBody = sync.OnceValue(func() []byte {
	body, err := note.EncodeJSON(fmt.Appendf(nil, `{"id":"r","author":"a","kind":"post","at":1700000000000,"text":%q}`, strings.Repeat("x", 40_000)))
	if err != nil {
		panic(err)
	}
	return body
})

// muchNode has four megabytes for everyone.
type muchNode struct{ emptyNode }

func (n muchNode) Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error) {
	resp, err := n.emptyNode.Query(ctx, req)
	if err != nil {
		return nil, err
	}
	resp.UnknownTypes = nil
	for i := range 100 {
		body := bytes.Clone(muchBody())
		resp.Items = append(resp.Items, &nodev1.Item{Id: fmt.Sprint("r", i), Entity: "a", Type: "post", TimeMs: 1_700_000_000_000, Schema: uint64(note.Fingerprint()), Body: body})
	}
	return resp, nil
}

func (muchNode) GetSchema(context.Context, *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error) {
	return &nodev1.GetSchemaResponse{Json: note.JSON()}, nil
}

// 500 connections that ask for large answers and do not read, by JSON and by
// gRPC, do not end a broker of 512 MiB.
func TestUnreadAnswersEndNoBroker(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes many times the memory that the broker may; `make test` runs this without it")
	}
	server := startDoors(t, "much")
	req := largeRequest(1)
	req.Entities, req.Limit = []string{"a"}, proto.Int64(100)
	for i := range 500 {
		addr := server.http
		if i%2 == 0 {
			addr = server.grpc
		}
		c := stubborn(t, addr, req, i%2 == 0)
		defer c.Close()
		if i%50 == 0 {
			_ = server.probe(t.Context())
		}
	}
	t.Logf("all have asked; it took %d MiB", server.mostMemory(t)>>20)
	waitFor(t, "an answer in the end", func() bool {
		select {
		case err := <-server.ended:
			t.Fatalf("the broker's process has ended: %v\n%.2000s", err, server.said())
		default:
		}
		return server.probe(t.Context()) == nil
	})
	if most := server.mostMemory(t); most > doorsMemory {
		t.Errorf("it took %d MiB", most>>20)
	} else {
		t.Logf("in the end %d MiB", most>>20)
	}
}

// An answer that is larger than one may be is refused as such, by the limit and
// with a way out, by every door.
func TestAnswersTooLargeAreRefused(t *testing.T) {
	b := largeWorld(t, 20, 1_000_000).broker()
	h := httptest.NewServer(b.Handler())
	t.Cleanup(h.Close)
	c := feedv1.NewFeedServiceClient(servedGRPC(t, b))
	for name, ask := range map[string]func() error{
		"in process": func() error { _, err := b.GetFeed(t.Context(), largeRequest(20)); return err },
		"gRPC": func() error {
			_, err := c.GetFeed(t.Context(), largeRequest(20))
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("gRPC: %v", err)
			}
			return rpcerr.FromStatus(err)
		},
	} {
		err := ask()
		if e := refusal(t, err); e.Reason != millrace.ReasonTooLarge || !strings.Contains(e.Detail, fmt.Sprint(questions.MaxAnswerBytes)) || e.WayOut != questions.FewerOrFields {
			t.Errorf("%s: %+v", name, e)
		}
	}
	body := `{"feed":"recent","limit":20,"entities":["` + strings.Join(entityNames(20), `","`) + `"]`
	if status, _, text := post(t, h.URL+"/v1/feed", curl, body+`}`); status != http.StatusRequestEntityTooLarge || !strings.Contains(text, "TOO_LARGE") {
		t.Errorf("JSON: %d %.300s", status, text)
	}
	if status, _, text := post(t, h.URL+"/v1/feed", curl, body+`,"fields":["id"]}`); status != 200 {
		t.Errorf("fewer fields: %d %.300s", status, text)
	}
}

// A node whose part is larger than a message may be says so, or gRPC does for
// one that does not know how to: the caller can mend it.
func TestPartsTooLargeAreRefused(t *testing.T) {
	for _, old := range []bool{false, true} {
		w := largeWorld(t, 4, 10_000)
		node := w.nodes["n0"]
		var opts []grpc.ServerOption
		if node.old = old; old {
			opts = append(opts, grpc.MaxSendMsgSize(20_000))
		} else {
			node.claims = 1 << 30
		}
		stop, addr := serveNode(t, node, "127.0.0.1:0", opts...)
		t.Cleanup(stop)
		w.m = topology.NewMap(w.m.Assignment(), []topology.Node{{ID: "n0", Addr: addr}}, map[millrace.NodeID]topology.Set{"n0": topology.All()})
		b, err := New(Config{Maps: w})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		_, err = b.GetFeed(t.Context(), largeRequest(4))
		if e := refusal(t, err); e.Reason != millrace.ReasonTooLarge || !strings.Contains(e.WayOut, "fewer items") {
			t.Errorf("old %v: %+v", old, e)
		}
		if resp, err := b.GetFeed(t.Context(), largeRequest(1)); err != nil || len(resp.Items) != 1 {
			t.Errorf("old %v: fewer items: %v", old, err)
		}
		waitFor(t, "the budget to come back", func() bool { return b.admission.Answering.Held() == 0 })
	}
}
