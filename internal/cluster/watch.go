package cluster

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// MapPrefix is the prefix, below that of the cluster, of the keys from which a
// [topology.Map] is made.
const MapPrefix = "map/"

// Watcher keeps a [topology.Map] up to date.
type Watcher struct {
	state  *keyspace.Latest[*topology.Map]
	origin keyspace.Origin // the state of etcd that the map comes from; only for Watch's goroutine
	log    *slog.Logger
}

// Watch returns a watcher once the map has been read, from etcd or, if etcd is away,
// from disk. A cluster without an assignment has a map of epoch 0. The watcher
// works until ctx or the client ends. The error says that neither has a map, and that ctx,
// [Config.Wait] or the client has ended.
func (c *Client) Watch(ctx context.Context) (*Watcher, error) {
	w := &Watcher{state: keyspace.NewLatest(topology.NewMap(topology.Assignment{}, nil, nil)), log: c.log}
	c.Alarm(ctx, "map", w.state.FaultSince)
	first, known := make(chan struct{}), sync.Once{}
	if old, from, err := topology.LoadMap(c.dir); err == nil {
		w.state.Set(old, nil)
		w.origin = from
		c.BeginFromDisk("map", datadir.MapFile(c.dir))
		c.remember(from, old.Epoch())
	} else if c.hasLastGood() {
		w.log.Warn("the last good map on disk is of no use", "err", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(c.ctx, cancel)
	kept := keeper{c: c}
	c.Run(func() {
		defer cancel()
		c.Follow(ctx, MapPrefix, func(s *keyspace.Snapshot, err error) {
			old, from := w.Current(), w.origin
			w.apply(s, err)
			c.TellFromDisk("map", from, w.Fault())
			if err == nil {
				c.TellSetback(ctx, "map", s, w.origin)
				c.TellRemembered(ctx, MapKind, Kept{Revision: w.Current().Epoch()}, nil, w.origin, w.Fault())
			}
			if m := w.Current(); m != old || w.origin.Moved(from) {
				kept.save(ctx, m, w.origin)
				c.remember(w.origin, m.Epoch())
			}
			if err == nil || w.Current().Epoch() > 0 {
				known.Do(func() { close(first) })
			}
		})
	})
	if err := c.AwaitFirst(ctx, "watch", first); err != nil {
		return nil, err
	}
	return w, nil
}

// Current returns the last good map, never nil.
func (w *Watcher) Current() *topology.Map { m, _ := w.state.Get(); return m }

// Changed returns a channel that is closed at the next change of
// [Watcher.Current] or [Watcher.Fault]. Take it before looking at either.
func (w *Watcher) Changed() <-chan struct{} { return w.state.Changed() }

// Fault returns why the map may be older than what etcd holds: etcd is away,
// empty, rolled back, another one than before, or holds something malformed. It is nil when
// all is well.
func (w *Watcher) Fault() error { _, err := w.state.Get(); return err }

// apply takes over from a snapshot what is good of it. If s is nil, fault says why there is no
// snapshot.
func (w *Watcher) apply(s *keyspace.Snapshot, fault error) {
	old, oldFault := w.state.Get()
	next := old
	if fault == nil {
		fault = w.origin.Judge(s)
	}
	if fault == nil || errors.Is(fault, keyspace.ErrNothing) || errors.Is(fault, keyspace.ErrGone) || errors.Is(fault, keyspace.ErrBack) || errors.Is(fault, keyspace.ErrAnew) {
		var bad error
		next, bad = old.Next(s)
		fault = errors.Join(fault, s.Fault, bad)
	}
	if next.Equal(old) {
		next = old
	}
	if next == old && keyspace.SameFault(fault, oldFault) {
		return
	}
	if !keyspace.SameFault(fault, oldFault) {
		if fault != nil {
			w.log.Error("serving the last good map", "epoch", next.Epoch(), "fault", fault)
		} else {
			w.log.Info("etcd is well again", "epoch", next.Epoch())
		}
	}
	w.state.Set(next, fault)
}
