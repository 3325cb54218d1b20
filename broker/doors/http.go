package doors

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzhttp"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/api/millrace/feed/v1/feedv1connect"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/broker/items"
	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/arrivals"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/tracing"
)

// Handler returns the handler of HTTP: the protocols of Connect, with JSON or protobuf, and
// POST /v1/feed and /v1/why with JSON. GET /v1/openapi.json describes the latter two. Errors
// are problem documents (RFC 9457), except in calls by Connect, whose protocols have their
// own form.
func (d *Doors) Handler() http.Handler {
	all := d.routes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d.ArriveWithin)) // for every request, even if no handler reads its body
		w = &timely{ResponseWriter: w, within: d.TakenWithin}
		if d.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		to, ok := all[r.URL.Path]
		switch {
		case !ok:
			rpcerr.WriteProblem(w, &millrace.Error{Reason: millrace.ReasonNotFound, Detail: fmt.Sprintf("nothing is served under %.100q", r.URL.Path), WayOut: "POST to /v1/feed or /v1/why, or GET /v1/openapi.json"})
		case r.Method != to.method && (r.Method != http.MethodHead || to.method != http.MethodGet):
			w.Header().Set("Allow", to.method)
			rpcerr.WriteProblem(w, &millrace.Error{Reason: millrace.ReasonMethod, Detail: fmt.Sprintf("%.20q is not taken here", r.Method), WayOut: "send " + to.method})
		default:
			to.handler.ServeHTTP(w, r)
		}
	})
}

// routes returns the routes, by path.
func (d *Doors) routes() map[string]route {
	_, byConnect := feedv1connect.NewFeedServiceHandler(connectFeed{d},
		connect.WithCodec(jsonCodec{d.admission.Parsing, "json"}), connect.WithCodec(jsonCodec{d.admission.Parsing, "json; charset=utf-8"}), connect.WithCodec(protoCodec{d.admission.Parsing}), connect.WithReadMaxBytes(intake.MaxBytes+envelopeBytes))
	called := d.guarded(byConnect)
	return map[string]route{
		"/v1/feed":         {http.MethodPost, d.guarded(gzhttp.GzipHandler(serveJSON(d, d.feedForJSON)))},
		"/v1/why":          {http.MethodPost, d.guarded(gzhttp.GzipHandler(serveJSON(d, d.why)))},
		"/v1/openapi.json": {http.MethodGet, http.HandlerFunc(serveOpenAPI)},
		feedv1connect.FeedServiceGetFeedProcedure: {http.MethodPost, called},
		feedv1connect.FeedServiceWhyProcedure:     {http.MethodPost, called},
	}
}

// route is the handler of a path, and the one HTTP method that it takes.
type route struct {
	method  string
	handler http.Handler
}

// The bounds of an HTTP connection.
const (
	headersWithin = 5 * time.Second
	idleWithin    = 2 * time.Minute
	maxStreams    = 100 // requests at the same time on one connection of HTTP/2
	envelopeBytes = 64  // room in a body for what gRPC and gRPC-Web, as Connect serves them, add to a message
)

// HTTPServer returns a server of [Doors.Handler] for callers that the broker's policy
// permits. It bounds how long headers may take to arrive, how large they are, and how long a
// connection may be idle; the handler bounds the rest.
func (d *Doors) HTTPServer() *http.Server {
	return &http.Server{
		Handler: d.permit.Handler(d.Handler(), permit.Caller), ReadHeaderTimeout: headersWithin, IdleTimeout: idleWithin, MaxHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: 1 << 20, MaxReceiveBufferPerStream: 64 << 10},
	}
}

