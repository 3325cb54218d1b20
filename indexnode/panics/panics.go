// Package panics makes errors of broken invariants: what breaks one node is
// asked of the next replica at once, so a panic must not end them all.
package panics

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// panicked is a broken invariant that a question met.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("query panicked: %v", p.value) }

// Contain, deferred, makes an error of a panic. Every goroutine that works on a
// question has it, and whoever reads for others, who wait.
func Contain(err *error) {
	if broken := recover(); broken != nil {
		*err = Of(broken)
	}
}

// Of returns the error of what was recovered, with the stack of the caller.
func Of(broken any) error { return &panicked{broken, debug.Stack()} }

// In reports whether an error is of a panic.
func In(err error) bool {
	p := (*panicked)(nil)
	return errors.As(err, &p)
}

// Teller counts and logs questions that panicked.
type Teller struct {
	log   *slog.Logger
	Count prometheus.Counter
}

// NewTeller returns a teller, whose count nobody has registered.
func NewTeller(log *slog.Logger) *Teller {
	return &Teller{log: log, Count: prometheus.NewCounter(prometheus.CounterOpts{Name: "millrace_indexnode_panics_total", Help: "Questions that met a broken invariant and were answered with an error. The log has the stack of each; more than none is a bug."})}
}

// Tell counts and logs an error, if it is of a panic.
func (t *Teller) Tell(err error) {
	if p := (*panicked)(nil); errors.As(err, &p) {
		t.Count.Inc()
		t.log.Error("query panicked", "panic", p.value, "stack", string(p.stack))
	}
}
