package fanout

import (
	"sync"

	"github.com/millrace/millrace/broker/questions"
)

// What an answer may take. All that a broker holds for a request which is being
// answered is a loan of one budget: the parts of nodes, from before they are
// asked; the items, while they are encoded; and the encoded answer, until the
// caller has taken it or is cut off.
const (
	requestTimes  = 3       // its entities: here, for the nodes, as they are sent
	timelineBytes = 32      // of each, in maps and lists
	mostRoom      = 8 << 20 // of all parts together, before nodes have said more
	usualItem     = 1 << 10 // of a feed that was not asked yet
	usualAccount  = 8 << 10 // beside it, of an item that is explained
	maxSizes      = 10_000
	maxAsks       = 3 // of a node whose part takes more than was thought
)

// sizes is how much the parts of nodes took of late, by feed.
type sizes struct {
	mu struct {
		sync.Mutex
		items map[sizeOf]int64 // bytes of one
	}
}

type sizeOf struct {
	feed      string
	explained bool
	rankings  int
}

func newSizes() *sizes {
	s := &sizes{}
	s.mu.items = map[sizeOf]int64{}
	return s
}

// expect returns how many bytes a node's part of an answer is likely not to
// exceed.
func (s *sizes) expect(q *questions.Question) int64 {
	key := sizeOf{q.FeedName, q.Query.Explain || q.Query.Features, 1 + len(q.Query.Beside)}
	s.mu.Lock()
	item, known := s.mu.items[key]
	s.mu.Unlock()
	if !known {
		item = usualItem
		if key.explained {
			item += usualAccount
		}
		item *= int64(key.rankings)
	}
	return min(questions.LeastRoom+int64(q.Query.Limit)*(item+item/2), maxMessageBytes)
}

// share returns the room of each of several parts.
func share(room int64, parts int) int64 {
	return max(questions.LeastRoom, min(room, mostRoom/int64(max(1, parts))))
}

// learn notes what a part took. What was large is forgotten slowly.
func (s *sizes) learn(q *questions.Question, bytes int64, items int) {
	if items == 0 {
		return
	}
	key, item := sizeOf{q.FeedName, q.Query.Explain || q.Query.Features, 1 + len(q.Query.Beside)}, bytes/int64(items)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.items) >= maxSizes { // feeds that are gone
		clear(s.mu.items)
	}
	old := s.mu.items[key]
	s.mu.items[key] = max(item, old-old/64)
}
