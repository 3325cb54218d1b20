package doors

import (
	"context"

	"google.golang.org/grpc/codes"
	grpchealth "google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// checks is gRPC's health service, with one difference: calls of Watch end when the
// broker's server stops.
type checks struct {
	*grpchealth.Server
	open context.Context    // ends when end is called
	end  context.CancelFunc // ends all calls of Watch; [Doors.Stop] calls it
}

func newChecks() *checks {
	c := &checks{Server: grpchealth.NewServer()}
	c.open, c.end = context.WithCancel(context.Background())
	return c
}

// Watch implements healthv1.HealthServer.
func (c *checks) Watch(req *healthv1.HealthCheckRequest, s healthv1.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	defer context.AfterFunc(c.open, cancel)()
	err := c.Server.Watch(req, &watching{s, ctx})
	if c.open.Err() != nil {
		return status.Error(codes.Unavailable, "the broker stops")
	}
	return err
}

// watching is the stream of a call of Watch that lasts until ctx ends.
type watching struct {
	healthv1.Health_WatchServer
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (w *watching) Context() context.Context { return w.ctx }
