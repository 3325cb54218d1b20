package broker

import (
	"fmt"
	"sync"

	"github.com/millrace/millrace"
)

// What an answer may take. All that a broker holds for a request which is being
// answered is a loan of one budget: the parts of nodes, from before they are
// asked; the items, while they are encoded; and the encoded answer, until the
// caller has taken it or is cut off.
const (
	// maxAnswerBytes bounds the items of an answer, as protobuf writes them.
	maxAnswerBytes = 16 << 20
	// maxHeldBytes bounds the loan of one request. Two times the largest part
	// that nodes send fit.
	maxHeldBytes = 96 << 20

	requestTimes  = 3        // its entities: here, for the nodes, as they are sent
	timelineBytes = 32       // of each, in maps and lists
	mostRoom      = 8 << 20  // of all parts together, before nodes have said more
	leastRoom     = 32 << 10 // of a part without items
	usualItem     = 1 << 10  // of a feed that was not asked yet
	usualAccount  = 8 << 10  // beside it, of an item that is explained
	maxSizes      = 10_000
	maxAsks       = 3 // of a node whose part takes more than was thought
	holdStep      = 64 << 10
	fewerItems    = "ask for fewer items"
	fewerOrFields = "ask for fewer items or fewer fields"
)

// hold makes the loan of a request larger, or smaller.
func (q *question) hold(bytes int64) error {
	if q.loan.Held()+bytes > maxHeldBytes {
		return answerTooLarge(fewerItems, maxHeldBytes)
	}
	return q.loan.More(bytes)
}

func answerTooLarge(wayOut string, most int) error {
	return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "limit", Detail: fmt.Sprintf("the answer takes more than the %d bytes that one may take", most), WayOut: wayOut}
}

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
func (s *sizes) expect(q *question) int64 {
	key := sizeOf{q.feed.Name, q.query.Explain || q.query.Features, 1 + len(q.query.Beside)}
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
	return min(leastRoom+int64(q.query.Limit)*(item+item/2), maxMessageBytes)
}

// share returns the room of each of several parts.
func share(room int64, parts int) int64 {
	return max(leastRoom, min(room, mostRoom/int64(max(1, parts))))
}

// learn notes what a part took. What was large is forgotten slowly.
func (s *sizes) learn(q *question, bytes int64, items int) {
	if items == 0 {
		return
	}
	key, item := sizeOf{q.feed.Name, q.query.Explain || q.query.Features, 1 + len(q.query.Beside)}, bytes/int64(items)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.items) >= maxSizes { // feeds that are gone
		clear(s.mu.items)
	}
	old := s.mu.items[key]
	s.mu.items[key] = max(item, old-old/64)
}
