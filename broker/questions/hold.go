package questions

import (
	"fmt"

	"github.com/millrace/millrace"
)

// How many bytes an answer may take, and the advice to callers if that is not enough.
const (
	// MaxAnswerBytes bounds the items of an answer, as protobuf writes them.
	MaxAnswerBytes = 16 << 20
	// maxHeldBytes bounds the loan of one request: the memory that is reserved for its
	// answer. Package fanout reserves twice the bytes that a node may send as its part,
	// which are at most 32 MiB.
	maxHeldBytes = 96 << 20

	LeastRoom     = 32 << 10 // reserved for the part of a node, even without items
	FewerItems    = "ask for fewer items"
	FewerOrFields = "ask for fewer items or fewer fields"
)

// Hold makes the request's loan larger by so many bytes; a negative number makes it
// smaller. The error refuses more than one request may hold (TOO_LARGE) or more than
// the budget has left (OVERLOADED); then the loan is unchanged.
func (q *Question) Hold(bytes int64) error {
	if q.Loan.Held()+bytes > maxHeldBytes {
		return TooLarge(FewerItems, maxHeldBytes)
	}
	return q.Loan.More(bytes)
}

// TooLarge returns the refusal of a question whose answer takes more than most bytes.
func TooLarge(wayOut string, most int) error {
	return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "limit", Detail: fmt.Sprintf("the answer takes more than the %d bytes that one may take", most), WayOut: wayOut}
}
