// Package cluster is the client of etcd, which holds the cluster's state: which nodes are
// alive, which partitions they host and have caught up with, and the documents that every
// process watches. Only this package and those below it use etcd.
//
// Readers never wait for etcd. They hold the last good state and keep serving
// it when etcd is away, empty, rolled back or holds nonsense; a watcher then
// says what is wrong. See DESIGN.md.
//
// Keys, all under /millrace/NAME/:
//
//	partitions      "720", written once; without it the keyspace counts as lost
//	keyspace        a [keyspace.Name], written with it; another one after each restoration
//	setback         JSON of a [keyspace.Setback]; absent unless etcd went back to an older state
//	map/assignment  JSON of [topology.Assignment]
//	map/last        the assignment as Assign or Restore last wrote it, to compare it with
//	map/nodes/ID    JSON of a [topology.Registration], leased
//	map/known/ID    a copy of the node's last registration, not leased
//	map/ready/ID    a [topology.Set] of 90 bytes, leased: what the node has caught up on
//	map/lag/ID      JSON of a [topology.Lag], leased; absent while there is none
//	map/state/ID    JSON of [topology.Report]s, leased; absent while there are none
//	map/left/ID     empty, leased for a minute: the node left on purpose
//	seen/ID         when the node was last alive, RFC 3339
//	brokers/WORD    JSON of a [brokers.Broker], leased for minutes
//	map/models/ID   JSON of a list of [members.Admission], leased
//	stats/ID        JSON of [members.NodeStats], leased
//	leader          JSON of a [Leader], leased
//	steer/NAME      a document of [steering.State]
//	docs/KIND/NAME  a document; its format depends on KIND: for [artefacts.Kind] it is a ledger
//	parts/KIND/NAME/SUM/PART   the bytes of a document that is larger than a value
//	bodies/KIND/NAME/SUM/PART  the bytes of a version of [artefacts.Kind]
//	secrets/NAME    32 random bytes; NAME.FROM and NAME.FROM.alone are later ones, see [secrets.Generation]
//	trace/VIEWER    how long the viewer is traced, as a Go duration, leased
//	history/WHEN    JSON of an [audit.Entry]; WHEN is in nanoseconds, and made unique
//	acting          JSON: which process is in [Client.Alone], leased
//	remembered      JSON of [Remembered]; absent unless etcd lost something
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/wait"
)

// ErrAway is the error when no etcd answered within [Config.Wait] or the timeout of a call.
var ErrAway = errors.New("cluster: no etcd answered")

// Config says which cluster to join.
type Config struct {
	Endpoints []string    // of etcd, host:port each
	Access    dial.Access // how they are reached
	Name      string      // of the cluster
	// Dir is the directory that keeps the last good state across restarts, so that a
	// process can start while etcd is away. Empty: it is not kept.
	Dir string
	// ReadOnly looks at a cluster without writing anything, not even its
	// partition count: an empty etcd stays empty, and the watchers say so.
	ReadOnly bool
	// Wait is how long Open, and the start of a watcher, waits for the first answer
	// of etcd before it gives [ErrAway]; 0: until its context ends.
	Wait time.Duration
	// Dial opens a connection to host:port; nil: over the machine's network.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	Who  string // the name under which acts are in the history; empty: they are not recorded
	// Metrics is where Open registers the client, before it waits for etcd; nil: the
	// caller registers it, if it wants to.
	Metrics prometheus.Registerer
	Log     *slog.Logger // nil: slog.Default()
}

// Validate returns all faults, joined, or nil.
func (c Config) Validate() error {
	var errs []error
	bad := func(field, detail, wayOut string) {
		errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: detail, WayOut: wayOut})
	}
	if len(c.Endpoints) == 0 {
		bad("etcd", "nothing says where etcd is", "name its addresses, host:port each")
	}
	if err := keyspace.ValidID(c.Name); err != nil {
		bad("cluster", err.Error(), "give it another name")
	}
	_, err := c.etcd()
	return errors.Join(append(errs, err)...)
}

