package admission

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/millrace/millrace"
)

// Quota is how many requests a caller may send to one broker.
type Quota struct {
	PerSecond float64 `yaml:"per_second" doc:"requests a second of the caller to each broker; quotas is by the names of callers (the identity, or the header millrace-caller), and default is all others together; a caller without one has no limit"`
	Burst     int     `yaml:"burst" range:"0.." default:"a second's worth" doc:"requests at once, after a pause"`
}

// DefaultCaller names the quota, and in metrics the caller, of all requests
// whose caller has no quota of its own. They share it: a caller does not get
// more by taking another name.
const DefaultCaller = "default"

// Validate refuses a quota that lets nobody in, or is nobody's.
func (q Quota) Validate(caller string) error {
	wrong := func(key, detail, wayOut string) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "quotas." + caller + key, Detail: detail, WayOut: wayOut}
	}
	switch {
	case caller == "":
		return wrong("", "a quota of a caller without a name", "name the caller, or say default")
	case !(q.PerSecond > 0) || math.IsInf(q.PerSecond, 1):
		return wrong(".per_second", fmt.Sprintf("%v requests a second are none", q.PerSecond), "give a number above 0, or leave the caller out")
	case q.Burst < 0:
		return wrong(".burst", fmt.Sprintf("a burst of %d is none", q.Burst), "give 1 or more, or leave it out for a second's worth")
	}
	return nil
}

// quotas are the token buckets of callers.
type quotas map[string]*rate.Limiter

func newQuotas(all map[string]Quota) quotas {
	q := quotas{}
	for caller, quota := range all {
		burst := cmp.Or(quota.Burst, int(math.Ceil(quota.PerSecond)))
		q[caller] = rate.NewLimiter(rate.Limit(quota.PerSecond), burst)
	}
	return q
}

// known returns the name to count a caller by: its own if it has a quota.
func (q quotas) known(caller string) string {
	if _, ok := q[caller]; ok {
		return caller
	}
	return DefaultCaller
}

// take counts a request of a known caller, or refuses it and says when the
// next is let in.
func (q quotas) take(known string, now time.Time) error {
	bucket, ok := q[known]
	if !ok || bucket.AllowN(now, 1) {
		return nil
	}
	later := bucket.ReserveN(now, 1)
	pause := later.DelayFrom(now)
	later.CancelAt(now)
	return &millrace.Error{
		Reason: millrace.ReasonQuota, Field: CallerHeader, RetryAfter: pause,
		Detail: fmt.Sprintf("more than %v requests a second of caller %s", float64(bucket.Limit()), known),
		WayOut: "send fewer, or ask for a larger quota",
	}
}
