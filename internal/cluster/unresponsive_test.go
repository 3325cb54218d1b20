package cluster

import (
	"context"
	"net"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// refuser is an etcd that refuses to say how it is.
type refuser struct {
	etcdserverpb.UnimplementedMaintenanceServer
}

func (refuser) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return nil, rpctypes.ErrGRPCPermissionDenied
}

// An etcd that refuses a call answers; one that nobody listens for does not.
func TestWhoRefusesIsNotMute(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	etcdserverpb.RegisterMaintenanceServer(s, refuser{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		<-served
	}()
	const unresponsive = "127.0.0.1:1"
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{l.Addr().String(), unresponsive}})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	if got := (&Client{etcd: etcd}).Unresponsive(t.Context()); !slices.Equal(got, []string{unresponsive}) {
		t.Errorf("%q", got)
	}
}
