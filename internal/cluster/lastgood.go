package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace/millrace"
)

// lastGood is a map as it is kept on disk.
type lastGood struct {
	Assignment Assignment                 `json:"assignment"`
	Nodes      []Node                     `json:"nodes"`
	Ready      map[millrace.NodeID][]byte `json:"ready"`
}

func (c *Client) mapFile() string             { return filepath.Join(c.dir, "map.json") }
func (c *Client) docsFile(kind string) string { return filepath.Join(c.dir, "docs-"+kind+".json") }

func (c *Client) hasLastGood() bool {
	if c.dir == "" {
		return false
	}
	_, err := os.Stat(c.mapFile())
	return err == nil
}

// saveMap keeps a map for the next start.
func (c *Client) saveMap(m *Map) {
	if m.Epoch() == 0 {
		return
	}
	doc := lastGood{Assignment: m.assignment, Nodes: m.Nodes(), Ready: map[millrace.NodeID][]byte{}}
	for id, s := range m.ready {
		doc.Ready[id] = s.encode()
	}
	c.save(c.mapFile(), doc)
}

// save writes a document beside its place and moves it there, so that a crash
// leaves the old one or the new one.
func (c *Client) save(file string, doc any) {
	if c.dir == "" {
		return
	}
	body, err := json.Marshal(doc)
	if err == nil {
		err = os.WriteFile(file+".new", body, 0o644)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		c.log.Error("the last good state could not be kept", "file", file, "err", err)
	}
}

// keptDocument is a document on disk. Its bytes need not be text, and JSON's
// strings are.
type keptDocument struct {
	Body    []byte `json:"body"`
	Version int64  `json:"version"`
}

func (c *Client) saveDocs(kind string, docs map[string]Document) {
	kept := make(map[string]keptDocument, len(docs))
	for name, d := range docs {
		kept[name] = keptDocument{[]byte(d.Body), d.Version}
	}
	c.save(c.docsFile(kind), kept)
}

// loadDocs reads what saveDocs wrote.
func (c *Client) loadDocs(kind string) (map[string]Document, error) {
	if c.dir == "" {
		return nil, os.ErrNotExist
	}
	body, err := os.ReadFile(c.docsFile(kind))
	if err != nil {
		return nil, err
	}
	var kept map[string]keptDocument
	if err := json.Unmarshal(body, &kept); err != nil {
		return nil, err
	}
	docs := make(map[string]Document, len(kept))
	for name, d := range kept {
		docs[name] = Document{Name: name, Body: string(d.Body), Version: d.Version}
	}
	return docs, nil
}

// loadMap reads what saveMap wrote. Its nodes count as lost until etcd says
// otherwise.
func (c *Client) loadMap() (*Map, error) {
	if c.dir == "" {
		return nil, os.ErrNotExist
	}
	body, err := os.ReadFile(c.mapFile())
	if err != nil {
		return nil, err
	}
	return decodeMap(body)
}

func decodeMap(body []byte) (*Map, error) {
	var raw struct {
		lastGood
		Assignment json.RawMessage `json:"assignment"` // for the strict decoder
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, fmt.Errorf("cluster: last good map: %w", err)
	}
	a, err := decodeAssignment(raw.Assignment)
	if err != nil {
		return nil, err
	}
	m := NewMap(*a, nil, map[millrace.NodeID]Set{})
	for _, n := range raw.Nodes {
		if validID(string(n.ID)) != nil || n.Addr == "" {
			return nil, fmt.Errorf("cluster: last good map: %+v is not a node", n)
		}
		m.nodes[n.ID] = n
	}
	for id, b := range raw.Ready {
		if m.ready[id], err = decodeSet(b); err != nil {
			return nil, fmt.Errorf("cluster: last good map: ready of %s: %w", id, err)
		}
	}
	m.order()
	return m, nil
}
