package indexnode

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/permit"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// pipes is a listener of connections in memory.
type pipes struct {
	of   chan net.Conn
	done chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.of:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error { close(p.done); return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// ending is a connection that notes when it has ended, which the other side asks for:
// who is told to go closes it itself, and may not read again.
type ending struct {
	net.Conn
	ended *atomic.Bool
}

func (e ending) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	if err != nil {
		e.ended.Store(true)
	}
	return n, err
}

func (e ending) Close() error {
	e.ended.Store(true)
	return e.Conn.Close()
}

// The port of a node is for brokers and nodes: connections of others end, though
// these may ask for its health, and so does one that asks nothing.
func TestConnectionsOfOthersDoNotStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := authority.New(t)
		policy, err := permit.Config{Identities: map[string][]permit.Role{"app": {permit.Caller}, "writer": {permit.Partitioner}, "broker": {permit.Broker}, "node": {permit.Node}, "ops": {permit.Operator}}}.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		how := a.Server(a.Issue("server", "10.0.0.9"), true)
		how.NextProtos = []string{"h2"}
		p := pipes{make(chan net.Conn), make(chan struct{})}
		server := (&Node{cfg: Config{Permit: policy}}).server()
		go func() { _ = server.Serve(door.New(p, door.Config{Port: "listen", TLS: how})) }()
		defer server.Stop()
		for name, stays := range map[string]bool{"app": false, "writer": false, "broker": true, "node": true, "ops": true} {
			files, err := secure.Open(a.Issue(name), "tls", nil)
			if err != nil {
				t.Fatal(err)
			}
			as := files.Client()
			as.ServerName, as.NextProtos = "10.0.0.9", []string{"h2"}
			var ended atomic.Bool
			conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(credentials.NewTLS(as)), grpc.WithIdleTimeout(0), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				p.of <- theirs
				return ending{ours, &ended}, nil
			}))
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
					t.Errorf("%s asks for the health: %v", name, err)
				}
				time.Sleep(door.Within/4 + 1)
			}
			if ended.Load() == stays {
				t.Errorf("the connection of %s has ended: %v", name, ended.Load())
			}
			time.Sleep(2 * idleConn)
			if !ended.Load() {
				t.Errorf("the connection of %s is silent, and has not ended", name)
			}
			_ = conn.Close()
		}
	})
}

// silent is a stream of who asks for a partition, or says nothing.
type silent struct {
	grpc.ServerStream
	ctx   context.Context
	of    *nodev1.ReadPartitionRequest // nil: nothing
	ended chan struct{}                // what gRPC ends when the call has returned
}

func (s silent) Context() context.Context                 { return s.ctx }
func (s silent) Send(*nodev1.ReadPartitionResponse) error { return nil }
func (s silent) Recv() (*nodev1.ReadPartitionRequest, error) {
	if s.of != nil {
		return s.of, nil
	}
	<-s.ended
	return nil, io.EOF
}

// Who asks for a whole partition and then says nothing gives its place to another
// soon.
func TestWhoSaysNothingReadsNoPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{wholeReads: make(chan struct{}, maxWholeReads)}
		ask := func(of *nodev1.ReadPartitionRequest) string {
			s := silent{ctx: t.Context(), of: of, ended: make(chan struct{})}
			defer close(s.ended)
			return fmt.Sprint(n.ReadPartition(s))
		}
		told := make(chan string, maxWholeReads)
		for range maxWholeReads {
			go func() { told <- ask(nil) }()
		}
		synctest.Wait()
		of := &nodev1.ReadPartitionRequest{Partition: -1}
		if got := ask(of); !strings.Contains(got, "callers read partitions") {
			t.Errorf("one too many is told %s", got)
		}
		time.Sleep(beginWithin)
		synctest.Wait()
		if got := ask(of); !strings.Contains(got, "there is no partition") {
			t.Errorf("the next one is told %s", got)
		}
		for range maxWholeReads {
			if got := <-told; !strings.Contains(got, "was not agreed upon") {
				t.Errorf("who says nothing is told %s", got)
			}
		}
	})
}

// full is a stream whose messages nobody takes.
type full struct{ silent }

func (s full) Send(*nodev1.ReadPartitionResponse) error {
	<-s.ended
	return io.ErrClosedPipe
}

// Who begins to read a partition and then takes nothing gives its place to another, once
// others want it.
func TestWhoTakesNothingReadsNoPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{wholeReads: make(chan struct{}, maxWholeReads)}
		s := full{silent{ctx: t.Context(), ended: make(chan struct{})}}
		told := make(chan string, 1)
		go func() {
			defer close(s.ended)
			told <- fmt.Sprint(n.inPlace(s, func(_ context.Context, to nodev1.NodeService_ReadPartitionServer, begun chan<- struct{}) error {
				close(begun)
				return to.Send(nil)
			}))
		}()
		time.Sleep(3 * takeWithin)
		synctest.Wait()
		if len(told) > 0 || len(n.wholeReads) != 1 {
			t.Errorf("it has ended though nobody wants its place: %d places are taken", len(n.wholeReads))
		}
		for range maxWholeReads - 1 {
			n.wholeReads <- struct{}{}
		}
		began := time.Now()
		if got := <-told; !strings.Contains(got, "to be taken") || time.Since(began) > 2*time.Second {
			t.Errorf("%s later who takes nothing is told %s", time.Since(began), got)
		}
		synctest.Wait()
		if len(n.wholeReads) != maxWholeReads-1 {
			t.Error("the place is still taken")
		}
	})
}
