package broker

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// A broker that leaves tells so by both doors, and answers on.
func TestABrokerThatLeavesAnswersOn(t *testing.T) {
	w := newWorld(t, 2, 2)
	w.add(timelineOf(1), "r1", timeAt(1), "")
	b := w.broker()
	byHTTP := httptest.NewServer(b.Handler())
	defer byHTTP.Close()
	server := grpc.NewServer(b.ServerOptions()...)
	b.RegisterGRPC(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(b.Guard(l)) }()
	defer server.Stop()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	look := func(when string, serves healthv1.HealthCheckResponse_ServingStatus, closes bool) {
		t.Helper()
		h, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: feedv1.FeedService_ServiceDesc.ServiceName})
		if err != nil || h.Status != serves {
			t.Errorf("%s: health %v, %v", when, h, err)
		}
		if resp, err := feedv1.NewFeedServiceClient(conn).GetFeed(t.Context(), recentRequest(3)); err != nil || len(resp.Items) != 1 {
			t.Errorf("%s: by gRPC %v, %v", when, resp, err)
		}
		resp, err := http.Post(byHTTP.URL+"/v1/feed", "application/json", strings.NewReader(`{"feed":"recent","viewer":{"id":"me"},"entities":["member:1"]}`))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.Close != closes {
			t.Errorf("%s: by HTTP %d, ends its connection: %t", when, resp.StatusCode, resp.Close)
		}
	}
	look("before", healthv1.HealthCheckResponse_SERVING, false)
	b.Leave()
	look("while it leaves", healthv1.HealthCheckResponse_NOT_SERVING, true)
}
