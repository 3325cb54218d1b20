package kafka_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// What all clients of a Kafka do is told together, under the prefix of who asks.
func TestClientMetrics(t *testing.T) {
	k := kafkatest.Fake(t)
	reg := prometheus.NewRegistry()
	reg.MustRegister(k.Brokers.Collector("test"))
	if again := k.Brokers.Collector("test"); again == nil || prometheus.NewRegistry().Register(again) != nil {
		t.Error("they cannot be asked for again")
	}
	kafkatest.Must(t, kafka.WaitReady(kafkatest.Deadline(t), k.Brokers))
	look, err := kafka.NewInspector(k.Brokers)
	kafkatest.Must(t, err)
	_, err = look.Ends(kafkatest.Deadline(t), k.Content)
	kafkatest.Must(t, err)
	look.Close()
	got := map[string]float64{}
	gather := func() {
		families, err := reg.Gather()
		kafkatest.Must(t, err)
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
	away := kafka.At("127.0.0.1:1")
	reg = prometheus.NewRegistry()
	reg.MustRegister(away.Collector("test"))
	ctx, cancel := context.WithCancel(kafkatest.Deadline(t))
	ended := make(chan error, 1)
	go func() { ended <- kafka.WaitReady(ctx, away) }()
	for got["test_kafka_connects_total failed"] <= 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		gather()
	}
	cancel()
	if err := <-ended; err == nil || got["test_kafka_connects_total failed"] <= 0 {
		t.Errorf("nothing is there: %v, %v", err, got)
	}
	if (kafka.Brokers{}).Collector("test") == nil {
		t.Error("no Kafka has no metrics")
	}
}
