package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/wait"
)

// An etcd watch serves only as a signal. Whatever it reports, the state under the prefix is
// read whole, at one revision. So compaction, a lost event, and a server that came back
// older or empty need no handling of their own: each gives a state that is judged.
const (
	relistEvery = 10 * time.Second      // from a read to the next one without a signal; a server that lost its past never gives a signal
	restAfter   = 50 * time.Millisecond // between two reads, so that a thousand signals a second are twenty reads
	// mapEvery is about the least time between two reads of the map. While a plan is under
	// way the map changes ten times a second, and every process reads it. The reads are
	// spread at random: all at the same moment, they would leave questions no processor.
	mapEvery = 250 * time.Millisecond
)

// LookTime is how long it takes, once etcd is back, until every running process has read it
// anew and has said whether it remembers state that etcd has lost: relistEvery, and a fifth
// more, since reading and writing take time too.
const LookTime = relistEvery * 6 / 5

// Doubted reports whether an error casts doubt on all that etcd holds: etcd is away, holds
// nothing, or has lost its past. Then nothing may be concluded from a single document.
func Doubted(err error) bool {
	return keyspace.PastLost(err) || errors.Is(err, ErrAway) || errors.Is(err, keyspace.ErrNothing)
}

// maxAnswerBytes bounds an answer of etcd before any of it is read: everything
// under a prefix, or a part of a document. A hundred ledgers of the largest size allowed
// fit, and some thousands of the usual size. Only tests change it.
var maxAnswerBytes = 16 << 20

// List reads the state under a prefix of the cluster's keys, at one revision. Its timeout is
// [Client.AskTime], because the state may be megabytes. The error is [ErrAway] if etcd did
// not answer.
func (c *Client) List(ctx context.Context, sub string) (*keyspace.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTime())
	defer cancel()
	resp, err := c.etcd.Txn(ctx).Then(clientv3.OpGet(c.PartitionsKey()), clientv3.OpGet(c.KeyspaceKey()), clientv3.OpGet(c.prefix+sub, clientv3.WithPrefix()), clientv3.OpGet(c.SetbackKey())).Commit()
	c.NoteSilence(err)
	if err != nil && strings.Contains(err.Error(), "larger than max") { // gRPC has no status of its own for it
		return nil, fmt.Errorf("cluster: what etcd holds under %s%s is refused, being more than %d bytes: %w", c.prefix, sub, maxAnswerBytes, err)
	}
	if err != nil {
		return nil, Away(err)
	}
	s := &keyspace.Snapshot{Cluster: resp.Header.ClusterId, Revision: resp.Header.Revision, Values: map[string]keyspace.Value{}}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		s.Count = string(kv.Value)
	}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		s.Keyspace = keyspace.Parse(string(kv.Value))
	}
	for _, kv := range resp.Responses[2].GetResponseRange().Kvs {
		s.Values[string(kv.Key[len(c.prefix)+len(sub):])] = keyspace.Value{Data: kv.Value, Version: kv.ModRevision}
	}
	s.Setback = keyspace.ParseSetback(resp.Responses[3].GetResponseRange().Kvs)
	return s, nil
}

// Follow reads the state under a prefix now and whenever it may have changed, until ctx or
// the client ends, and passes it to apply. Exactly one of s and err is not nil: err says why
// the state could not be read, or not be held.
func (c *Client) Follow(ctx context.Context, sub string, apply func(s *keyspace.Snapshot, err error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(c.ctx, cancel)()
	defer cancel()
	h := &holding{of: &c.held, what: c.prefix + sub}
	defer h.set(0)
	for within := c.FirstCall(); ctx.Err() == nil; within = CallTimeout {
		began := time.Now()
		revision, err := c.read(ctx, sub, within, h, apply)
		if err != nil {
			_ = wait.For(ctx, RetryAfter)
			continue
		}
		c.awaitRing(ctx, sub, revision+1)
		rest := restAfter
		if sub == MapPrefix {
			rest = max(rest, mapEvery-time.Since(began)) + rand.N(restAfter)
		}
		_ = wait.For(ctx, rest)
	}
}

// read reads the state under a prefix once, within a timeout, passes it to apply, and
// returns its revision. Prefixes other than the map are read one at a time, so that reading
// many takes no more memory than reading one. Their state is passed on only if h has room
// for it.
func (c *Client) read(ctx context.Context, sub string, within time.Duration, h *holding, apply func(s *keyspace.Snapshot, err error)) (revision int64, err error) {
	if sub != MapPrefix {
		select {
		case c.reading <- struct{}{}:
			defer func() { <-c.reading }()
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	call, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s, err := c.List(call, sub)
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err == nil:
		revision = s.Revision
	}
	if err != nil || sub == MapPrefix {
		apply(s, err)
		return revision, err
	}
	s.Fits, s.Bytes = h.fits, s.Size()
	if err := h.fits(s.Bytes); err != nil {
		c.log.Error("what etcd holds is left as it was", "err", err)
		apply(nil, err)
		return revision, nil // no error: etcd answers, and signals the next change
	}
	apply(s, nil)
	h.set(s.Bytes)
	return revision, nil
}

// awaitRing waits until something under the prefix is written at or after a revision, the
// watch fails, or c.relist has passed.
func (c *Client) awaitRing(ctx context.Context, sub string, revision int64) {
	ctx, cancel := context.WithTimeout(ctx, c.relist)
	defer cancel()
	for resp := range c.etcd.Watch(clientv3.WithRequireLeader(ctx), c.prefix+sub, clientv3.WithPrefix(), clientv3.WithRev(revision)) {
		if resp.Err() != nil || len(resp.Events) > 0 {
			return
		}
	}
}
