package roles

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/secure"
)

// tracesFor is how long traces may take to be handed over in the end.
const tracesFor = 2 * time.Second

// startTraces sends OpenTelemetry's traces by OTLP over gRPC, as the standard
// variables OTEL_* say, and returns how to end that. Without an endpoint in
// them there are no traces. By plain text they go beyond loopback only if
// insecure says that they may: they name viewers.
func startTraces(ctx context.Context, service string, insecure bool) (stop func(context.Context) error, err error) {
	endpoint := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" {
		return func(context.Context) error { return nil }, nil
	}
	if err := checkCollector(endpoint, insecure); err != nil {
		return nil, err
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attribute.String("service.name", service)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(of))
	otel.SetTracerProvider(provider)
	return provider.Shutdown, nil
}

// checkCollector refuses a collector of traces that the standard variables have
// be spoken to by plain text beyond loopback.
func checkCollector(endpoint string, insecure bool) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil // a socket of this machine, or what the exporter says is no address
	}
	plain := strings.EqualFold(u.Scheme, "http")
	for _, name := range []string{"OTEL_EXPORTER_OTLP_INSECURE", "OTEL_EXPORTER_OTLP_TRACES_INSECURE"} {
		if said := os.Getenv(name); said != "" {
			plain = strings.EqualFold(said, "true")
		}
	}
	addr := u.Host
	if u.Port() == "" {
		addr = net.JoinHostPort(u.Hostname(), "80")
	}
	if !plain || (secure.Plain{Insecure: insecure}).Check(addr) == nil {
		return nil
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "OTEL_EXPORTER_OTLP_ENDPOINT", Detail: fmt.Sprintf("%s is beyond loopback, where plain text can be read and changed by others", addr),
		WayOut: "name the collector by https, or say traces.insecure: true (MILLRACE_TRACES_INSECURE=true) if the network is guarded by other means",
	}
}
