package kafka

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What all clients of a Kafka do is told together, under the prefix of who asks.
func TestClientMetrics(t *testing.T) {
	k := fake(t)
	reg := prometheus.NewRegistry()
	reg.MustRegister(k.brokers.Collector("test"))
	if again := k.brokers.Collector("test"); again == nil || prometheus.NewRegistry().Register(again) != nil {
		t.Error("they cannot be asked for again")
	}
	must(t, WaitReady(deadline(t), k.brokers))
	look, err := NewInspector(k.brokers)
	must(t, err)
	_, err = look.Ends(deadline(t), k.content)
	must(t, err)
	look.Close()
	got := map[string]float64{}
	gather := func() {
		families, err := reg.Gather()
		must(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				got[name] = m.GetCounter().GetValue()
			}
		}
	}
	gather()
	for _, name := range []string{"test_kafka_requests_total answered ListOffsets", "test_kafka_request_seconds_total ListOffsets", "test_kafka_read_bytes_total", "test_kafka_written_bytes_total", "test_kafka_connects_total opened"} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	for name := range got {
		if !strings.HasPrefix(name, "test_kafka_") {
			t.Errorf("%s has no prefix", name)
		}
	}

	// A Kafka that is not there.
	away := At("127.0.0.1:1")
	reg = prometheus.NewRegistry()
	reg.MustRegister(away.Collector("test"))
	ctx, cancel := context.WithCancel(deadline(t))
	ended := make(chan error, 1)
	go func() { ended <- WaitReady(ctx, away) }()
	for got["test_kafka_connects_total failed"] <= 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		gather()
	}
	cancel()
	if err := <-ended; err == nil || got["test_kafka_connects_total failed"] <= 0 {
		t.Errorf("nothing is there: %v, %v", err, got)
	}
	if (Brokers{}).Collector("test") == nil {
		t.Error("no Kafka has no metrics")
	}
}