// guarded returns next behind admission control. It checks the headers of a request and
// the quota of its caller, reads the body within the budget and in time, and has the
// limiter admit the request. All that happens before anything is parsed. The body of the
// request that next gets is a [received].
func (d *Doors) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := admission.WithHeaders(d.admission.Traced(tracing.IncomingHTTP(r.Context(), r.Header)), r.Header.Get)
		if err != nil {
			d.refused(err)
			refuse(w, r, err)
			return
		}
		ctx, cancel, err := withTimeout(ctx, r.Header.Get(admission.TimeoutHeader))
		if err != nil {
			d.refused(err)
			refuse(w, r, err)
			return
		}
		defer cancel()
		loan := d.admission.Parsing.BorrowFor(cmp.Or(permit.Who(ctx).Name, arrivals.HostOf(r.RemoteAddr)))
		defer loan.Return()
		answer := d.admission.Answering.Borrow()
		defer answer.Return() // by then the answer is written
		ctx = admission.WithPass(ctx, &admission.Pass{Loan: answer})
		body, err := d.receive(w, r.WithContext(ctx), loan)
		var in *admission.InFlight
		if err == nil {
			in, err = d.admission.Enter(ctx)
		}
		if err != nil {
			d.refused(err)
			refuse(w, r, err)
			return
		}
		defer in.Leave()
		r = r.WithContext(ctx)
		r.Body = body
		next.ServeHTTP(w, r)
	})
}

// timely is the writer of an answer. The caller has to read the whole answer within the time
// within after its first byte is written.
type timely struct {
	http.ResponseWriter
	within time.Duration
	began  bool
}

// Write implements http.ResponseWriter.
func (t *timely) Write(p []byte) (int, error) {
	if !t.began {
		t.began = true
		_ = http.NewResponseController(t.ResponseWriter).SetWriteDeadline(time.Now().Add(t.within))
	}
	return t.ResponseWriter.Write(p)
}

// Unwrap returns the writer below, for [http.ResponseController].
func (t *timely) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Flush implements http.Flusher.
func (t *timely) Flush() { _ = http.NewResponseController(t.ResponseWriter).Flush() }

// received is a body that has been read whole.
type received struct {
	*bytes.Reader // reads whole
	whole         []byte
}

// Close implements io.Closer.
func (*received) Close() error { return nil }

// receive reads the body of a request, if its encoding, the quota of its caller and the
// limiter admit it. The loan then holds three times the bytes of the body.
func (d *Doors) receive(w http.ResponseWriter, r *http.Request, loan *memory.Loan) (*received, error) {
	for _, name := range []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"} {
		if e := r.Header.Get(name); e != "" && e != "identity" {
			return nil, limits.Invalid(name, "send the body as it is", "%.100q is not taken here", e)
		}
	}
	h := admission.HeadersOf(r.Context())
	if err := d.admission.Admit(h.Caller); err != nil {
		return nil, err
	}
	if d.admission.Full(h.Priority) {
		return nil, admission.Overloaded
	}
	body, err := readBody(r, loan)
	if err != nil {
		return nil, err
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return &received{bytes.NewReader(body), body}, loan.Hold(3 * int64(len(body))) // the body, and room for what it is parsed into
}

// readBody reads a body into a buffer that grows with it, and refuses a body that is much
// longer than intake.MaxBytes. Before the buffer doubles, the loan is made three times its
// old size: the old buffer and the new one, which exist at the same time. A body that fits
// into the first buffer needs no loan here.
func readBody(r *http.Request, loan *memory.Loan) ([]byte, error) {
	if r.ContentLength > intake.MaxBytes+envelopeBytes {
		return nil, intake.TooLong()
	}
	body := make([]byte, 0, 4<<10)
	for {
		if len(body) == cap(body) {
			if len(body) > intake.MaxBytes+envelopeBytes {
				return nil, intake.TooLong()
			}
			if err := loan.Hold(3 * int64(cap(body))); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, 2*cap(body)), body...)
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF):
			return body, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, &millrace.Error{Reason: millrace.ReasonDeadline, Detail: "the body did not arrive in time", WayOut: "send all of it at once"}
		case err != nil:
			return nil, limits.Invalid("", "send the whole body", "the body broke off: %v", err)
		}
	}
}

// refuse answers with err in the form that the request's protocol has.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	if byConnect := connect.NewErrorWriter(); strings.HasPrefix(r.URL.Path, feedPrefix) && byConnect.IsSupported(r) {
		_ = byConnect.Write(w, r, rpcerr.Connect(err))
		return
	}
	rpcerr.WriteProblem(w, err)
}

