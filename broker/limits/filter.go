package limits

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxFilterBytes bounds the length of a filter, in bytes: that of a request, or of a feed's
// definition.
const MaxFilterBytes = 8000

// CheckFilter refuses a filter that is too long, is not UTF-8, or has a NUL character. It
// does not parse the filter: each index node does that.
func CheckFilter(src string) error {
	switch {
	case len(src) > MaxFilterBytes:
		return fmt.Errorf("%d bytes, more than %d", len(src), MaxFilterBytes)
	case !utf8.ValidString(src):
		return errors.New("it is not UTF-8")
	case strings.ContainsRune(src, 0):
		return errors.New("a NUL character")
	}
	return nil
}
