package keyspace

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Latest is a value that one goroutine replaces and others read and wait for,
// and what is wrong with it.
type Latest[T any] struct {
	mu struct {
		sync.Mutex
		value   T
		fault   error
		since   time.Time // of fault; zero without one
		changed chan struct{}
	}
}

// NewLatest returns a value without a fault.
func NewLatest[T any](v T) *Latest[T] {
	l := &Latest[T]{}
	l.mu.value, l.mu.changed = v, make(chan struct{})
	return l
}

// Get returns the value and what is wrong with it.
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

// Set replaces the value and the fault and wakes whoever waits.
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

// FaultSince returns the present fault, nil without one, and when it began.
func (l *Latest[T]) FaultSince() (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.since, l.mu.fault
}

// SameFault compares faults as the reader sees them.
func SameFault(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// fewest is how many faults are told.
const fewest = 5

// Few joins the first few of many faults. Give them in an order, so that the same faults are
// the same text, which is logged once.
func Few(faults []error) error {
	if more := len(faults) - fewest; more > 0 {
		faults = append(faults[:fewest:fewest], fmt.Errorf("cluster: and %d more", more))
	}
	return errors.Join(faults...)
}
