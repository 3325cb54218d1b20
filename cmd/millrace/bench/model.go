package bench

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/millrace/millrace/relevance"
)

// The model is a pack. Its generated code is fifty.go; that of the feed's
// filter is follows_feed.go.
//
//go:generate go run .. generate --out . --package bench --feed feed.yaml fifty
//go:embed fifty
var packs embed.FS

// pack is the model as a cluster gets it.
var pack = sync.OnceValues(func() (*relevance.Pack, error) {
	dir, err := os.MkdirTemp("", "millrace-pack-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	files, err := fs.Sub(packs, "fifty")
	if err != nil {
		return nil, err
	}
	to := filepath.Join(dir, "fifty")
	if err := os.CopyFS(to, files); err != nil {
		return nil, err
	}
	return relevance.OpenPack(to)
})

// model is the pack's model, admitted as a node does it.
var model = sync.OnceValues(func() (*relevance.Model, error) {
	p, err := pack()
	if err != nil {
		return nil, err
	}
	return relevance.Validate(p, relevance.ShippedSchemas())
})
