package keyspace

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Latest is a value with a fault, which is nil if nothing is wrong with it. One goroutine
// replaces both, and others read them and wait for changes.
type Latest[T any] struct {
	mu struct {
		sync.Mutex
		value   T
		fault   error
		since   time.Time     // since when there has been a fault; zero if there is none
		changed chan struct{} // closed and replaced by Set
	}
}

// NewLatest returns a value without a fault.
func NewLatest[T any](v T) *Latest[T] {
	l := &Latest[T]{}
	l.mu.value, l.mu.changed = v, make(chan struct{})
	return l
}

// Get returns the value and its fault.
func (l *Latest[T]) Get() (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.value, l.mu.fault
}

// Changed returns a channel that is closed at the next Set.
func (l *Latest[T]) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.changed
}

// Set replaces the value and its fault, and closes the channel of Changed.
func (l *Latest[T]) Set(v T, fault error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.value, l.mu.fault = v, fault
	switch {
	case fault == nil:
		l.mu.since = time.Time{}
	case l.mu.since.IsZero():
		l.mu.since = time.Now()
	}
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

// FaultSince returns the fault, and since when every Set has had some fault; the zero time
// and nil if there is no fault.
func (l *Latest[T]) FaultSince() (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.since, l.mu.fault
}

// SameFault reports whether two faults have the same text.
func SameFault(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// fewest is how many faults Few names at most.
const fewest = 5

// Few joins the first few of some faults, and says how many more there are; nil if there
// are none. The caller sorts them, so that the same faults give the same text, which is
// then logged only once.
func Few(faults []error) error {
	if more := len(faults) - fewest; more > 0 {
		faults = append(faults[:fewest:fewest], fmt.Errorf("cluster: and %d more", more))
	}
	return errors.Join(faults...)
}
