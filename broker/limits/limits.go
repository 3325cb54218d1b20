// Package limits says what requests and definitions of feeds may hold, each
// alone: how many and how long, which names and which texts. What they mean is
// not looked at here.
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
	MaxLimit    = 1_000
	MaxTypes    = 100
	// MaxTimelines bounds entities times types, and MaxInquired those of an
	// inquiry, each of which takes index nodes many times as long.
	MaxTimelines = 200_000
	MaxInquired  = 50_000
	MaxFields    = 100 // of records, to be shown
)

// The forms of a receipt; empty is the first.
const (
	ReceiptCompact = "compact"
	ReceiptFull    = "full"
)

// NamePattern is of the names of feeds and models.
var NamePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`)

// Invalid is [millrace.Invalid] with a detail by a format.
func Invalid(field, wayOut, format string, args ...any) error {
	return millrace.Invalid(field, fmt.Sprintf(format, args...), wayOut)
}

// CheckText holds for the strings that become keys.
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

// Under puts the field that err names, if any, under a message.
func Under(field string, err error) error {
	var e *millrace.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	inner := *e
	inner.Field = field + "." + e.Field
	return &inner
}
