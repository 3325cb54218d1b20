package limits

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxFilterBytes bounds a request's filter and a feed's.
const MaxFilterBytes = 8000

// CheckFilter looks at a filter only as far as index nodes need to take it for
// one: they parse and check each by itself.
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
