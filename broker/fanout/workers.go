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
func (w *workers) run(job func()) {
	select {
	case w.jobs <- job:
	default:
		go w.work(job)
	}
}

func (w *workers) work(job func()) {
	for {
		job()
		if w.idle.Add(1) > maxIdle {
			w.idle.Add(-1)
			return
		}
		select {
		case job = <-w.jobs:
			w.idle.Add(-1)
		case <-w.done:
			return
		}
	}
}

// close lets the goroutines go. Jobs still run, each on one of its own.
func (w *workers) close() { close(w.done) }
