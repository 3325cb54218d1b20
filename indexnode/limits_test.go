package indexnode

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
)

// The headers of a call are bounded, as those of a broker's are.
func TestHeadersAreBounded(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	nodetest.Lines(t, h)
	server := grpc.NewServer(serverOptions()...)
	nodev1.RegisterNodeServiceServer(server, n)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	call := func(bytes int) error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("x", bytes))
		_, err := nodev1.NewNodeServiceClient(conn).Query(ctx, nodetest.All(func(*nodev1.QueryRequest) {}))
		return err
	}
	if err := call(8 << 10); err != nil {
		t.Errorf("8 KiB: %v", err)
	}
	if err := call(17 << 10); err == nil {
		t.Error("17 KiB of headers are taken")
	}
}

// The cluster is told when records have too many content types.
func TestTooManyTypesAreTold(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	bringType := func(i int) {
		nodetest.BringLine(t, h, kafka.Timeline, fmt.Sprintf(`{"id":"r%d","actor":"member:1","verb":"type-%[1]d","created_at":1700000000000}`, i), millrace.Offset(i+1))
	}
	for i := range store.MaxTypes {
		bringType(i)
	}
	if told := n.typesReport(topology.All()); told != nil {
		t.Errorf("as many as may be are warned of: %v", told)
	}
	bringType(store.MaxTypes)
	bringType(store.MaxTypes + 1)
	if told := n.typesReport(topology.All()); len(told) != 1 || !told[0].Warning || told[0].Reason != "too_many_types" {
		t.Errorf("the cluster is told %v", told)
	}
}
