package doors

import (
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/internal/grpctune"
)

// Who asks for descriptions and does not read them is refused more, and what was kept for
// it comes back.
func TestReflectionThatNobodyReads(t *testing.T) {
	d := New(Config{Admission: admission.New(nil, 256<<20)})
	s := grpc.NewServer(d.ServerOptions()...)
	d.RegisterGRPC(s)
	l, err := grpctune.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(d.Guard(l)) }()
	defer s.Stop()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(times int) reflectionv1.ServerReflection_ServerReflectionInfoClient {
		t.Helper()
		stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
		for range times {
			if err == nil {
				err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: feedv1.FeedService_ServiceDesc.ServiceName}})
			}
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	const streams = 500 // whose answers are several times what may be kept
	var all []reflectionv1.ServerReflection_ServerReflectionInfoClient
	for range streams {
		all = append(all, ask(20))
	}
	refused := 0
	for _, stream := range all {
		for err = nil; err == nil; {
			_, err = stream.Recv()
		}
		if status.Code(err) == codes.ResourceExhausted {
			refused++
		}
	}
	if refused == 0 {
		t.Errorf("of %d callers who do not read none is refused", streams)
	}
	_ = conn.Close()
	for d.reflection.Held() > 0 {
		time.Sleep(time.Millisecond)
	}
	if conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := ask(1).Recv(); err != nil {
		t.Errorf("the next caller: %v", err)
	}
}
