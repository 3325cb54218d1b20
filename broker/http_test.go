package broker

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/api/millrace/feed/v1/feedv1connect"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/rpcerr"
)

// served is a small world behind HTTP.
func served(t *testing.T) *httptest.Server {
	w := newWorld(t, 2, 2)
	for i := range 5 {
		w.add(timelineOf(i), recordID(i), timeAt(i), "")
	}
	s := httptest.NewServer(w.broker().Handler())
	t.Cleanup(s.Close)
	return s
}

// post sends a body as curl -d would and returns what comes back.
func post(t *testing.T, url, kind, body string) (status int, header http.Header, answer string) {
	t.Helper()
	resp, err := http.Post(url, kind, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

const curl = "application/x-www-form-urlencoded"

func TestFeedByCurl(t *testing.T) {
	s := served(t)
	status, header, body := post(t, s.URL+"/v1/feed", curl,
		`{"feed":"recent","viewer":{"id":"member:1","attributes":{"langs":["en","de"],"age":3},"features":{"f":1.5}},"entities":["member:1","member:2"],"limit":5,"from":"2020-01-01T00:00:00Z","as_of":"2026-01-02T03:04:05.678+01:00"}`)
	if status != 200 || header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v\n%s", status, header, body)
	}
	var got struct {
		Items []struct {
			ID, Time string
			Score    float64
			Also     []any
			Record   map[string]any
		}
		NextPageToken *string `json:"next_page_token"`
		Coverage      struct {
			Asked   int `json:"timelines_asked"`
			Missing []any
		}
		Receipt struct {
			AsOf    string `json:"as_of"`
			Epoch   string `json:"map_epoch"`
			Applied []struct {
				Partitions []int
				Content    []string
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	if len(got.Items) != 2 || got.Items[0].ID != "r002" || got.Items[0].Time != "2023-11-14T22:13:22Z" || got.Items[0].Score != 1.700000002e12 {
		t.Errorf("items %+v", got.Items)
	}
	if got.Items[0].Also == nil || got.NextPageToken == nil || got.Coverage.Missing == nil {
		t.Errorf("empty values are left out\n%s", body)
	}
	if got.Items[0].Record["stars"] != 3.0 || got.Coverage.Asked != 2 || got.Receipt.AsOf != "2026-01-02T02:04:05.678Z" {
		t.Errorf("got %+v", got)
	}
}

func TestBadJSONNamesTheField(t *testing.T) {
	s := served(t)
	for body, want := range map[string]rpcerr.Problem{
		`{"feed":"recent","entitees":[]}`:                       {Status: 400, Reason: millrace.ReasonUnknown, Field: "entitees"},
		`{"feed":"recent","viewer":{"nme":1}}`:                  {Status: 400, Reason: millrace.ReasonUnknown, Field: "viewer.nme"},
		`{"feed":"recent","viewer":{"features":{"a":"x"}}}`:     {Status: 400, Reason: millrace.ReasonInvalid, Field: "viewer.features"},
		`{"feed":"recent","viewer":[]}`:                         {Status: 400, Reason: millrace.ReasonInvalid, Field: "viewer"},
		`{"feed":"recent","limit":1e99}`:                        {Status: 400, Reason: millrace.ReasonInvalid, Field: "limit"},
		`{"feed":"recent","limit":2147483648,"entities":["a"]}`: {Status: 400, Reason: millrace.ReasonInvalid, Field: "limit"},
		`{"feed":"recent","limit":0,"entities":["a"]}`:          {Status: 400, Reason: millrace.ReasonInvalid, Field: "limit"},
		`{"feed":"recent","limit":"many"}`:                      {Status: 400, Reason: millrace.ReasonInvalid, Field: "limit"},
		`{"feed":"recent","from":"yesterday"}`:                  {Status: 400, Reason: millrace.ReasonInvalid, Field: "from"},
		`{"feed":"recent","page_token":5}`:                      {Status: 400, Reason: millrace.ReasonInvalid, Field: "page_token"},
		`{"feed":"recent","entities":"member:1"}`:               {Status: 400, Reason: millrace.ReasonInvalid, Field: "entities"},
		`{"feed":"recent","entities":["a",null]}`:               {Status: 400, Reason: millrace.ReasonInvalid, Field: "entities"},
		`{"feed":"recent"`:                                      {Status: 400, Reason: millrace.ReasonInvalid},
		`[]`:                                                    {Status: 400, Reason: millrace.ReasonInvalid},
		``:                                                      {Status: 400, Reason: millrace.ReasonInvalid},
		`{"feed":"recent","feed":"recent"}`:                     {Status: 400, Reason: millrace.ReasonInvalid},
		`{"feed":"recent","entities":["` + strings.Repeat("x", intake.MaxBytes) + `"]}`: {Status: 413, Reason: millrace.ReasonTooLarge},
	} {
		status, header, answer := post(t, s.URL+"/v1/feed", curl, body)
		var got rpcerr.Problem
		if err := json.Unmarshal([]byte(answer), &got); err != nil {
			t.Errorf("%.80s: %v\n%s", body, err, answer)
			continue
		}
		if status != want.Status || got.Status != status || got.Reason != want.Reason || got.Field != want.Field || got.WayOut == "" ||
			header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%.80s: %d %s", body, status, answer)
		}
	}
}

func TestHTTPRefusals(t *testing.T) {
	s := served(t)
	if status, _, body := post(t, s.URL+"/v1/feed", "application/xml", "<feed/>"); status != 400 || !strings.Contains(body, `"field":"Content-Type"`) {
		t.Errorf("%d %s", status, body)
	}
	resp, err := http.Get(s.URL + "/v1/feed")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "POST" {
		t.Errorf("GET: %d %v", resp.StatusCode, resp.Header)
	}
}

// A client that takes gzip gets it for a page of some length.
func TestGzip(t *testing.T) {
	s := served(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/feed", strings.NewReader(`{"feed":"recent","entities":["member:1","member:2","member:3","member:4"]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if e := resp.Header.Get("Content-Encoding"); e != "gzip" {
		t.Fatalf("Content-Encoding %q", e)
	}
	z, err := gzip.NewReader(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(z); err != nil || !json.Valid(b) {
		t.Errorf("%v\n%s", err, b)
	}
}

func TestPriorityHeader(t *testing.T) {
	s := served(t)
	for value, want := range map[string]int{"": 200, "interactive": 200, "prefetch": 200, "urgent": 400} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/feed", strings.NewReader(`{"feed":"recent","entities":["member:1"]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(admission.PriorityHeader, value)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%q: %d", value, resp.StatusCode)
		}
	}
}

func TestConnect(t *testing.T) {
	s := served(t)
	path := s.URL + feedv1connect.FeedServiceGetFeedProcedure
	if status, _, body := post(t, path, "application/json", `{"feed":"recent","entities":["member:1"]}`); status != 200 || !strings.Contains(body, `"next_page_token":""`) {
		t.Errorf("%d %s", status, body)
	}
	if status, _, body := post(t, path, "application/json", `{"feed":"recent","entitees":[]}`); status != 400 || !strings.Contains(body, "entitees: there is no such field") {
		t.Errorf("%d %s", status, body)
	}
	for _, opt := range []connect.ClientOption{connect.WithProtoJSON(), connect.WithClientOptions()} {
		c := feedv1connect.NewFeedServiceClient(s.Client(), s.URL, opt)
		if resp, err := c.GetFeed(t.Context(), recentRequest(3)); err != nil || len(resp.Items) != 3 {
			t.Errorf("%v, %v", resp, err)
		}
		req := recentRequest(3)
		req.Feed = "x"
		_, err := c.GetFeed(t.Context(), req)
		if e := refusalByConnect(t, err); e.Reason != millrace.ReasonUnknown || e.Field != "feed" || e.WayOut == "" {
			t.Errorf("got %+v", e)
		}
	}
}

// refusalByConnect returns the refusal that a connect client was given, by the details that
// gRPC's clients have it of too.
func refusalByConnect(t *testing.T, err error) *millrace.Error {
	t.Helper()
	var ce *connect.Error
	if !errors.As(err, &ce) {
		t.Fatalf("%v is no error of connect", err)
	}
	s := status.New(codes.Code(ce.Code()), ce.Message())
	for _, d := range ce.Details() {
		m, bad := d.Value()
		if bad == nil {
			s, bad = s.WithDetails(protoadapt.MessageV1Of(m))
		}
		if bad != nil {
			t.Fatal(bad)
		}
	}
	return refusal(t, rpcerr.FromStatus(s.Err()))
}

func TestGRPC(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.add(timelineOf(1), "r1", timeAt(1), "")
	b := w.broker()
	server := grpc.NewServer(b.ServerOptions()...)
	b.RegisterGRPC(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(b.Guard(l)) }()
	t.Cleanup(server.Stop)

	c, err := client.Dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if resp, err := c.GetFeed(t.Context(), recentRequest(3)); err != nil || len(resp.Items) != 1 {
		t.Errorf("%v, %v", resp, err)
	}
	req := recentRequest(3)
	req.Entities = nil
	_, err = c.GetFeed(t.Context(), req)
	if e := refusal(t, err); e.Field != "entities" || e.WayOut == "" {
		t.Errorf("got %+v", e)
	}
	req.Entities = []string{strings.Repeat("x", intake.MaxBytes)}
	if _, err = c.GetFeed(t.Context(), req); err == nil {
		t.Error("a message over the limit was taken")
	}

	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	h, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "millrace.feed.v1.FeedService"})
	if err != nil || h.Status != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health %v, %v", h, err)
	}
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err == nil {
		err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Errorf("reflection: %v", err)
	}
}

// A small body that grows beyond the limit is refused on every door that
// takes compressed ones.
func TestCompressedBomb(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	chunk := bytes.Repeat([]byte(" "), 1<<20)
	for range 4 * intake.MaxBytes >> 20 {
		if _, err := z.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	s := served(t)
	for path, want := range map[string]int{feedv1connect.FeedServiceGetFeedProcedure: 400, "/v1/feed": 400} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+path, bytes.NewReader(bomb.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Content-Encoding", "gzip")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
}
