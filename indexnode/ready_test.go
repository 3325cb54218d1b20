package indexnode

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/indexnode/cache"
)

// A node whose log has not been looked at for long is not ready, also while
// whoever would say that its partitions are stale waits for Kafka.
func TestANodeThatWaitsForKafkaIsNotReady(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	if err := n.Ready(); err != nil {
		t.Fatal(err)
	}
	n.replicas.Serve(7, time.Now().Add(-time.Hour))
	if err := n.Ready(); err == nil || !strings.Contains(err.Error(), "as the log was 3600 s ago, and Kafka") {
		t.Errorf("ready: %v", err)
	}
}

// Nor is one that has not looked at the models that serve.
func TestANodeThatWaitsForModelsIsNotReady(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	if err := n.Ready(); err != nil {
		t.Fatal(err)
	}
	n.admission.Follow(nil, nil)
	if err := n.Ready(); err == nil || err.Error() != "waiting for the models that serve" {
		t.Errorf("%v", err)
	}
}
