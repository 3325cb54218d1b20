// Package broker answers feed requests: it validates a request against its
// feed definition, routes its entities to the fewest index nodes that cover
// them, hedges what is slow, merges and deduplicates the answers, and says how
// much of what was asked the answer covers. It holds no data. See DESIGN.md.
package broker

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/internal/cluster"
)

// Node is what a broker asks of an index node: a local one, a remote one or
// a fake. Errors are [millrace.Error] where they refuse the request.
type Node interface {
	Query(ctx context.Context, req *nodev1.QueryRequest) (*nodev1.QueryResponse, error)
	GetSchema(ctx context.Context, req *nodev1.GetSchemaRequest) (*nodev1.GetSchemaResponse, error)
}

// Maps gives the cluster's present map; [cluster.Watcher] does.
type Maps interface {
	Current() *cluster.Map
}

// Config is what a broker works with.
type Config struct {
	Maps Maps
	// Dial returns the way to a node. nil: [DialGRPC] without TLS. What it
	// returns is closed, if it is an io.Closer, when the node leaves the map.
	Dial func(cluster.Node) (Node, error)
	// Feeds are served beside the built-in ones and replace those of the same
	// name.
	Feeds []Feed
	// Timeout bounds a request that comes without a deadline, and any other.
	// 0: 10 s.
	Timeout time.Duration
	Metrics prometheus.Registerer // nil: none
	Log     *slog.Logger          // nil: slog.Default()
}

// Broker answers feed requests.
type Broker struct{}

// New returns a broker. It needs no I/O: nodes are dialled when first asked.
func New(cfg Config) (*Broker, error) { return nil, errors.New("broker: not finished yet") }

// Close ends the connections to the nodes.
func (b *Broker) Close() error { return errors.New("broker: not finished yet") }

// GetFeed answers one request. Every refusal is a [millrace.Error].
func (b *Broker) GetFeed(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	return nil, errors.New("broker: not finished yet")
}

// RegisterGRPC puts the feed service, health and reflection on s.
func (b *Broker) RegisterGRPC(s *grpc.Server) {}

// Handler serves JSON: Connect's protocol, and POST /v1/feed.
func (b *Broker) Handler() http.Handler { return http.NotFoundHandler() }

// DialGRPC reaches nodes by gRPC with the given options.
func DialGRPC(opts ...grpc.DialOption) func(cluster.Node) (Node, error) {
	return func(cluster.Node) (Node, error) { return nil, errors.New("broker: not finished yet") }
}
