package minicluster

import (
	"fmt"
	"net"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Kafka is a Kafka broker inside this process, with its log on disk. It is for development
// and tests. Tests of exactly-once need a real Kafka.
type Kafka struct {
	cluster *kfake.Cluster
}

// StartKafka starts the broker with its log in dir, listening on listen, host:port.
func StartKafka(dir, listen string) (*Kafka, error) {
	c, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.ListenFn(func(network, _ string) (net.Listener, error) { return net.Listen(network, listen) }),
		kfake.DataDir(filepath.Join(dir, "kafka")),
	)
	if err != nil {
		return nil, fmt.Errorf("kafka on %s: %w", listen, err)
	}
	return &Kafka{c}, nil
}

// Addr returns the broker's address, host:port.
func (k *Kafka) Addr() string { return k.cluster.ListenAddrs()[0] }

// Close flushes the log and stops the broker.
func (k *Kafka) Close() { k.cluster.Close() }
