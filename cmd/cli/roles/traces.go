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

// tracesFor is how long a role that ends may take to send its last traces.
const tracesFor = 2 * time.Second

// startTraces starts to send OpenTelemetry's traces by OTLP over gRPC, as the standard
// variables OTEL_* say, and returns how to end that. It sends none if the variables name
// no endpoint. It refuses to send them in plain text beyond loopback unless insecure is
// true, since traces name viewers.
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

// checkCollector refuses an endpoint beyond loopback to which the standard variables would
// send traces in plain text, unless insecure is true.
func checkCollector(endpoint string, insecure bool) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil // a socket of this machine, or no address, which the exporter refuses
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
