package broker

import (
	"context"

	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/tap"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/tracing"
)

// maxRequestBytes bounds a request on every wire: 20,000 entities of 512
// bytes and their frames.
const maxRequestBytes = 16 << 20

// ServerOptions are what the gRPC server of this broker needs.
func (b *Broker) ServerOptions() []grpc.ServerOption {
	return append(grpctune.Server(), grpc.ForceServerCodecV2(newCodec()), grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxConcurrentStreams(1000), grpc.InTapHandle(b.refuseEarly))
}

// refuseEarly refuses on the strength of a request's headers what the gate
// would refuse anyway: in a flood, reading what is then refused takes as much
// time as answering the rest.
func (b *Broker) refuseEarly(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != feedv1.FeedService_GetFeed_FullMethodName {
		return ctx, nil
	}
	header := ""
	if values := info.Header.Get(PriorityHeader); len(values) > 0 {
		header = values[0]
	}
	if p, err := parsePriority(header); err != nil || !b.gate.full(p) {
		return ctx, nil // a fault will be told in due course
	}
	b.metrics.refuse()
	return nil, errOverloaded
}

// errOverloaded is the gate's refusal on the wire.
var errOverloaded = rpcerr.Status(overloaded)

// RegisterGRPC puts the feed service, health and reflection on s.
func (b *Broker) RegisterGRPC(s *grpc.Server) {
	feedv1.RegisterFeedServiceServer(s, grpcFeed{b: b})
	h := grpchealth.NewServer()
	h.SetServingStatus(feedv1.FeedService_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(s, h)
	reflection.Register(s)
}

type grpcFeed struct {
	feedv1.UnimplementedFeedServiceServer
	b *Broker
}

func (g grpcFeed) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	return serveGRPC(ctx, req, g.b.wireFeed)
}

func (g grpcFeed) Why(ctx context.Context, req *feedv1.WhyRequest) (*feedv1.WhyResponse, error) {
	return serveGRPC(ctx, req, g.b.Why)
}

// serveGRPC serves one method.
func serveGRPC[Req, Resp any](ctx context.Context, req Req, method func(context.Context, Req) (*Resp, error)) (*Resp, error) {
	ctx = tracing.Incoming(ctx)
	ctx, err := withHeaders(ctx, func(name string) string {
		if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
			return values[0]
		}
		return ""
	})
	if err != nil {
		return nil, rpcerr.Status(err)
	}
	resp, err := method(ctx, req)
	if err != nil {
		return nil, rpcerr.Status(err)
	}
	return resp, nil
}
