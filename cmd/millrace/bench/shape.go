package bench

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
)

// A shape is what queries ask, and of a world how large.
type shape struct {
	feed      string // the definition that it is asked by
	entities  int    // in the world, unless told otherwise
	viewers   int    // that ask
	min, max  int    // records of a timeline
	languages int    // that a viewer reads, of seven
	follows   int
}

// FishDB's published shape is 300 terms and more, some 3,000 candidates and
// some 150,000 field reads; FollowFeed's is tens of thousands of candidates.
var shapes = map[string]shape{
	"fishdb":     {feed: "follows", entities: 20_000, viewers: 200, min: 5, max: 15, languages: 6, follows: 300},
	"followfeed": {feed: "follows", entities: 20_000, viewers: 200, min: 10, max: 30, languages: 6, follows: 1000},
}

// What the shapes are asked by: a feed, and the pack of its model, with the
// code generated of both.
//
//go:generate go run .. generate --out . --package bench --feed feeds/follows.yaml fifty
//go:embed feeds fifty
var files embed.FS

// readFeed returns the text and meaning of a feed's definition.
func readFeed(name string) ([]byte, feeds.Feed, error) {
	text, err := files.ReadFile("feeds/" + name + ".yaml")
	if err != nil {
		return nil, feeds.Feed{}, err
	}
	f, err := feeds.Parse(text)
	return text, f, err
}

// readPack returns a pack and its model, admitted as a node does it.
func readPack(name string) (*modelpack.Pack, *relevance.Model, error) {
	dir, err := os.MkdirTemp("", "millrace-pack-")
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	sub, err := fs.Sub(files, name)
	if err != nil {
		return nil, nil, err
	}
	to := filepath.Join(dir, name)
	if err := os.CopyFS(to, sub); err != nil {
		return nil, nil, err
	}
	p, err := modelpack.Open(to)
	if err != nil {
		return nil, nil, err
	}
	m, err := modelpack.Validate(p, relevance.ShippedSchemas())
	return p, m, err
}
