package broker

import (
	"errors"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// A request is a span, and each call of a node one under it.
func TestTraces(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)))
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	w := newWorld(t, 2, 1)
	w.nodes["n1"].err = errors.New("broken")
	if _, err := w.broker().GetFeed(t.Context(), recentRequest(20)); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	var root, parent string
	for _, s := range recorder.Ended() {
		got[s.Name()+" "+s.Status().Code.String()]++
		if s.Name() == "broker.GetFeed" {
			root = s.SpanContext().SpanID().String()
		} else {
			parent = s.Parent().SpanID().String()
		}
	}
	if got["broker.GetFeed Unset"] != 1 || got["broker.call Unset"] != 1 || got["broker.call Error"] != 1 || root != parent {
		t.Errorf("spans %v, root %s, parent %s", got, root, parent)
	}
}
