package broker

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// Who watches a broker's health, as gRPC's clients do, is answered on the same
// connection for longer than an answer may take to be read.
func TestAWatchOfHealthLasts(t *testing.T) {
	t.Parallel() // it waits
	w := newWorld(t, 1, 1)
	w.add(timelineOf(1), "r1", timeAt(1), "")
	b := w.broker()
	b.TakenWithin = 2 * time.Second
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
	for range 3 {
		time.Sleep(b.TakenWithin / 2)
		if _, err := feedv1.NewFeedServiceClient(conn).GetFeed(t.Context(), recentRequest(3)); err != nil {
			t.Error(err)
		}
	}
	b.Leave()
	says(healthv1.HealthCheckResponse_NOT_SERVING)
}

// A server that stops does not wait for those who watch its health.
func TestAWatchOfHealthHoldsNobodyUp(t *testing.T) {
	b := newWorld(t, 1, 1).broker()
	server := grpc.NewServer(b.ServerOptions()...)
	b.RegisterGRPC(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(b.Guard(l)) }()
	defer server.Stop()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	b.Stop(server, 10*time.Second)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it stops after %s", took)
	}
	if _, err := watch.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("who watches hears %v", err)
	}
}
