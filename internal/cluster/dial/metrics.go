package dial

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Metrics count a client's calls of etcd. Their labels are the methods of etcd and the
// codes of gRPC, so that there are few series.
type Metrics struct {
	calls   *prometheus.CounterVec   // by method and code
	seconds *prometheus.HistogramVec // by method
	streams *prometheus.CounterVec   // by method and code
}

// NewMetrics returns Metrics at 0.
func NewMetrics() *Metrics {
	return &Metrics{
		calls:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_etcd_calls_total", Help: "Calls of etcd by method and gRPC's code; OK are those that were answered."}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "millrace_etcd_call_seconds", Help: "Time of calls of etcd until they were answered or failed.", Buckets: prometheus.ExponentialBucketsRange(0.0005, 10, 12)}, []string{"method"}),
		streams: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_etcd_streams_total", Help: "Streams of etcd (of watches, and of leases that are kept) by method and gRPC's code when they were opened."}, []string{"method", "code"}),
	}
}

// All returns the collectors, to register.
func (m *Metrics) All() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.seconds, m.streams}
}

// Options returns options for a connection whose calls and streams are to be counted.
func (m *Metrics) Options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(m.unary), grpc.WithChainStreamInterceptor(m.stream)}
}

func (m *Metrics) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	began := time.Now()
	err := call(ctx, method, req, reply, cc, opts...)
	m.calls.WithLabelValues(method, status.Code(err).String()).Inc()
	m.seconds.WithLabelValues(method).Observe(time.Since(began).Seconds())
	return err
}

func (m *Metrics) stream(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, d, cc, method, opts...)
	m.streams.WithLabelValues(method, status.Code(err).String()).Inc()
	return s, err
}
