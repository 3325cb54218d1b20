// Package doors is how callers reach a broker: gRPC, and HTTP with Connect and JSON,
// which OpenAPI describes. A door lets a request in by its headers, reads it within
// the bounds of its budget, and writes the answer in the form that was asked for.
package doors

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/api/millrace/feed/v1/feedv1connect"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/internal/arrivals"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/tracing"
)

// Config is what doors work with.
type Config struct {
	Admission *admission.Control
	Permit    *permit.Policy // nil: whoever reaches the broker may everything
	// Feed answers a request for a feed. The items are among the unknown fields of
	// its answer, as [items.Records] writes them.
	Feed func(context.Context, *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error)
	Why  func(context.Context, *feedv1.WhyRequest) (*feedv1.WhyResponse, error)
	// Refused is told why a door refuses a request, which Feed and Why then never see.
	Refused func(error)
	// Shed is called in its place where the broker is overloaded and only the headers of
	// the request were read.
	Shed func()
	Log  *slog.Logger
}

// Doors is the doors of a broker: gRPC, and HTTP with Connect and JSON.
type Doors struct {
	// ArriveWithin is how long a request may take to arrive, and TakenWithin how
	// long an answer may take to be read.
	ArriveWithin, TakenWithin time.Duration

	admission *admission.Control
	permit    *permit.Policy
	feed      func(context.Context, *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error)
	why       func(context.Context, *feedv1.WhyRequest) (*feedv1.WhyResponse, error)
	refused   func(error)
	shed      func()

	checks     *checks
	reflection *memory.Budget // of answers of gRPC's reflection
	leaving    atomic.Bool    // see Leave
}

// arriveWithin is how long a request may take to arrive, from its first byte, and
// takenWithin how long a caller may take to read an answer, unless somebody says
// otherwise.
const (
	arriveWithin = 10 * time.Second
	takenWithin  = 30 * time.Second
)

// New returns the doors of a broker.
func New(c Config) *Doors {
	return &Doors{
		ArriveWithin: arriveWithin, TakenWithin: takenWithin,
		admission: c.Admission, permit: c.Permit, feed: outward(c.Feed, c.Log), why: outward(c.Why, c.Log), refused: c.Refused, shed: c.Shed,
		checks: newChecks(), reflection: memory.New(reflectionBytes, "reflection"),
	}
}

// outward returns a method whose callers are not told what the broker, or a node behind it,
// says of itself in an error that is no refusal: addresses, say, or paths. The log has it, by
// a word that the caller is told.
func outward[Req, Resp any](method func(context.Context, Req) (*Resp, error), log *slog.Logger) func(context.Context, Req) (*Resp, error) {
	return func(ctx context.Context, req Req) (*Resp, error) {
		resp, err := method(ctx, req)
		if err == nil || rpcerr.IsRefusal(err) || errors.Is(err, context.Canceled) {
			return resp, err
		}
		word := strings.ToLower(rand.Text()[:8])
		log.Error("a request failed", "ref", word, "err", err)
		return nil, fmt.Errorf("an internal error: the broker's log has it, with ref=%s", word)
	}
}

// The bounds of a gRPC connection. Many calls at a time are usual: a service
// has one connection to a broker.
const (
	maxCalls       = 1000
	maxHeaderBytes = 16 << 10
	handshake      = 10 * time.Second
	idleConn       = 15 * time.Minute
)

// ServerOptions are what the gRPC server of a broker needs. Its listener is
// [Doors.Guard]'s.
func (d *Doors) ServerOptions() []grpc.ServerOption {
	return append(append(grpctune.Server(), d.permit.ServerOptions(d.admitCall, permit.Caller)...), grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(intake.MaxBytes), grpc.MaxConcurrentStreams(maxCalls), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshake), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleConn}),
		grpc.StreamInterceptor(d.reflect), refuseCompressed())
}

// Guard returns the listener of the gRPC server: it bounds what connections
// hold of requests that have not been read whole, and how long they may take to
// read answers. See [arrivals.Watch].
func (d *Doors) Guard(l net.Listener) net.Listener {
	return arrivals.Watch(l, arrivals.Bounds{Budget: d.admission.Arriving, Call: 2 * intake.MaxBytes, Arrive: d.ArriveWithin, Taken: d.TakenWithin})
}

// refuseCompressed refuses compressed requests: a small one may become a large
// one, of which nothing would be counted before it is there.
func refuseCompressed() grpc.ServerOption {
	//lint:ignore SA1019 what replaces it is the process's and not the server's
	return grpc.RPCDecompressor(noDecompressor{})
}

type noDecompressor struct{}

func (noDecompressor) Type() string { return "gzip" }

func (noDecompressor) Do(io.Reader) ([]byte, error) {
	return nil, errors.New("compressed requests are not taken: send them as they are")
}

