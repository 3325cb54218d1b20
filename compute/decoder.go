// A generated decoder takes what is surely right and gives up on all else; the
// plan in package schemas then decodes the same body, and says what is wrong with
// it. So a read here may refuse what is right (it costs time) but never take what
// the plan would refuse.
//
// Every read takes a body and a position, and returns the position behind the
// value, or -1. From -1 every read returns zeros and -1 again, so that a decoder
// looks at the position once, at its end.

package compute

import (
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Decoder is a generated decoder.
type Decoder struct {
	Schema string // full name, for people
	Shape  string // of the one schema that it decodes, as writer and reader
	// Append appends the body's row, or returns false and changes nothing.
	Append func(a *column.Appender, body []byte) bool
}

var decoders sync.Map // Append by Shape

// RegisterDecoder makes a generated decoder known. It is for init functions.
func RegisterDecoder(d Decoder) { decoders.Store(d.Shape, d.Append) }

// FindDecoder returns the decoder of a shape, or nil.
func FindDecoder(shape string) func(a *column.Appender, body []byte) bool {
	f, _ := decoders.Load(shape)
	d, _ := f.(func(a *column.Appender, body []byte) bool)
	return d
}

// What a row takes of the heap at most: for each byte of the body itself and 8
// as an item of a list, and the symbols of its enums, which are as many and as
// long as a schema allows.
const (
	heapPerByte = 9
	heapSymbols = 1024 * 256
)

// BeginRow returns the heap of a's next row with body in it, and where body
// stands there.
func BeginRow(a *column.Appender, body []byte) (heap []byte, base int, ok bool) {
	if len(body) > millrace.MaxBodyBytes {
		return nil, 0, false
	}
	if heap, ok = a.Heap(heapPerByte*len(body) + heapSymbols); !ok {
		return nil, 0, false
	}
	return append(heap, body...), len(heap), true
}

// BodyWord returns the word of body, which stands at base.
func BodyWord(body []byte, base int) uint64 {
	if len(body) <= 7 {
		return shortWord(body) // bytes, not text
	}
	return column.LongWord(base, len(body))
}

// SymbolWord returns the word of an enum's symbol, a long one put on the heap.
func SymbolWord(heap []byte, symbol string) (uint64, []byte) {
	if w, ok := column.InlineWord(symbol); ok {
		return w, heap
	}
	return column.LongWord(len(heap), len(symbol)), append(heap, symbol...)
}
