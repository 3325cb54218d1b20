package bench

import "time"

// A shape is what a query asks of how much.
type shape struct {
	keys     int    // timelines of a query
	min, max int    // records of a timeline
	model    string // that scores
	filter   string
}

// filter lets 69 % pass: five clauses over six fields.
const filter = `record.visibility == "public" && record.language in viewer.languages && record.likes + record.comments >= 1 && record.impressions < 20000 && record.country != viewer.muted`

// FishDB's published shape is 300 terms and more, some 3,000 candidates and
// some 150,000 field reads; FollowFeed's is tens of thousands of candidates.
var shapes = map[string]shape{
	"fishdb":     {keys: 300, min: 5, max: 15, model: "fifty", filter: filter},
	"followfeed": {keys: 1000, min: 10, max: 30, model: "fifty", filter: filter},
}

const (
	// limit is the items of a page.
	limit = 20
	// window is how far back a feed looks; every record is younger.
	window = 30 * 24 * time.Hour
)
