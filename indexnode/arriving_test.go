package indexnode

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
)

// frames is a connection that speaks HTTP/2 by hand.
type frames struct{ net.Conn }

func (c frames) write(kind, flags byte, stream uint32, payload []byte) error {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	_, err := c.Write(append(binary.BigEndian.AppendUint32(b, stream), payload...))
	return err
}

// begin begins a call of Query.
func (c frames) begin(stream uint32) error {
	var block []byte
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", nodev1.NodeService_Query_FullMethodName}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		block = append(append(append(append(block, 0, byte(len(h[0]))), h[0]...), byte(len(h[1]))), h[1]...)
	}
	return c.write(1, 4, stream, block)
}

// more brings bytes of a call of the largest kind.
func (c frames) more(stream uint32, first bool, bytes int) error {
	payload := make([]byte, bytes)
	if first {
		binary.BigEndian.PutUint32(payload[1:], maxRequestBytes)
	}
	return c.write(0, 0, stream, payload)
}

// Calls that have not arrived share a budget. A host that holds its share of it is told
// so by the headers of its next call, and others are let in; who goes on all the same is
// cut off, and everything comes back.
func TestCallsThatArriveShareABudget(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	nodetest.Lines(t, h)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := n.server()
	go func() { _ = server.Serve(n.guard(l)) }()
	defer server.Stop()
	from := func(host string) *grpc.ClientConn {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}}).DialContext(ctx, "tcp", addr)
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	conn, other := from("127.0.0.1"), from("127.0.0.2")
	ask := func(by *grpc.ClientConn) error {
		_, err := nodev1.NewNodeServiceClient(by).Query(t.Context(), nodetest.All(func(*nodev1.QueryRequest) {}))
		return err
	}
	if err := ask(conn); err != nil {
		t.Fatal(err)
	}
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	greedy := frames{raw}
	_, _ = greedy.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	_ = greedy.write(4, 0, 0, nil)
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, greedy)
		ended <- err
	}()
	const each = 16_000
	stream, frame, counted := uint32(1), 0, int64(0)
	send := func(to int64) error { // in calls that do not end, until so much is counted at least
		for ; counted < to; counted += each {
			if frame == 0 {
				if err := greedy.begin(stream); err != nil {
					return err
				}
			}
			if err := greedy.more(stream, frame == 0, each); err != nil {
				return err
			}
			if frame++; frame == 50 {
				stream, frame = stream+2, 0
			}
		}
		return nil
	}
	budget := arrivingBytes(DefaultQuestionMemory)
	share := budget * 4 / 5 // of one host
	for to := share - 2<<20; n.arriving.Held() < share-(900<<10); to += 50_000 {
		if err := send(to); err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "what was sent to be counted", func() bool { return n.arriving.Held() >= counted })
	}
	if err := ask(conn); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "calls that are arriving") {
		t.Errorf("a call of a host that holds its share: %v", err)
	}
	if err := ask(other); err != nil {
		t.Errorf("a call of another host: %v", err)
	}
	for send(counted+each) == nil {
		if held := n.arriving.Held(); held > budget {
			t.Fatalf("%d bytes are held, and %d may be", held, budget)
		}
	}
	select {
	case err := <-ended:
		if err != nil && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("who goes on is not cut off")
	}
	waitUntil(t, "the budget to come back", func() bool { return n.arriving.Held() == 0 })
	if err := ask(conn); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal(fmt.Sprint("waited in vain for ", what))
		}
	}
}
