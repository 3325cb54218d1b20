package broker

import (
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// Who watches a broker's health, as gRPC's clients do, is answered on the same
// connection for longer than an answer may take to be read.
func TestAWatchOfHealthLasts(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.add(timelineOf(1), "r1", timeAt(1), "")
	b := w.broker()
	b.TakenWithin = 100 * time.Millisecond
	conn := servedGRPC(t, b)
	watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{Service: feedv1.FeedService_ServiceDesc.ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	says := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if got, err := watch.Recv(); err != nil || got.Status != want {
			t.Errorf("health %v, %v", got, err)
		}
	}
	says(healthv1.HealthCheckResponse_SERVING)
	for range 5 {
		time.Sleep(b.TakenWithin / 2)
		if _, err := feedv1.NewFeedServiceClient(conn).GetFeed(t.Context(), recentRequest(3)); err != nil {
			t.Error(err)
		}
	}
	b.Leave()
	says(healthv1.HealthCheckResponse_NOT_SERVING)
}
