package cluster

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

func (c *Client) docsFile(kind string) string { return filepath.Join(c.dir, "docs-"+kind+".json") }

// lastDocs is the documents of a kind as they were last good.
type lastDocs struct {
	origin    keyspace.Origin
	documents map[string]Document
	dir       string // where they are kept, to a restoration
}

// keptDocuments is the same on disk. A document's bytes need not be text, and
// JSON's strings are.
type keptDocuments struct {
	Origin    keyspace.Origin         `json:"origin"`
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
	body, err := datadir.Read(file, maxDocsBytes)
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

// maxDocsBytes bounds the documents of a kind on disk: as many as a process
// holds, in base64.
const maxDocsBytes = 128 << 20