// etcd returns the configuration of etcd's own client.
func (c Config) etcd() (clientv3.Config, error) {
	e := clientv3.Config{
		Endpoints: c.Endpoints, DialTimeout: CallTimeout, Logger: zap.NewNop(),
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: CallTimeout,
		MaxCallRecvMsgSize: maxAnswerBytes, DialOptions: []grpc.DialOption{grpctune.Reconnect()},
	}
	if c.Dial != nil {
		e.DialOptions = append(e.DialOptions, grpc.WithContextDialer(c.Dial))
	}
	return e, c.Access.Apply(&e, c.Log)
}

// Client is a connection to the cluster's etcd. As a [prometheus.Collector] it shows what is
// served from the last good state, and since when. Its methods may be called concurrently.
type Client struct {
	etcd     *clientv3.Client
	metrics  *dial.Metrics
	name     string
	prefix   string
	dir      string
	readOnly bool
	who      string // see Config.Who
	log      *slog.Logger
	wait     time.Duration // see Config.Wait
	relist   time.Duration // see relistEvery
	alarms   alarms

	unwritten *datadir.Writer  // writes files, and tries again those that it could not write
	written   written          // changes that brokers have to take over
	fromDisk  datadir.FromDisk // what is served from a file, because etcd was not heard yet

	reading chan struct{} // has one element while a prefix is read, see read
	held    held
	silent  atomic.Bool // etcd did not answer the last call

	remembers atomic.Pointer[keyspace.Memory] // what the last watcher of the map remembers

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// CallTimeout bounds one call of etcd, so that an outage is noticed.
const CallTimeout = 3 * time.Second

// silentTimeout bounds the first call of a watcher that has a last good state, if etcd did
// not answer the call before. With CallTimeout for each, watchers that start one after the
// other would hold up the start of a process.
const silentTimeout = 300 * time.Millisecond

// startTimeout bounds the first call of a process that has a last good state on disk.
const startTimeout = time.Second

// FirstCall returns the timeout for the first call of a watcher that has a last good state.
func (c *Client) FirstCall() time.Duration {
	if c.silent.Load() {
		return silentTimeout
	}
	return CallTimeout
}

// Silent reports whether etcd did not answer the last call.
func (c *Client) Silent() bool { return c.silent.Load() }

// NoteSilence notes whether a call was answered, by its error. So a starting process waits
// the whole timeout for a silent etcd once, and not with each call. It is not called for
// watches.
func (c *Client) NoteSilence(err error) { c.silent.Store(errors.Is(c.Unanswered(err), ErrAway)) }

// Open connects to etcd and writes or checks the partition count; a cluster
// of another count gives [keyspace.ErrPartitions]. It waits for etcd until ctx or
// [Config.Wait] ends, unless the last good map is on disk.
func Open(ctx context.Context, cfg Config) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Dir != "" {
		if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
	}
	how, err := cfg.etcd()
	if err != nil {
		return nil, err
	}
	metrics := dial.NewMetrics()
	how.DialOptions = append(metrics.Options(), how.DialOptions...)
	etcd, err := clientv3.New(how)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	c := &Client{etcd: etcd, metrics: metrics, name: cfg.Name, prefix: "/millrace/" + cfg.Name + "/", dir: cfg.Dir, readOnly: cfg.ReadOnly, who: cfg.Who, log: cfg.Log.With("cluster", cfg.Name), wait: cfg.Wait, relist: relistEvery, reading: make(chan struct{}, 1)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.unwritten = datadir.NewWriter(c.log, func(do func(context.Context)) { c.Run(func() { do(c.ctx) }) })
	if cfg.Metrics != nil {
		err = cfg.Metrics.Register(c)
	}
	if err == nil {
		err = c.checkPartitions(ctx, cfg.ReadOnly)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Name returns the cluster's name.
func (c *Client) Name() string { return c.name }

// Etcd returns etcd's own client, for the packages below this one alone.
func (c *Client) Etcd() *clientv3.Client { return c.etcd }

// Prefix returns the prefix of all keys of the cluster.
func (c *Client) Prefix() string { return c.prefix }

// Dir returns the directory of the last good state; empty: it is not kept.
func (c *Client) Dir() string { return c.dir }

// Log returns the client's logger, whose lines name the cluster.
func (c *Client) Log() *slog.Logger { return c.log }

// Context returns a context that ends with Close.
func (c *Client) Context() context.Context { return c.ctx }

// Wait returns [Config.Wait].
func (c *Client) Wait() time.Duration { return c.wait }

// Relist returns the longest time after which a watcher reads its whole prefix anew.
func (c *Client) Relist() time.Duration { return c.relist }

// Close ends every watcher and membership of the client.
func (c *Client) Close() error {
	c.stop()
	c.wg.Wait()
	return c.etcd.Close()
}

// Run runs do on a goroutine. Close waits for it, so it must end with [Client.Context].
func (c *Client) Run(do func()) { c.wg.Go(do) }

// WriteFile writes a file of the data directory by calling write. If that fails, it goes on
// trying in the background.
func (c *Client) WriteFile(file string, write func() error) { c.unwritten.Write(file, write) }

// SaveFile writes a document to the data directory, if there is one.
func (c *Client) SaveFile(file string, doc any) {
	if c.dir != "" {
		c.unwritten.Save(file, doc)
	}
}

// hasLastGood reports whether a map is kept on disk.
func (c *Client) hasLastGood() bool {
	if c.dir == "" {
		return false
	}
	_, err := os.Stat(datadir.MapFile(c.dir))
	return err == nil
}

// PartitionsKey returns the key of the partition count, by which entities belong to
// partitions.
func (c *Client) PartitionsKey() string { return c.prefix + "partitions" }

// checkPartitions compares the partition count in etcd with that of this binary. If there is
// none, it writes it, unless readOnly. If etcd does not answer, it waits, unless the last
// good map is on disk.
func (c *Client) checkPartitions(ctx context.Context, readOnly bool) error {
	key, want := c.PartitionsKey(), strconv.Itoa(partition.Count)
	first := []clientv3.Op{clientv3.OpPut(key, want), clientv3.OpPut(c.KeyspaceKey(), keyspace.New(1).String())}
	if readOnly {
		first = nil
	}
	ctx, cancel := c.patience(ctx)
	defer cancel()
	var told time.Time
	var waits atomic.Pointer[error]
	began := time.Now()
	defer c.Alarm(ctx, "cluster", func() (time.Time, error) {
		if why := waits.Load(); why != nil {
			return began, *why
		}
		return began, nil
	})()
	within := CallTimeout
	if c.hasLastGood() {
		within = startTimeout
	}
	for {
		call, cancel := context.WithTimeout(ctx, within)
		count, err := c.partitions(call, key, first)
		cancel()
		switch {
		case err == nil && count == "":
			return nil
		case err == nil:
			return keyspace.CheckCount(count)
		case c.hasLastGood():
			c.silent.Store(true)
			c.log.Warn("etcd is away; starting with the last good map", "err", err)
			return nil
		}
		if refused := dial.Refused(err); refused != nil {
			if err = refused; c.wait > 0 {
				return err
			}
		}
		waits.Store(&err)
		if time.Since(told) >= tellEvery {
			told = time.Now()
			c.log.Warn("waiting for etcd, without which nothing is known of the cluster", "etcd", c.etcd.Endpoints(), "err", err)
		}
		if wait.For(ctx, RetryAfter) != nil {
			return c.unheard(ctx, err)
		}
	}
}

// partitions reads the partition count. If there is none, it does the operations in first
// and returns "". It tries to read first, because an etcd without space refuses every
// transaction that might write.
func (c *Client) partitions(ctx context.Context, key string, first []clientv3.Op) (string, error) {
	got, err := c.etcd.Get(ctx, key)
	if err != nil {
		return "", err
	}
	if len(got.Kvs) > 0 {
		return string(got.Kvs[0].Value), nil
	}
	resp, err := c.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(first...).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil || resp.Succeeded {
		return "", err
	}
	return string(resp.Responses[0].GetResponseRange().Kvs[0].Value), nil
}

// AskTime returns the timeout of a call for which a person waits: that of any call, or
// [Config.Wait] if that is longer.
func (c *Client) AskTime() time.Duration { return max(CallTimeout, c.wait) }

// Unanswered returns the error of a call as an [ErrAway] with etcd's addresses if it failed
// because nobody answered, else as it is.
func (c *Client) Unanswered(err error) error {
	if err == nil || errors.Is(err, ErrAway) || !errors.Is(err, context.DeadlineExceeded) && status.Code(err) != codes.Unavailable {
		return err
	}
	return fmt.Errorf("%w at %v: %v", ErrAway, c.etcd.Endpoints(), err)
}

// PerhapsDone is [Client.Unanswered] for a call that writes. A write that was not answered may
// have been done all the same, and the error says so.
func (c *Client) PerhapsDone(err error) error {
	if err = c.Unanswered(err); errors.Is(err, ErrAway) {
		return fmt.Errorf("%w; it is not known whether it was done", err)
	}
	return err
}

// patience returns ctx with the timeout [Config.Wait], if there is one.
func (c *Client) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.wait <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, c.wait, fmt.Errorf("%w at %v within %v", ErrAway, c.etcd.Endpoints(), c.wait))
}

// unheard returns the error of a wait for the first answer: why the context waited has ended,
// and the last failure unless that is nil.
func (c *Client) unheard(waited context.Context, last error) error {
	why := context.Cause(waited)
	if !errors.Is(why, ErrAway) {
		why = fmt.Errorf("cluster: etcd at %v: %w", c.etcd.Endpoints(), why)
	}
	if last != nil {
		why = fmt.Errorf("%w: %v", why, last)
	}
	return why
}

// AwaitFirst waits until answered is closed, when a watcher has its first answer. what names
// the watcher in the error. It waits until ctx, [Config.Wait] or the client ends.
func (c *Client) AwaitFirst(ctx context.Context, what string, answered <-chan struct{}) error {
	waits, cancel := c.patience(ctx)
	defer cancel()
	select {
	case <-answered:
		return nil
	case <-waits.Done():
		return fmt.Errorf("cluster: %s: %w", what, c.unheard(waits, nil))
	case <-c.ctx.Done():
		return fmt.Errorf("cluster: %s: the client is closed", what)
	}
}

// RetryAfter is the pause after a failed call, and tellEvery how often a process that waits
// for etcd logs that.
const (
	RetryAfter = 500 * time.Millisecond
	tellEvery  = 10 * time.Second
)

// Away wraps the error of a failed call of etcd: as [dial.ErrFull] if etcd is out of space,
// else as [ErrAway].
func Away(err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fmt.Errorf("%w: %w", dial.ErrFull, err)
	}
	return awayError{err}
}

// awayError is an [ErrAway] with the error of the call.
type awayError struct{ err error }

func (e awayError) Error() string { return "cluster: etcd is away: " + e.err.Error() }

func (e awayError) Unwrap() error { return e.err }

func (e awayError) Is(target error) bool { return target == ErrAway }

// The prefixes of keys that several packages below this one use.
const (
	DocsPrefix    = "docs/"
	SecretsPrefix = "secrets/"
)

// KeyspaceKey returns the key of the [keyspace.Name].
func (c *Client) KeyspaceKey() string { return c.prefix + "keyspace" }
