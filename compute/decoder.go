// A generated decoder turns the Avro body of a record into a row of columns. It takes
// only bodies that are surely right, and gives up on all others. The slower decoder in
// package schemas then decodes the same body, and says what is wrong with it. So a read
// in this package may refuse a right value, which only costs time, but must never take a
// wrong one.
//
// Every read takes a body and a position, and returns the position after the value, or -1
// if it gives up. From position -1 every read returns zeros and -1, so a decoder need
// only check the position once, at its end.
//
// A word is the 8 bytes of a value in a column (package column): a number, or a string of
// up to 7 bytes. The word of a longer string or of a list says where its bytes are on the
// heap of the rows. The body itself is appended to that heap first, at an offset called
// base.

package compute

import (
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Decoder is a generated decoder.
type Decoder struct {
	Schema string // full name, for people
	Shape  string // the digest of the one schema that it decodes, which is both the writer's and the reader's
	// Append appends the row of a body to a. It returns false if it gives up, and has
	// then changed nothing.
	Append func(a *column.Appender, body []byte) bool
}

var decoders sync.Map // the Append of each registered Decoder, by its Shape

// RegisterDecoder makes a generated decoder known. Init functions call it. Of two
// decoders of one shape the last stays.
func RegisterDecoder(d Decoder) { decoders.Store(d.Shape, d.Append) }

// FindDecoder returns the Append of the decoder of a shape, or nil.
func FindDecoder(shape string) func(a *column.Appender, body []byte) bool {
	f, _ := decoders.Load(shape)
	d, _ := f.(func(a *column.Appender, body []byte) bool)
	return d
}

// The bound of a row's heap, in bytes. The body takes 1 byte for each of its bytes. A list
// takes at most 8 more for each of them, since one byte of the body may be an item, and an
// item takes 8 bytes. Besides these there are the symbols of enums, as many and as long as
// a schema allows.
const (
	heapPerByte = 9
	heapSymbols = 1024 * 256 // fields of a schema times bytes of a symbol
)

// BeginRow returns the heap of a with body appended to it, for a's next row, and base,
// the offset of body in that heap. It returns false if the body is too long, or the heap
// is full.
func BeginRow(a *column.Appender, body []byte) (heap []byte, base int, ok bool) {
	if len(body) > millrace.MaxBodyBytes {
		return nil, 0, false
	}
	if heap, ok = a.Heap(heapPerByte*len(body) + heapSymbols); !ok {
		return nil, 0, false
	}
	return append(heap, body...), len(heap), true
}

// BodyWord returns the word of a whole body that stands at base on the heap.
func BodyWord(body []byte, base int) uint64 {
	if len(body) <= 7 {
		return shortWord(body) // a body is bytes and need not be UTF-8
	}
	return column.LongWord(base, len(body))
}

// SymbolWord returns the word of an enum's symbol, and the heap. A symbol too long for a
// word is appended to the heap.
func SymbolWord(heap []byte, symbol string) (uint64, []byte) {
	if w, ok := column.InlineWord(symbol); ok {
		return w, heap
	}
	return column.LongWord(len(heap), len(symbol)), append(heap, symbol...)
}
