package answers

import (
	"time"

	"go.opentelemetry.io/otel"
	attr "go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// tracer makes the spans of this package. It does nothing unless the process installs a
// provider of OpenTelemetry.
var tracer = otel.Tracer("github.com/millrace/millrace/indexnode")

// describe adds the stages of an answer to its span: when each ended, and how many records
// were left after it, or for the last stage how many were capped.
func (s *Server) describe(span trace.Span, resp *nodev1.QueryResponse, resolved, scanned, ranked time.Time) {
	stages := resp.GetStages()
	span.SetAttributes(
		attr.String("node", string(s.id)), attr.Int("partitions", len(resp.GetPartitions().GetAnswered())),
		attr.String("model", resp.GetModel()), attr.String("execution", resp.GetExecution()),
		attr.Int("items", len(resp.GetItems())),
	)
	span.AddEvent("resolved", trace.WithTimestamp(resolved), trace.WithAttributes(attr.Int64("candidates", stages.GetCandidates())))
	span.AddEvent("scanned", trace.WithTimestamp(scanned), trace.WithAttributes(attr.Int64("scored", stages.GetScored())))
	span.AddEvent("ranked", trace.WithTimestamp(ranked), trace.WithAttributes(attr.Int64("capped", stages.GetCapped())))
}
