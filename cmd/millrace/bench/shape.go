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

// shape says how large the world is and what queries ask of it.
type shape struct {
	feed      string // the name of the feed that is asked
	entities  int    // in the world, unless Config says otherwise
	viewers   int    // who ask, unless Config says otherwise
	min, max  int    // how many records a timeline has
	languages int    // how many languages a viewer reads, of seven
	follows   int    // how many entities a viewer follows
}

// shapes are modelled on published systems. A query of FishDB has 300 terms or more, some
// 3,000 candidates and some 150,000 field reads; one of FollowFeed has tens of thousands
// of candidates.
var shapes = map[string]shape{
	"fishdb":     {feed: "follows", entities: 20_000, viewers: 200, min: 5, max: 15, languages: 6, follows: 300},
	"followfeed": {feed: "follows", entities: 20_000, viewers: 200, min: 10, max: 30, languages: 6, follows: 1000},
}

// files has the feed of the shapes and the pack of its model. The code generated from both
// is in this package.
//
//go:generate go run .. generate --out . --package bench --feed feeds/follows.yaml fifty
//go:embed feeds fifty
var files embed.FS

// readFeed returns the definition of a feed, as text and parsed.
func readFeed(name string) ([]byte, feeds.Feed, error) {
	text, err := files.ReadFile("feeds/" + name + ".yaml")
	if err != nil {
		return nil, feeds.Feed{}, err
	}
	f, err := feeds.Parse(text)
	return text, f, err
}

// readPack returns a pack and its model, after the checks by which a node admits a pack.
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
