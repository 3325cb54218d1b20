//go:build !linux

package bench

import "time"

// alarm wakes a sleeper, with the precision of the runtime's timers.
type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

func (*alarm) close() {}

func (*alarm) sleepUntil(t time.Time) error {
	time.Sleep(time.Until(t))
	return nil
}
