package broker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/api/millrace/feed/v1/feedv1connect"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/race"
	"github.com/millrace/millrace/internal/rpcerr"
)

// hostileBodies are JSON that costs a parser much more than its length.
func hostileBodies() map[string]string {
	const size = intake.MaxBytes - 200
	many := func(head, each, tail string) string {
		return head + strings.Repeat(each, (size-len(head)-len(tail))/len(each)) + tail
	}
	feed := `{"feed":"recent","entities":["a"],`
	return map[string]string{
		"empty lists in an attribute":   many(feed+`"viewer":{"attributes":{"a":[`, "[],", "[]]}}}"),
		"numbers in an attribute":       many(feed+`"viewer":{"attributes":{"a":[`, "1,", "1]}}}"),
		"attributes":                    many(feed+`"viewer":{"attributes":{"":1`, `,"":1`, "}}}"),
		"lists within lists":            many(feed+`"viewer":{"attributes":{"a":`, "[", ""),
		"objects within objects":        many(feed+`"viewer":{"attributes":{"a":`, `{"a":`, ""),
		"types":                         many(feed+`"types":[`, `"",`, `""]}`),
		"entities, empty":               many(`{"feed":"recent","entities":[`, `"",`, `""]}`),
		"entities, of no text":          many(`{"feed":"recent","entities":["a",`, `1,`, `1]}`),
		"entities, escaped":             many(`{"feed":"recent","entities":["`, `\u0041`, `"]}`),
		"fields that there are not":     many(feed+`"x":1`, `,"y":[]`, "}"),
		"a long filter":                 many(feed+`"filter":"`, "(", `"}`),
		"just below the limits, wrong":  feed + `"viewer":{"attributes":{"a":[` + strings.Repeat("[[],[]],", 15_000) + `1]}}}`,
		"just below the limits, a name": feed + `"viewer":{"attributes":{"a":[` + strings.Repeat("{},", 45_000) + `1]}},"nothing":1}`,
		"spaces":                        many(feed, " ", `"limit":0}`),
		"the largest, wrong at its end": `{"feed":"recent","entities":["` + strings.Repeat(strings.Repeat("x", 500)+`","`, 20_000) + `x"],"limit":-1,"x":1}`,
	}
}

// A body takes at most 64 MiB before it is refused, and of a processor at most
// four times what encoding/json takes to look at one of that length, whatever
// is in it. (That is 100 ms where encoding/json looks at 500 MB a second.)
func TestWhatARefusalCosts(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector's own cost would count; `make test` runs this without it")
	}
	b := newWorld(t, 1, 1).broker()
	refuse := map[string]func(body string) error{}
	refuse["JSON"] = func(body string) error {
		req := &feedv1.GetFeedRequest{}
		err := intake.ReadJSON([]byte(body), req, b.admission.Parsing)
		if err == nil {
			_, err = b.read(t.Context(), req, time.Now())
		}
		return err
	}
	refuse["JSON of why"] = func(body string) error {
		req := &feedv1.WhyRequest{}
		err := intake.ReadJSON([]byte(`{"record":"r","request":`+body+`}`), req, b.admission.Parsing)
		if err == nil {
			_, err = b.inquire(t.Context(), req)
		}
		return err
	}
	for door, ask := range refuse {
		for name, body := range hostileBodies() {
			t.Run(door+"/"+name, func(t *testing.T) {
				checkCost(t, func() error { return ask(body) })
			})
		}
	}
	for name, message := range hostileMessages() {
		t.Run("protobuf/"+name, func(t *testing.T) {
			checkCost(t, func() error {
				req := &feedv1.GetFeedRequest{}
				loan := b.admission.Parsing.Borrow()
				defer loan.Return()
				err := intake.ReadMessage(message, req, loan)
				if err == nil {
					_, err = b.read(t.Context(), req, time.Now())
				}
				return err
			})
		})
	}
}

