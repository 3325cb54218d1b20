package partitioner

import (
	"testing"
	"time"
)

// A transaction is longer where more waits than it has, and only there.
func TestATransactionGrowsWithTheBacklog(t *testing.T) {
	p := pace{gather: time.Second, behind: time.Minute}
	for _, c := range []struct {
		taken   int
		waiting int64
		want    time.Duration
	}{{1, 0, time.Second}, {1000, 1000, time.Second}, {1000, 1001, time.Minute}} {
		if got := p.gatherFor(c.taken, c.waiting); got != c.want {
			t.Errorf("%d taken, %d waiting: %s, want %s", c.taken, c.waiting, got, c.want)
		}
	}
}
