package indexnode

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// panicked is a broken invariant that a question met.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("query panicked: %v", p.value) }

// contain, deferred, makes an error of a panic. What breaks one node is asked
// of the next replica at once: it must not end them all. Every goroutine that
// works on a question has it, and whoever reads for others, who wait.
func contain(err *error) {
	if broken := recover(); broken != nil {
		*err = &panicked{broken, debug.Stack()}
	}
}

// panicking reports whether an error is of a panic.
func panicking(err error) bool {
	p := (*panicked)(nil)
	return errors.As(err, &p)
}

// tellPanic counts and logs a question that panicked.
func (n *Node) tellPanic(err error) {
	if p := (*panicked)(nil); errors.As(err, &p) {
		n.counters.panics.Inc()
		n.log.Error("query panicked", "panic", p.value, "stack", string(p.stack))
	}
}
