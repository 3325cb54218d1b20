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
//	keyspace        a [keyspace.Name], written with it: tells this past from another
//	setback         JSON of a [keyspace.Setback]; absent unless etcd went back
//	map/assignment  JSON of [topology.Assignment]
//	map/last        the same as Assign or Restore last wrote it, to judge it by
//	map/nodes/ID    JSON of a [topology.Registration], leased
//	map/known/ID    the same of the last one, for good
//	map/ready/ID    a [topology.Set] of 90 bytes, leased
//	map/lag/ID      JSON of a [topology.Lag], leased; absent while there is none
//	map/state/ID    JSON of [topology.Report]s, leased; absent while there are none
//	map/left/ID     empty, for a minute: the node went on purpose
//	seen/ID         when the node last lived, RFC 3339
//	brokers/WORD    JSON of a [brokers.Broker], leased for minutes
//	map/models/ID   JSON of a list of [members.Admission], leased
//	stats/ID        JSON of [members.NodeStats], leased
//	leader          JSON of a [Leader], leased
//	steer/NAME      whatever NAME is, of [steering.State]
//	docs/KIND/NAME  whatever KIND is; of [artefacts.Kind] a ledger
//	parts/KIND/NAME/SUM/PART   the bytes of a document that is larger than a value
//	bodies/KIND/NAME/SUM/PART  the bytes of a version of [artefacts.Kind]
//	secrets/NAME    32 random bytes; NAME.FROM and NAME.FROM.alone are later ones, see [secrets.Generation]
//	trace/VIEWER    for how long the viewer is traced, leased
//	history/WHEN    JSON of an [audit.Entry]; WHEN is in nanoseconds, and made unique
//	acting          JSON: who acts alone, leased; see [Client.Alone]
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

// ErrAway is that no etcd answered, within [Config.Wait] or a call's time.
var ErrAway = errors.New("cluster: no etcd answered")

// Config says which cluster to join.
type Config struct {
	Endpoints []string    // of etcd, host:port each
	Access    dial.Access // how they are reached
	Name      string      // of the cluster
	// Dir keeps what was last good across restarts, so that a process can
	// start while etcd is away. Empty: it is not kept.
	Dir string
	// ReadOnly looks at a cluster without writing anything, not even its
	// partition count: an empty etcd stays empty, and the watchers say so.
	ReadOnly bool
	// Wait is how long Open, and whatever watches, waits for the first answer
	// of etcd before it gives [ErrAway]; 0: as long as its context lets it.
	Wait time.Duration
	// Dial opens a connection to host:port; nil: over the machine's network.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	Who  string // acts, as the history says it; empty: nobody whose acts are written down
	// Metrics has the client from before Open waits for etcd; nil: whoever likes
	// registers it.
	Metrics prometheus.Registerer
	Log     *slog.Logger // nil: slog.Default()
}

// Validate reports every fault at once.
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

// etcd is how the cluster's etcd is called.
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

// Client is a connection to the cluster's etcd. As a [prometheus.Collector] it
// tells what is served from the last good state, and for how long.
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

	unwritten *datadir.Writer
	written   written
	fromDisk  datadir.FromDisk

	reading chan struct{} // holds one while a prefix is read, see read
	held    held
	silent  atomic.Bool // etcd did not answer when it was last asked

	remembers atomic.Pointer[keyspace.Memory] // of the cluster, by the last watcher

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// CallTimeout bounds one call of etcd, so that an outage is noticed.
const CallTimeout = 3 * time.Second

// silentTimeout bounds the first call of each that begins while etcd is silent,
// and has something to go on with: one after the other they would hold up the
// start of a process for a call's whole time each.
const silentTimeout = 300 * time.Millisecond

// startTimeout bounds the first call of a process that has something to go on with.
const startTimeout = time.Second

// FirstCall bounds the first call of who has something to go on with.
func (c *Client) FirstCall() time.Duration {
	if c.silent.Load() {
		return silentTimeout
	}
	return CallTimeout
}

// Silent reports whether etcd did not answer when it was last asked.
func (c *Client) Silent() bool { return c.silent.Load() }

