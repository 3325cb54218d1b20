package topology

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// Next returns the map after a snapshot, and what of the snapshot was no good
// and is as before.
func (m *Map) Next(s *keyspace.Snapshot) (*Map, error) {
	var faults []error
	next := &Map{assignment: m.assignment, nodes: map[millrace.NodeID]Node{}, alive: map[millrace.NodeID]bool{}, ready: map[millrace.NodeID]Set{}, lag: map[millrace.NodeID]Lag{}, reports: map[millrace.NodeID][]Report{}, past: map[millrace.NodeID]Node{}, lost: loss{setback: s.Setback}}
	a, err := m.nextAssignment(s)
	if err != nil {
		faults = append(faults, err)
	}
	next.hosted, next.raw = m.hosted, m.raw
	if a != nil {
		next.assignment, next.hosted = *a, a.hosted()
	}
	if err == nil {
		next.raw = s.Values["assignment"].Data
	}
	for _, key := range slices.Sorted(maps.Keys(s.Values)) {
		kind, id, _ := strings.Cut(key, "/")
		v, err := s.Values[key], error(nil)
		switch kind {
		case "nodes":
			err = next.addNode(millrace.NodeID(id), v.Data, s.Keyspace)
		case "known":
			if r, bad := DecodeRegistration(millrace.NodeID(id), v.Data); bad == nil {
				next.past[r.ID] = r.Node
			}
		case "ready":
			var set Set
			if set, err = decodeSet(v.Data); err == nil {
				next.ready[millrace.NodeID(id)] = set
			}
		case "lag":
			var lag Lag
			if lag, err = decodeLag(v.Data); err == nil {
				next.lag[millrace.NodeID(id)] = lag
			}
		case "state":
			var reports []Report
			if reports, err = decodeReports(v.Data); err == nil {
				next.reports[millrace.NodeID(id)] = reports
			}
		}
		if err != nil {
			faults = append(faults, &KeyFault{key, err})
		}
	}
	// A node whose lease is gone may be dead or only cut off from etcd. As
	// long as it hosts something it stays known, for when nobody else can.
	for id, n := range m.nodes {
		_, left := s.Values["left/"+string(id)]
		_, hosts := next.hosted[id]
		if !next.alive[id] && hosts && !left {
			next.nodes[id], next.ready[id] = n, m.ready[id]
		}
	}
	next.order()
	return next, keyspace.Few(faults)
}

// KeyFault says that what a key of etcd holds is malformed. All else is taken over.
type KeyFault struct {
	Key string // behind the cluster's prefix of the map
	Err error
}

func (f *KeyFault) Error() string { return fmt.Sprintf("cluster: %s: %v", f.Key, f.Err) }
func (f *KeyFault) Unwrap() error { return f.Err }

// addNode takes over the registration of a node that is alive.
func (m *Map) addNode(id millrace.NodeID, body []byte, now keyspace.Name) error {
	r, err := DecodeRegistration(id, body)
	if err != nil {
		return err
	}
	m.nodes[id], m.alive[id] = r.Node, true
	if r.LostBy(now, m.Epoch()) {
		m.lost.add(r)
	}
	return nil
}

// Present returns the assignment that watchers hold, as far as etcd can tell, nil if there
// is none, and the highest epoch that any of them may have: the assignment is taken or,
// where it is none that may follow the last one that was written as one should be, that one.
// fault says then what is wrong: it was written past all checks, and may be malformed, of
// another past, or a mistake.
func Present(s *keyspace.Snapshot) (a *Assignment, epoch int64, fault error) {
	last, err := DecodeAssignment(s.Values["last"].Data)
	a, fault = DecodeAssignment(s.Values["assignment"].Data)
	switch {
	case err != nil && fault != nil:
		return nil, 0, fault
	case err != nil && a.Epoch > MaxEpochStep:
		return nil, 0, fmt.Errorf("cluster: etcd has assignment %d, and the first one has %d at most", a.Epoch, MaxEpochStep)
	case err != nil:
		return a, a.Epoch, nil
	case fault != nil:
		return last, last.Epoch, fault
	}
	known := (&Map{}).Known(s)
	for _, id := range last.Nodes() {
		known[id] = true
	}
	if fault = last.follows(a, last.Epoch, known); fault == nil {
		return a, a.Epoch, nil
	}
	epoch = last.Epoch
	if a.Epoch <= last.Epoch+MaxEpochStep { // watchers that began with another one may have taken it
		epoch = max(epoch, a.Epoch)
	}
	return last, epoch, fault
}

// follows is why next, which etcd has, may not follow the assignment a, where the highest
// epoch that is known is so high and those are the nodes that are.
func (a *Assignment) follows(next *Assignment, epoch int64, known map[millrace.NodeID]bool) error {
	switch {
	case next.Epoch < a.Epoch:
		return fmt.Errorf("cluster: etcd has assignment %d, older than %d", next.Epoch, a.Epoch)
	case next.Epoch == a.Epoch && !a.hosts(next):
		return fmt.Errorf("cluster: etcd has another assignment of epoch %d", next.Epoch)
	case next.Epoch == a.Epoch:
		return nil
	case next.Epoch > max(epoch, a.Epoch)+MaxEpochStep:
		return fmt.Errorf("cluster: etcd has assignment %d, more than %d above %d", next.Epoch, MaxEpochStep, a.Epoch)
	}
	if err := errors.Join(a.Shrinks(next), next.Unknown(known)); err != nil {
		return fmt.Errorf("cluster: etcd has assignment %d, which is refused: %w", next.Epoch, err)
	}
	return nil
}

// nextAssignment returns the assignment to change to; nil for none. What is
// wrong with one that there is no better one than is told beside it.
func (m *Map) nextAssignment(s *keyspace.Snapshot) (*Assignment, error) {
	v, ok := s.Values["assignment"]
	if !ok {
		if m.Epoch() > 0 {
			return nil, fmt.Errorf("cluster: etcd has lost the assignment; keeping epoch %d", m.Epoch())
		}
		return nil, nil
	}
	if len(m.raw) > 0 && bytes.Equal(v.Data, m.raw) {
		return nil, nil // most changes are of what nodes say of themselves
	}
	if m.Epoch() == 0 {
		a, _, err := Present(s)
		if a == nil {
			return nil, err
		}
		return a, errors.Join(err, a.Unknown(m.Known(s)))
	}
	a, err := DecodeAssignment(v.Data)
	if err != nil {
		return nil, err
	}
	if err := m.assignment.follows(a, lastEpoch(s), m.Known(s)); err != nil {
		return nil, fmt.Errorf("%w; keeping %d", err, m.Epoch())
	}
	if a.Epoch == m.Epoch() && m.assignment.Equal(a) {
		return nil, nil
	}
	return a, nil // of the same epoch: an older version, which knows less of it, kept what this process began with
}

// lastEpoch is that of the assignment that was last written.
func lastEpoch(s *keyspace.Snapshot) int64 {
	if a, err := DecodeAssignment(s.Values["last"].Data); err == nil {
		return a.Epoch
	}
	return 0
}

// Known returns the nodes that are or were registered, and those that hosted
// something before.
func (m *Map) Known(s *keyspace.Snapshot) map[millrace.NodeID]bool {
	known := map[millrace.NodeID]bool{}
	for id := range m.nodes {
		known[id] = true
	}
	for id := range m.hosted {
		known[id] = true
	}
	for key := range s.Values {
		if kind, id, _ := strings.Cut(key, "/"); kind == "nodes" || kind == "known" {
			known[millrace.NodeID(id)] = true
		}
	}
	return known
}
