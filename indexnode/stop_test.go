package indexnode

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
)

// What is under way when a node stops has some time to end, and no more.
func TestWhatDoesNotEndIsEnded(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	server := n.server()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := nodev1.NewNodeServiceClient(conn).ReadPartition(t.Context()) // without Run it lasts for minutes
	if err == nil {
		err = stream.Send(&nodev1.ReadPartitionRequest{Partition: 17})
	}
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		finish(server, time.Millisecond)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("the node waits for a caller that neither reads nor writes")
		server.Stop()
	}
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the caller is told %v", err)
	}
}

// What operators read is not waited for when a node stops: it ends when the node has
// drained, as what others read of its partitions does.
func TestWhatOperatorsReadEndsWithTheNode(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	reads, end := context.WithCancel(t.Context())
	defer end()
	n.running.Store(&reads)
	server := n.server()
	defer server.Stop()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for _, want := range []codes.Code{codes.OK, codes.Canceled} {
		stream, err := nodev1.NewAdminServiceClient(conn).FindRecords(t.Context(), &nodev1.FindRecordsRequest{Wanted: []*nodev1.WantedRecord{{Id: "none"}}})
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if got := status.Code(err); got != want {
			t.Errorf("it ends with %v (%v), and not %v", got, err, want)
		}
		end()
	}
}
