package admission

import (
	"cmp"
	"context"

	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/permit"
)

// The headers of a request, on HTTP and in gRPC's metadata.
const (
	// PriorityHeader says a request's [Priority]: interactive, which is also
	// meant without it, or prefetch.
	PriorityHeader = "millrace-priority"
	// CallerHeader names the service that asks, whose [Quota] counts.
	CallerHeader = "millrace-caller"
	// TimeoutHeader says how long the caller waits, such as 200ms or 1.5s. On
	// HTTP alone: gRPC has deadlines of its own.
	TimeoutHeader = "millrace-timeout"
)

// Priority says who goes first when not all requests can be let in.
type Priority uint8

// A prefetch prepares what nobody waits for yet; it is let in only while half
// of the limiter is free. Everything else is interactive.
const (
	Interactive Priority = iota
	Prefetch
)

// Headers is what a request's headers say.
type Headers struct {
	Priority Priority
	Caller   string
}

type headersKey struct{}

// WithHeaders returns ctx with what the headers say that get returns; it
// returns "" for one that is absent.
func WithHeaders(ctx context.Context, get func(string) string) (context.Context, error) {
	h := Headers{Caller: CallerOf(ctx, get(CallerHeader))}
	var err error
	if h.Priority, err = ParsePriority(get(PriorityHeader)); err != nil {
		return ctx, err
	}
	return context.WithValue(ctx, headersKey{}, h), nil
}

// CallerOf returns whose quota counts: who is known to call, whatever a header
// says.
func CallerOf(ctx context.Context, header string) string {
	return cmp.Or(permit.Who(ctx).Name, header)
}

// ParsePriority reads a [PriorityHeader].
func ParsePriority(header string) (Priority, error) {
	switch header {
	case "", "interactive":
		return Interactive, nil
	case "prefetch":
		return Prefetch, nil
	}
	return Interactive, limits.Invalid(PriorityHeader, "send interactive or prefetch", "%.100q is no priority", header)
}

// HeadersOf returns what the headers said of the request of ctx.
func HeadersOf(ctx context.Context) Headers {
	h, _ := ctx.Value(headersKey{}).(Headers)
	return h
}
