package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/millrace/millrace"
)

// lastGood is a map as it is kept on disk.
type lastGood struct {
	Origin     origin                     `json:"origin"`
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

// saveEvery is the least time from one saving of the map to the next. While
// partitions move it changes many times a second, in every process.
const saveEvery = time.Second

// keeper keeps the newest map on disk.
type keeper struct {
	c    *Client
	mu   sync.Mutex
	busy bool   // one is saved, or was a moment ago
	next func() // saves the newest that was not; nil: it is saved
}

// save saves a map, at once if none was saved lately. It is called by what the
// client waits for when it is closed.
func (k *keeper) save(ctx context.Context, m *Map, from origin) {
	if m.Epoch() == 0 {
		return
	}
	k.mu.Lock()
	k.next = func() { k.c.saveMap(m, from) }
	idle := !k.busy
	k.busy = true
	k.mu.Unlock()
	if idle && k.saveNext() {
		k.c.wg.Go(func() {
			for more := true; more; more = k.saveNext() {
				_ = wait(ctx, saveEvery)
			}
		})
	}
}

// saveNext reports whether there was something to save.
func (k *keeper) saveNext() bool {
	k.mu.Lock()
	save := k.next
	k.next, k.busy = nil, save != nil
	k.mu.Unlock()
	if save != nil {
		save()
	}
	return save != nil
}

// saveMap keeps a map for the next start.
func (c *Client) saveMap(m *Map, from origin) {
	doc := lastGood{Origin: from, Assignment: m.assignment, Nodes: m.Nodes(), Ready: map[millrace.NodeID][]byte{}}
	for id, s := range m.ready {
		doc.Ready[id] = s.encode()
	}
	c.save(c.mapFile(), doc)
}

// save writes a document to disk, whole or not at all.
func (c *Client) save(file string, doc any) {
	if c.dir == "" {
		return
	}
	body, err := json.Marshal(doc)
	c.write(file, func() error {
		if err != nil {
			return err
		}
		return replaceFile(file, body, 0o644)
	})
}

// lastDocs is the documents of a kind as they were last good.
type lastDocs struct {
	origin    origin
	documents map[string]Document
	dir       string // where they are kept, to a restoration
}

// keptDocuments is the same on disk. A document's bytes need not be text, and
// JSON's strings are.
type keptDocuments struct {
	Origin    origin                  `json:"origin"`
	Documents map[string]keptDocument `json:"documents"`
}

type keptDocument struct {
	Body    []byte `json:"body"`
	Version int64  `json:"version"`
}

func (c *Client) saveDocs(kind string, docs lastDocs) {
	kept := keptDocuments{docs.origin, make(map[string]keptDocument, len(docs.documents))}
	for name, d := range docs.documents {
		kept.Documents[name] = keptDocument{[]byte(d.Body), d.Version}
	}
	c.save(c.docsFile(kind), kept)
}

// loadDocs reads what saveDocs wrote.
func (c *Client) loadDocs(kind string) (lastDocs, error) {
	if c.dir == "" {
		return lastDocs{}, os.ErrNotExist
	}
	return readDocs(c.docsFile(kind))
}

func readDocs(file string) (docs lastDocs, err error) {
	body, err := readFile(file, maxDocsBytes)
	if err != nil {
		return docs, err
	}
	var kept keptDocuments
	if err := json.Unmarshal(body, &kept); err != nil {
		return docs, err
	}
	docs = lastDocs{origin: kept.Origin, documents: make(map[string]Document, len(kept.Documents))}
	for name, d := range kept.Documents {
		docs.documents[name] = Document{Name: name, Body: string(d.Body), Version: d.Version}
	}
	return docs, nil
}

// maxMapBytes bounds a map on disk before it is read.
const maxMapBytes = 64 << 20

// maxDocsBytes bounds the documents of a kind on disk: as many as a process
// holds, in base64.
const maxDocsBytes = 128 << 20

// ReadAssignment reads an assignment to go back to: a file that holds one, or
// holds one under "assignment", as the map that a process keeps on disk does.
// What was to be deleted then is not now.
func ReadAssignment(file string) (a Assignment, err error) {
	body, err := readFile(file, maxMapBytes)
	if err != nil {
		return a, fmt.Errorf("cluster: %w", err)
	}
	var outer struct {
		Assignment json.RawMessage `json:"assignment"`
	}
	if json.Unmarshal(body, &outer) == nil && outer.Assignment != nil {
		body = outer.Assignment
	}
	got, err := decodeAssignment(body)
	if err != nil {
		return a, fmt.Errorf("%s: %w", file, err)
	}
	got.Drop = nil
	return *got, nil
}

// readFile reads a file of at most a number of bytes.
func readFile(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(body)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", file, most)
	}
	return body, err
}

// loadMap reads what saveMap wrote. Its nodes count as lost until etcd says
// otherwise.
func (c *Client) loadMap() (*Map, origin, error) {
	if c.dir == "" {
		return nil, origin{}, os.ErrNotExist
	}
	body, err := readFile(c.mapFile(), maxMapBytes)
	if err != nil {
		return nil, origin{}, err
	}
	return decodeMap(body)
}

func decodeMap(body []byte) (*Map, origin, error) {
	var raw struct {
		lastGood
		Assignment json.RawMessage `json:"assignment"` // for the strict decoder
	}
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, origin{}, fmt.Errorf("cluster: last good map: %w", err)
	}
	a, err := decodeAssignment(raw.Assignment)
	if err != nil {
		return nil, origin{}, err
	}
	m := NewMap(*a, nil, map[millrace.NodeID]Set{})
	for _, n := range raw.Nodes {
		if validID(string(n.ID)) != nil || n.Addr == "" {
			return nil, origin{}, fmt.Errorf("cluster: last good map: %+v is not a node", n)
		}
		m.nodes[n.ID] = n
	}
	for id, b := range raw.Ready {
		if m.ready[id], err = decodeSet(b); err != nil {
			return nil, origin{}, fmt.Errorf("cluster: last good map: ready of %s: %w", id, err)
		}
	}
	m.order()
	return m, raw.Origin, nil
}
