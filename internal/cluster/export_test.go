package cluster

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster/datadir"
)

// EtcdConfig is how a client calls etcd.
func EtcdConfig(c Config) (clientv3.Config, error) { return c.etcd() }

// Patient reports whether who begins to watch gives etcd the time of a whole
// call before it goes on by what it has.
func (c *Client) Patient() bool { return c.FirstCall() == CallTimeout }

// Read has others wait who read something else than the map, until done.
func (c *Client) Read() (done func()) {
	c.reading <- struct{}{}
	return func() { <-c.reading }
}

// SetRelist makes outages show sooner than in production. Call it before the
// first watcher.
func (c *Client) SetRelist(d time.Duration) { c.relist = d }

// SetMaxHeld changes the bound of what a client holds of etcd, until the test
// ends.
func SetMaxHeld(t *testing.T, bytes int) {
	was := maxHeldBytes
	maxHeldBytes = bytes
	t.Cleanup(func() { maxHeldBytes = was })
}

// Held returns what the client holds of etcd beside the map, in bytes.
func (c *Client) Held() int {
	c.held.Lock()
	defer c.held.Unlock()
	return c.held.bytes
}

// SetMaxAnswer changes the bound of an answer, for clients opened later, until
// the test ends.
func SetMaxAnswer(t *testing.T, bytes int) {
	was := maxAnswerBytes
	maxAnswerBytes = bytes
	t.Cleanup(func() { maxAnswerBytes = was })
}

// SetMaxHistory changes how many acts are kept, until the test ends.
func SetMaxHistory(t *testing.T, acts int) {
	was := maxHistory
	maxHistory = acts
	t.Cleanup(func() { maxHistory = was })
}

// Unwritten returns how many files are to be written again, and for how long.
func (c *Client) Unwritten() (files int, seconds float64) {
	return len(c.unwritten.Left()), datadir.SecondsSince(c.unwritten.Since())
}
