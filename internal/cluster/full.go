package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// ErrFull is that etcd raises its alarm NOSPACE: it answers, and takes no write, so
// that nobody leads either.
var ErrFull = errors.New("cluster: etcd is out of space (its alarm NOSPACE), and takes no write")

// FullWayOut is what to do about [ErrFull].
const FullWayOut = "free its space with etcdctl: compact, defrag, then alarm disarm; if it is full again soon, raise its quota-backend-bytes"

// Full is an [ErrFull] if an etcd of the cluster says so, and nil if none can be
// asked: reading goes on all the same.
func (c *Client) Full(ctx context.Context) error {
	for _, endpoint := range c.etcd.Endpoints() {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		status, err := c.etcd.Status(ctx, endpoint)
		cancel()
		if err != nil {
			continue
		}
		for _, alarm := range status.Errors {
			if strings.Contains(alarm, "NOSPACE") {
				return fmt.Errorf("%w; %s holds %d MiB", ErrFull, endpoint, status.DbSize>>20)
			}
		}
	}
	return nil
}
