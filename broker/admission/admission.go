// Package admission decides, before any work is done for a request, whether the broker
// takes it. It goes by the request's headers, the quota of its caller, and a limiter of
// how many requests are in flight. The limit follows how many the broker and its nodes can
// answer without queueing. The package also has the budgets that count what requests hold
// in memory.
package admission

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/tracing"
)

// Control admits or refuses requests by their headers alone. It asks the quota of the
// caller first, and the limiter second. A request counts the memory that it holds as a loan
// from one of the budgets. The methods of Control may be called concurrently.
type Control struct {
	limiter *limiter
	quotas  quotas

	// The budgets of memory. Arriving is for requests that have begun to arrive by gRPC,
	// Parsing for the bodies of requests by HTTP and for what any request is parsed into,
	// Answering for answers.
	Arriving, Parsing, Answering *memory.Budget

	traces *rate.Limiter // limits the traces that are sampled because callers ask for it

	shed    prometheus.Counter
	callers *prometheus.CounterVec // caller, outcome
}

// New returns a Control. callers has the quotas, by the names of the callers. bytes is the
// size of the three budgets together: a quarter each for Arriving and Parsing, half for
// Answering.
func New(callers map[string]Quota, bytes int64) *Control {
	return &Control{
		limiter: newLimiter(), quotas: newQuotas(callers), traces: rate.NewLimiter(maxTraces, maxTraces),
		Arriving:  memory.New(bytes/4, "requests that are arriving"),
		Parsing:   memory.New(bytes/4, "requests that are being read"),
		Answering: memory.New(bytes/2, "requests that are being answered"),
		shed: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "shed_total", Help: "Requests refused by their headers, because as many are under way as the broker lets in. Those refused for want of memory, or because all nodes are overloaded, are in requests_total alone."}),
		callers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "broker", Name: "caller_requests_total", Help: "Requests by caller (one that has a quota, or default) and outcome: admitted, refused for its quota."}, []string{"caller", "outcome"}),
	}
}

// maxTraces is how many traces a second are sampled because their callers ask for it. A
// caller that asks for it with every request would fill the collector, and the queue of
// spans, which then drops the spans of others.
const maxTraces = 100

// Traced returns ctx unchanged unless the caller asks to have its trace sampled. Of such
// requests, maxTraces a second keep that wish; for the others ctx is returned without it.
func (c *Control) Traced(ctx context.Context) context.Context {
	return tracing.Within(ctx, c.traces.Allow)
}

// Collectors returns the metrics of requests that were admitted and refused.
func (c *Control) Collectors() []prometheus.Collector {
	return []prometheus.Collector{c.shed, c.callers}
}

// Limit returns how many requests may be in flight at the same time now.
func (c *Control) Limit() int { return c.limiter.limit() }

// Enter admits a request or refuses it with a [millrace.Error]. If the Pass of ctx has an
// InFlight already, because a door of the broker has entered the request, Enter returns that
// one. Each caller of Enter calls Leave on what it gets.
func (c *Control) Enter(ctx context.Context) (*InFlight, error) {
	h := HeadersOf(ctx)
	a := PassOf(ctx)
	switch {
	case a == nil: // the request did not come by a door, so no quota has been asked
		if err := c.Admit(h.Caller); err != nil {
			return nil, err
		}
		a = &Pass{}
	case a.InFlight != nil:
		return a.InFlight, nil
	}
	known := c.quotas.known(h.Caller)
	of := c.quotas[known]
	if err := of.enter(known); err != nil { // Admit let it pass, but other requests of the caller have entered since
		c.callers.WithLabelValues(known, "refused").Inc()
		return nil, err
	}
	v, err := c.limiter.enter(h.Priority)
	if err != nil {
		of.leave()
		c.shed.Inc()
		return nil, err
	}
	v.of = of
	a.InFlight = v
	return v, nil
}

// Admit counts a request against the quota of its caller. It returns a refusal if the
// quota is used up, and otherwise nil.
func (c *Control) Admit(caller string) error {
	known := c.quotas.known(caller)
	err := c.quotas.take(known, time.Now())
	outcome := "admitted"
	if err != nil {
		outcome = "refused"
	}
	c.callers.WithLabelValues(known, outcome).Inc()
	return err
}

// EnterAside admits or refuses work of the broker's own that nobody waits for, such as
// shadow queries. No quota applies to it, and the limiter treats it as a prefetch.
func (c *Control) EnterAside() (*InFlight, error) { return c.limiter.enter(Prefetch) }

// Full reports whether the limiter would refuse a request of priority p now. If so, it
// counts the request as refused: the caller is to refuse it with [Overloaded].
func (c *Control) Full(p Priority) bool {
	full := c.limiter.full(p)
	if full {
		c.shed.Inc()
	}
	return full
}

// Pass says what a door, where requests of other processes come in, has done for a request
// before it parses it. A request whose context has a Pass has been counted against its
// quota. Requests that are made within the process have none.
type Pass struct {
	InFlight *InFlight    // nil until the request has entered
	Loan     *memory.Loan // for the memory of the answer; the door returns the loan
}

type passKey struct{}

// WithPass returns ctx with the Pass of its request.
func WithPass(ctx context.Context, p *Pass) context.Context {
	return context.WithValue(ctx, passKey{}, p)
}

// PassOf returns the Pass of the request of ctx; nil if it did not come by a door.
func PassOf(ctx context.Context) *Pass {
	p, _ := ctx.Value(passKey{}).(*Pass)
	return p
}

// Loan returns the loan for the memory of the answer to a request, and a function that
// is to be called when the answer is made. Where a door has made the loan, that function
// does nothing: the door returns the loan once the caller has received the answer.
func (c *Control) Loan(ctx context.Context) (*memory.Loan, func()) {
	if a := PassOf(ctx); a != nil && a.Loan != nil {
		return a.Loan, func() {}
	}
	loan := c.Answering.Borrow()
	return loan, loan.Return
}