// NoteSilence notes whether a call was answered: who starts waits its whole time for
// a silent etcd once, and not for each thing that it asks. A watch does not tell.
func (c *Client) NoteSilence(err error) { c.silent.Store(errors.Is(c.Unanswered(err), ErrAway)) }

// Open connects to etcd and writes or checks the partition count; a cluster
// of another count gives [keyspace.ErrPartitions]. It waits for etcd as long as ctx
// lets it, unless what was last good is on disk.
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

// Etcd is how rooms of this package call etcd; nobody else does.
func (c *Client) Etcd() *clientv3.Client { return c.etcd }

// Prefix is where all keys of the cluster are.
func (c *Client) Prefix() string { return c.prefix }

// Dir is where what was last good is kept; empty: it is not.
func (c *Client) Dir() string { return c.dir }

// Log is the client's, which names the cluster.
func (c *Client) Log() *slog.Logger { return c.log }

// Context ends with Close.
func (c *Client) Context() context.Context { return c.ctx }

// Wait is [Config.Wait].
func (c *Client) Wait() time.Duration { return c.wait }

// Relist is how often what is watched is read at the latest.
func (c *Client) Relist() time.Duration { return c.relist }

// Close ends every watcher and membership of the client.
func (c *Client) Close() error {
	c.stop()
	c.wg.Wait()
	return c.etcd.Close()
}

// Run runs what Close waits for.
func (c *Client) Run(do func()) { c.wg.Go(do) }

// WriteFile writes a file of the data directory, and goes on trying where that fails.
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

// PartitionsKey holds the count that decides where entities live.
func (c *Client) PartitionsKey() string { return c.prefix + "partitions" }

// checkPartitions writes the partition count if there is none, unless nothing
// is to be written, and compares it if there is.
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

// partitions reads the partition count, or writes what is first where there is none:
// then it is "". It only reads if it can: an etcd without space takes no transaction
// that might write.
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

// AskTime bounds a call for somebody who waits: a command waits as long for a call
// as for the first answer.
func (c *Client) AskTime() time.Duration { return max(CallTimeout, c.wait) }

// Unanswered is an [ErrAway] with etcd's addresses, if a call failed since nobody
// answered; and else its failure.
func (c *Client) Unanswered(err error) error {
	if err == nil || errors.Is(err, ErrAway) || !errors.Is(err, context.DeadlineExceeded) && status.Code(err) != codes.Unavailable {
		return err
	}
	return fmt.Errorf("%w at %v: %v", ErrAway, c.etcd.Endpoints(), err)
}

// PerhapsDone is [Client.Unanswered] of a call that writes: what nobody answers may have
// been done.
func (c *Client) PerhapsDone(err error) error {
	if err = c.Unanswered(err); errors.Is(err, ErrAway) {
		return fmt.Errorf("%w; it is not known whether it was done", err)
	}
	return err
}

// patience is ctx, for as long as the client waits for a first answer.
func (c *Client) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.wait <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, c.wait, fmt.Errorf("%w at %v within %v", ErrAway, c.etcd.Endpoints(), c.wait))
}

// unheard is why a wait for the first answer has ended, and the last failure,
// if there was one.
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

// AwaitFirst waits for the first answer to who watches.
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

// RetryAfter is the pause after a failed call, and tellEvery how often who
// waits says so.
const (
	RetryAfter = 500 * time.Millisecond
	tellEvery  = 10 * time.Second
)

// Away tells of a failed call of etcd.
func Away(err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fmt.Errorf("%w: %w", dial.ErrFull, err)
	}
	return awayError{err}
}

// awayError is an [ErrAway] that says what became of the call.
type awayError struct{ err error }

func (e awayError) Error() string { return "cluster: etcd is away: " + e.err.Error() }

func (e awayError) Unwrap() error { return e.err }

func (e awayError) Is(target error) bool { return target == ErrAway }

// Where rooms meet: documents and secrets are read by who looks at all of them.
const (
	DocsPrefix    = "docs/"
	SecretsPrefix = "secrets/"
)

// KeyspaceKey holds a [keyspace.Name].
func (c *Client) KeyspaceKey() string { return c.prefix + "keyspace" }
