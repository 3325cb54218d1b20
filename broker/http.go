package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"github.com/klauspost/compress/gzhttp"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/api/millrace/feed/v1/feedv1connect"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/tracing"
)

// Handler serves JSON: Connect's protocol, and POST /v1/feed and /v1/why, whose
// errors are problem documents (RFC 9457). GET /v1/openapi.json describes the
// latter.
func (b *Broker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(feedv1connect.NewFeedServiceHandler(connectFeed{b},
		connect.WithCodec(jsonCodec{}), connect.WithReadMaxBytes(maxRequestBytes)))
	mux.Handle("POST /v1/feed", gzhttp.GzipHandler(serveJSON(b.GetFeed)))
	mux.Handle("POST /v1/why", gzhttp.GzipHandler(serveJSON(b.Why)))
	mux.HandleFunc("GET /v1/openapi.json", serveOpenAPI)
	for _, path := range []string{"/v1/feed", "/v1/why"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "POST a JSON request here", http.StatusMethodNotAllowed)
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, err := withHeaders(tracing.IncomingHTTP(r.Context(), r.Header), r.Header.Get)
		if err != nil {
			rpcerr.WriteProblem(w, err)
			return
		}
		ctx, cancel, err := withTimeout(ctx, r.Header.Get(TimeoutHeader))
		if err != nil {
			rpcerr.WriteProblem(w, err)
			return
		}
		defer cancel()
		mux.ServeHTTP(w, r.WithContext(ctx))
	})
}

// serveJSON serves one method.
func serveJSON[Req any, PReq interface {
	*Req
	proto.Message
}, Resp proto.Message](method func(context.Context, PReq) (Resp, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req := PReq(new(Req))
		err := readRequest(w, r, req)
		var resp Resp
		if err == nil {
			resp, err = method(r.Context(), req)
		}
		var body []byte
		if err == nil {
			body, err = marshalJSON(resp)
		}
		if err != nil {
			rpcerr.WriteProblem(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n'))
	})
}

// readRequest takes any content type that says JSON, and none at all or
// curl's own, since curl -d sends that.
func readRequest(w http.ResponseWriter, r *http.Request, req proto.Message) error {
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind {
	case "", "application/json", "application/x-www-form-urlencoded", "text/json", "text/plain":
	default:
		return invalid("Content-Type", "send application/json", "%.100q is not JSON", kind)
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return invalid("Content-Encoding", "send the body as it is", "%.100q is not taken here", e)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &millrace.Error{Reason: millrace.ReasonTooLarge, Detail: fmt.Sprintf("the body is longer than %d bytes", large.Limit), WayOut: "ask for fewer entities"}
	case err != nil:
		return invalid("", "send the whole body", "the body broke off: %v", err)
	}
	return unmarshalJSON(body, req)
}

type connectFeed struct{ b *Broker }

func (c connectFeed) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	get := c.b.GetFeed
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok && strings.HasSuffix(info.RequestHeader().Get("Content-Type"), "proto") {
		get = c.b.wireFeed
	}
	resp, err := get(ctx, req)
	if err != nil {
		return nil, rpcerr.Connect(err)
	}
	return resp, nil
}

func (c connectFeed) Why(ctx context.Context, req *feedv1.WhyRequest) (*feedv1.WhyResponse, error) {
	resp, err := c.b.Why(ctx, req)
	if err != nil {
		return nil, rpcerr.Connect(err)
	}
	return resp, nil
}

// jsonCodec is Connect's JSON with the same strictness and form as /v1/feed.
type jsonCodec struct{}

func (jsonCodec) Name() string { return "json" }

func (jsonCodec) Marshal(m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("broker: %T is not a message", m)
	}
	return marshalJSON(msg)
}

func (jsonCodec) Unmarshal(b []byte, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("broker: %T is not a message", m)
	}
	return unmarshalJSON(b, msg)
}
