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

// Full returns [dial.ErrFull] if a member of etcd says that it is out of space. It returns nil
// if no member answers, too: state is read and served in any case.
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

// Unresponsive returns the addresses of etcd's members that do not answer. Even if others
// do, etcd can then bear the loss of fewer members.
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
