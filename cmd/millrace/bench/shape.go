package bench

import (
	_ "embed"
	"sync"

	"github.com/millrace/millrace/broker"
)

// A shape is what a query asks of how much.
type shape struct {
	keys     int // timelines of a query
	min, max int // records of a timeline
}

// FishDB's published shape is 300 terms and more, some 3,000 candidates and
// some 150,000 field reads; FollowFeed's is tens of thousands of candidates.
var shapes = map[string]shape{
	"fishdb":     {keys: 300, min: 5, max: 15},
	"followfeed": {keys: 1000, min: 10, max: 30},
}

// feedText is the definition of the feed that every shape is asked by.
//
//go:embed feed.yaml
var feedText []byte

// feed is that definition. Every record of the world is within its window.
var feed = sync.OnceValue(func() broker.Feed {
	f, err := broker.ParseFeed(feedText)
	if err != nil {
		panic(err) // the tests read it
	}
	return f
})
