// Package limits checks single values of requests and of feeds' definitions: how many
// there may be, how long they may be, and which names and texts are allowed. It does not
// look at what the values mean.
package limits

import (
	"errors"
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/millrace/millrace"
)

// The limits of a request.
const (
	MaxEntities = 20_000 // distinct ones
	MaxLimit    = 1_000  // items of an answer
	MaxTypes    = 100    // content types
	// MaxTimelines bounds the timelines of a feed request: entities times types.
	// MaxInquired bounds those of an inquiry (why a feed does or does not show a
	// record), since a timeline of an inquiry takes index nodes many times as long.
	MaxTimelines = 200_000
	MaxInquired  = 50_000
	MaxFields    = 100 // fields of records that the answer shows
)

// The forms of a receipt, which tells what an answer was made from, that a request can ask
// for. An empty form is ReceiptCompact.
const (
	ReceiptCompact = "compact"
	ReceiptFull    = "full"
)

// NamePattern matches the names that feeds and models may have.
var NamePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`)

// Invalid is [millrace.Invalid] with a detail that is formatted as by [fmt.Sprintf]. field is
// the part of the request that is at fault, and wayOut what the caller can do instead.
func Invalid(field, wayOut, format string, args ...any) error {
	return millrace.Invalid(field, fmt.Sprintf(format, args...), wayOut)
}

// CheckText refuses a string that cannot become a key, such as an entity, a type or a
// record's id: it is empty, longer than limit bytes, or not UTF-8.
func CheckText(s string, limit int) error {
	switch {
	case s == "":
		return errors.New("it is empty")
	case len(s) > limit:
		return fmt.Errorf("%d bytes, more than %d", len(s), limit)
	case !utf8.ValidString(s):
		return errors.New("it is not UTF-8")
	}
	return nil
}

// Under returns err with its field put below another one: field "x" of err becomes "FIELD.x".
// An error that names no field is returned as it is.
func Under(field string, err error) error {
	var e *millrace.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	inner := *e
	inner.Field = field + "." + e.Field
	return &inner
}
