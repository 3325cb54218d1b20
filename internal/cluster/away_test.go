package cluster_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/dial"
)

// However long etcd has been away, it is dialled every few seconds, so that its
// return is noticed soon. gRPC's own pauses grow to two minutes.
func TestAReturnOfEtcdIsNoticedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		cfg, err := cluster.EtcdConfig(cluster.Config{Endpoints: []string{"etcd.invalid:2379"}, Access: dial.Access{Insecure: true}, Name: "test"})
		check(t, err)
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			dials.Add(1)
			return nil, errors.New("away")
		}))
		etcd, err := clientv3.New(cfg)
		check(t, err)
		defer etcd.Close()
		ask := func() { // as whoever waits does
			call, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if _, err := etcd.Get(call, "key"); err == nil {
				t.Error("an etcd that is away answered")
			}
			time.Sleep(500 * time.Millisecond)
		}
		for began := time.Now(); time.Since(began) < 10*time.Minute; {
			ask()
		}
		before := dials.Load()
		for began := time.Now(); time.Since(began) < time.Minute; {
			ask()
		}
		if n := dials.Load() - before; n < 20 {
			t.Errorf("after ten minutes etcd is dialled %d times a minute", n)
		}
	})
}

// What is written and not answered may have been done; what is refused was not.
func TestAWriteThatIsNotAnsweredMayBeDone(t *testing.T) {
	c, refused := new(cluster.Client), errors.New("refused")
	if err := c.PerhapsDone(cluster.Away(context.DeadlineExceeded)); !errors.Is(err, cluster.ErrAway) || !strings.Contains(err.Error(), "not known whether it was done") {
		t.Error(err)
	}
	if err := c.PerhapsDone(refused); err != refused {
		t.Error(err)
	}
	if err := c.PerhapsDone(nil); err != nil {
		t.Error(err)
	}
}
