package topology

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// lastGood is the JSON of a map in a data directory.
type lastGood struct {
	Origin     keyspace.Origin            `json:"origin"`
	Assignment Assignment                 `json:"assignment"`
	Nodes      []Node                     `json:"nodes"`
	Ready      map[millrace.NodeID][]byte `json:"ready"`
}

// maxMapBytes bounds a map on disk before it is read.
const maxMapBytes = 64 << 20

// ReadAssignment reads an assignment to restore from a file: an assignment, or a document
// with one under "assignment", such as the map in a data directory. Drop is empty: orders
// to delete partitions are not restored.
func ReadAssignment(file string) (a Assignment, err error) {
	body, err := datadir.Read(file, maxMapBytes)
	if err != nil {
		return a, fmt.Errorf("cluster: %w", err)
	}
	var outer struct {
		Assignment json.RawMessage `json:"assignment"`
	}
	if json.Unmarshal(body, &outer) == nil && outer.Assignment != nil {
		body = outer.Assignment
	}
	got, err := DecodeAssignment(body)
	if err != nil {
		return a, fmt.Errorf("%s: %w", file, err)
	}
	got.Drop = nil
	return *got, nil
}

func decodeMap(body []byte) (*Map, keyspace.Origin, error) {
	var raw struct {
		lastGood
		Assignment json.RawMessage `json:"assignment"` // for the strict decoder
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, keyspace.Origin{}, fmt.Errorf("cluster: last good map: %w", err)
	}
	a, err := DecodeAssignment(raw.Assignment)
	if err != nil {
		return nil, keyspace.Origin{}, err
	}
	m := NewMap(*a, nil, map[millrace.NodeID]Set{})
	for _, n := range raw.Nodes {
		if keyspace.ValidID(string(n.ID)) != nil || n.Addr == "" {
			return nil, keyspace.Origin{}, fmt.Errorf("cluster: last good map: %+v is not a node", n)
		}
		m.nodes[n.ID] = n
	}
	for id, b := range raw.Ready {
		if m.ready[id], err = decodeSet(b); err != nil {
			return nil, keyspace.Origin{}, fmt.Errorf("cluster: last good map: ready of %s: %w", id, err)
		}
	}
	m.order()
	return m, raw.Origin, nil
}

// Kept returns the document in which the map is kept on disk, to be written as JSON. from is
// the state of etcd that the map comes from.
func (m *Map) Kept(from keyspace.Origin) any {
	doc := lastGood{Origin: from, Assignment: m.assignment, Nodes: m.Nodes(), Ready: map[millrace.NodeID][]byte{}}
	for id, s := range m.ready {
		doc.Ready[id] = s.Encode()
	}
	return doc
}

// LoadMap reads the map in a data directory. The error is [os.ErrNotExist] if there is none,
// or dir is "". All nodes of the map count as not alive until etcd says otherwise.
func LoadMap(dir string) (*Map, keyspace.Origin, error) {
	if dir == "" {
		return nil, keyspace.Origin{}, os.ErrNotExist
	}
	body, err := datadir.Read(datadir.MapFile(dir), maxMapBytes)
	if err != nil {
		return nil, keyspace.Origin{}, err
	}
	return decodeMap(body)
}
