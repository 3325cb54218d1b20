package admission

import (
	"cmp"
	"context"

	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/permit"
)

// The headers of a request, on HTTP and in gRPC's metadata.
const (
	// PriorityHeader gives a request's [Priority]: interactive or prefetch. A request
	// without the header is interactive.
	PriorityHeader = "millrace-priority"
	// CallerHeader names the service that asks. The request counts against the [Quota]
	// of that service.
	CallerHeader = "millrace-caller"
	// TimeoutHeader says how long the caller waits, such as 200ms or 1.5s. Only HTTP has
	// it: gRPC has deadlines of its own.
	TimeoutHeader = "millrace-timeout"
)

// Priority says which requests are refused first when not all can be admitted.
type Priority uint8

// A prefetch prepares an answer that nobody waits for yet. It is admitted only while
// fewer requests are in flight than half of the limit. Everything else is interactive.
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

// WithHeaders returns ctx with what the headers of its request say. The function get
// returns the value of a header by its name, "" if it is absent. The error is a refusal of
// a priority that does not exist; ctx is then returned as it was.
func WithHeaders(ctx context.Context, get func(string) string) (context.Context, error) {
	h := Headers{Caller: CallerOf(ctx, get(CallerHeader))}
	var err error
	if h.Priority, err = ParsePriority(get(PriorityHeader)); err != nil {
		return ctx, err
	}
	return context.WithValue(ctx, headersKey{}, h), nil
}

// CallerOf returns the name whose quota counts: that of the caller's proven identity, by a
// certificate or a token, if it has one, and otherwise what the header says.
func CallerOf(ctx context.Context, header string) string {
	return cmp.Or(permit.Who(ctx).Name, header)
}

// ParsePriority returns the priority that the value of a [PriorityHeader] says, or a
// refusal.
func ParsePriority(header string) (Priority, error) {
	switch header {
	case "", "interactive":
		return Interactive, nil
	case "prefetch":
		return Prefetch, nil
	}
	return Interactive, limits.Invalid(PriorityHeader, "send interactive or prefetch", "%.100q is no priority", header)
}

// HeadersOf returns what [WithHeaders] put into ctx; without that, the zero Headers.
func HeadersOf(ctx context.Context) Headers {
	h, _ := ctx.Value(headersKey{}).(Headers)
	return h
}
