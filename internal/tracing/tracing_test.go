package tracing

import (
	"context"
	"net/http"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

func TestATraceCrossesTheWire(t *testing.T) {
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(tracetest.NewSpanRecorder())).Tracer("")
	ctx, span := tracer.Start(t.Context(), "here")
	md, _ := metadata.FromOutgoingContext(Outgoing(metadata.AppendToOutgoingContext(ctx, "other", "kept")))
	if len(md.Get("other")) != 1 || len(md.Get("traceparent")) != 1 {
		t.Fatalf("%v leaves", md)
	}
	there := metadata.NewIncomingContext(context.Background(), md)
	if got := trace.SpanContextFromContext(Incoming(there)); !got.IsRemote() || got.TraceID() != span.SpanContext().TraceID() || got.SpanID() != span.SpanContext().SpanID() {
		t.Errorf("%v arrives, %v left", got, span.SpanContext())
	}
	byHTTP := IncomingHTTP(context.Background(), http.Header{"Traceparent": md.Get("traceparent")})
	if got := trace.SpanContextFromContext(byHTTP); got.TraceID() != span.SpanContext().TraceID() {
		t.Errorf("%v arrives by HTTP", got)
	}
}

func TestWithoutATraceNothingIsSent(t *testing.T) {
	if ctx := t.Context(); Outgoing(ctx) != ctx || Incoming(ctx) != ctx {
		t.Error("a context was changed")
	}
}

// Force samples where the sampler would not, in the caller's trace if there is
// one.
func TestForce(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample()))).Tracer("")
	_, span := tracer.Start(t.Context(), "not sampled")
	span.End()
	ctx := Force(t.Context())
	_, span = tracer.Start(ctx, "begun")
	span.End()
	caller := IncomingHTTP(t.Context(), http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}})
	_, span = tracer.Start(Force(caller), "continued")
	span.End()
	ended := recorder.Ended()
	if len(ended) != 2 || ended[0].Name() != "begun" || ended[1].SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("sampled %v", ended)
	}
	if !Forced(ctx) || Forced(t.Context()) {
		t.Error("Forced does not tell")
	}
}
