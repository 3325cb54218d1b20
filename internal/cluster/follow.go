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

// A watch is only the doorbell: whatever it rings for, the state is read
// whole, at one revision. Compaction, a lost event, a server that came back
// older or empty are then all the same thing, a state to be judged.
const (
	relistEvery = 10 * time.Second      // a server that lost its past never rings
	restAfter   = 50 * time.Millisecond // a thousand rings a second are twenty reads
	// mapEvery is how often the map is read at most, about. While a plan is under
	// way something of it changes ten times a second, and every process reads it:
	// not all at one moment, in which no question would find a processor.
	mapEvery = 250 * time.Millisecond
)

// LookTime is how long it takes until every process that runs has looked at what etcd
// has, once that is back, and has said whether it keeps more.
const LookTime = relistEvery * 6 / 5

// Doubted reports whether an error is of all that etcd holds, so that nothing
// follows from what one document says: etcd is away, holds nothing, or has lost its
// past.
func Doubted(err error) bool {
	return keyspace.PastLost(err) || errors.Is(err, ErrAway) || errors.Is(err, keyspace.ErrNothing)
}

// maxAnswerBytes bounds an answer of etcd before any of it is read: everything
// under a prefix, or a part of a document. A hundred ledgers as large as they
// may be fit, and some thousands as they are. Only tests change it.
var maxAnswerBytes = 16 << 20

// List reads the state under a prefix of the cluster's. It may be megabytes, so that a
// command waits for it as for any call.
func (c *Client) List(ctx context.Context, sub string) (*keyspace.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, c.AskTime())
	defer cancel()
	resp, err := c.etcd.Txn(ctx).Then(clientv3.OpGet(c.PartitionsKey()), clientv3.OpGet(c.KeyspaceKey()), clientv3.OpGet(c.prefix+sub, clientv3.WithPrefix()), clientv3.OpGet(c.SetbackKey())).Commit()
	c.NoteSilence(err)
	if err != nil && strings.Contains(err.Error(), "larger than max") { // gRPC has no other word for it
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

// Follow reads the state under a prefix now and whenever it may have changed,
// until ctx or the client ends. Exactly one of s and err is given to apply.
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

// read reads the state under a prefix once, within a time, and returns its
// revision. What is not the map is read in turns, so that many prefixes take no
// more memory than one while they are read, and only as far as it may be held.
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
		return revision, nil // etcd is well, and rings when it changes
	}
	apply(s, nil)
	h.set(s.Bytes)
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
