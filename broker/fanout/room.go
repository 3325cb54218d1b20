package fanout

import (
	"sync"

	"github.com/millrace/millrace/broker/questions"
)

// How much memory an answer may take, in bytes. All that a broker holds for a request is
// taken from one budget: the parts of the answer that nodes send, from before the nodes
// are asked; the items, while they are encoded; and the encoded answer, until the caller
// has taken it or is cut off.
const (
	requestTimes  = 3       // how many copies of the entities are held: as they came, by node, and as they are sent
	timelineBytes = 32      // for each timeline, in maps and lists
	mostRoom      = 8 << 20 // reserved at first for all parts together, unless questions.LeastRoom for each is more
	usualItem     = 1 << 10 // expected of an item, while no answer of the feed was seen
	usualAccount  = 8 << 10 // expected besides, if items are explained or carry features
	maxSizes      = 10_000  // how many sizes are remembered
	maxAsks       = 3       // how many times in all a node is asked if its part is larger than expected
)

// sizes remembers how large the items were that nodes sent of late, by feed and by what
// else the items carry.
type sizes struct {
	mu struct {
		sync.Mutex
		items map[sizeOf]int64 // bytes of one item
	}
}

// sizeOf is the kind of answers whose items have about the same size.
type sizeOf struct {
	feed      string
	explained bool // or with features
	rankings  int  // 1, and one for each further model of the question
}

func newSizes() *sizes {
	s := &sizes{}
	s.mu.items = map[sizeOf]int64{}
	return s
}

// expect returns a size in bytes that a node's part of an answer is not likely to exceed.
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
	return min(questions.LeastRoom+int64(q.Deep())*(item+item/2), maxMessageBytes)
}

// share returns how many bytes are reserved for each of several parts: room, or less if
// all together would exceed mostRoom.
func share(room int64, parts int) int64 {
	return max(questions.LeastRoom, min(room, mostRoom/int64(max(1, parts))))
}

// learn notes that a part of so many bytes had so many items. A larger size of an item
// counts at once; a smaller one lowers the remembered size by a 64th a part.
func (s *sizes) learn(q *questions.Question, bytes int64, items int) {
	if items == 0 {
		return
	}
	key, item := sizeOf{q.FeedName, q.Query.Explain || q.Query.Features, 1 + len(q.Query.Beside)}, bytes/int64(items)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.items) >= maxSizes { // mostly feeds that are gone; the others are learnt anew
		clear(s.mu.items)
	}
	old := s.mu.items[key]
	s.mu.items[key] = max(item, old-old/64)
}
