package broker

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/items"
	"github.com/millrace/millrace/internal/tracing"
)

// trace returns a context with which the request is traced, if the requests of its viewer are
// to be traced; else ctx.
func (b *Broker) trace(ctx context.Context, viewer string) context.Context {
	if b.traced == nil || viewer == "" || !b.traced.Has(viewer) {
		return ctx
	}
	return tracing.Force(ctx)
}

// logTraced logs a traced request in full: what was asked, how the answer was made, and what
// was answered, without the records themselves.
func (b *Broker) logTraced(ctx context.Context, req *feedv1.GetFeedRequest, resp *feedv1.GetFeedResponse, err error, took time.Duration) {
	attrs := []slog.Attr{
		slog.String("viewer", req.GetViewer().GetId()), slog.String("feed", req.GetFeed()), slog.Duration("took", took),
		slog.String("trace", trace.SpanContextFromContext(ctx).TraceID().String()), jsonAttr("request", req),
	}
	if err != nil {
		attrs = append(attrs, slog.Any("err", err))
	} else {
		shown := proto.CloneOf(resp)
		for _, it := range shown.Items {
			it.Record = nil
		}
		attrs = append(attrs, jsonAttr("answer", shown))
	}
	b.log.LogAttrs(ctx, slog.LevelInfo, "traced request", attrs...)
}

// jsonAttr returns a message as JSON text for the log.
func jsonAttr(name string, m proto.Message) slog.Attr {
	text, err := items.MarshalJSON(m)
	if err != nil {
		return slog.Any(name, err)
	}
	return slog.String(name, string(text))
}

// unexplained removes the explanation from an answer whose request did not ask for it.
func unexplained(req *feedv1.GetFeedRequest, resp *feedv1.GetFeedResponse) {
	if req.GetExplain() || resp == nil {
		return
	}
	resp.Explain = nil
	for _, it := range resp.Items {
		it.Explain = nil
	}
}
