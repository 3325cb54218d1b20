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

// Next returns the map that follows m by a snapshot of etcd's keys. The error says which parts
// of the snapshot could not be taken over; in their place the map keeps what m has, or has
// nothing. The map is never nil.
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
	// A node whose lease is gone may be dead or only cut off from etcd. As long as it
	// hosts something it stays in the map, to be asked if nobody else can answer.
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

// KeyFault says that the value of a key is malformed. All other keys are taken over.
type KeyFault struct {
	Key string // without the cluster's prefix and "map/"
	Err error
}

func (f *KeyFault) Error() string { return fmt.Sprintf("cluster: %s: %v", f.Key, f.Err) }
func (f *KeyFault) Unwrap() error { return f.Err }

// addNode takes over the registration of a node that is alive. now is the keyspace of the
// snapshot.
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

// Present returns the assignment that watchers hold, as far as etcd can tell, and the highest
// epoch that any watcher may have. The snapshot has two assignments: "assignment", the
// present one, and "last", a copy that only checked writes make. Present returns the present
// one if it may follow the last one. Else it returns the last one, and fault says what is
// wrong with the present one, which was written past all checks: it may be malformed, of
// another past, or a mistake. a is nil, and fault is not, if neither can be used.
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
	if a.Epoch <= last.Epoch+MaxEpochStep { // watchers with another assignment than last may have taken it
		epoch = max(epoch, a.Epoch)
	}
	return last, epoch, fault
}

// follows returns why next, which etcd has, may not follow the assignment a; nil if it may.
// epoch is the highest epoch that is known, and known the nodes that are.
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

// nextAssignment returns the assignment to change to; nil: keep the present one. An error can
// come with an assignment: it says what is wrong in etcd, though there is no better one.
func (m *Map) nextAssignment(s *keyspace.Snapshot) (*Assignment, error) {
	v, ok := s.Values["assignment"]
	if !ok {
		if m.Epoch() > 0 {
			return nil, fmt.Errorf("cluster: etcd has lost the assignment; keeping epoch %d", m.Epoch())
		}
		return nil, nil
	}
	if len(m.raw) > 0 && bytes.Equal(v.Data, m.raw) {
		return nil, nil // most changes are of other keys
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
	return a, nil // if of the same epoch, m is from a file of an older version of Millrace, which left out fields
}

// lastEpoch returns the epoch of the assignment "last" (see Present); 0 if there is none.
func lastEpoch(s *keyspace.Snapshot) int64 {
	if a, err := DecodeAssignment(s.Values["last"].Data); err == nil {
		return a.Epoch
	}
	return 0
}

// Known returns the nodes that are or were registered by the snapshot, and those that are in
// m or host something in it.
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