// hostileMessages are the like of hostileBodies in protobuf.
func hostileMessages() map[string][]byte {
	field := func(n protowire.Number, v []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), v)
	}
	fill := func(each []byte) []byte { return bytes.Repeat(each, (intake.MaxBytes-200)/len(each)) }
	attribute := func(value []byte) []byte {
		return field(2, field(2, slices.Concat(field(1, []byte("a")), field(2, value))))
	}
	deep := field(6, nil)
	for range 5_000 {
		deep = field(6, field(1, deep))
	}
	return map[string][]byte{
		"empty lists in an attribute": attribute(field(6, fill(field(1, field(6, nil))))),
		"no values in an attribute":   attribute(field(6, fill(field(1, nil)))),
		"lists within lists":          attribute(deep),
		"attributes":                  field(2, fill(field(2, nil))),
		"viewers":                     fill(field(2, nil)),
		"types":                       fill(field(4, nil)),
		"entities, empty":             fill(field(3, nil)),
		"fields that there are not":   fill(field(99, nil)),
		"a long filter":               field(5, fill([]byte("("))),
	}
}

// checkCost holds what refuses to the cost of a refusal.
func checkCost(t *testing.T, refuse func() error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // memory is counted as if none came back
	least, looking := time.Hour, lookingAtLongest(t)
	for try := 0; try == 0 || try < 20 && least > 4*looking; try++ { // others have the caches, on a busy machine
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := threadTime(t)
		err := refuse()
		least = min(least, threadTime(t)-began)
		runtime.ReadMemStats(&after)
		if e := refusal(t, err); e.WayOut == "" {
			t.Errorf("no way out: %v", e)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("it took %d MiB", took>>20)
		}
		if least > 4*looking {
			looking = min(looking, lookingAtLongest(t))
		}
	}
	t.Logf("%s; %s", least, looking)
	if least > 4*looking {
		t.Errorf("it took %s of a processor, where encoding/json takes %s to look at as much", least, looking)
	}
}

// longest is as long as a body may be.
var longest = []byte(`"` + strings.Repeat("x", intake.MaxBytes-2) + `"`)

// lookingAtLongest is the time of a processor that encoding/json takes to look at as much.
func lookingAtLongest(t *testing.T) time.Duration {
	t.Helper()
	began := threadTime(t)
	if !json.Valid(longest) {
		t.Fatal("the yardstick is no JSON")
	}
	return threadTime(t) - began
}

