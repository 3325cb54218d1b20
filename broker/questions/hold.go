package questions

import (
	"fmt"

	"github.com/millrace/millrace"
)

// What an answer may take, and what helps where that is not enough.
const (
	// MaxAnswerBytes bounds the items of an answer, as protobuf writes them.
	MaxAnswerBytes = 16 << 20
	// maxHeldBytes bounds the loan of one request. Two times the largest part
	// that nodes send fit.
	maxHeldBytes = 96 << 20

	LeastRoom     = 32 << 10 // of a part without items
	FewerItems    = "ask for fewer items"
	FewerOrFields = "ask for fewer items or fewer fields"
)

// Hold makes the loan of a request larger, or smaller.
func (q *Question) Hold(bytes int64) error {
	if q.Loan.Held()+bytes > maxHeldBytes {
		return TooLarge(FewerItems, maxHeldBytes)
	}
	return q.Loan.More(bytes)
}

// TooLarge is the refusal of a question whose answer takes more than so many
// bytes.
func TooLarge(wayOut string, most int) error {
	return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "limit", Detail: fmt.Sprintf("the answer takes more than the %d bytes that one may take", most), WayOut: wayOut}
}
