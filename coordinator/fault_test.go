package coordinator

import (
	"errors"
	"testing"
	"time"
)

// A fault that stays is logged once a minute, though nothing fails between two
// looks at all; another one, and one that comes again after all was well, at once.
func TestAFaultIsLoggedOnceAMinute(t *testing.T) {
	f := fault{again: tellEvery}
	away, full := errors.New("etcd is away"), errors.New("no room")
	begin := time.Now()
	for i, step := range []struct {
		err    error
		looked bool
		after  time.Duration
		want   bool
	}{
		{away, true, 0, true},
		{nil, false, time.Second, false},
		{away, true, 2 * time.Second, false},
		{full, true, 3 * time.Second, true},
		{full, false, 64 * time.Second, true},
		{nil, true, 65 * time.Second, false},
		{full, true, 66 * time.Second, true},
	} {
		if got := f.isNews(step.err, step.looked, begin.Add(step.after)); got != step.want {
			t.Errorf("step %d: logged: %t", i, got)
		}
	}
}
