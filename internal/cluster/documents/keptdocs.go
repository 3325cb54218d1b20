package documents

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

func docsFile(c *cluster.Client, kind string) string {
	return filepath.Join(c.Dir(), "docs-"+kind+".json")
}

// LastGood is the documents of a kind as they were last good.
type LastGood struct {
	Origin    keyspace.Origin
	Documents map[string]Document
	Dir       string // the directory that they were read from; set by a restoration only
}

// keptDocuments is a LastGood as it is on disk. Bodies are []byte there, since they need not
// be text and JSON's strings must be.
type keptDocuments struct {
	Origin    keyspace.Origin         `json:"origin"`
	Documents map[string]keptDocument `json:"documents"`
}

type keptDocument struct {
	Body    []byte `json:"body"`
	Version int64  `json:"version"`
}

// saveDocs writes the documents to the file of their kind in the data directory.
func saveDocs(c *cluster.Client, kind string, docs LastGood) {
	kept := keptDocuments{docs.Origin, make(map[string]keptDocument, len(docs.Documents))}
	for name, d := range docs.Documents {
		kept.Documents[name] = keptDocument{[]byte(d.Body), d.Version}
	}
	c.SaveFile(docsFile(c, kind), kept)
}

// loadDocs reads what saveDocs wrote. Without a data directory it returns [os.ErrNotExist].
func loadDocs(c *cluster.Client, kind string) (LastGood, error) {
	if c.Dir() == "" {
		return LastGood{}, os.ErrNotExist
	}
	return ReadFile(docsFile(c, kind))
}

// ReadFile reads what is kept of a kind in a file.
func ReadFile(file string) (docs LastGood, err error) {
	body, err := datadir.Read(file, MaxFileBytes)
	if err != nil {
		return docs, err
	}
	var kept keptDocuments
	if err := json.Unmarshal(body, &kept); err != nil {
		return docs, err
	}
	docs = LastGood{Origin: kept.Origin, Documents: make(map[string]Document, len(kept.Documents))}
	for name, d := range kept.Documents {
		docs.Documents[name] = Document{Name: name, Body: string(d.Body), Version: d.Version}
	}
	return docs, nil
}

// MaxFileBytes bounds the file of the documents of a kind. It has room for as many bytes of
// documents as a process may hold, in base64.
const MaxFileBytes = 128 << 20