// serveJSON returns the handler of one method, such as d.why, as JSON.
func serveJSON[Req any, PReq interface {
	*Req
	proto.Message
}, Resp proto.Message](d *Doors, method func(context.Context, PReq) (Resp, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req := PReq(new(Req))
		err := readRequest(r, req, d.admission.Parsing)
		var resp Resp
		if err != nil {
			d.refused(err)
		} else {
			resp, err = method(r.Context(), req)
		}
		var body []byte
		if err == nil {
			body, err = items.MarshalJSON(resp)
		}
		if err != nil {
			rpcerr.WriteProblem(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
		_, _ = io.WriteString(w, "\n")
	})
}

// readRequest parses the JSON of a request that [Doors.guarded] has handed on into req.
// It takes the content types of JSON, of plain text, and of a form, which curl -d sends. It
// also takes a request without a content type.
func readRequest(r *http.Request, req proto.Message, budget *memory.Budget) error {
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind {
	case "", "application/json", "application/x-www-form-urlencoded", "text/json", "text/plain":
	default:
		return limits.Invalid("Content-Type", "send application/json", "%.100q is not JSON", kind)
	}
	return intake.ReadJSON(r.Body.(*received).whole, req, budget)
}

// feedForJSON is d.feed for answers that are written as JSON. It makes the loan of the
// answer larger, by the memory that the JSON takes and the messages that it is made from.
func (d *Doors) feedForJSON(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	resp, err := d.feed(ctx, req)
	if err != nil {
		return nil, err
	}
	loan, over := d.admission.Loan(ctx)
	defer over()
	return resp, loan.More(items.CostOfJSON(resp))
}

// connectFeed serves the feed service by Connect.
type connectFeed struct{ b *Doors }

func (c connectFeed) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	get := c.b.feedForJSON
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok && strings.HasSuffix(info.RequestHeader().Get("Content-Type"), "proto") {
		get = c.b.feed
	}
	resp, err := get(ctx, req)
	if err != nil {
		return nil, rpcerr.Connect(err)
	}
	return resp, nil
}

func (c connectFeed) Why(ctx context.Context, req *feedv1.WhyRequest) (*feedv1.WhyResponse, error) {
	resp, err := c.b.why(ctx, req)
	if err != nil {
		return nil, rpcerr.Connect(err)
	}
	return resp, nil
}

// jsonCodec is the codec of Connect for JSON. It reads and writes JSON as /v1/feed does.
type jsonCodec struct {
	budget *memory.Budget
	name   string
}

// Name implements connect.Codec.
func (c jsonCodec) Name() string { return c.name }

// Marshal implements connect.Codec.
func (jsonCodec) Marshal(m any) ([]byte, error) { return items.MarshalJSON(m.(proto.Message)) }

// Unmarshal implements connect.Codec.
func (c jsonCodec) Unmarshal(b []byte, m any) error {
	return intake.ReadJSON(b, m.(proto.Message), c.budget)
}

// protoCodec is the codec of Connect for protobuf. It checks the bounds of a message before
// it parses it.
type protoCodec struct{ budget *memory.Budget }

// Name implements connect.Codec.
func (protoCodec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (protoCodec) Marshal(m any) ([]byte, error) { return proto.Marshal(m.(proto.Message)) }

// Unmarshal implements connect.Codec.
func (c protoCodec) Unmarshal(b []byte, m any) error {
	loan := c.budget.Borrow()
	defer loan.Return()
	return intake.ReadMessage(b, m.(proto.Message), loan)
}

// withTimeout returns ctx with the deadline that the value of a TimeoutHeader asks for;
// with none if that is "". The error is a refusal.
func withTimeout(ctx context.Context, header string) (context.Context, context.CancelFunc, error) {
	if header == "" {
		return ctx, func() {}, nil
	}
	d, err := time.ParseDuration(header)
	if err != nil || d <= 0 {
		return ctx, nil, limits.Invalid(admission.TimeoutHeader, "send a duration such as 200ms or 1.5s", "%.100q is no duration above 0", header)
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	return ctx, cancel, nil
}
