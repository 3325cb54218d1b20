package bench

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes one sleeper at a time, precisely: it uses a timer of Linux as a file, which
// the runtime waits for as it does for the network. The runtime's own timers wake an idle
// process up to a millisecond late. A sleep in a system call would keep a processor from
// the goroutines that the sleeper has started. Both would count as latency.
type alarm struct {
	fd int      // of f
	f  *os.File // the timer
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &alarm{fd, os.NewFile(uintptr(fd), "alarm")}, nil
}

func (a *alarm) close() { _ = a.f.Close() }

// sleepUntil returns at t, or soon after; at once if t has passed.
func (a *alarm) sleepUntil(t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return nil
	}
	if err := unix.TimerfdSettime(a.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	var times [8]byte // how many times the timer expired
	_, err := a.f.Read(times[:])
	return err
}
