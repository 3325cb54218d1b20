package roles

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/millrace/millrace/internal/logs"
	"github.com/millrace/millrace/internal/tracing"
)

// Spans go to the collector that the standard variables name.
func TestTracesAreExported(t *testing.T) {
	got := make(chan string, 1)
	collector := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var req emptypb.Empty // which keeps the fields that it does not know
		if err := s.RecvMsg(&req); err != nil {
			return err
		}
		method, _ := grpc.MethodFromServerStream(s)
		select {
		case got <- method + " " + string(req.ProtoReflect().GetUnknown()):
		default:
		}
		return s.SendMsg(&emptypb.Empty{})
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go collector.Serve(l)
	t.Cleanup(collector.Stop)
	before := otel.GetTracerProvider()
	t.Cleanup(func() { otel.SetTracerProvider(before) })

	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	stop, err := startTraces(t.Context(), "millrace-test", false)
	if err != nil {
		t.Fatal(err)
	}
	_, span := otel.Tracer("test").Start(t.Context(), "a span to export")
	span.End()
	if err := stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	sent := <-got
	for _, want := range []string{"/opentelemetry.proto.collector.trace.v1.TraceService/Export", "a span to export", "millrace-test"} {
		if !strings.Contains(sent, want) {
			t.Errorf("the collector got %q, without %q", sent, want)
		}
	}
}

// Traces go beyond loopback by plain text only where somebody says so.
func TestTracesStayOnLoopback(t *testing.T) {
	for _, c := range []struct {
		endpoint, plain string
		insecure        bool
		refused         bool
	}{
		{"http://collector:4317", "", false, true},
		{"http://collector", "", false, true},
		{"https://collector:4317", "true", false, true},
		{"http://collector:4317", "", true, false},
		{"http://collector:4317", "false", false, false},
		{"https://collector:4317", "", false, false},
		{"http://127.0.0.1:4317", "", false, false},
		{"http://localhost", "true", false, false},
		{"unix:///run/collector", "true", false, false},
	} {
		t.Setenv("OTEL_EXPORTER_OTLP_INSECURE", c.plain)
		if err := checkCollector(c.endpoint, c.insecure); (err != nil) != c.refused {
			t.Errorf("%+v: %v", c, err)
		}
	}
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4317")
	if _, err := startTraces(t.Context(), "millrace-test", false); err == nil {
		t.Error("it starts")
	}
}

// What is logged of a traced viewer is printed though the level is above it.
func TestTracedIsLogged(t *testing.T) {
	var out bytes.Buffer
	h, err := logs.New(&out, logs.Text, logs.NewLevels(logs.Setting{Level: slog.LevelWarn}), tracing.Forced)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(h).With("a", 1)
	log.InfoContext(context.Background(), "silent")
	log.InfoContext(tracing.Force(context.Background()), "told")
	if got := out.String(); strings.Contains(got, "silent") || !strings.Contains(got, "told") {
		t.Errorf("logged %q", got)
	}
}
