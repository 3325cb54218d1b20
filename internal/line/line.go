// Package line makes texts that others wrote, such as reasons and names, safe to print
// within a line. They cannot begin a line of their own, and cannot control the terminal
// that shows them.
package line

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/millrace/millrace"
)

// Of returns a text in which the characters that would end its line, move a cursor or turn
// the direction of text are replaced by their numbers, such as \u000a. Bytes that are no
// UTF-8, which some terminals obey too, are replaced by U+FFFD.
func Of(text string) string { return Keep(strings.ToValidUTF8(text, "\ufffd"), "") }

// Keep does what Of does to a text that is UTF-8, but leaves the characters of keep as they
// are, such as the end of a line.
func Keep(text, keep string) string {
	escaped := func(r rune) bool { return steers(r) && !strings.ContainsRune(keep, r) }
	if strings.IndexFunc(text, escaped) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if escaped(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// steers reports whether a rune ends a line or controls a terminal. U+2028 and U+2029 end
// lines and are no control characters.
func steers(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Check refuses the text of a field if it cannot be printed within a line as it is. The
// error is a [*millrace.Error].
func Check(field, text string) error {
	if Of(text) != text {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: fmt.Sprintf("%.200q has control characters, or more than a line", text), WayOut: "write one line of plain text"}
	}
	return nil
}
