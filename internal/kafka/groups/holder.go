package groups

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace/internal/kafka"
)

// Holder returns, as text, where the member of a group that has an instance name is: the
// address that it gave, if it gave one, and the host that Kafka hears it from. It returns ""
// if no member has the name. A process that has ended keeps the name for sessionTimeout.
//
// After another process takes over a name, Kafka still tells the address that the process
// before gave. So an address that equals own, that of the asking process, is left out.
func Holder(ctx context.Context, brokers kafka.Brokers, group, instance, own string) (string, error) {
	cl, err := kafka.NewClient(brokers, nil)
	if err != nil {
		return "", err
	}
	defer cl.Close()
	described, err := kadm.NewClient(cl).DescribeGroups(ctx, group)
	if err == nil && !errors.Is(described[group].Err, kerr.GroupIDNotFound) {
		err = described[group].Err
	}
	if err != nil {
		return "", fmt.Errorf("kafka: describe the group %s: %w", group, err)
	}
	for _, m := range described[group].Members {
		if m.InstanceID != nil && *m.InstanceID == instance {
			host := strings.TrimPrefix(m.ClientHost, "/")
			if alone, _, err := net.SplitHostPort(host); err == nil {
				host = alone // the in-process Kafka of tests tells the port too
			}
			if addr, _ := kafka.ClientOf(m.ClientID); addr != "" && addr != own {
				return fmt.Sprintf("%s (Kafka hears it from %s)", addr, host), nil
			}
			return host, nil
		}
	}
	return "", nil
}
