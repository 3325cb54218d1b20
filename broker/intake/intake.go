// Package intake bounds what callers can make a server hold and do by the shape of a
// message, which is found before it is parsed ([JSON], [Message]). Requests of the
// feed API are read so ([ReadJSON], [ReadMessage]).
package intake

import (
	"fmt"

	"github.com/millrace/millrace"
)

// The limits of a message, whatever wire it comes by.
const (
	// MaxBytes bounds a message: 20,000 entities of 512 bytes and their frames,
	// and MaxRestBytes.
	MaxBytes = 12 << 20
	// MaxRestBytes bounds all of it but its entities.
	MaxRestBytes = 2 << 20
	// MaxEntities bounds its entities, of which many may be the same.
	MaxEntities = 100_000
	// MaxValues bounds all else that is a value of its own when it is parsed.
	MaxValues = 50_000
	// MaxDepth bounds how deep values stand in each other.
	MaxDepth = 16

	valueBytes  = 512 // what a value takes when it is parsed, at most
	entityBytes = 16  // what an entity takes beside its bytes
)

func tooLarge(field, wayOut, format string, args ...any) error {
	return &millrace.Error{Reason: millrace.ReasonTooLarge, Field: field, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}
}

func invalid(field, wayOut, format string, args ...any) error {
	return millrace.Invalid(field, fmt.Sprintf(format, args...), wayOut)
}

// TooLong is the refusal of a message of more than MaxBytes.
func TooLong() error {
	return tooLarge("", "ask for fewer entities", "the request is larger than %d bytes", MaxBytes)
}

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
	return invalid("", "send what the API describes: nothing of it is so deep", "values stand in each other deeper than %d", MaxDepth)
}
