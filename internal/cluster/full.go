package cluster

import (
	"context"
	"fmt"
	"github.com/millrace/millrace/internal/cluster/dial"
	"strings"
)

// Full is an [dial.ErrFull] if an etcd of the cluster says so, and nil if none can be
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
				return fmt.Errorf("%w; %s holds %d MiB", dial.ErrFull, endpoint, status.DbSize>>20)
			}
		}
	}
	return nil
}
