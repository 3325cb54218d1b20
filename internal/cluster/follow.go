package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A watch is only the doorbell: whatever it rings for, the state is read
// whole, at one revision. Compaction, a lost event, a server that came back
// older or empty are then all the same thing, a state to be judged.
const (
	relistEvery = 10 * time.Second      // a server that lost its past never rings
	restAfter   = 50 * time.Millisecond // a thousand rings a second are twenty reads
)

// What may be wrong with the state that etcd holds.
var (
	errLost    = errors.New("cluster: etcd holds nothing of this cluster; keeping the last good state")
	errForeign = errors.New("cluster: this is another etcd cluster than before; keeping the last good state")
	errBack    = errors.New("cluster: etcd went back to an older revision; keeping the last good state")
	errAnew    = errors.New("cluster: etcd has lost the state of this cluster and holds the beginning of another; keeping the last good state")
)

// pastLost reports whether an error is that etcd has lost state, is older than it
// was, or another one.
func pastLost(err error) bool {
	return errors.Is(err, errLost) || errors.Is(err, errForeign) || errors.Is(err, errBack) || errors.Is(err, errAnew)
}

// Doubted reports whether an error is of all that etcd holds, so that nothing
// follows from what one document says: etcd is away, holds nothing, or has lost its
// past.
func Doubted(err error) bool {
	return pastLost(err) || errors.Is(err, ErrAway) || errors.Is(err, ErrNothing)
}

// maxAnswerBytes bounds an answer of etcd before any of it is read: everything
// under a prefix, or a part of a document. A hundred ledgers as large as they
// may be fit, and some thousands as they are. Only tests change it.
var maxAnswerBytes = 16 << 20

// snapshot is everything under a prefix at one revision.
type snapshot struct {
	cluster  uint64 // etcd's id of itself
	revision int64
	count    string // the partition count; "" when the keyspace is lost
	keyspace keyspace
	setback  *setback         // nil: nobody has found that etcd went back
	forked   bool             // what is remembered was never written there
	values   map[string]value // by key behind the prefix
	fault    error            // what of values could not be read and is as it was before
	held     *holding         // of who follows
	bytes    int              // that are held once it is applied
}

type value struct {
	data    []byte
	version int64 // the revision that wrote it
}

// list reads the state under a prefix of the cluster's.
func (c *Client) list(ctx context.Context, sub string) (*snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.etcd.Txn(ctx).Then(clientv3.OpGet(c.partitionsKey()), clientv3.OpGet(c.keyspaceKey()), clientv3.OpGet(c.prefix+sub, clientv3.WithPrefix()), clientv3.OpGet(c.setbackKey())).Commit()
	c.noteSilence(err)
	if err != nil && strings.Contains(err.Error(), "larger than max") { // gRPC has no other word for it
		return nil, fmt.Errorf("cluster: what etcd holds under %s%s is refused, being more than %d bytes: %w", c.prefix, sub, maxAnswerBytes, err)
	}
	if err != nil {
		return nil, away(err)
	}
	s := &snapshot{cluster: resp.Header.ClusterId, revision: resp.Header.Revision, values: map[string]value{}}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		s.count = string(kv.Value)
	}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		s.keyspace = parseKeyspace(string(kv.Value))
	}
	for _, kv := range resp.Responses[2].GetResponseRange().Kvs {
		s.values[string(kv.Key[len(c.prefix)+len(sub):])] = value{kv.Value, kv.ModRevision}
	}
	s.setback = setbackOf(resp.Responses[3].GetResponseRange().Kvs)
	return s, nil
}

