package broker

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxFilterBytes bounds a request's filter and a feed's.
const maxFilterBytes = 8000

// checkFilter looks at a filter only as far as index nodes need to take it for
// one: they parse and check each by itself.
func checkFilter(src string) error {
	switch {
	case len(src) > maxFilterBytes:
		return fmt.Errorf("%d bytes, more than %d", len(src), maxFilterBytes)
	case !utf8.ValidString(src):
		return errors.New("it is not UTF-8")
	case strings.ContainsRune(src, 0):
		return errors.New("a NUL character")
	}
	return nil
}
