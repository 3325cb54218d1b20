package fanout

import "sync/atomic"

// workers is a pool of goroutines that stay when their work is done, up to a number: their
// stacks are large enough already, and to grow one on the way down through gRPC takes a tenth
// of a call.
type workers struct {
	jobs chan func()   // to those that wait
	done chan struct{} // closed when none may stay any more
	idle atomic.Int32
}

// maxIdle is how many goroutines stay.
const maxIdle = 64

func newWorkers() *workers { return &workers{jobs: make(chan func()), done: make(chan struct{})} }

// run runs a job beside the caller.
func (c *workers) run(job func()) {
	select {
	case c.jobs <- job:
	default:
		go c.work(job)
	}
}

func (c *workers) work(job func()) {
	for {
		job()
		if c.idle.Add(1) > maxIdle {
			c.idle.Add(-1)
			return
		}
		select {
		case job = <-c.jobs:
			c.idle.Add(-1)
		case <-c.done:
			return
		}
	}
}

// close lets the goroutines go. Jobs still run, each on one of its own.
func (c *workers) close() { close(c.done) }
