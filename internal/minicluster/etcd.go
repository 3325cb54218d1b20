package minicluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Etcd is a real etcd server of one member inside this process.
type Etcd struct {
	server *embed.Etcd
	once   sync.Once // for Close: the server's own Close panics when it is called again
}

// StartEtcd starts etcd with its data in dir, listening on listen, such as
// "127.0.0.1:2379" or "127.0.0.1:0", and waits until it is ready.
func StartEtcd(ctx context.Context, dir, listen string) (*Etcd, error) {
	c := embed.NewConfig()
	c.Dir = filepath.Join(dir, "etcd")
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client := []url.URL{{Scheme: "http", Host: listen}}
	peer := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	c.ListenClientUrls, c.AdvertiseClientUrls = client, client
	c.ListenPeerUrls, c.AdvertisePeerUrls = peer, peer
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	// With etcd's JSON gateway, any web page could write to it. Without a name in CORS,
	// etcd takes requests of pages of every site.
	c.EnableGRPCGateway, c.CORS = false, map[string]struct{}{"none": {}}
	// A single member waits for no votes, so short ticks only make it ready sooner.
	c.TickMs, c.ElectionMs = 10, 100
	c.AutoCompactionMode, c.AutoCompactionRetention = "periodic", "1h"
	server, err := embed.StartEtcd(c)
	if err != nil {
		return nil, fmt.Errorf("etcd on %s: %w", listen, err)
	}
	e := &Etcd{server: server}
	select {
	case <-server.Server.ReadyNotify():
		return e, nil
	case err := <-server.Err():
		e.Close()
		return nil, fmt.Errorf("etcd on %s: %w", listen, err)
	case <-time.After(30 * time.Second):
		e.Close()
		return nil, errors.New("etcd: not ready within 30 s")
	case <-ctx.Done():
		e.Close()
		return nil, ctx.Err()
	}
}

// Addr returns the address for clients, host:port.
func (e *Etcd) Addr() string { return e.server.Clients[0].Addr().String() }

// Close stops the server, if it has not been stopped yet.
func (e *Etcd) Close() { e.once.Do(e.server.Close) }
