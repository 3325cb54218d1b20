package admission

import (
	"cmp"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/millrace/millrace"
)

// Quota is how many requests a caller may send to one broker each second, and how many it
// may have in flight there at the same time. If PerSecond is zero, there is no limit per
// second, and AtOnce must be set. If Burst is zero, it is PerSecond, rounded up. If AtOnce is
// zero, there is no limit at the same time.
type Quota struct {
	PerSecond float64 `yaml:"per_second" doc:"requests a second of the caller to each broker; quotas is by the names of callers (the identity, or the header millrace-caller), and default is all others together; a caller without one has no limit"`
	Burst     int     `yaml:"burst" range:"0.." default:"a second's worth" doc:"requests at once, after a pause"`
	AtOnce    int     `yaml:"at_once" range:"0.." doc:"requests of the caller that each broker answers at the same time, however much each costs; left out: no limit of its own"`
}

// DefaultCaller is the name of the quota of all requests whose caller has no quota of its
// own, and the name of their caller in metrics. These callers share the quota, so that none
// gets more by taking another name.
const DefaultCaller = "default"

// Validate returns an error if the quota of the caller admits no request, or if the caller
// has no name.
func (q Quota) Validate(caller string) error {
	wrong := func(key, detail, wayOut string) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "quotas." + caller + key, Detail: detail, WayOut: wayOut}
	}
	switch {
	case caller == "":
		return wrong("", "a quota of a caller without a name", "name the caller, or say default")
	case q.PerSecond == 0 && q.AtOnce > 0 && q.Burst >= 0: // valid: it limits requests at the same time, and not those per second
	case !(q.PerSecond > 0) || math.IsInf(q.PerSecond, 1):
		return wrong(".per_second", fmt.Sprintf("%v requests a second are not above 0", q.PerSecond), "give a number above 0, or leave the caller out")
	case q.AtOnce < 0:
		return wrong(".at_once", fmt.Sprintf("%d requests at the same time are none", q.AtOnce), "give 1 or more, or leave it out")
	case q.Burst < 0:
		return wrong(".burst", fmt.Sprintf("a burst of %d is below 1", q.Burst), "give 1 or more, or leave it out for a second's worth")
	}
	return nil
}

// quotas are the shares of the callers that have a quota, by name.
type quotas map[string]*share

// share is the quota of a caller, and how many requests it has in flight. A nil share is
// that of a caller without a quota.
type share struct {
	rate   *rate.Limiter
	atOnce int64        // how many requests may be in flight; 0: no limit
	taken  atomic.Int64 // how many are in flight
}

func newQuotas(all map[string]Quota) quotas {
	q := quotas{}
	for caller, quota := range all {
		burst := cmp.Or(quota.Burst, int(math.Ceil(quota.PerSecond)))
		s := &share{rate: rate.NewLimiter(rate.Limit(quota.PerSecond), burst), atOnce: int64(quota.AtOnce)}
		if quota.PerSecond == 0 {
			s.rate.SetLimit(rate.Inf)
		}
		q[caller] = s
	}
	return q
}

// known returns the name that a caller is counted under: its own if it has a quota, and
// otherwise DefaultCaller.
func (q quotas) known(caller string) string {
	if _, ok := q[caller]; ok {
		return caller
	}
	return DefaultCaller
}

// take counts a request of a caller at the time now, by a name that q.known returned. The
// error is a refusal that says when to try again: when the rate admits the next request, or
// after a second if too many requests are in flight.
func (q quotas) take(known string, now time.Time) error {
	s := q[known]
	if s.busy() {
		return s.refusal(known)
	}
	if s == nil || s.rate.AllowN(now, 1) {
		return nil
	}
	later := s.rate.ReserveN(now, 1)
	pause := later.DelayFrom(now)
	later.CancelAt(now)
	return exceeded(pause, fmt.Sprintf("more than %v requests a second of caller %s", float64(s.rate.Limit()), known))
}

// busy reports whether the caller has as many requests in flight as it may.
func (s *share) busy() bool { return s != nil && s.atOnce > 0 && s.taken.Load() >= s.atOnce }

// enter counts one more request in flight, or refuses it.
func (s *share) enter(known string) error {
	if s == nil {
		return nil
	}
	if s.taken.Add(1) > s.atOnce && s.atOnce > 0 {
		s.leave()
		return s.refusal(known)
	}
	return nil
}

func (s *share) leave() {
	if s != nil {
		s.taken.Add(-1)
	}
}

func (s *share) refusal(known string) error {
	return exceeded(time.Second, fmt.Sprintf("%d requests of caller %s are under way, and more may not be at the same time", s.atOnce, known))
}

func exceeded(pause time.Duration, detail string) error {
	return &millrace.Error{
		Reason: millrace.ReasonQuota, Field: CallerHeader, RetryAfter: pause,
		Detail: detail, WayOut: "send fewer, or ask for a larger quota",
	}
}
