package broker

import (
	"cmp"
	"context"
	"time"

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
// of the gate is free. Everything else is interactive.
const (
	Interactive Priority = iota
	Prefetch
)

// headers is what a request's headers say.
type headers struct {
	priority Priority
	caller   string
}

type headersKey struct{}

// withHeaders returns ctx with what the headers say that get returns; it
// returns "" for one that is absent.
func withHeaders(ctx context.Context, get func(string) string) (context.Context, error) {
	h := headers{caller: callerOf(ctx, get(CallerHeader))}
	var err error
	if h.priority, err = parsePriority(get(PriorityHeader)); err != nil {
		return ctx, err
	}
	return context.WithValue(ctx, headersKey{}, h), nil
}

// callerOf returns whose quota counts: who is known to call, whatever a header
// says.
func callerOf(ctx context.Context, header string) string {
	return cmp.Or(permit.Who(ctx).Name, header)
}

func parsePriority(header string) (Priority, error) {
	switch header {
	case "", "interactive":
		return Interactive, nil
	case "prefetch":
		return Prefetch, nil
	}
	return Interactive, limits.Invalid(PriorityHeader, "send interactive or prefetch", "%.100q is no priority", header)
}

func headersOf(ctx context.Context) headers {
	h, _ := ctx.Value(headersKey{}).(headers)
	return h
}

// withTimeout returns ctx with the deadline that a TimeoutHeader asks for.
func withTimeout(ctx context.Context, header string) (context.Context, context.CancelFunc, error) {
	if header == "" {
		return ctx, func() {}, nil
	}
	d, err := time.ParseDuration(header)
	if err != nil || d <= 0 {
		return ctx, nil, limits.Invalid(TimeoutHeader, "send a duration such as 200ms or 1.5s", "%.100q is none to wait", header)
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	return ctx, cancel, nil
}
