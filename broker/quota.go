package broker

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/millrace/millrace"
)

// Quota is how many requests a caller may send to one broker.
type Quota struct {
	PerSecond float64 `yaml:"per_second"`
	Burst     int     `yaml:"burst"` // at once, after a pause; 0: a second's worth
}

// DefaultCaller names the quota, and in metrics the caller, of all requests
// whose caller has no quota of its own. They share it: a caller does not get
// more by taking another name.
const DefaultCaller = "default"

func (q Quota) validate(caller string) error {
	switch {
	case caller == "":
		return errors.New("broker: a quota of a caller without a name")
	case !(q.PerSecond > 0) || math.IsInf(q.PerSecond, 1):
		return fmt.Errorf("broker: quota of %s: %v requests a second are none", caller, q.PerSecond)
	case q.Burst < 0:
		return fmt.Errorf("broker: quota of %s: a burst of %d", caller, q.Burst)
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
