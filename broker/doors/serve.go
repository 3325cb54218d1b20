// Package doors has the servers by which callers reach a broker: gRPC, and HTTP with
// Connect and JSON, which OpenAPI describes. A door is one of these servers. It admits a
// request by its headers, reads it within the bounds of a budget of memory, and writes the
// answer in the form that was asked for. A loan is what a request or an answer holds of such a
// budget.
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

// Config is what doors need. All functions, Admission and Log must be set.
type Config struct {
	Admission *admission.Control
	Permit    *permit.Policy // nil: whoever reaches the broker may call everything
	// Feed answers a request for a feed. The items are among the unknown fields of the
	// answer, encoded already, as package broker/items writes them.
	Feed func(context.Context, *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error)
	Why  func(context.Context, *feedv1.WhyRequest) (*feedv1.WhyResponse, error)
	// Refused is called with the reason when a door refuses a request, which Feed and Why
	// then never see.
	Refused func(error)
	// Shed is called in place of Refused when the door of gRPC refuses a request by its
	// headers alone because the broker is overloaded.
	Shed func()
	Log  *slog.Logger
}

// Doors are the doors of a broker: gRPC, and HTTP with Connect and JSON.
type Doors struct {
	// ArriveWithin is how long a request may take to arrive, and TakenWithin how long the
	// caller may take to read an answer. New sets both; they may be changed before the
	// servers start.
	ArriveWithin, TakenWithin time.Duration

	admission *admission.Control
	permit    *permit.Policy
	feed      func(context.Context, *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error)
	why       func(context.Context, *feedv1.WhyRequest) (*feedv1.WhyResponse, error)
	refused   func(error)
	shed      func()

	checks     *checks
	reflection *memory.Budget // for the memory of answers of gRPC's reflection that callers have not read
	leaving    atomic.Bool    // Leave was called
}

// arriveWithin is how long a request may take to arrive, from its first byte, and
// takenWithin how long a caller may take to read an answer. They are the values of
// [Doors.ArriveWithin] and [Doors.TakenWithin] unless those are changed.
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

// outward returns method with its internal errors hidden from callers: an error that is
// neither a refusal nor a cancellation may tell addresses or paths of the broker or of a
// node. The caller gets a random word in place of the error, and the log has the error beside
// the same word.
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

// The bounds of a gRPC connection; maxHeaderBytes is for HTTP, too.
const (
	maxCalls       = 1000 // calls in flight on one connection; a service sends all of its calls on one
	maxHeaderBytes = 16 << 10
	handshake      = 10 * time.Second // within which a new connection has to finish its handshakes
	idleConn       = 15 * time.Minute // after which a connection without calls is closed
)

// ServerOptions returns the options of the broker's gRPC server. The server is to listen by
// the listener that [Doors.Guard] returns.
func (d *Doors) ServerOptions() []grpc.ServerOption {
	return append(append(grpctune.Server(), d.permit.ServerOptions(d.admitCall, permit.Caller)...), grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(intake.MaxBytes), grpc.MaxConcurrentStreams(maxCalls), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshake), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleConn}),
		grpc.StreamInterceptor(d.reflect), refuseCompressed())
}

// Guard returns l with bounds, for the gRPC server: for the memory of requests that have
// not arrived whole, for how long a request takes to arrive, and for how long a caller takes
// to read an answer. See [arrivals.Watch].
func (d *Doors) Guard(l net.Listener) net.Listener {
	return arrivals.Watch(l, arrivals.Bounds{Budget: d.admission.Arriving, Call: 2 * intake.MaxBytes, Arrive: d.ArriveWithin, Taken: d.TakenWithin})
}

// refuseCompressed returns the option by which the server refuses compressed requests. A
// small request may decompress to a large one, whose memory could be counted only once it
// is taken.
func refuseCompressed() grpc.ServerOption {
	//lint:ignore SA1019 what replaces it is the process's and not the server's
	return grpc.RPCDecompressor(noDecompressor{})
}

type noDecompressor struct{}

func (noDecompressor) Type() string { return "gzip" }

func (noDecompressor) Do(io.Reader) ([]byte, error) {
	return nil, errors.New("compressed requests are not taken: send them as they are")
}

// admitCall refuses a call of the feed service by its headers, before its message is read,
// if its quota or the limiter would refuse it later anyway. In a flood, reading requests only
// to refuse them takes as much time as answering the rest. It is a [tap.ServerInHandle].
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

// errOverloaded is the limiter's refusal as a status of gRPC.
var errOverloaded = rpcerr.Status(admission.Overloaded)

// feedPrefix begins the paths of all methods of the feed service, by gRPC and by Connect.
const feedPrefix = "/" + feedv1connect.FeedServiceName + "/"

// RegisterGRPC puts the feed service, health and reflection on s.
func (d *Doors) RegisterGRPC(s *grpc.Server) {
	s.RegisterService(d.feedService(), d)
	d.checks.SetServingStatus(feedv1.FeedService_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(s, d.checks)
	reflection.Register(s)
}

// reflectionBytes bounds the answers of gRPC's reflection that callers have not read yet,
// of all connections together. An answer has tens of kilobytes, and a caller may ask for
// many without reading any.
const reflectionBytes = 8 << 20

// reflect counts the answers of reflection against their budget. It is a
// [grpc.StreamServerInterceptor].
func (d *Doors) reflect(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
		s = &reflected{s, d.reflection}
	}
	return handle(srv, s)
}

// reflected is a stream of answers of reflection. Each answer counts against the budget
// until gRPC has sent it.
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

// Leave tells callers to ask other brokers from now on: gRPC's health service says that
// this broker does not serve, and each answer by HTTP closes its connection. The doors still
// answer every request.
func (d *Doors) Leave() {
	d.leaving.Store(true)
	d.checks.Shutdown()
}

// Stop ends a gRPC server once the requests in flight are answered. It waits for these no
// longer than finish.
func (d *Doors) Stop(s *grpc.Server, finish time.Duration) {
	d.checks.end() // calls of Watch would go on until finish
	defer time.AfterFunc(finish, s.Stop).Stop()
	s.GracefulStop()
}

// feedService returns the description of the service of feed.proto, with handlers that
// admit requests before they parse them.
func (d *Doors) feedService() *grpc.ServiceDesc {
	desc := feedv1.FeedService_ServiceDesc
	desc.HandlerType = (*any)(nil)
	desc.Methods = []grpc.MethodDesc{
		{MethodName: "GetFeed", Handler: serveGRPC(d, d.feed)},
		{MethodName: "Why", Handler: serveGRPC(d, d.why)},
	}
	return &desc
}

// serveGRPC returns the gRPC handler of one method, such as d.feed.
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