// threadTime is the time of a processor that this thread has had.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	const rusageThread = 1
	var u syscall.Rusage
	if err := syscall.Getrusage(rusageThread, &u); err != nil {
		t.Skip(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// What is refused by its headers is refused whatever its body, which is not
// read.
func TestQuotaAndGateComeBeforeTheParse(t *testing.T) {
	w := newWorld(t, 1, 1)
	b, err := New(Config{Maps: w, Dial: w.dial, Log: slog.New(slog.DiscardHandler), Quotas: map[string]admission.Quota{"none": {PerSecond: 1e-9, Burst: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(b.Handler())
	t.Cleanup(s.Close)
	ask := func(path, caller string) (status int) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, strings.NewReader("no JSON"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(admission.CallerHeader, caller)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	paths := []string{"/v1/feed", "/v1/why", feedv1connect.FeedServiceGetFeedProcedure}
	if got := ask(paths[0], "none"); got != 400 {
		t.Errorf("within the quota: %d", got)
	}
	for _, path := range paths {
		if got := ask(path, "none"); got != 429 {
			t.Errorf("%s beyond the quota: %d", path, got)
		}
	}
	for range b.admission.Limit() {
		if _, err := b.admission.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range paths {
		if got := ask(path, ""); got != 429 {
			t.Errorf("%s at a full limiter: %d", path, got)
		}
	}
}

// Bodies that are being read share a budget: what is beyond it is refused, and
// all of it comes back.
func TestBodiesShareABudget(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	b.admission.Parsing = memory.New(8<<20, "requests")
	s := httptest.NewServer(b.Handler())
	t.Cleanup(s.Close)
	refused := make(chan int, 16)
	var senders []net.Conn
	for range cap(refused) { // 1 MiB each, of which the end is missing
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		senders = append(senders, conn)
		go func() {
			fmt.Fprintf(conn, "POST /v1/feed HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 2<<20, strings.Repeat(" ", 1<<20))
			head := make([]byte, len("HTTP/1.1 429"))
			if _, err := io.ReadFull(conn, head); err == nil && string(head) == "HTTP/1.1 429" {
				refused <- 1
				return
			}
			refused <- 0
		}()
	}
	if n := <-refused; n != 1 {
		t.Error("nothing was refused")
	}
	if held := b.admission.Parsing.Held(); held > 8<<20 {
		t.Errorf("%d bytes are held", held)
	}
	// Whatever one host holds, there is something for another.
	other := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext}
	defer other.CloseIdleConnections()
	resp, err := (&http.Client{Transport: other}).Post(s.URL+"/v1/feed", curl, strings.NewReader(`{"feed":"recent","entities":["a"]}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("another host is answered by %s", resp.Status)
	}
	for _, conn := range senders {
		conn.Close()
	}
	waitFor(t, "the budget to come back", func() bool { return b.admission.Parsing.Held() == 0 })
	if status, _, body := post(t, s.URL+"/v1/feed", curl, `{"feed":"recent","entities":["a"]}`); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

// waitFor waits for what others bring about.
func waitFor(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !so(); {
		if time.Now().After(end) {
			t.Fatal("waited for " + what)
		}
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
}

// A body that trickles is cut off, by JSON and by gRPC, and so is one that
// stops.
func TestTricklesAreCutOff(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	b.ArriveWithin = 100 * time.Millisecond
	s := httptest.NewServer(b.Handler())
	t.Cleanup(s.Close)
	for path, head := range map[string]string{
		"/v1/feed": "", feedv1connect.FeedServiceGetFeedProcedure: "Content-Type: application/json\r\n", "/v1/nothing": "", "/v1/why": "Content-Encoding: gzip\r\n", "/v1/openapi.json": "",
	} {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n%s\r\n", path, head)
		trickle(conn, []byte("{"))
		if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", path, err)
		}
	}
	conn := dialFrames(t, listenGRPC(t, b))
	conn.call(1, 0)
	_, _ = conn.Write(http2Frame(0, 0, 1, []byte{0, 0, 16, 0, 0})) // of 1 MiB
	trickle(conn, http2Frame(0, 0, 1, []byte{0}))
	conn.untilClosed(t)
	waitFor(t, "the budget to come back", func() bool { return b.admission.Arriving.Held() == 0 })
}

// Headers, idle connections and answers that nobody reads have an end, too.
func TestTheServerHasDeadlines(t *testing.T) {
	s := newWorld(t, 1, 1).broker().HTTPServer()
	if s.ReadHeaderTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 || s.MaxHeaderBytes > 64<<10 || s.HTTP2.MaxConcurrentStreams <= 0 {
		t.Errorf("%+v", s)
	}
	s.ReadHeaderTimeout = 50 * time.Millisecond
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1/feed HTTP/1.1\r\nHost: x\r\nX: ")
	trickle(conn, []byte("x"))
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
}

// trickle writes again and again until the other side has enough.
func trickle(conn net.Conn, each []byte) {
	go func() {
		for {
			if _, err := conn.Write(each); err != nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
}

// framed is a connection that speaks HTTP/2 by hand.
type framed struct{ net.Conn }

func dialFrames(t *testing.T, addr string) framed {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_, _ = conn.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), http2Frame(4, 0, 0, nil)...))
	return framed{conn}
}

func http2Frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// call begins a call of GetFeed; 1 in flags ends it.
func (c framed) call(stream uint32, flags byte) {
	var block []byte
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", feedv1.FeedService_GetFeed_FullMethodName}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		block = append(append(append(append(block, 0, byte(len(h[0]))), h[0]...), byte(len(h[1]))), h[1]...)
	}
	_, _ = c.Write(http2Frame(1, 4|flags, stream, block))
}

// untilClosed reads until the server closes the connection.
func (c framed) untilClosed(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("%v", err)
	}
}

// Frames of one byte cost more than they carry; who sends many is cut off.
func TestTinyFramesAreCutOff(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	conn := dialFrames(t, listenGRPC(t, b))
	conn.call(1, 0)
	_, _ = conn.Write(http2Frame(0, 0, 1, []byte{0, 0, 16, 0, 0})) // of 1 MiB
	go func() {
		many := bytes.Repeat(http2Frame(0, 0, 1, []byte{0}), 1000)
		for {
			if _, err := conn.Write(many); err != nil {
				return
			}
		}
	}()
	conn.untilClosed(t)
	waitFor(t, "the budget to come back", func() bool { return b.admission.Arriving.Held() == 0 })
}

// Calls that do not arrive share a budget: when it is used up the connection
// goes that holds the most, and no other.
func TestCallsShareABudget(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	b.admission.Arriving = memory.New(4<<20, "requests")
	addr := listenGRPC(t, b)
	patient, greedy := dialFrames(t, addr), dialFrames(t, addr)
	patient.call(1, 0)
	go func() {
		for stream := uint32(1); ; stream += 2 {
			greedy.call(stream, 0)
			head := binary.BigEndian.AppendUint32([]byte{0}, intake.MaxBytes)
			if _, err := greedy.Write(http2Frame(0, 0, stream, append(head, make([]byte, 16_000)...))); err != nil {
				return
			}
		}
	}()
	greedy.untilClosed(t)
	if held := b.admission.Arriving.Held(); held > 4<<20 {
		t.Errorf("%d bytes are held", held)
	}
	_, _ = patient.Write(http2Frame(0, 1, 1, []byte{0, 0, 0, 0, 0})) // an empty request, which is refused
	waitFor(t, "the patient caller's answer", func() bool { return b.admission.Arriving.Held() == 0 })
}

// Whatever becomes of calls, all that they held comes back.
func TestTheBudgetComesBack(t *testing.T) {
	b := newWorld(t, 2, 2).broker()
	conn := servedGRPC(t, b)
	c := feedv1.NewFeedServiceClient(conn)
	for i := range 200 {
		req := recentRequest(i%5 + 1)
		switch i % 4 {
		case 1:
			req.Feed = "none"
		case 2:
			req.Entities = entityNames(25_000)
		}
		_, _ = c.GetFeed(t.Context(), req)
		_, _ = c.Why(t.Context(), &feedv1.WhyRequest{Record: "r", Request: req})
	}
	waitFor(t, "the budgets to come back", func() bool { return b.admission.Arriving.Held() == 0 && b.admission.Parsing.Held() == 0 })
}

// No door takes a compressed request; see TestCompressedBomb for the others.
func TestCompressedCallsAreRefused(t *testing.T) {
	c := feedv1.NewFeedServiceClient(servedGRPC(t, newWorld(t, 1, 1).broker()))
	req := recentRequest(1)
	req.Filter = strings.Repeat(" ", 8000)
	if _, err := c.GetFeed(t.Context(), req, grpc.UseCompressor(gzip.Name)); err == nil || !strings.Contains(err.Error(), "send them as they are") {
		t.Errorf("%v", err)
	}
}

// Whatever is wrong with a path, a method or a body, the answer is a problem
// document.
func TestProblemsEverywhere(t *testing.T) {
	s := served(t)
	for _, c := range []struct {
		method, path string
		status       int
		reason       millrace.Reason
	}{
		{"GET", "/v1/feed", 405, millrace.ReasonMethod}, {"PUT", "/v1/why", 405, millrace.ReasonMethod}, {"POST", "/v1/openapi.json", 405, millrace.ReasonMethod},
		{"GET", "/", 404, millrace.ReasonNotFound}, {"POST", "/v1/feeds", 404, millrace.ReasonNotFound}, {"GET", "//v1/feed", 404, millrace.ReasonNotFound},
		{"GET", "/v1/../v1/feed", 404, millrace.ReasonNotFound}, {"POST", "/" + feedv1connect.FeedServiceName + "/Nothing", 404, millrace.ReasonNotFound}, {"GET", feedv1connect.FeedServiceWhyProcedure, 405, millrace.ReasonMethod},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var p rpcerr.Problem
		err = json.NewDecoder(resp.Body).Decode(&p)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || p.Reason != c.reason || p.WayOut == "" || resp.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %d %v %+v %v", c.method, c.path, resp.StatusCode, resp.Header, p, err)
		}
		if c.status == 405 && resp.Header.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", c.method, c.path)
		}
	}
}

// A token is taken as it was given and in no other spelling.
func TestTokensHaveOneSpelling(t *testing.T) {
	w := newWorld(t, 1, 1)
	for i := range 4 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	b := w.broker()
	req := recentRequest(4)
	req.Limit = new(int64(1))
	resp, err := b.GetFeed(t.Context(), req)
	if err != nil || resp.NextPageToken == "" {
		t.Fatalf("%v, %v", resp, err)
	}
	token := resp.NextPageToken
	for _, other := range []string{token + "\n", token + "\r\n", "\n" + token, token[:5] + "\r" + token[5:], token + "=", token + " "} {
		req.PageToken = other
		if e := refusal(t, errOf(b.GetFeed(t.Context(), req))); e.Reason != millrace.ReasonPageToken {
			t.Errorf("%q: %v", other, e)
		}
	}
	if req.PageToken = token; errOf(b.GetFeed(t.Context(), req)) != nil {
		t.Error("the token itself is refused")
	}
}

func errOf(_ proto.Message, err error) error { return err }

// What a feed or a broker forbids is refused with the field; what a private
// feed drops cannot be asked for, nor read by a feed that is built in.
func TestWhatIsForbidden(t *testing.T) {
	w := newWorld(t, 1, 1)
	all := feeds.Forbid{Filter: true, Explain: true, Why: true, Model: true, Recent: true}
	secret := feeds.Feed{Name: "secret", Model: "recency", Private: true}
	for name, c := range map[string]struct {
		broker feeds.Forbid
		feeds  []feeds.Feed
		feed   string
		want   map[string]bool // refused
	}{
		"nothing":             {feeds.Forbid{}, nil, "recent", nil},
		"all, by the broker":  {all, []feeds.Feed{{Name: "f", Model: "recency"}}, "f", map[string]bool{"filter": true, "explain": true, "why": true, "model": true}},
		"all, by the feed":    {feeds.Forbid{}, []feeds.Feed{{Name: "f", Model: "recency", Forbid: all}}, "f", map[string]bool{"filter": true, "explain": true, "why": true, "model": true}},
		"filters":             {feeds.Forbid{Filter: true}, nil, "recent", map[string]bool{"filter": true}},
		"recent":              {feeds.Forbid{Recent: true}, nil, "recent", map[string]bool{"": true, "filter": true, "explain": true, "why": true, "model": true}},
		"recent, as defined":  {feeds.Forbid{Recent: true}, []feeds.Feed{{Name: "recent", Model: "recency"}}, "recent", nil},
		"a private feed":      {feeds.Forbid{}, []feeds.Feed{secret}, "secret", map[string]bool{"explain": true, "why": true}},
		"beside a private":    {feeds.Forbid{}, []feeds.Feed{secret}, "recent", map[string]bool{"": true, "filter": true, "explain": true, "why": true, "model": true}},
		"home, too":           {feeds.Forbid{}, []feeds.Feed{secret}, "home", map[string]bool{"": true, "filter": true, "explain": true, "why": true, "model": true}},
		"one that is defined": {feeds.Forbid{}, []feeds.Feed{secret, {Name: "f", Model: "recency"}}, "f", nil},
	} {
		b, err := New(Config{Maps: w, Dial: w.dial, Log: slog.New(slog.DiscardHandler), Feeds: c.feeds, Forbid: c.broker})
		if err != nil {
			t.Fatal(err)
		}
		for what, ask := range map[string]func(*feedv1.GetFeedRequest) error{
			"":        func(r *feedv1.GetFeedRequest) error { return errOf(b.GetFeed(t.Context(), r)) },
			"filter":  func(r *feedv1.GetFeedRequest) error { r.Filter = "true"; return errOf(b.GetFeed(t.Context(), r)) },
			"explain": func(r *feedv1.GetFeedRequest) error { r.Explain = true; return errOf(b.GetFeed(t.Context(), r)) },
			"model":   func(r *feedv1.GetFeedRequest) error { r.Model = "coarse"; return errOf(b.GetFeed(t.Context(), r)) },
			"why": func(r *feedv1.GetFeedRequest) error {
				return errOf(b.Why(t.Context(), &feedv1.WhyRequest{Record: "r", Request: r}))
			},
		} {
			req := recentRequest(2)
			req.Feed = c.feed
			err := ask(req)
			var e *millrace.Error
			if errors.As(err, &e); c.want[what] != (e != nil && e.Reason == millrace.ReasonForbidden && e.WayOut != "" && e.Field != "") {
				t.Errorf("%s, with %q: %v", name, what, err)
			}
		}
		req := recentRequest(2)
		if req.Feed, req.Model = "f", "recency"; c.feed == "f" && errOf(b.GetFeed(t.Context(), req)) != nil {
			t.Errorf("%s: the feed's own model is refused", name)
		}
	}
	if f, err := feeds.Parse([]byte("name: f\nmodel: m\nprivate: true\nforbid: {filter: true, model: true}")); err != nil || !f.Private || f.Forbid != (feeds.Forbid{Filter: true, Model: true}) {
		t.Errorf("%+v, %v", f, err)
	}
}

// A type that no record has is refused, by name and with those that there are;
// not where a node cannot say, nor where the feed's definition names it.
func TestUnknownTypesAreRefused(t *testing.T) {
	w := newWorld(t, 3, 1)
	w.add(timelineOf(1), "r1", timeAt(1), "")
	b := w.broker(feeds.Feed{Name: "declared", Model: "recency", Types: []millrace.ContentType{"psot"}})
	ask := func(feed string, types ...string) error {
		req := recentRequest(3)
		req.Feed, req.Types = feed, types
		return errOf(b.GetFeed(t.Context(), req))
	}
	for _, n := range w.nodes {
		n.types = []string{"like", "post"}
	}
	if err := ask("recent", "post", "like"); err != nil {
		t.Error(err)
	}
	if err := ask("declared", "psot"); err != nil {
		t.Error(err)
	}
	if e := refusal(t, ask("recent", "post", "psot")); e.Reason != millrace.ReasonUnknown || e.Field != "types[1]" || !strings.Contains(e.WayOut, "like, post") {
		t.Errorf("%+v", e)
	}
	if e := refusal(t, errOf(w.broker(feeds.Feed{Name: "private", Model: "recency", Private: true}).GetFeed(t.Context(), &feedv1.GetFeedRequest{Feed: "private", Entities: entityNames(3), Types: []string{"psot"}}))); e.Reason != millrace.ReasonUnknown || strings.Contains(e.WayOut, "post") {
		t.Errorf("of a private feed: %+v", e)
	}
	// Those who have none of the entities are asked about types alone.
	alone := func(types ...string) error {
		return errOf(b.GetFeed(t.Context(), &feedv1.GetFeedRequest{Feed: "recent", Entities: []string{string(entity(1))}, Types: types}))
	}
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(w.nodes)), func(id millrace.NodeID) bool {
		return id == w.m.Replicas(partition.Of(entity(1)))[0]
	})
	if e := refusal(t, alone("post", "psot")); e.Field != "types[1]" || w.nodes[others[0]].calls() == 0 || w.nodes[others[1]].calls() == 0 {
		t.Errorf("%+v", e)
	}
	w.nodes[others[1]].types = []string{"psot"}
	if err := alone("psot"); err != nil {
		t.Errorf("a node without the entity knows it: %v", err)
	}
	w.nodes[others[1]].types = []string{"like", "post"}
	w.nodes["n2"].types = []string{"psot"} // whoever has the entities
	if err := ask("recent", "psot"); err != nil {
		t.Errorf("one node knows it: %v", err)
	}
	w.nodes["n2"].types = nil // it does not say
	if err := ask("recent", "psot"); err != nil {
		t.Errorf("one node does not say: %v", err)
	}
}
