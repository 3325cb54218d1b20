package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace"
)

// mapPrefix is where what makes a [Map] is.
const mapPrefix = "map/"

// Watcher keeps a [Map] up to date.
type Watcher struct {
	state  *latest[*Map]
	origin origin
	log    *slog.Logger
}

// Watch returns once the map has been read, from etcd or, when etcd is away,
// from disk. A cluster without an assignment has a map of epoch 0. The watcher
// works until ctx or the client ends.
func (c *Client) Watch(ctx context.Context) (*Watcher, error) {
	w := &Watcher{state: newLatest(NewMap(Assignment{}, nil, nil)), log: c.log}
	c.alarms.add(ctx, "map", w.state.faultSince)
	first, known := make(chan struct{}), sync.Once{}
	if old, from, err := c.loadMap(); err == nil {
		w.state.set(old, nil)
		w.origin = from
		c.fromDisk.begin("map", c.mapFile())
		c.remember(from, old.Epoch())
	} else if c.hasLastGood() {
		w.log.Warn("the last good map on disk is of no use", "err", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(c.ctx, cancel)
	kept := keeper{c: c}
	c.wg.Go(func() {
		defer cancel()
		c.follow(ctx, mapPrefix, func(s *snapshot, err error) {
			old, from := w.Current(), w.origin
			w.apply(s, err)
			c.tellFromDisk("map", from, w.Fault())
			if err == nil {
				c.tellSetback(ctx, "map", s, w.origin)
				c.tellRemembered(ctx, mapKind, keep{Revision: w.Current().Epoch()}, w.origin, w.Fault())
			}
			if m := w.Current(); m != old || w.origin.moved(from) {
				kept.save(ctx, m, w.origin)
				c.remember(w.origin, m.Epoch())
			}
			if err == nil || w.Current().Epoch() > 0 {
				known.Do(func() { close(first) })
			}
		})
	})
	if err := c.first(ctx, "watch", first); err != nil {
		return nil, err
	}
	return w, nil
}

// Current returns the last good map.
func (w *Watcher) Current() *Map { m, _ := w.state.get(); return m }

// Changed returns a channel that is closed at the next change of
// [Watcher.Current] or [Watcher.Fault]. Take it before looking at either.
func (w *Watcher) Changed() <-chan struct{} { return w.state.changed() }

// Fault says why the map may be older than what etcd holds: etcd is away,
// empty, rolled back, foreign, or holds something malformed. nil when all is
// well.
func (w *Watcher) Fault() error { _, err := w.state.get(); return err }

// apply judges a snapshot, or the failure to get one, and takes over what is
// good.
func (w *Watcher) apply(s *snapshot, fault error) {
	old, oldFault := w.state.get()
	next := old
	if fault == nil {
		fault = w.origin.judge(s)
	}
	if fault == nil || errors.Is(fault, ErrNothing) || errors.Is(fault, errLost) || errors.Is(fault, errBack) || errors.Is(fault, errAnew) {
		var bad error
		next, bad = old.next(s)
		fault = errors.Join(fault, s.fault, bad)
	}
	if next.equal(old) {
		next = old
	}
	if next == old && sameFault(fault, oldFault) {
		return
	}
	if !sameFault(fault, oldFault) {
		if fault != nil {
			w.log.Error("serving the last good map", "epoch", next.Epoch(), "fault", fault)
		} else {
			w.log.Info("etcd is well again", "epoch", next.Epoch())
		}
	}
	w.state.set(next, fault)
}

// next returns the map after a snapshot, and what of the snapshot was no good
// and is as before.
func (m *Map) next(s *snapshot) (*Map, error) {
	var faults []error
	next := &Map{assignment: m.assignment, nodes: map[millrace.NodeID]Node{}, alive: map[millrace.NodeID]bool{}, ready: map[millrace.NodeID]Set{}, lag: map[millrace.NodeID]Lag{}, reports: map[millrace.NodeID][]Report{}, past: map[millrace.NodeID]Node{}, lost: loss{setback: s.setback}}
	a, err := m.nextAssignment(s)
	if err != nil {
		faults = append(faults, err)
	}
	next.hosted, next.raw = m.hosted, m.raw
	if a != nil {
		next.assignment, next.hosted = *a, a.hosted()
	}
	if err == nil {
		next.raw = s.values["assignment"].data
	}
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		kind, id, _ := strings.Cut(key, "/")
		v, err := s.values[key], error(nil)
		switch kind {
		case "nodes":
			err = next.addNode(millrace.NodeID(id), v.data, s.keyspace)
		case "known":
			if r, bad := decodeRegistration(millrace.NodeID(id), v.data); bad == nil {
				next.past[r.ID] = r.Node
			}
		case "ready":
			var set Set
			if set, err = decodeSet(v.data); err == nil {
				next.ready[millrace.NodeID(id)] = set
			}
		case "lag":
			var lag Lag
			if lag, err = decodeLag(v.data); err == nil {
				next.lag[millrace.NodeID(id)] = lag
			}
		case "state":
			var reports []Report
			if reports, err = decodeReports(v.data); err == nil {
				next.reports[millrace.NodeID(id)] = reports
			}
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("cluster: %s: %w", key, err))
		}
	}
	// A node whose lease is gone may be dead or only cut off from etcd. As
	// long as it hosts something it stays known, for when nobody else can.
	for id, n := range m.nodes {
		_, left := s.values["left/"+string(id)]
		_, hosts := next.hosted[id]
		if !next.alive[id] && hosts && !left {
			next.nodes[id], next.ready[id] = n, m.ready[id]
		}
	}
	next.order()
	return next, joinFaults(faults)
}

