// Package cluster is the home of etcd: who is alive, who hosts which
// partition, who is caught up, and the documents that every process watches.
//
// Readers never wait for etcd. They hold the last good state and keep serving
// it when etcd is away, empty, rolled back or holds nonsense; a watcher then
// says what is wrong. See DESIGN.md.
//
// Keys, all under /millrace/NAME/:
//
//	partitions      "720", written once; without it the keyspace counts as lost
//	assignment      JSON of [Assignment]
//	nodes/ID        JSON of [Node], leased
//	ready/ID        a [Set] of 90 bytes, leased
//	docs/KIND/NAME  whatever KIND is
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
)

// The refusals of this package.
var (
	ErrPartitions = errors.New("cluster: another partition count")  // fatal: the process and the cluster disagree on where entities live
	ErrEpoch      = errors.New("cluster: the assignment has moved") // read it again and start over
	ErrShrink     = errors.New("cluster: the map shrinks by more than a fifth; set allow_shrink if that is meant")
)

// Config says which cluster to join.
type Config struct {
	Endpoints []string     // of etcd
	Name      string       // of the cluster; lower-case letters, digits and '-'
	Log       *slog.Logger // nil: slog.Default()
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	if len(c.Endpoints) == 0 {
		errs = append(errs, errors.New("cluster: no etcd endpoints"))
	}
	if err := validID(c.Name); err != nil {
		errs = append(errs, fmt.Errorf("cluster: name: %w", err))
	}
	return errors.Join(errs...)
}

var idPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

// validID holds for everything that becomes part of a key.
func validID(s string) error {
	if !idPattern.MatchString(s) {
		return fmt.Errorf("%q is not an id: 1 to 63 letters, digits, dots, underscores and dashes", s)
	}
	return nil
}

// Node is an index node as others reach it.
type Node struct {
	ID   millrace.NodeID `json:"id"`
	Addr string          `json:"addr"` // host:port of its gRPC
	Zone string          `json:"zone,omitempty"`
}

// Client is a connection to the cluster's etcd.
type Client struct {
	etcd   *clientv3.Client
	prefix string
	log    *slog.Logger
}

var errUnfinished = errors.New("cluster: not finished yet")

// Open connects to etcd and writes or checks the partition count; a cluster
// of another count gives [ErrPartitions]. It waits for etcd as long as ctx
// lets it.
func Open(ctx context.Context, cfg Config) (*Client, error) { return nil, errUnfinished }

// Close ends every watcher and membership of the client.
func (c *Client) Close() error { return errUnfinished }

// Membership is a node's registration, kept alive in the background.
type Membership struct{}

// Join registers a node under a lease of a few seconds and keeps it
// registered: after an outage of etcd, or of the node, it registers anew by
// itself. It returns once the node is registered.
func (c *Client) Join(ctx context.Context, n Node) (*Membership, error) { return nil, errUnfinished }

// SetReady tells which partitions the node is caught up on. It is remembered
// and told again whenever the node registers anew, so it fails only when ctx
// ends first, and even then is told later.
func (m *Membership) SetReady(ctx context.Context, ready Set) error { return errUnfinished }

// Leave says that the node is going on purpose, so that nobody tries it as a
// last resort, and ends the membership.
func (m *Membership) Leave(ctx context.Context) error { return errUnfinished }

// Assign replaces the assignment. a.Epoch must be one above the present one
// (1 for the first); otherwise, or when somebody was faster, it gives
// [ErrEpoch]. [ErrShrink] guards against mistakes.
func (c *Client) Assign(ctx context.Context, a Assignment) error { return errUnfinished }

// Watcher keeps a [Map] up to date.
type Watcher struct{}

// Watch returns once the map has been read. A cluster without an assignment
// has a map of epoch 0. The watcher works until ctx ends.
func (c *Client) Watch(ctx context.Context) (*Watcher, error) { return nil, errUnfinished }

// Current returns the last good map.
func (w *Watcher) Current() *Map { return nil }

// Changed returns a channel that is closed at the next change of
// [Watcher.Current] or [Watcher.Fault]. Take it before looking at either.
func (w *Watcher) Changed() <-chan struct{} { return nil }

// Fault says why the map may be older than what etcd holds: etcd is away,
// empty, rolled back, foreign, or holds something malformed. nil when all is
// well.
func (w *Watcher) Fault() error { return errUnfinished }

// Documents is the watched documents of one kind.
type Documents struct{}

// Documents watches the documents of a kind, such as "feeds". It returns once
// they have been read and works until ctx ends.
func (c *Client) Documents(ctx context.Context, kind string) (*Documents, error) {
	return nil, errUnfinished
}

// Document is one of [Documents].
type Document struct {
	Name    string
	Body    []byte
	Version int64 // rises with every change
}

// Current returns the last good documents, by name. The caller must not
// change them.
func (d *Documents) Current() map[string]Document { return nil }

// Changed is as [Watcher.Changed].
func (d *Documents) Changed() <-chan struct{} { return nil }

// Fault is as [Watcher.Fault].
func (d *Documents) Fault() error { return errUnfinished }

// Put writes a document of at most 1 MiB.
func (d *Documents) Put(ctx context.Context, name string, body []byte) error { return errUnfinished }

// Delete removes a document; one that is not there is no error.
func (d *Documents) Delete(ctx context.Context, name string) error { return errUnfinished }
