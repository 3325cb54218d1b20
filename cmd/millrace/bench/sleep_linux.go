package bench

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm wakes who sleeps when they asked for it, by a timer of the kernel that
// is waited for like the network. The runtime's timers wake an idle process up
// to a millisecond late, and who sleeps in a system call keeps what it has
// started waiting: both would be taken for latency.
type alarm struct {
	fd int
	f  *os.File
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &alarm{fd, os.NewFile(uintptr(fd), "alarm")}, nil
}

func (a *alarm) close() { _ = a.f.Close() }

// sleepUntil returns at t, or soon after.
func (a *alarm) sleepUntil(t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return nil
	}
	if err := unix.TimerfdSettime(a.fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	var times [8]byte // that the timer went off
	_, err := a.f.Read(times[:])
	return err
}