// follow reads the state under a prefix now and whenever it may have changed,
// until ctx or the client ends. Exactly one of s and err is given to apply.
func (c *Client) follow(ctx context.Context, sub string, apply func(s *snapshot, err error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(c.ctx, cancel)()
	defer cancel()
	h := &holding{of: &c.held, what: c.prefix + sub}
	defer h.set(0)
	for within := c.firstCall(); ctx.Err() == nil; within = callTimeout {
		revision, err := c.read(ctx, sub, within, h, apply)
		if err != nil {
			_ = wait(ctx, retryAfter)
			continue
		}
		c.awaitRing(ctx, sub, revision+1)
		_ = wait(ctx, restAfter)
	}
}

// read reads the state under a prefix once, within a time, and returns its
// revision. What is not the map is read in turns, so that many prefixes take no
// more memory than one while they are read, and only as far as it may be held.
func (c *Client) read(ctx context.Context, sub string, within time.Duration, h *holding, apply func(s *snapshot, err error)) (revision int64, err error) {
	if sub != mapPrefix {
		select {
		case c.reading <- struct{}{}:
			defer func() { <-c.reading }()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	call, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s, err := c.list(call, sub)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err == nil:
		revision = s.revision
	}
	if err != nil || sub == mapPrefix {
		apply(s, err)
		return revision, err
	}
	s.held, s.bytes = h, s.size()
	if err := h.fits(s.bytes); err != nil {
		c.log.Error("what etcd holds is left as it was", "err", err)
		apply(nil, err)
		return revision, nil // etcd is well, and rings when it changes
	}
	apply(s, nil)
	h.set(s.bytes)
	return revision, nil
}

// awaitRing returns when something under the prefix was written at or after a
// revision, when that can no longer be told, or after relistEvery.
func (c *Client) awaitRing(ctx context.Context, sub string, revision int64) {
	ctx, cancel := context.WithTimeout(ctx, c.relist)
	defer cancel()
	for resp := range c.etcd.Watch(clientv3.WithRequireLeader(ctx), c.prefix+sub, clientv3.WithPrefix(), clientv3.WithRev(revision)) {
		if resp.Err() != nil || len(resp.Events) > 0 {
			return
		}
	}
}

// origin is which etcd was heard last, to notice another one. It is kept on
// disk, or a restart would be enough to take another's state for this one's.
type origin struct {
	Cluster  uint64   `json:"cluster"`
	Revision int64    `json:"revision"`
	Keyspace keyspace `json:"keyspace"`
	// Back is where etcd was when it was first seen to have gone back. 0 while it
	// has not gone back; only a restoration ends it.
	Back int64 `json:"back,omitempty"`
}

// wentBack notes that etcd has gone back, and reports so.
func (o *origin) wentBack(s *snapshot) error {
	if o.Back == 0 {
		o.Back = s.revision
	}
	return errBack
}

// judge says what is wrong with a snapshot as a whole. What nodes say of
// themselves can be used with errLost, errBack and errAnew, too.
func (o *origin) judge(s *snapshot) error {
	restored := s.keyspace.Generation > o.Keyspace.Generation
	switch {
	case o.Cluster != 0 && s.cluster != o.Cluster && !restored:
		return errForeign
	case s.count == "" && *o == origin{}:
		return ErrNothing
	case s.count == "":
		return errLost
	}
	if err := checkCount(s.count); err != nil {
		return err
	}
	switch {
	case restored || o.Keyspace == keyspace{}:
	case s.keyspace.before(o.Keyspace):
		return o.wentBack(s)
	case s.keyspace != o.Keyspace:
		return errAnew
	case s.revision < o.Revision || o.Back > 0:
		return o.wentBack(s)
	case s.setback != nil:
		return errBack // as another process has found
	}
	*o = origin{Cluster: s.cluster, Revision: s.revision, Keyspace: s.keyspace}
	if s.setback != nil { // there is nothing better than what it has
		s.fault = errors.Join(s.fault, errBack)
		o.Revision = 0 // older than what anybody else keeps, who may know better
	}
	return nil
}

// latest is a value that one goroutine replaces and others read and wait for,
// and what is wrong with it.
type latest[T any] struct {
	mu struct {
		sync.Mutex
		value   T
		fault   error
		since   time.Time // of fault; zero without one
		changed chan struct{}
	}
}

func newLatest[T any](v T) *latest[T] {
	l := &latest[T]{}
	l.mu.value, l.mu.changed = v, make(chan struct{})
	return l
}

func (l *latest[T]) get() (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.value, l.mu.fault
}

func (l *latest[T]) changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.changed
}

// set replaces the value and the fault and wakes whoever waits.
func (l *latest[T]) set(v T, fault error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.value, l.mu.fault = v, fault
	switch {
	case fault == nil:
		l.mu.since = time.Time{}
	case l.mu.since.IsZero():
		l.mu.since = time.Now()
	}
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

// faultSince returns the present fault, nil without one, and when it began.
func (l *latest[T]) faultSince() (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.since, l.mu.fault
}

// sameFault compares faults as the reader sees them.
func sameFault(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) }
