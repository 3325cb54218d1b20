package fanout

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// However many jobs there are at the same time all run, no more goroutines stay
// than may, those that stayed do what comes next, and none stays after the end.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newWorkers()
		for range 3 {
			var started sync.WaitGroup
			var ran atomic.Int32
			release := make(chan struct{})
			for range 2 * maxIdle {
				started.Add(1)
				c.run(func() {
					started.Done()
					<-release
					ran.Add(1)
				})
			}
			started.Wait() // all at once
			if n := c.idle.Load(); n != 0 {
				t.Errorf("%d goroutines wait while others had to be made", n)
			}
			close(release)
			synctest.Wait()
			if n := ran.Load(); n != 2*maxIdle {
				t.Errorf("%d jobs of %d ran", n, 2*maxIdle)
			}
			if n := c.idle.Load(); n != maxIdle {
				t.Errorf("%d goroutines stay, want %d", n, maxIdle)
			}
		}
		c.close() // or synctest finds those that stay
		synctest.Wait()
		ran := false
		c.run(func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("a job after the end did not run")
		}
	})
}
