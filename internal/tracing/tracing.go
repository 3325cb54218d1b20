// Package tracing passes OpenTelemetry's traces on between processes, in the headers of W3C
// Trace Context, and marks the requests that are always traced. If the process has installed no
// provider of traces, it costs next to nothing.
package tracing

import (
	"context"
	"crypto/rand"
	"net/http"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

var headers propagation.TraceContext

// Outgoing returns ctx such that calls by gRPC continue its trace.
func Outgoing(ctx context.Context) context.Context {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	md, ok := metadata.FromOutgoingContext(ctx) // a copy
	if !ok {
		md = metadata.MD{}
	}
	headers.Inject(ctx, carrier(md))
	return metadata.NewOutgoingContext(ctx, md)
}

// Incoming returns ctx such that spans continue the trace of a caller by gRPC.
func Incoming(ctx context.Context) context.Context {
	if len(metadata.ValueFromIncomingContext(ctx, "traceparent")) == 0 { // avoids the copy of all metadata
		return ctx
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return headers.Extract(ctx, carrier(md))
}

// IncomingHTTP is Incoming for a caller by HTTP.
func IncomingHTTP(ctx context.Context, h http.Header) context.Context {
	return headers.Extract(ctx, propagation.HeaderCarrier(h))
}

// carrier is the metadata of gRPC in the form that the propagator needs. It is a
// [propagation.TextMapCarrier].
type carrier metadata.MD

func (c carrier) Get(key string) string {
	if values := metadata.MD(c).Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}

// Within returns ctx with its caller's wish to have the trace sampled, if may returns true.
// Otherwise the trace is continued without the wish, and a sampler that follows its parent does
// not sample it. may is called only for a caller that has the wish.
func Within(ctx context.Context, may func() bool) context.Context {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsSampled() || may() {
		return ctx
	}
	return trace.ContextWithRemoteSpanContext(ctx, sc.WithTraceFlags(sc.TraceFlags().WithSampled(false)))
}

type forcedKey struct{}

// Force returns ctx such that a span begun in it is sampled, by any sampler that follows the
// decision of the parent, and that what is logged in it is printed at every level: see
// [Forced]. If ctx has no trace to continue, Force begins one.
func Force(ctx context.Context) context.Context {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		var id trace.TraceID
		var span trace.SpanID
		_, _ = rand.Read(id[:])
		_, _ = rand.Read(span[:])
		sc = trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span})
	}
	ctx = trace.ContextWithRemoteSpanContext(ctx, sc.WithTraceFlags(sc.TraceFlags().WithSampled(true)))
	return context.WithValue(ctx, forcedKey{}, true)
}

// Forced reports whether ctx comes from [Force].
func Forced(ctx context.Context) bool {
	forced, _ := ctx.Value(forcedKey{}).(bool)
	return forced
}

// End ends a span. If err is not nil, the span has failed with it.
func End(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