// joinFaults tells the first few of many faults.
func joinFaults(faults []error) error {
	if more := len(faults) - maxListed; more > 0 {
		faults = append(faults[:maxListed:maxListed], fmt.Errorf("cluster: and %d more", more))
	}
	return errors.Join(faults...)
}

func (m *Map) addNode(id millrace.NodeID, body []byte, now keyspace) error {
	r, err := decodeRegistration(id, body)
	if err != nil {
		return err
	}
	m.nodes[id], m.alive[id] = r.Node, true
	if r.lostBy(now, m.Epoch()) {
		m.lost.add(r)
	}
	return nil
}

// nextAssignment returns the assignment to change to; nil for none. What is
// wrong with one that there is no better one than is told beside it.
func (m *Map) nextAssignment(s *snapshot) (*Assignment, error) {
	v, ok := s.values["assignment"]
	if !ok {
		if m.Epoch() > 0 {
			return nil, fmt.Errorf("cluster: etcd has lost the assignment; keeping epoch %d", m.Epoch())
		}
		return nil, nil
	}
	if len(m.raw) > 0 && bytes.Equal(v.data, m.raw) {
		return nil, nil // most changes are of what nodes say of themselves
	}
	a, err := decodeAssignment(v.data)
	if err != nil {
		return nil, err
	}
	switch {
	case a.Epoch < m.Epoch():
		return nil, fmt.Errorf("cluster: etcd has assignment %d, older than %d; keeping %[2]d", a.Epoch, m.Epoch())
	case a.Epoch == m.Epoch():
		if !m.assignment.hosts(a) {
			return nil, fmt.Errorf("cluster: etcd has another assignment of epoch %d; keeping the first", a.Epoch)
		}
		if m.assignment.equal(a) {
			return nil, nil
		}
		return a, nil // an older version, which knows less of it, kept what this process began with
	case a.Epoch > m.Epoch()+maxEpochStep && a.Epoch > lastEpoch(s)+maxEpochStep:
		return nil, fmt.Errorf("cluster: etcd has assignment %d, more than %d above %d; keeping %[3]d", a.Epoch, maxEpochStep, m.Epoch())
	case m.Epoch() == 0:
		return a, a.unknown(m.known(s))
	}
	if err := errors.Join(m.assignment.shrinks(a), a.unknown(m.known(s))); err != nil {
		return nil, fmt.Errorf("cluster: etcd has assignment %d, which is refused; keeping %d: %w", a.Epoch, m.Epoch(), err)
	}
	return a, nil
}

// lastEpoch is that of the assignment that was last written by this package.
func lastEpoch(s *snapshot) int64 {
	if a, err := decodeAssignment(s.values["last"].data); err == nil {
		return a.Epoch
	}
	return 0
}

// known returns the nodes that are or were registered, and those that hosted
// something before.
func (m *Map) known(s *snapshot) map[millrace.NodeID]bool {
	known := map[millrace.NodeID]bool{}
	for id := range m.nodes {
		known[id] = true
	}
	for id := range m.hosted {
		known[id] = true
	}
	for key := range s.values {
		if kind, id, _ := strings.Cut(key, "/"); kind == "nodes" || kind == "known" {
			known[millrace.NodeID(id)] = true
		}
	}
	return known
}
