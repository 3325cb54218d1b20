package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/millrace/millrace/internal/cluster/dial"
)

// Full returns a [dial.ErrFull] if an etcd of the cluster says that it is full, and nil
// if none can be asked: reading goes on all the same.
func (c *Client) Full(ctx context.Context) error {
	for _, endpoint := range c.etcd.Endpoints() {
		ctx, cancel := context.WithTimeout(ctx, CallTimeout)
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

// Unresponsive returns those of the addresses of etcd that do not answer. Others do, or
// no client would be there; but fewer of them may fail before none does.
func (c *Client) Unresponsive(ctx context.Context) []string {
	endpoints := c.etcd.Endpoints()
	unresponsive := make([]string, len(endpoints))
	var asked sync.WaitGroup
	for i, endpoint := range endpoints {
		asked.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, CallTimeout)
			defer cancel()
			_, err := c.etcd.Status(ctx, endpoint)
			if _, answers := errors.AsType[rpctypes.EtcdError](err); err != nil && !answers {
				unresponsive[i] = endpoint
			}
		})
	}
	asked.Wait()
	return slices.DeleteFunc(unresponsive, func(s string) bool { return s == "" })
}
