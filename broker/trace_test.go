package broker

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/metadata"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
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

// A caller that says of every request that its trace is to be sampled is heeded for
// some; all are continued and answered.
func TestCallersHaveFewTracesSampled(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	before := tracer // which stays with the first provider that a process has
	tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample()))).Tracer("")
	t.Cleanup(func() { tracer = before })
	b := newWorld(t, 1, 1).broker()
	s := httptest.NewServer(b.Handler())
	t.Cleanup(s.Close)
	c := feedv1.NewFeedServiceClient(servedGRPC(t, b))
	const asked = 300 // of each door
	parent := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	began := time.Now()
	for range asked {
		if _, err := c.GetFeed(metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent), recentRequest(1)); err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v1/feed", strings.NewReader(`{"feed":"recent","viewer":{"id":"member:0"},"entities":["member:1"]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Traceparent", parent)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	most := int(100 * (1 + time.Since(began).Seconds()))
	sampled := 0
	for _, span := range recorder.Ended() {
		if span.Name() == "broker.GetFeed" {
			sampled++
		}
	}
	if sampled < 100 || sampled > most+1 {
		t.Errorf("%d of %d requests are sampled, at most %d may be", sampled, 2*asked, most)
	}
}
