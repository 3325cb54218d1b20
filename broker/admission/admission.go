// Package admission lets requests in before any work is done for them: by their
// headers, the quota of their caller, and a limiter of how many are in flight, whose limit
// follows what the broker and its nodes answer without queueing. What a request holds in memory is
// counted here.
package admission

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/tracing"
)

// Control lets requests in, by their headers alone: first the quota of the caller is asked,
// and then the limiter. The memory that a request holds is a loan of a budget.
type Control struct {
	limiter *limiter
	quotas  quotas

	// The budgets of memory: what has arrived by gRPC, all other bodies and what
	// parsing takes, and answers.
	Arriving, Parsing, Answering *memory.Budget

	traces *rate.Limiter // of those that callers want sampled

	shed    prometheus.Counter
	callers *prometheus.CounterVec // caller, outcome
}

// New returns a control of requests that take so many bytes together.
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

// maxTraces is how many traces a second are sampled because their callers say so: one
// that says it of every request would fill the queue of spans, which drops those of
// others then, and the collector.
const maxTraces = 100

// Traced returns ctx, whose caller's wish to have its trace sampled is heeded for so
// many a second.
func (c *Control) Traced(ctx context.Context) context.Context {
	return tracing.Within(ctx, c.traces.Allow)
}

// Collectors are the metrics of what is let in.
func (c *Control) Collectors() []prometheus.Collector {
	return []prometheus.Collector{c.shed, c.callers}
}

// Limit is how many requests are let in at the same time.
func (c *Control) Limit() int { return c.limiter.limit() }

// Enter lets a request in, or refuses it. One that a door has let in already
// is let in as it was.
func (c *Control) Enter(ctx context.Context) (*InFlight, error) {
	h := HeadersOf(ctx)
	a := PassOf(ctx)
	switch {
	case a == nil: // no door has seen it
		if err := c.Admit(h.Caller); err != nil {
			return nil, err
		}
		a = &Pass{}
	case a.InFlight != nil:
		return a.InFlight, nil
	}
	known := c.quotas.known(h.Caller)
	of := c.quotas[known]
	if err := of.enter(known); err != nil { // others of it came since it was admitted
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

// Admit holds a caller to its quota.
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

// EnterAside lets in work that nobody waits for, under the same limit as a prefetch.
func (c *Control) EnterAside() (*InFlight, error) { return c.limiter.enter(Prefetch) }

// Full reports whether the limiter would refuse a request now, and counts that it
// is refused.
func (c *Control) Full(p Priority) bool {
	full := c.limiter.full(p)
	if full {
		c.shed.Inc()
	}
	return full
}

// Pass is how far a door has let a request in before it is parsed. Requests
// of callers in the process have none.
type Pass struct {
	InFlight *InFlight
	Loan     *memory.Loan // for the answer, which the door returns
}

type passKey struct{}

// WithPass returns the context of a request that a door has let in so far.
func WithPass(ctx context.Context, p *Pass) context.Context {
	return context.WithValue(ctx, passKey{}, p)
}

// PassOf returns how far a door has let a request in; nil: no door has seen it.
func PassOf(ctx context.Context) *Pass {
	p, _ := ctx.Value(passKey{}).(*Pass)
	return p
}

// Loan returns what the answer to a request takes of the budget, and what is
// to be called in the end. It is the door's, if there is one, until the caller
// has taken the answer.
func (c *Control) Loan(ctx context.Context) (*memory.Loan, func()) {
	if a := PassOf(ctx); a != nil && a.Loan != nil {
		return a.Loan, func() {}
	}
	loan := c.Answering.Borrow()
	return loan, loan.Return
}
