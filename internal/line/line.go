// Package line shows texts that others have written, such as reasons and names,
// within a line: they begin no line of their own and steer no terminal, wherever
// what is printed ends up.
package line

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/millrace/millrace"
)

// Of returns a text with the characters that would end its line, move a cursor or
// turn the direction of text by their number, and a mark in place of what is no
// UTF-8, which some terminals obey too.
func Of(text string) string { return Keep(strings.ToValidUTF8(text, "\ufffd"), "") }

// Keep does to a text of UTF-8, or a part of one, what Of does, and leaves the
// characters of keep as they are, such as the end of a line.
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

// steers reports whether a rune ends a line, or steers a terminal: Unicode has two ends
// of lines that are no control characters.
func steers(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Check refuses a text, of a field, that is to stand in a line and cannot as it is.
func Check(field, text string) error {
	if Of(text) != text {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field, Detail: fmt.Sprintf("%.200q has control characters, or more than a line", text), WayOut: "write one line of plain text"}
	}
	return nil
}
