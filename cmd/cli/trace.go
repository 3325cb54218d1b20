package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/millrace/millrace/internal/audit"
)

func traceCommand() *cobra.Command {
	var viewer string
	var d time.Duration
	var off bool
	c := &cobra.Command{
		Use:   "trace --viewer ID [--for 10m | --off]",
		Short: "Have every broker trace and log one viewer's requests for a while",
		Long: `Switches on, within a second and on every broker, a full account of one
viewer's requests: each is sampled by OpenTelemetry whatever the sampler says,
and logged with its request, its answer without the records, and how that was
made, as with "explain". It ends by itself.`,
		Args: cobra.NoArgs,
	}
	cm := clusterFlagsOf(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		cl, err := cm.reachCluster(c.Context())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cl.Close()) }()
		if off {
			if err := cl.Untrace(c.Context(), viewer); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s is not traced\n", viewer)
			return nil
		}
		if err := cl.Note(c.Context(), audit.Entry{Act: "trace", On: fmt.Sprintf("viewer %.100q", viewer), Before: "not traced", After: "traced for " + d.String()}); err != nil {
			return err
		}
		until, err := cl.Trace(c.Context(), viewer, d)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "%s is traced until %s\n", viewer, until.Format(time.RFC3339))
		return nil
	}
	f := c.Flags()
	f.StringVar(&viewer, "viewer", "", "whose requests")
	f.DurationVar(&d, "for", 10*time.Minute, "for how long")
	f.BoolVar(&off, "off", false, "end it now")
	if err := c.MarkFlagRequired("viewer"); err != nil {
		panic(err) // the flag above exists
	}
	return c
}

// startTraces sends OpenTelemetry's traces by OTLP over gRPC, as the standard
// variables OTEL_* say, and returns how to end that. Without an endpoint in
// them there are no traces.
func startTraces(ctx context.Context, service string) (stop func(context.Context) error, err error) {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		return func(context.Context) error { return nil }, nil
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
