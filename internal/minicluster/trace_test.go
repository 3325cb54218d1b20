package minicluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/cluster/brokers"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/schemas"
)

// recorder records the spans of this process that are sampled: those whose
// parent is.
var recorder = sync.OnceValue(func() *tracetest.SpanRecorder {
	r := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(r), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample()))))
	return r
})

// traced is a cluster whose nodes must all be asked, and what it logs of
// traced requests.
func traced(ctx context.Context, t *testing.T) (*Cluster, *tracedLines) {
	t.Helper()
	log := &tracedLines{}
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 2, Replicas: 1, Log: slog.New(slog.NewJSONHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), sampleRecords()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
		t.Fatal(err)
	}
	return c, log
}

// tracedLines keeps the lines that tell of traced requests.
type tracedLines struct {
	mu  sync.Mutex
	all []string
}

func (l *tracedLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := string(b); strings.Contains(s, "traced request") {
		l.all = append(l.all, s)
	}
	return len(b), nil
}

func (l *tracedLines) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

// TestOneTrace sends a request in a caller's trace: broker and nodes continue
// it, each span under the one that caused it.
func TestOneTrace(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	spans := recorder()
	c, _ := traced(ctx, t)
	const trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.HTTP+"/v1/feed",
		strings.NewReader(`{"feed":"recent","entities":["member:1","member:2","member:3","member:4","member:5","member:6","member:7","member:8"]}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("traceparent", fmt.Sprintf("00-%s-%s-01", trace, caller))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()

	names := map[string]string{caller: "caller"}
	var ours []sdktrace.ReadOnlySpan
	for _, s := range spans.Ended() {
		if s.SpanContext().TraceID().String() == trace {
			ours = append(ours, s)
			names[s.SpanContext().SpanID().String()] = s.Name()
		}
	}
	var got []string
	for _, s := range ours {
		line := names[s.Parent().SpanID().String()] + " > " + s.Name()
		for _, e := range s.Events() {
			line += " " + e.Name
		}
		got = append(got, line)
	}
	slices.Sort(got)
	want := []string{
		"broker.GetFeed > broker.call", "broker.GetFeed > broker.call",
		"broker.call > indexnode.Query resolved scanned ranked", "broker.call > indexnode.Query resolved scanned ranked",
		"caller > broker.GetFeed",
	}
	if !slices.Equal(got, want) {
		t.Errorf("spans\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestTracedViewer switches one viewer's trace on, while others go on as they
// were, until its lease ends.
func TestTracedViewer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	spans := recorder()
	c, log := traced(ctx, t)
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	// ask returns how many spans and lines a request of a viewer leaves.
	ask := func(viewer string) (int, []string) {
		t.Helper()
		before := len(spans.Ended())
		resp, err := cl.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: viewer}, Entities: []string{"member:1", "member:2", "member:3", "member:4"}})
		if err != nil {
			t.Fatal(err)
		}
		if resp.Explain != nil || resp.Items[0].Explain != nil || resp.Items[0].Record == nil {
			t.Errorf("the answer of %s shows that it is traced: %v", viewer, resp.Items[0])
		}
		return len(spans.Ended()) - before, log.take()
	}
	if n, lines := ask("member:9"); n > 0 || len(lines) > 0 {
		t.Fatalf("%d spans before it is on, and lines %v", n, lines)
	}
	began := time.Now()
	if _, err := brokers.Trace(ctx, c.client, "member:9", time.Hour); err != nil {
		t.Fatal(err)
	}
	var n int
	var lines []string
	for n == 0 {
		n, lines = ask("member:9")
	}
	t.Logf("on after %s", time.Since(began))
	if n < 3 || len(lines) != 1 {
		t.Fatalf("%d spans, lines %v", n, lines)
	}
	for _, want := range []string{`"viewer":"member:9"`, `\"entities\":[\"member:1\"`, `\"times\":`, `\"clauses\":`, `\"map_epoch\":`, `"trace":"`} {
		if !strings.Contains(lines[0], want) {
			t.Errorf("no %s in %s", want, lines[0])
		}
	}
	if strings.Contains(lines[0], `\"text\":`) {
		t.Errorf("the records are in %s", lines[0])
	}
	if n, lines := ask("member:1"); n > 0 || len(lines) > 0 {
		t.Errorf("another viewer leaves %d spans and lines %v", n, lines)
	}
	if _, err := brokers.Trace(ctx, c.client, "member:9", time.Second); err != nil { // a shorter lease
		t.Fatal(err)
	}
	for n > 0 && ctx.Err() == nil {
		n, _ = ask("member:9")
	}
}
