package broker

import (
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/millrace/millrace"
)

// gate lets in as many requests at the same time as the broker and its nodes
// answer without queueing, and refuses the others before any work is done. The
// number follows the time that answers take, against the time they took
// before (failsafe-go's adaptive limiter).
type gate struct {
	adaptivelimiter.AdaptiveLimiter[any]
}

// The bounds of requests in flight, where it starts, and how far above what
// is in flight it may rise, for bursts.
const (
	minInFlight   = 20
	maxInFlight   = 2000
	firstInFlight = 200
	burstFactor   = 5
)

func newGate() *gate {
	return &gate{adaptivelimiter.NewBuilder[any]().WithLimits(minInFlight, maxInFlight, firstInFlight).WithMaxLimitFactor(burstFactor).Build()}
}

// enter returns how to leave again: with whether the request was answered
// completely. Only then does its time say something; what waited for a lost
// node until its deadline would close the gate for all others.
func (g *gate) enter(p Priority) (leave func(complete bool), err error) {
	if p == Prefetch && 2*g.Inflight() >= g.Limit() {
		return nil, &millrace.Error{Reason: millrace.ReasonOverloaded, Detail: "the broker is too busy to prefetch", WayOut: "prefetch later or less"}
	}
	permit, ok := g.TryAcquirePermit()
	if !ok {
		return nil, &millrace.Error{Reason: millrace.ReasonOverloaded, Detail: "the broker is overloaded", WayOut: "try again after a second, less often if it happens again"}
	}
	return func(complete bool) {
		if complete {
			permit.Record()
		} else {
			permit.Drop()
		}
	}, nil
}
