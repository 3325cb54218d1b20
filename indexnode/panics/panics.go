// Package panics turns panics, by which code reports a broken invariant, into errors. If one
// node fails to answer, a broker asks another replica at once. So a question (what a request
// asks a node for) that panics must not end the process, or it would end one node after the
// other.
package panics

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// panicked is the error of a panic that a question met.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("query panicked: %v", p.value) }

// Contain, deferred, sets *err to an error if the function panics. Every goroutine that works
// on a question defers it, and so does a read for which others wait.
func Contain(err *error) {
	if broken := recover(); broken != nil {
		*err = Of(broken)
	}
}

// Of returns an error for a recovered value, with the stack of the caller.
func Of(broken any) error { return &panicked{broken, debug.Stack()} }

// In reports whether an error is or wraps one that Contain or Of made.
func In(err error) bool {
	p := (*panicked)(nil)
	return errors.As(err, &p)
}

// Teller counts and logs questions that panicked. Count is not registered by this package.
type Teller struct {
	log   *slog.Logger
	Count prometheus.Counter
}

// NewTeller returns a teller that logs to log. The caller registers its Count.
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