// admitCall refuses on the strength of a request's headers what would be
// refused anyway: in a flood, reading what is then refused takes as much time
// as answering the rest.
func (d *Doors) admitCall(ctx context.Context, info *tap.Info) (context.Context, error) {
	if !strings.HasPrefix(info.FullMethodName, feedPrefix) {
		return ctx, nil
	}
	get := func(name string) string {
		if values := info.Header.Get(name); len(values) > 0 {
			return values[0]
		}
		return ""
	}
	p, err := admission.ParsePriority(get(admission.PriorityHeader))
	if err == nil {
		err = d.admission.Admit(admission.CallerOf(ctx, get(admission.CallerHeader)))
	}
	if err != nil {
		d.refused(err)
		return nil, rpcerr.Status(err)
	}
	if d.admission.Full(p) {
		d.shed()
		return nil, errOverloaded
	}
	return admission.WithPass(ctx, &admission.Pass{}), nil
}

// errOverloaded is the limiter's refusal on the wire.
var errOverloaded = rpcerr.Status(admission.Overloaded)

const feedPrefix = "/" + feedv1connect.FeedServiceName + "/"

// RegisterGRPC puts the feed service, health and reflection on s.
func (d *Doors) RegisterGRPC(s *grpc.Server) {
	s.RegisterService(d.feedService(), d)
	d.checks.SetServingStatus(feedv1.FeedService_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(s, d.checks)
	reflection.Register(s)
}

// reflectionBytes is what answers of gRPC's reflection may take that callers have not read
// yet: it describes tens of kilobytes at a time, as often as it is asked.
const reflectionBytes = 8 << 20

// reflect bounds what reflection answers, by a budget of its own. It is a
// [grpc.StreamServerInterceptor].
func (d *Doors) reflect(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
		s = &reflected{s, d.reflection}
	}
	return handle(srv, s)
}

// reflected is a stream of answers of reflection, each of which counts until it is read.
type reflected struct {
	grpc.ServerStream
	budget *memory.Budget
}

// SendMsg implements grpc.ServerStream.
func (s *reflected) SendMsg(m any) error {
	answer, loan := m.(proto.Message), s.budget.Borrow()
	if err := loan.Hold(int64(proto.Size(answer))); err != nil {
		return rpcerr.Status(err)
	}
	return s.ServerStream.SendMsg(send(s.Context(), answer, loan))
}

// Leave has the broker tell that it is to be asked no more, and go on answering:
// gRPC's health service says that it does not serve, and each answer by HTTP ends
// its connection.
func (d *Doors) Leave() {
	d.leaving.Store(true)
	d.checks.Shutdown()
}

// Stop ends a server of gRPC once what is under way is answered, which it waits for
// for some time at most.
func (d *Doors) Stop(s *grpc.Server, finish time.Duration) {
	d.checks.end() // calls that watch the health service would last
	defer time.AfterFunc(finish, s.Stop).Stop()
	s.GracefulStop()
}

// feedService is the service of feed.proto, whose requests are let in before
// they are parsed.
func (d *Doors) feedService() *grpc.ServiceDesc {
	desc := feedv1.FeedService_ServiceDesc
	desc.HandlerType = (*any)(nil)
	desc.Methods = []grpc.MethodDesc{
		{MethodName: "GetFeed", Handler: serveGRPC(d, d.feed)},
		{MethodName: "Why", Handler: serveGRPC(d, d.why)},
	}
	return &desc
}

// serveGRPC serves one method.
func serveGRPC[Req any, PReq interface {
	*Req
	proto.Message
}, Resp any](d *Doors, method func(context.Context, PReq) (*Resp, error)) grpc.MethodHandler {
	return func(_ any, ctx context.Context, parse func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		ctx = d.admission.Traced(tracing.Incoming(ctx))
		ctx, err := admission.WithHeaders(ctx, func(name string) string {
			if values := metadata.ValueFromIncomingContext(ctx, name); len(values) > 0 {
				return values[0]
			}
			return ""
		})
		if err != nil {
			return nil, rpcerr.Status(err)
		}
		inFlight, err := d.admission.Enter(ctx)
		if err != nil {
			d.refused(err)
			return nil, rpcerr.Status(err)
		}
		defer inFlight.Leave()
		a := admission.PassOf(ctx)
		if a == nil {
			a = &admission.Pass{InFlight: inFlight}
			ctx = admission.WithPass(ctx, a)
		}
		a.Loan = d.admission.Answering.Borrow()
		p := &parcel{req: PReq(new(Req)), loan: d.admission.Parsing.Borrow()}
		defer p.loan.Return()
		if err = parse(p); err == nil {
			err = p.err
		}
		var resp *Resp
		if err != nil {
			d.refused(err)
		} else {
			resp, err = method(ctx, p.req.(PReq))
		}
		if err != nil {
			a.Loan.Return()
			return nil, rpcerr.Status(err)
		}
		return send(ctx, any(resp).(proto.Message), a.Loan), nil
	}
}
