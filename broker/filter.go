package broker

import (
	"fmt"
	"strings"
)

// maxFilterBytes bounds a request's filter and a feed's, so that both joined
// stay below what index nodes accept.
const maxFilterBytes = 8000

// joinFilters returns a filter that holds where both do. The lines end before
// the brackets close, since a filter may end in a comment.
func joinFilters(request, feed string) string {
	switch {
	case request == "":
		return feed
	case feed == "":
		return request
	}
	return "(" + request + "\n) && (" + feed + "\n)"
}

// checkFilter looks at a filter only as far as joining needs: its brackets
// must pair and its strings end, lest "true) || (true" escape the feed's own
// filter. Index nodes parse and check the rest.
func checkFilter(src string) error {
	if len(src) > maxFilterBytes {
		return fmt.Errorf("%d bytes, more than %d", len(src), maxFilterBytes)
	}
	if strings.ContainsRune(src, 0) {
		return fmt.Errorf("a NUL character")
	}
	var open []byte
	for i := 0; i < len(src); {
		switch c := src[i]; c {
		case '(', '[', '{':
			open = append(open, c)
		case ')', ']', '}':
			if len(open) == 0 || open[len(open)-1] != opens[c] {
				return fmt.Errorf("%q at character %d closes nothing", c, i+1)
			}
			open = open[:len(open)-1]
		case '/':
			if strings.HasPrefix(src[i:], "//") {
				i += lineLen(src[i:])
				continue
			}
		case '"', '\'':
			n := stringLen(src[i:], raw(src[:i]))
			if n < 0 {
				return fmt.Errorf("the string at character %d does not end", i+1)
			}
			i += n
			continue
		}
		i++
	}
	if len(open) > 0 {
		return fmt.Errorf("%d brackets are not closed", len(open))
	}
	return nil
}

var opens = map[byte]byte{')': '(', ']': '[', '}': '{'}

// lineLen returns the length of a comment, without its end of line.
func lineLen(s string) int {
	if n := strings.IndexAny(s, "\r\n"); n >= 0 {
		return n
	}
	return len(s)
}

// raw reports whether the string that starts behind s knows no escapes: its
// prefix is r, or r with b.
func raw(s string) bool {
	n := len(s)
	for n > 0 && strings.IndexByte("rRbB", s[n-1]) >= 0 {
		n--
	}
	return strings.ContainsAny(s[n:], "rR")
}

// stringLen returns the length of the string literal that s starts with,
// quotes included, or -1.
func stringLen(s string, raw bool) int {
	quote := s[:1]
	if strings.HasPrefix(s, strings.Repeat(quote, 3)) {
		quote = s[:3]
	}
	for i := len(quote); i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], quote):
			return i + len(quote)
		case s[i] == '\\' && !raw:
			i++
		case len(quote) == 1 && (s[i] == '\n' || s[i] == '\r'):
			return -1
		}
	}
	return -1
}
