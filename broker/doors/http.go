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

// Handler serves JSON: Connect's protocol, and POST /v1/feed and /v1/why. GET
// /v1/openapi.json describes the latter. Errors are problem documents (RFC
// 9457), but for calls by Connect's protocol, which has its own.
func (d *Doors) Handler() http.Handler {
	all := d.routes()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d.ArriveWithin)) // also of what nobody reads
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

// routes is everything that is served, by path.
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

// route is what is served under a path, by one method.
type route struct {
	method  string
	handler http.Handler
}

// The bounds of an HTTP connection.
const (
	headersWithin = 5 * time.Second
	idleWithin    = 2 * time.Minute
	maxStreams    = 100 // by HTTP/2
	envelopeBytes = 64  // of gRPC-Web and of gRPC by Connect
)

// HTTPServer returns the server of [Doors.Handler], which bounds how long a
// request may take to arrive and its answer to be read.
func (d *Doors) HTTPServer() *http.Server {
	return &http.Server{
		Handler: d.permit.Handler(d.Handler(), permit.Caller), ReadHeaderTimeout: headersWithin, IdleTimeout: idleWithin, MaxHeaderBytes: maxHeaderBytes,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: 1 << 20, MaxReceiveBufferPerStream: 64 << 10},
	}
}

// guarded lets requests in by their headers, reads their bodies within the
// budget and in time, and has the limiter let them in, all before anything is
// parsed. A request that it hands on has its body in a [received].
func (d *Doors) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := admission.WithHeaders(d.admission.Traced(tracing.IncomingHTTP(r.Context(), r.Header)), r.Header.Get)
		if err != nil {
			refuse(w, r, err)
			return
		}
		ctx, cancel, err := withTimeout(ctx, r.Header.Get(admission.TimeoutHeader))
		if err != nil {
			refuse(w, r, err)
			return
		}
		defer cancel()
		loan := d.admission.Parsing.BorrowFor(cmp.Or(permit.Who(ctx).Name, arrivals.HostOf(r.RemoteAddr)))
		defer loan.Return()
		answer := d.admission.Answering.Borrow()
		defer answer.Return() // when it is written
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

// timely is an answer that the caller has to take in time, from its first byte.
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

// Unwrap is what [http.ResponseController] asks for.
func (t *timely) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Flush implements http.Flusher.
func (t *timely) Flush() { _ = http.NewResponseController(t.ResponseWriter).Flush() }

// received is a body that has been read.
type received struct {
	*bytes.Reader
	whole []byte
}

// Close implements io.Closer.
func (*received) Close() error { return nil }

// receive reads a body that the caller may send now.
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
	return &received{bytes.NewReader(body), body}, loan.Hold(3 * int64(len(body))) // beside it, what becomes of it
}

// readBody reads a body into memory that grows with it.
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

// serveJSON serves one method.
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

// readRequest takes any content type that says JSON, and none at all or
// curl's own, since curl -d sends that.
func readRequest(r *http.Request, req proto.Message, budget *memory.Budget) error {
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind {
	case "", "application/json", "application/x-www-form-urlencoded", "text/json", "text/plain":
	default:
		return limits.Invalid("Content-Type", "send application/json", "%.100q is not JSON", kind)
	}
	return intake.ReadJSON(r.Body.(*received).whole, req, budget)
}

// feedForJSON is feed for doors that write JSON: the loan of the answer is
// for its text too, and for the messages between.
func (d *Doors) feedForJSON(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	resp, err := d.feed(ctx, req)
	if err != nil {
		return nil, err
	}
	loan, over := d.admission.Loan(ctx)
	defer over()
	return resp, loan.More(items.CostOfJSON(resp))
}

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

// jsonCodec is Connect's JSON with the same strictness and form as /v1/feed.
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

// protoCodec is Connect's protobuf, of which nothing is parsed before it is
// found bounded.
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

// withTimeout returns ctx with the deadline that a TimeoutHeader asks for.
func withTimeout(ctx context.Context, header string) (context.Context, context.CancelFunc, error) {
	if header == "" {
		return ctx, func() {}, nil
	}
	d, err := time.ParseDuration(header)
	if err != nil || d <= 0 {
		return ctx, nil, limits.Invalid(admission.TimeoutHeader, "send a duration such as 200ms or 1.5s", "%.100q is none to wait", header)
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	return ctx, cancel, nil
}
