package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
)

// mapPrefix is where what makes a [Map] is.
const mapPrefix = "map/"

// Assign replaces the assignment. a.Epoch must be one above the present one
// (1 for the first, any for the first after etcd lost its state); otherwise,
// or when somebody was faster, it gives [ErrEpoch]. [ErrShrink] guards against
// mistakes.
func (c *Client) Assign(ctx context.Context, a Assignment) error {
	if err := a.Validate(); err != nil {
		return err
	}
	key := c.prefix + mapPrefix + "assignment"
	got, err := c.etcd.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("cluster: assign: %w", err)
	}
	var revision int64
	if len(got.Kvs) > 0 {
		old, err := decodeAssignment(got.Kvs[0].Value)
		if err != nil {
			return fmt.Errorf("cluster: the present assignment is damaged, delete %s first: %w", key, err)
		}
		if a.Epoch != old.Epoch+1 {
			return fmt.Errorf("%w: it has epoch %d, so the next is %d and not %d", ErrEpoch, old.Epoch, old.Epoch+1, a.Epoch)
		}
		if err := old.shrinks(&a); err != nil && !a.AllowShrink {
			return err
		}
		revision = got.Kvs[0].ModRevision
	}
	body, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("cluster: assign: %w", err)
	}
	put, err := c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpPut(key, string(body))).Commit()
	if err != nil {
		return fmt.Errorf("cluster: assign: %w", err)
	}
	if !put.Succeeded {
		return fmt.Errorf("%w: somebody else assigned at the same time", ErrEpoch)
	}
	return nil
}

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
	c.alarms.add("map", w.state.faultSince)
	first, known := make(chan struct{}), sync.Once{}
	if old, from, err := c.loadMap(); err == nil {
		w.state.set(old, nil)
		w.origin = from
		c.remember(from, old.Epoch())
	} else if c.hasLastGood() {
		w.log.Warn("the last good map on disk is of no use", "err", err)
	}
	c.wg.Go(func() {
		c.follow(ctx, mapPrefix, func(s *snapshot, err error) {
			old, from := w.Current(), w.origin
			w.apply(s, err)
			if m := w.Current(); m != old || w.origin.Keyspace != from.Keyspace {
				c.saveMap(m, w.origin)
				c.remember(w.origin, m.Epoch())
			}
			if err == nil || w.Current().Epoch() > 0 {
				known.Do(func() { close(first) })
			}
		})
	})
	select {
	case <-first:
		return w, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("cluster: watch: %w", ctx.Err())
	case <-c.ctx.Done():
		return nil, errors.New("cluster: watch: the client is closed")
	}
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
	if fault == nil || errors.Is(fault, errBack) || errors.Is(fault, errAnew) {
		var bad error
		next, bad = old.next(s)
		fault = errors.Join(fault, bad)
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
	next := &Map{assignment: m.assignment, nodes: map[millrace.NodeID]Node{}, alive: map[millrace.NodeID]bool{}, ready: map[millrace.NodeID]Set{}, lag: map[millrace.NodeID]Lag{}, reports: map[millrace.NodeID][]Report{}}
	if a, err := m.nextAssignment(s); err != nil {
		faults = append(faults, err)
	} else if a != nil {
		next.assignment = *a
	}
	next.hosted = next.assignment.hosted()
	for key, v := range s.values {
		kind, id, _ := strings.Cut(key, "/")
		var err error
		switch kind {
		case "nodes":
			err = next.addNode(millrace.NodeID(id), v.data)
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
	return next, errors.Join(faults...)
}

func (m *Map) addNode(id millrace.NodeID, body []byte) error {
	r, err := decodeRegistration(id, body)
	if err != nil {
		return err
	}
	m.nodes[id], m.alive[id] = r.Node, true
	return nil
}

// nextAssignment returns the assignment to change to; nil for none.
func (m *Map) nextAssignment(s *snapshot) (*Assignment, error) {
	v, ok := s.values["assignment"]
	if !ok {
		if m.Epoch() > 0 {
			return nil, fmt.Errorf("cluster: etcd has lost the assignment; keeping epoch %d", m.Epoch())
		}
		return nil, nil
	}
	a, err := decodeAssignment(v.data)
	if err != nil {
		return nil, err
	}
	switch {
	case a.Epoch < m.Epoch():
		return nil, fmt.Errorf("cluster: etcd has assignment %d, older than %d; keeping %[2]d", a.Epoch, m.Epoch())
	case a.Epoch == m.Epoch():
		if !m.assignment.equal(a) {
			return nil, fmt.Errorf("cluster: etcd has another assignment of epoch %d; keeping the first", a.Epoch)
		}
		return nil, nil
	case a.Epoch == m.Epoch()+1 && m.Epoch() > 0 && !a.AllowShrink:
		// Over several epochs it may have shrunk step by step.
		if err := m.assignment.shrinks(a); err != nil {
			return nil, err
		}
	}
	return a, nil
}
