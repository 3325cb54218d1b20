package fanout

import "sync/atomic"

// workers is a pool of goroutines. Up to maxIdle of them stay when their job is done: their
// stacks have grown already, and growing a stack during a call of gRPC takes a tenth of the
// time of the call.
type workers struct {
	jobs chan func()   // unbuffered: a send succeeds only if an idle goroutine waits
	done chan struct{} // closed by close
	idle atomic.Int32  // how many goroutines wait for a job
}

// maxIdle is how many goroutines stay idle at most.
const maxIdle = 64

func newWorkers() *workers { return &workers{jobs: make(chan func()), done: make(chan struct{})} }

// run runs a job on another goroutine: an idle one, or a new one. It does not wait.
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

// close ends the idle goroutines. Jobs may still be run, each on a new goroutine.
func (w *workers) close() { close(w.done) }
