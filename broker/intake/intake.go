// Package intake reads requests of the feed API ([ReadJSON], [ReadMessage]). It first
// checks the size, depth and number of values of a message without parsing it ([JSON],
// [Message]), which bounds the memory and the work that a caller can cause.
//
// A refusal is a [*millrace.Error]: it tells the caller what is wrong and what to do
// instead.
package intake

import (
	"fmt"

	"github.com/millrace/millrace"
)

// The limits of a message, whatever wire it comes by.
const (
	// MaxBytes bounds a message. It has room for limits.MaxEntities entities (20,000) of 512
	// bytes each, with a few bytes around each entity, and for MaxRestBytes.
	MaxBytes = 12 << 20
	// MaxRestBytes bounds the bytes of a message without its entities.
	MaxRestBytes = 2 << 20
	// MaxEntities bounds the entities of a message, duplicates included. It is five times
	// limits.MaxEntities, which bounds the distinct ones.
	MaxEntities = 100_000
	// MaxValues bounds the other values of a message: fields, objects and list elements.
	// With valueBytes for each value, it bounds the memory that parsing takes.
	MaxValues = 50_000
	// MaxDepth bounds how deep values are nested. No message of the API is so deep.
	MaxDepth = 16

	valueBytes  = 512 // the most bytes that one parsed value takes beside its text
	entityBytes = 16  // the bytes that an entity takes beside its text: the header of a Go string
)

// tooLarge returns a refusal with [millrace.ReasonTooLarge].
func tooLarge(field, wayOut, format string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: field, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}
}

func invalid(field, wayOut, format string, args ...any) error {
	return millrace.Invalid(field, fmt.Sprintf(format, args...), wayOut)
}

// TooLong returns the refusal of a message of more than [MaxBytes].
func TooLong() error {
	return tooLarge("", "ask for fewer entities", "the request is larger than %d bytes", MaxBytes)
}

// tooMuchBesides returns the refusal of a message that has bytes bytes besides its entities.
func tooMuchBesides(bytes int) error {
	return tooLarge("", "send only what filters and models read", "%d bytes beside the entities are more than %d", bytes, MaxRestBytes)
}

func tooManyEntities(field string) error {
	return tooLarge(field, "ask for the ones that matter most, or in several requests", "more than %d of them", MaxEntities)
}

func tooManyValues() error {
	return tooLarge("", "send only what filters and models read", "more than %d values beside the entities", MaxValues)
}

func tooDeep() error {
	return invalid("", "send what the API describes: nothing of it is so deep", "values are nested deeper than %d", MaxDepth)
}
