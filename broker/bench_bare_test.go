package broker

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/internal/grpctune"
)

// callBytes returns what one of two node calls of a request sends, and what
// comes back.
func callBytes(b *testing.B, broker *Broker, n fanout.Node, req *feedv1.GetFeedRequest) (out, back []byte) {
	b.Helper()
	q, err := broker.read(b.Context(), req, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	half, i := q.Want, 0
	for p := range q.Want.All() {
		if i++; i%2 == 0 {
			half.Remove(p)
		}
	}
	asked := q.Ask(q.Groups[0], half, 0)
	answer, err := n.Query(b.Context(), asked)
	if err != nil {
		b.Fatal(err)
	}
	for m, to := range map[proto.Message]*[]byte{asked: &out, answer: &back} {
		if *to, err = proto.Marshal(m); err != nil {
			b.Fatal(err)
		}
	}
	return out, back
}

// twice runs a call twice at the same time.
func twice(call func()) func() {
	return func() {
		var wg sync.WaitGroup
		wg.Go(call)
		wg.Go(call)
		wg.Wait()
	}
}

func serveBench(b *testing.B, serve func(net.Listener), stop func()) string {
	b.Helper()
	l, err := grpctune.Listen("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go serve(l)
	b.Cleanup(func() { stop(); _ = l.Close() })
	return l.Addr().String()
}

// asIs is a codec of what is bytes already.
type asIs struct{}

func (asIs) Name() string { return "as-is" }
func (asIs) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}
func (asIs) Unmarshal(_ mem.BufferSlice, _ any) error { return nil }

// bareGRPC returns a unary call that only moves bytes, with a deadline as
// every node call has.
func bareGRPC(b *testing.B, out, back []byte) func() {
	b.Helper()
	s := grpc.NewServer(append(grpctune.Server(), grpc.ForceServerCodecV2(asIs{}))...)
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "bare", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Call",
		Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return &back, dec(new([]byte))
		},
	}}}, struct{}{})
	addr := serveBench(b, func(l net.Listener) { _ = s.Serve(l) }, s.Stop)
	conn, err := grpc.NewClient(addr, append(grpctune.Client(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return func() {
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		if err := conn.Invoke(ctx, "/bare/Call", &out, new([]byte), grpc.ForceCodecV2(asIs{})); err != nil {
			b.Error(err)
		}
	}
}

// bareTCP returns a call that writes a frame and reads one back.
func bareTCP(b *testing.B, out, back []byte) func() {
	b.Helper()
	reply := frame(back)
	addr := serveBench(b, func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				for buf := make([]byte, 64<<10); readFrame(c, buf) == nil; {
					if _, err := c.Write(reply); err != nil {
						return
					}
				}
			}()
		}
	}, func() {})
	type way struct {
		net.Conn
		buf []byte
	}
	free := make(chan way, 2)
	for range cap(free) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() })
		free <- way{c, make([]byte, 64<<10)}
	}
	request := frame(out)
	return func() {
		w := <-free
		_, err := w.Write(request)
		if err == nil {
			err = readFrame(w, w.buf)
		}
		if err != nil {
			b.Error(err)
		}
		free <- w
	}
}

func frame(b []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...)
}

func readFrame(r io.Reader, buf []byte) error {
	if _, err := io.ReadFull(r, buf[:4]); err != nil {
		return err
	}
	_, err := io.ReadFull(r, buf[:binary.LittleEndian.Uint32(buf)])
	return err
}
