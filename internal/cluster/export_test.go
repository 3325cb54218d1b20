package cluster

import "time"

// SetRelist makes outages show sooner than in production. Call it before the
// first watcher.
func (c *Client) SetRelist(d time.Duration) { c.relist = d }
